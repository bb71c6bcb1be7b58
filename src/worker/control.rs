//! Worker end of the control channel. A thread reports the progress of the training thread to the coordinator, resends
//! unacknowledged messages, and keeps the last command of the coordinator.

use std::io::ErrorKind;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};
use lambert_collective::launchers::Launcher;
use lambert_config::exit;
pub use lambert_control::WorkerPhase;
use lambert_control::{
    CommandSlot, MAX_REPORT_BYTES, Message, Outbox, REPORT_PATH, ReportReply, ReportSigner, SIGNATURE_HEADER,
    SigningKey, TOKEN_VARIABLE, URL_VARIABLE, Versions, WorkerReport,
};
use lambert_control::{Directive, EventKind, FailureKind, GpuSample, GpuStatus, StepRecord};
use rustix::process::Pid;
use signal_hook::consts::SIGTERM;
use signal_hook::iterator::SignalsInfo;
use signal_hook::iterator::exfiltrator::WithOrigin;

use crate::worker::leave;

/// Interval of heartbeats.
const HEARTBEAT: Duration = Duration::from_secs(2);
/// Delay before an unanswered report is resent.
const RESEND_DELAY: Duration = Duration::from_millis(200);
/// Timeout of one report, from connection to reply.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// Time after which the coordinator counts as lost if all connections are refused. (A broken network link causes
/// timeouts, not refused connections.)
const REFUSED_TIMEOUT: Duration = Duration::from_secs(5);
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
    pub fn fail(&self, message: String, kind: FailureKind) {
        let mut state = self.shared.state();
        if !std::mem::replace(&mut state.has_failed, true) {
            state.send(Message::Event(EventKind::Failed { message, kind }));
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

struct Reporter {
    agent: ureq::Agent,
    url: String,
    signer: ReportSigner,
    rank: usize,
    host: String,
    shared: Arc<SharedControl>,
    /// Versions of this rank; `None` after the coordinator has received the versions.
    versions: Option<Versions>,
    heard: Instant,
    /// Time without a reply after which the coordinator counts as lost.
    coordinator_timeout: Duration,
    /// Start of the current period of refused connections.
    refused: Option<Instant>,
    /// True if SIGTERM was received. Reports include this flag.
    terminated: Arc<AtomicBool>,
}

/// Handles SIGTERM from now on. SIGTERM sets the returned flag instead of ending the process. A service manager sends
/// SIGTERM to all processes at once. On preemption, a batch system sends SIGTERM to the ranks first. The coordinator
/// then makes all ranks save after the same step. SIGTERM from the launcher still ends this rank.
fn flag_on_sigterm() -> Arc<AtomicBool> {
    let terminated = Arc::new(AtomicBool::new(false));
    let launcher = lambert_collective::world::detect().map(|world| world.launcher);
    let parent = rustix::process::getppid().map_or(0, Pid::as_raw_pid);
    let flag = Arc::clone(&terminated);
    let listen = move |mut signals: SignalsInfo<WithOrigin>| {
        for signal in signals.forever() {
            match signal.process {
                Some(sender) if sigterm_ends_process(launcher, sender.pid, parent) => {
                    let _ = signal_hook::low_level::emulate_default_handler(SIGTERM);
                }
                _ => flag.store(true, Ordering::Relaxed),
            }
        }
    };
    let start = |signals| std::thread::Builder::new().name("sigterm".to_owned()).spawn(move || listen(signals));
    if let Err(error) = SignalsInfo::new([SIGTERM]).and_then(start) {
        tracing::warn!("cannot handle SIGTERM, which will end this rank: {error}");
    }
    terminated
}

/// True if SIGTERM from process `sender` ends this process. SIGTERM ends this process if the sender is the parent or
/// another process of the launcher. Some launchers forward the SIGTERM of the batch system. For these launchers the
/// result is false, because the two signals cannot be distinguished.
fn sigterm_ends_process(launcher: Option<&Launcher>, sender: i32, parent: i32) -> bool {
    let Some(launcher) = launcher else { return sender == parent };
    let name = std::fs::read_to_string(format!("/proc/{sender}/comm")).unwrap_or_default();
    !launcher.passes_on_sigterm && (sender == parent || launcher.processes.contains(&name.trim()))
}

impl Reporter {
    fn new(
        rank: usize,
        url: &str,
        signer: ReportSigner,
        shared: Arc<SharedControl>,
        versions: Versions,
        coordinator_timeout: Duration,
    ) -> Self {
        // Ignore the proxies of the environment, which are for external hosts.
        let agent = ureq::Agent::config_builder().timeout_global(Some(REQUEST_TIMEOUT)).proxy(None).build().new_agent();
        let host = lambert_store::host::name();
        let url = format!("{url}{REPORT_PATH}");
        let (versions, heard) = (Some(versions), Instant::now());
        let terminated = flag_on_sigterm();
        Self { agent, url, signer, rank, host, shared, versions, heard, coordinator_timeout, refused: None, terminated }
    }

    /// Sends reports until the channel is closed and all messages are acknowledged.
    fn serve(&mut self, woken: &Receiver<()>) {
        loop {
            let answered = self.report();
            let (pause, begun) = (if answered { HEARTBEAT } else { RESEND_DELAY }, Instant::now());
            let ended = matches!(woken.recv_timeout(pause), Err(RecvTimeoutError::Disconnected));
            self.exclude_suspension(pause, begun.elapsed());
            if ended && self.shared.state().outbox.is_empty() {
                return;
            }
            if ended && !answered {
                std::thread::sleep(RESEND_DELAY);
            }
        }
    }

    /// Excludes the time for which this process was suspended, for example by Slurm, during a pause of `planned` that
    /// lasted `actual`. This time is neither silence of the coordinator nor part of the phase. The server may have
    /// closed the connection meanwhile, so that the next report fails although the coordinator is there.
    fn exclude_suspension(&mut self, planned: Duration, actual: Duration) {
        let late = actual.saturating_sub(planned);
        self.heard += late;
        self.refused = self.refused.map(|since| since + late);
        let mut state = self.shared.state();
        state.since = (state.since + late).min(Instant::now());
    }

    /// Sends a report. Returns true if it was answered.
    fn report(&mut self) -> bool {
        let (report, begun) = (self.next_report(), Instant::now());
        match self.send(&report) {
            Ok(answer) => self.take(answer),
            Err(error) => {
                // This process was suspended during the request (for example by Slurm), so the
                // missing reply does not count.
                if begun.elapsed() > 2 * REQUEST_TIMEOUT {
                    (self.heard, self.refused) = (Instant::now(), None);
                }
                self.handle_silence(&error);
                return false;
            }
        }
        true
    }

    /// Sends a report and verifies the signature of the reply. A reply without a valid signature counts as no reply.
    fn send(&mut self, report: &WorkerReport) -> Result<ReportReply, ureq::Error> {
        let body = serde_json::to_vec(report).map_err(ureq::Error::Json)?;
        let request = self.agent.post(&self.url).header("Authorization", self.signer.sign(&body));
        let mut answer = request.content_type("application/json").send(&body)?;
        let text = answer.body_mut().with_config().limit(MAX_REPORT_BYTES as u64).read_to_vec()?;
        let signature =
            answer.headers().get(SIGNATURE_HEADER).and_then(|value| value.to_str().ok()).unwrap_or_default();
        if !self.signer.verify_reply(&text, signature) {
            return Err(ureq::Error::Other("the reply is not signed with the secret of this attempt".into()));
        }
        serde_json::from_slice(&text).map_err(ureq::Error::Json)
    }

    /// Handles an unanswered report. Exits if the coordinator counts as lost.
    fn handle_silence(&mut self, error: &ureq::Error) {
        let is_refused = matches!(error, ureq::Error::Io(error) if error.kind() == ErrorKind::ConnectionRefused);
        // True if the server rejects the path or the signature of reports, and has never given a valid reply.
        let is_foreign = matches!(error, ureq::Error::StatusCode(401 | 404)) && self.versions.is_some();
        self.refused = (is_refused || is_foreign).then(|| self.refused.unwrap_or_else(Instant::now));
        let is_over = self.refused.is_some_and(|since| since.elapsed() > REFUSED_TIMEOUT);
        if is_foreign && is_over {
            let url = &self.url;
            tracing::error!(
                "{url} rejects this rank's reports ({error}): the coordinator has another version; exiting"
            );
            leave::exit_now(exit::USAGE);
        }
        let silent = self.heard.elapsed();
        if silent > self.coordinator_timeout || is_over {
            tracing::error!("no reply from the coordinator for {} s ({error}); exiting", silent.as_secs());
            // Do not join the other threads. They compute, or they wait in MPI for ranks that exit in the same way.
            leave::exit_now(exit::UNSUPERVISED);
        }
        tracing::debug!(url = %self.url, rank = self.rank, "the coordinator does not answer: {error}");
    }

    fn next_report(&self) -> WorkerReport {
        let state = self.shared.state();
        WorkerReport {
            rank: self.rank,
            pid: std::process::id(),
            host: self.host.clone(),
            step: state.step,
            phase: state.phase,
            seconds_in_phase: state.since.elapsed().as_secs_f64(),
            has_received_sigterm: self.terminated.load(Ordering::Relaxed),
            acknowledged_command: state.commands.acknowledged(),
            gpu: state.gpu.clone().map(Box::new),
            versions: self.versions.clone(),
            messages: state.outbox.batch(),
        }
    }

    fn take(&mut self, answer: ReportReply) {
        if self.versions.is_some() {
            tracing::debug!(url = %self.url, rank = self.rank, "the coordinator answers");
        }
        (self.heard, self.refused, self.versions) = (Instant::now(), None, None);
        let mut state = self.shared.state();
        state.outbox.acknowledge(answer.acknowledged);
        self.shared.acknowledged.notify_all();
        answer.command.into_iter().for_each(|command| state.commands.receive(command));
    }
}

#[cfg(test)]
mod tests;
