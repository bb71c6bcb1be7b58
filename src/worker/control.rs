//! The worker's end of the control channel: a thread that reports to the coordinator what the training thread does, repeats
//! what was not acknowledged, and keeps the coordinator's last order.

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
use lambert_control::{Directive, EventKind, StepRecord};
use rustix::process::Pid;
use signal_hook::consts::SIGTERM;
use signal_hook::iterator::SignalsInfo;
use signal_hook::iterator::exfiltrator::WithOrigin;

use crate::worker::leave;

/// A rank tells that it is alive at least this often.
const HEARTBEAT: Duration = Duration::from_secs(2);
/// A report that was not answered is repeated after this long.
const AGAIN: Duration = Duration::from_millis(200);
/// One report, from the connection to the answer.
const REQUEST: Duration = Duration::from_secs(5);
/// The same where its host says all that time that nobody listens: a link that is cut says nothing.
const REFUSED: Duration = Duration::from_secs(5);
/// The longest that a rank waits for acknowledgements before it leaves MPI. Its last reports are repeated after that, too.
const FLUSH: Duration = Duration::from_secs(5);

/// The way to the coordinator, or to nobody where the worker was started by hand.
pub struct Control {
    shared: Arc<Shared>,
    wake: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    state: Mutex<State>,
    /// Signalled when the coordinator has acknowledged something.
    acknowledged: Condvar,
}

/// What the training thread and the reporting thread know of each other.
struct State {
    step: u64,
    phase: WorkerPhase,
    /// Since when it is in the phase, or the last step is finished.
    since: Instant,
    outbox: Outbox,
    orders: CommandSlot,
}

