//! The worker's end of the control channel: a thread that reports to the coordinator what the training thread does, repeats
//! what was not acknowledged, and keeps the coordinator's last order.

use std::io::ErrorKind;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};
use lambert_config::control::{Directive, EventKind, StepRecord};
use lambert_config::exit;
pub use lambert_control::Phase;
use lambert_control::{Answer, OrderSlot, Outbox, REPORT_PATH, Report, Saying, TOKEN_VARIABLE, URL_VARIABLE, Versions};
use rustix::process::Pid;
use signal_hook::consts::SIGTERM;
use signal_hook::iterator::SignalsInfo;
use signal_hook::iterator::exfiltrator::WithOrigin;

/// A rank tells that it is alive at least this often.
const HEARTBEAT: Duration = Duration::from_secs(2);
/// A report that was not answered is repeated after this long.
const AGAIN: Duration = Duration::from_millis(200);
/// One report, from the connection to the answer.
const REQUEST: Duration = Duration::from_secs(5);
/// A coordinator that has not answered for this long is gone, and the worker ends.
const PATIENCE: Duration = Duration::from_secs(45);
/// The same where its host says all that time that nobody listens: a link that is cut says nothing.
const REFUSED: Duration = Duration::from_secs(5);

/// The way to the coordinator, or to nobody where the worker was started by hand.
pub struct Control {
    shared: Arc<Shared>,
    wake: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    state: Mutex<State>,
}

/// What the training thread and the reporting thread know of each other.
struct State {
    step: u64,
    phase: Phase,
    /// Since when it is in the phase, or the last step is finished.
    since: Instant,
    outbox: Outbox,
    orders: OrderSlot,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Control {
    /// Connects to the coordinator that the environment names.
    pub fn connect(rank: usize, versions: Versions) -> Self {
        let (step, phase, since) = (0, Phase::Join, Instant::now());
        let (outbox, orders) = (Outbox::default(), OrderSlot::default());
        let shared = Arc::new(Shared { state: Mutex::new(State { step, phase, since, outbox, orders }) });
        let (Ok(url), Ok(token)) = (std::env::var(URL_VARIABLE), std::env::var(TOKEN_VARIABLE)) else {
            return Self { shared, wake: None, thread: None };
        };
        let (wake, woken) = crossbeam_channel::bounded(1);
        let mut post = Post::new(rank, &url, &token, Arc::clone(&shared), versions);
        let thread = std::thread::Builder::new().name("control".to_owned()).spawn(move || post.serve(&woken)).ok();
        Self { shared, wake: Some(wake), thread }
    }

    /// Whether there is a coordinator.
    pub fn is_connected(&self) -> bool {
        self.wake.is_some()
    }

    /// The training thread goes on to another phase.
    pub fn phase(&self, phase: Phase) {
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
            state.outbox.push(Saying::Record(Box::new(record)));
        }
        drop(state);
        self.wake();
    }

