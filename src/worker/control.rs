//! Worker end of the control channel. A thread reports the progress of the training thread to the coordinator, resends
//! unacknowledged messages, and keeps the last command of the coordinator.
//!
//! - `reporter`: the thread that sends the reports
//! - `sigterm`: reports SIGTERM to the coordinator, or ends this rank

mod reporter;
mod sigterm;

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::Sender;
pub use lambert_control::WorkerPhase;
use lambert_control::{
    CommandSlot, Directive, EventKind, FailureKind, GpuSample, GpuStatus, Message, Outbox, ReportSigner, SigningKey,
    StepRecord, TOKEN_VARIABLE, URL_VARIABLE, Versions,
};

use reporter::Reporter;

/// Maximum time that a rank waits for acknowledgements before it leaves MPI. Unanswered reports are resent even after
/// this time.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(5);

/// Channel to the coordinator. The channel is inactive if the worker was started manually.
pub struct Control {
    shared: Arc<SharedControl>,
    thread: Option<JoinHandle<()>>,
}

struct SharedControl {
    state: Mutex<ControlState>,
    /// Signalled on acknowledgements.
    acknowledged: Condvar,
}

/// State shared by the training thread and the reporting thread.
struct ControlState {
    step: u64,
    phase: WorkerPhase,
    /// Start of the phase, or end of the last step.
    since: Instant,
    outbox: Outbox,
    commands: CommandSlot,
    /// GPU of this rank, as the GPU monitor has reported it last.
    gpu: Option<GpuStatus>,
    /// True if a failure was reported.
    has_failed: bool,
    /// Wakes the reporting thread. `None` without a coordinator, and at the end.
    wake: Option<Sender<()>>,
}

impl ControlState {
    /// Queues a message for the coordinator, if there is one.
    fn send(&mut self, message: Message) {
        if self.wake.is_some() {
            self.outbox.push(message);
            self.wake();
        }
    }

    fn wake(&self) {
        if let Some(wake) = &self.wake {
            // If the channel is full, the reporting thread wakes up anyway.
            let _ = wake.try_send(());
        }
    }
}

impl SharedControl {
    fn new(phase: WorkerPhase) -> Arc<Self> {
        let (outbox, commands) = (Outbox::default(), CommandSlot::default());
        let state = ControlState {
            step: 0,
            phase,
            since: Instant::now(),
            outbox,
            commands,
            gpu: None,
            has_failed: false,
            wake: None,
        };
        Arc::new(Self { state: Mutex::new(state), acknowledged: Condvar::new() })
    }

    fn state(&self) -> MutexGuard<'_, ControlState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Control {
    /// Connects to the coordinator of attempt `attempt`, whose address is in the environment. If the coordinator does
    /// not answer for `coordinator_timeout`, this process exits.
    pub fn connect(rank: usize, attempt: u32, versions: Versions, coordinator_timeout: Duration) -> Self {
        let shared = SharedControl::new(WorkerPhase::Join);
        let (Ok(url), Ok(secret)) = (std::env::var(URL_VARIABLE), std::env::var(TOKEN_VARIABLE)) else {
            return Self { shared, thread: None };
        };
        let (wake, woken) = crossbeam_channel::bounded(1);
        let signer = ReportSigner::new(SigningKey::new(&secret, attempt), rank);
        let mut reporter = Reporter::new(rank, &url, signer, Arc::clone(&shared), versions, coordinator_timeout);
        let thread = std::thread::Builder::new().name("control".to_owned()).spawn(move || reporter.serve(&woken)).ok();
        shared.state().wake = Some(wake);
        Self { shared, thread }
    }

    /// True if there is a coordinator.
    pub fn is_connected(&self) -> bool {
        self.shared.state().wake.is_some()
    }

    /// Sets the phase of the training thread.
    pub fn set_phase(&self, phase: WorkerPhase) {
        let mut state = self.shared.state();
        if state.phase != phase {
            (state.phase, state.since) = (phase, Instant::now());
        }
    }

    /// Reports the number of completed steps and, on rank 0, the record of the last step.
    pub fn report_step(&self, step: u64, record: Option<StepRecord>) {
        let mut state = self.shared.state();
        (state.step, state.since) = (step, Instant::now());
        match record {
            Some(record) => state.send(Message::Record(Box::new(record))),
            None => state.wake(),
        }
    }

    /// Reports the failure that ends this attempt. Later failures follow from it and are not reported.
    /// `missing` are the ranks that did not take part in a failed all-reduce.
    pub fn fail(&self, message: String, kind: FailureKind, missing: Vec<usize>) {
        let mut state = self.shared.state();
        if !std::mem::replace(&mut state.has_failed, true) {
            state.send(Message::Event(EventKind::Failed { message, kind, missing }));
        }
    }

    /// True if a failure was reported.
    pub fn has_failed(&self) -> bool {
        self.shared.state().has_failed
    }

    /// Reports an event.
    pub fn report_event(&self, kind: EventKind) {
        self.shared.state().send(Message::Event(kind));
    }

    /// Handle for the GPU monitor.
    pub fn gpu_reporter(&self) -> GpuReporter {
        GpuReporter(Arc::clone(&self.shared))
    }

    /// Last values of the GPU of this rank. All are absent without a GPU.
    pub fn gpu_sample(&self) -> GpuSample {
        self.shared.state().gpu.as_ref().map_or_else(GpuSample::default, |gpu| gpu.sample)
    }

    /// Returns the directive of the coordinator. Each directive is returned once, even if the coordinator repeats it.
    pub fn take_directive(&self) -> Directive {
        self.shared.state().commands.take()
    }

    /// True if the coordinator requested a checkpoint and a stop, and the request was not taken yet.
    pub fn stop_is_requested(&self) -> bool {
        self.shared.state().commands.peek() == Directive::CheckpointAndStop
    }

    /// Puts back a directive that could not be followed. The directive is taken again after the next step.
    pub fn put_back(&self, directive: Directive) {
        self.shared.state().commands.restore(directive);
    }

    /// Waits until all messages are acknowledged, at most 5 s.
    pub fn flush(&self) {
        let state = self.shared.state();
        state.wake();
        let is_waited_for = |state: &mut ControlState| state.wake.is_some() && !state.outbox.is_empty();
        drop(self.shared.acknowledged.wait_timeout_while(state, FLUSH_TIMEOUT, is_waited_for));
    }

    /// Ends the reporting thread, which first delivers all messages.
    fn finish(&mut self) {
        self.shared.state().wake = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        self.finish();
    }
}

/// Handle with which the GPU monitor reports. It does not keep the channel open.
pub struct GpuReporter(Arc<SharedControl>);

impl GpuReporter {
    /// Replaces the status of the GPU in reports.
    pub fn report(&self, gpu: &GpuStatus) {
        self.0.state().gpu = Some(gpu.clone());
    }

    /// Warns the user: through the coordinator, or in the log without a coordinator.
    pub fn warn(&self, message: String) {
        let mut state = self.0.state();
        match state.wake.is_some() {
            true => state.send(Message::Event(EventKind::Warning { message })),
            false => tracing::warn!("{message}"),
        }
    }
}

#[cfg(test)]
mod tests;