impl Shared {
    fn new(phase: WorkerPhase) -> Arc<Self> {
        let (outbox, orders) = (Outbox::default(), CommandSlot::default());
        let state = State { step: 0, phase, since: Instant::now(), outbox, orders };
        Arc::new(Self { state: Mutex::new(state), acknowledged: Condvar::new() })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Control {
    /// Connects to the coordinator of attempt `attempt`, which the environment names. If that has not answered for `patience`, it
    /// is gone, and this process ends.
    pub fn connect(rank: usize, attempt: u32, versions: Versions, patience: Duration) -> Self {
        let shared = Shared::new(WorkerPhase::Join);
        let (Ok(url), Ok(secret)) = (std::env::var(URL_VARIABLE), std::env::var(TOKEN_VARIABLE)) else {
            return Self { shared, wake: None, thread: None };
        };
        let (wake, woken) = crossbeam_channel::bounded(1);
        let signer = ReportSigner::new(SigningKey::new(&secret, attempt), rank);
        let mut post = Post::new(rank, &url, signer, Arc::clone(&shared), versions, patience);
        let thread = std::thread::Builder::new().name("control".to_owned()).spawn(move || post.serve(&woken)).ok();
        Self { shared, wake: Some(wake), thread }
    }

    /// Whether there is a coordinator.
    pub fn is_connected(&self) -> bool {
        self.wake.is_some()
    }

    /// The training thread goes on to another phase.
    pub fn phase(&self, phase: WorkerPhase) {
        let mut state = self.shared.state();
        if state.phase != phase {
            (state.phase, state.since) = (phase, Instant::now());
        }
    }

    /// Reports the steps that are finished, with the last step's record (rank 0).
    pub fn step(&self, step: u64, record: Option<StepRecord>) {
        let mut state = self.shared.state();
        (state.step, state.since) = (step, Instant::now());
        if let Some(record) = record.filter(|_| self.is_connected()) {
            state.outbox.push(Message::Record(Box::new(record)));
        }
        drop(state);
        self.wake();
    }

    /// Reports that something happened.
    pub fn event(&self, kind: EventKind) {
        if self.is_connected() {
            self.shared.state().outbox.push(Message::Event(kind));
            self.wake();
        }
    }

    fn wake(&self) {
        if let Some(wake) = &self.wake {
            // A full channel wakes it, too.
            let _ = wake.try_send(());
        }
    }

    /// What the coordinator wants, once, however often it says so.
    pub fn take_directive(&self) -> Directive {
        self.shared.state().orders.take()
    }

    /// Whether the coordinator wants a checkpoint and an end, which nobody has taken yet.
    pub fn stop_is_requested(&self) -> bool {
        self.shared.state().orders.peek() == Directive::CheckpointAndStop
    }

    /// What was taken could not be followed: it is taken again after the next step.
    pub fn put_back(&self, directive: Directive) {
        self.shared.state().orders.restore(directive);
    }

    /// Waits until the coordinator has acknowledged everything that was reported, 5 s at most.
    pub fn flush(&self) {
        self.wake();
        let is_waited_for = |state: &mut State| self.is_connected() && !state.outbox.is_empty();
        drop(self.shared.acknowledged.wait_timeout_while(self.shared.state(), FLUSH, is_waited_for));
    }

    /// Waits until the coordinator has heard everything.
    fn finish(&mut self) {
        self.wake = None;
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

struct Post {
    agent: ureq::Agent,
    url: String,
    signer: ReportSigner,
    rank: usize,
    host: String,
    shared: Arc<Shared>,
    /// What this rank runs, until the coordinator knows.
    versions: Option<Versions>,
    heard: Instant,
    /// A coordinator that has not answered for this long is gone.
    patience: Duration,
    /// Since when connections have been refused without exception.
    refused: Option<Instant>,
    /// Whether this process has had SIGTERM, where that is reported.
    terminated: Arc<AtomicBool>,
}

/// Whether SIGTERM has come, from now on. It does not end this process: a service manager sends it to all processes at once, and a
/// batch system to the ranks, and at first to them only, when a job has to make room for another. The coordinator then has all
/// ranks save after the same step. One that the launcher sends ends this rank.
fn termination() -> Arc<AtomicBool> {
    let terminated = Arc::new(AtomicBool::new(false));
    let launcher = lambert_collective::world::detect().map(|world| world.launcher);
    let parent = rustix::process::getppid().map_or(0, Pid::as_raw_pid);
    let flag = Arc::clone(&terminated);
    let listen = move |mut signals: SignalsInfo<WithOrigin>| {
        for signal in signals.forever() {
            match signal.process {
                Some(sender) if is_told_to_end(launcher, sender.pid, parent) => {
                    let _ = signal_hook::low_level::emulate_default_handler(SIGTERM);
                }
                _ => flag.store(true, Ordering::Relaxed),
            }
        }
    };
    let start = |signals| std::thread::Builder::new().name("sigterm".to_owned()).spawn(move || listen(signals));
    if let Err(error) = SignalsInfo::new([SIGTERM]).and_then(start) {
        tracing::warn!("SIGTERM will end this rank: {error}");
    }
    terminated
}

/// Whether SIGTERM from the process `sender` ends this one: it is the parent, or another process of the launcher above a program
/// between them. A launcher that passes on the batch system's is not obeyed, because the two cannot be told apart.
fn is_told_to_end(launcher: Option<&Launcher>, sender: i32, parent: i32) -> bool {
    let Some(launcher) = launcher else { return sender == parent };
    let name = std::fs::read_to_string(format!("/proc/{sender}/comm")).unwrap_or_default();
    !launcher.passes_on_sigterm && (sender == parent || launcher.processes.contains(&name.trim()))
}

impl Post {
    fn new(
        rank: usize,
        url: &str,
        signer: ReportSigner,
        shared: Arc<Shared>,
        versions: Versions,
        patience: Duration,
    ) -> Self {
        // A proxy of the environment is for the world outside, never for the way to the coordinator.
        let agent = ureq::Agent::config_builder().timeout_global(Some(REQUEST)).proxy(None).build().new_agent();
        let host = lambert_store::host::name();
        let url = format!("{url}{REPORT_PATH}");
        let (versions, heard) = (Some(versions), Instant::now());
        let terminated = termination();
        Self { agent, url, signer, rank, host, shared, versions, heard, patience, refused: None, terminated }
    }

    /// Reports until the training loop is done with it and everything was acknowledged.
    fn serve(&mut self, woken: &Receiver<()>) {
        loop {
            let answered = self.report();
            let pause = if answered { HEARTBEAT } else { AGAIN };
            let ended = matches!(woken.recv_timeout(pause), Err(RecvTimeoutError::Disconnected));
            if ended && self.shared.state().outbox.is_empty() {
                return;
            }
            if ended && !answered {
                std::thread::sleep(AGAIN);
            }
        }
    }

    /// Sends a report; whether it was answered.
    fn report(&mut self) -> bool {
        let (report, begun) = (self.written(), Instant::now());
        match self.send(&report) {
            Ok(answer) => self.take(answer),
            Err(error) => {
                // This process was stopped meanwhile (its job was suspended): the coordinator had no chance to answer.
                if begun.elapsed() > 2 * REQUEST {
                    (self.heard, self.refused) = (Instant::now(), None);
                }
                self.doubt(&error);
                return false;
            }
        }
        true
    }

    /// Sends a report, and verifies the answer: what anybody else answers is as good as no answer.
    fn send(&mut self, report: &WorkerReport) -> Result<ReportReply, ureq::Error> {
        let body = serde_json::to_vec(report).map_err(ureq::Error::Json)?;
        let request = self.agent.post(&self.url).header("Authorization", self.signer.sign(&body));
        let mut answer = request.content_type("application/json").send(&body)?;
        let text = answer.body_mut().with_config().limit(MAX_REPORT_BYTES as u64).read_to_vec()?;
        let signature =
            answer.headers().get(SIGNATURE_HEADER).and_then(|value| value.to_str().ok()).unwrap_or_default();
        if !self.signer.verify_reply(&text, signature) {
            return Err(ureq::Error::Other("the answer is not signed with the secret of this attempt".into()));
        }
        serde_json::from_slice(&text).map_err(ureq::Error::Json)
    }

    /// It was not answered. Ends this process if the coordinator is gone.
    fn doubt(&mut self, error: &ureq::Error) {
        let is_refused = matches!(error, ureq::Error::Io(error) if error.kind() == ErrorKind::ConnectionRefused);
        // It has never answered, and knows neither the path of a report nor its signature.
        let is_foreign = matches!(error, ureq::Error::StatusCode(401 | 404)) && self.versions.is_some();
        self.refused = (is_refused || is_foreign).then(|| self.refused.unwrap_or_else(Instant::now));
        let is_over = self.refused.is_some_and(|since| since.elapsed() > REFUSED);
        if is_foreign && is_over {
            let url = &self.url;
            tracing::error!(
                "{url} refuses this rank's reports ({error}): it is a coordinator of another version; ending"
            );
            leave::now(exit::USAGE);
        }
        let silent = self.heard.elapsed();
        if silent > self.patience || is_over {
            tracing::error!("the coordinator has not answered for {} s ({error}); ending", silent.as_secs());
            // Other threads compute, or wait in MPI for ranks that end in the same way.
            leave::now(exit::UNSUPERVISED);
        }
        tracing::debug!(url = %self.url, rank = self.rank, "the coordinator does not answer: {error}");
    }

    fn written(&self) -> WorkerReport {
        let state = self.shared.state();
        WorkerReport {
            rank: self.rank,
            pid: std::process::id(),
            host: self.host.clone(),
            step: state.step,
            phase: state.phase,
            seconds_in_phase: state.since.elapsed().as_secs_f64(),
            has_received_sigterm: self.terminated.load(Ordering::Relaxed),
            acknowledged_command: state.orders.acknowledged(),
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
        answer.command.into_iter().for_each(|command| state.orders.receive(command));
    }
}

#[cfg(test)]
mod tests;