    /// Reports that something happened.
    pub fn event(&self, kind: EventKind) {
        if self.is_connected() {
            self.shared.state().outbox.push(Saying::Event(kind));
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

    /// What was taken could not be followed: it is taken again after the next step.
    pub fn put_back(&self, directive: Directive) {
        self.shared.state().orders.put_back(directive);
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
    authorization: String,
    rank: usize,
    host: String,
    shared: Arc<Shared>,
    /// What this rank runs, until the coordinator knows.
    versions: Option<Versions>,
    heard: Instant,
    /// Since when connections have been refused without exception.
    refused: Option<Instant>,
    /// Whether this process has had SIGTERM, where that is reported.
    terminated: Arc<AtomicBool>,
}

/// Whether SIGTERM comes, from now on. It does not end this process: a service manager sends it to all processes at once, and
/// Slurm to the ranks, and at first to them only, when a job has to make room for another. The coordinator then has all ranks save
/// after the same step. One that the launcher sends ends this rank, but under srun, which passes Slurm's on.
fn termination() -> Arc<AtomicBool> {
    let terminated = Arc::new(AtomicBool::new(false));
    let is_srun = lambert_collective::world::detect().is_some_and(|world| world.launcher == "srun");
    let parent = rustix::process::getppid().map_or(0, Pid::as_raw_pid);
    let flag = Arc::clone(&terminated);
    let listen = move |mut signals: SignalsInfo<WithOrigin>| {
        for signal in signals.forever() {
            match signal.process {
                Some(sender) if !is_srun && is_launcher(sender.pid, parent) => {
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

/// Whether the process `pid` is what has started this one: its parent, or Open MPI's launcher above a program between them.
fn is_launcher(pid: i32, parent: i32) -> bool {
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    pid == parent || ["mpirun", "orterun", "orted", "prterun", "prted"].contains(&name.trim())
}

impl Post {
    fn new(rank: usize, url: &str, token: &str, shared: Arc<Shared>, versions: Versions) -> Self {
        // A proxy of the environment is for the world outside, never for the way to the coordinator.
        let agent = ureq::Agent::config_builder().timeout_global(Some(REQUEST)).proxy(None).build().new_agent();
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_owned();
        let (url, authorization) = (format!("{url}{REPORT_PATH}"), format!("Bearer {token}"));
        let (versions, heard) = (Some(versions), Instant::now());
        let terminated = termination();
        Self { agent, url, authorization, rank, host, shared, versions, heard, refused: None, terminated }
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
        let request = self.agent.post(&self.url).header("Authorization", &self.authorization);
        let answer = request.send_json(&report).and_then(|mut answer| answer.body_mut().read_json::<Answer>());
        match answer {
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

    /// It was not answered. Ends this process if the coordinator is gone.
    fn doubt(&mut self, error: &ureq::Error) {
        let is_refused = matches!(error, ureq::Error::Io(error) if error.kind() == ErrorKind::ConnectionRefused);
        self.refused = is_refused.then(|| self.refused.unwrap_or_else(Instant::now));
        let silent = self.heard.elapsed();
        if silent > PATIENCE || self.refused.is_some_and(|since| since.elapsed() > REFUSED) {
            tracing::error!("the coordinator has not answered for {} s ({error}); ending", silent.as_secs());
            // Other threads may be inside MPI, waiting for ranks that end in the same way.
            std::process::exit(exit::FAILED);
        }
        tracing::debug!("the coordinator does not answer: {error}");
    }

    fn written(&self) -> Report {
        let state = self.shared.state();
        Report {
            rank: self.rank,
            pid: std::process::id(),
            host: self.host.clone(),
            step: state.step,
            phase: state.phase,
            in_phase: state.since.elapsed().as_secs_f64(),
            terminated: self.terminated.load(Ordering::Relaxed),
            taken: state.orders.taken(),
            versions: self.versions.clone(),
            said: state.outbox.batch(),
        }
    }

    fn take(&mut self, answer: Answer) {
        (self.heard, self.refused, self.versions) = (Instant::now(), None, None);
        let mut state = self.shared.state();
        state.outbox.acknowledge(answer.acknowledged);
        answer.order.into_iter().for_each(|order| state.orders.hear(order));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader, Read, Write};
    use std::net::{TcpListener, TcpStream};

    /// Reads a report; `None` where the connection has ended.
    fn read(stream: &TcpStream) -> Option<Report> {
        let mut lines = BufReader::new(stream);
        let mut length = 0;
        loop {
            let mut line = String::new();
            if lines.read_line(&mut line).ok()? == 0 {
                return None;
            }
            if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().unwrap();
            }
            if line == "\r\n" {
                let mut body = vec![0; length];
                lines.read_exact(&mut body).ok()?;
                return Some(serde_json::from_slice(&body).unwrap());
            }
        }
    }

    fn answer(mut stream: &TcpStream, answer: &Answer) {
        let body = serde_json::to_string(answer).unwrap();
        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", body.len());
        stream.write_all((head + &body).as_bytes()).unwrap();
    }

    /// Answers that are lost, connections that break: what was said last arrives, and the rank waits until it has.
    #[test]
    fn the_last_word_arrives_however_often_it_is_lost() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let shared = Arc::new(Shared {
            state: Mutex::new(State {
                step: 0,
                phase: Phase::Stop,
                since: Instant::now(),
                outbox: Outbox::default(),
                orders: OrderSlot::default(),
            }),
        });
        let (wake, woken) = crossbeam_channel::bounded(1);
        let mut post = Post::new(0, &url, "secret", Arc::clone(&shared), Versions::default());
        let thread = std::thread::spawn(move || post.serve(&woken));
        let mut control = Control { shared, wake: Some(wake), thread: Some(thread) };
        control.event(EventKind::Finished { step: 9, stopped: true });
        let coordinator = std::thread::spawn(move || {
            let (mut lost, mut inbox) = (0, lambert_control::Inbox::default());
            loop {
                let (stream, _) = listener.accept().unwrap();
                let Some(report) = read(&stream) else { continue };
                if !report.said.is_empty() && lost < 3 {
                    // The report has arrived, or not; its answer never does.
                    lost += 1;
                    continue;
                }
                let said = inbox.take(report.said);
                answer(&stream, &Answer { acknowledged: inbox.acknowledged(), order: None });
                if !said.is_empty() {
                    return said;
                }
            }
        });
        control.finish();
        assert_eq!(coordinator.join().unwrap(), [Saying::Event(EventKind::Finished { step: 9, stopped: true })]);
    }
}
