//! The worker's end of the control channel: a thread that posts progress to the coordinator and keeps its last
//! directive.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};
use lambert_config::control::{self, Answer, Directive, Event, EventKind, Progress, StepRecord};
use lambert_config::exit;

/// A rank tells that it is alive at least this often.
const HEARTBEAT: Duration = Duration::from_secs(2);
/// A coordinator that has not answered for this long is gone, and the worker ends.
const PATIENCE: Duration = Duration::from_secs(20);

/// The way to the coordinator, or to nobody where the worker was started by hand.
pub struct Control {
    messages: Option<Sender<Message>>,
    directive: Arc<AtomicU8>,
    thread: Option<JoinHandle<()>>,
}

enum Message {
    Step(u64, Option<Box<StepRecord>>),
    Event(EventKind),
}

impl Control {
    /// Connects to the coordinator that the environment names.
    pub fn connect(rank: usize) -> Self {
        let directive = Arc::new(AtomicU8::new(0));
        let (Ok(url), Ok(token)) = (std::env::var(control::URL_VARIABLE), std::env::var(control::TOKEN_VARIABLE))
        else {
            return Self { messages: None, directive, thread: None };
        };
        let (sender, messages) = crossbeam_channel::unbounded();
        let mut post = Post::new(rank, url, token, Arc::clone(&directive));
        let thread = std::thread::Builder::new().name("control".to_owned()).spawn(move || post.serve(&messages)).ok();
        Self { messages: Some(sender), directive, thread }
    }

    /// Whether there is a coordinator.
    pub fn is_connected(&self) -> bool {
        self.messages.is_some()
    }

    /// Reports the steps that are finished, with the last step's record (rank 0).
    pub fn step(&self, step: u64, record: Option<StepRecord>) {
        self.send(Message::Step(step, record.map(Box::new)));
    }

    /// Reports that something happened.
    pub fn event(&self, kind: EventKind) {
        self.send(Message::Event(kind));
    }

    fn send(&self, message: Message) {
        if let Some(messages) = &self.messages {
            let _ = messages.send(message);
        }
    }

    /// What the coordinator wants. A checkpoint without a stop is wanted once, however often that is asked.
    pub fn take_directive(&self) -> Directive {
        let (once, none) = (to_code(Directive::Checkpoint), to_code(Directive::Continue));
        let taken = self.directive.compare_exchange(once, none, Ordering::Relaxed, Ordering::Relaxed);
        from_code(taken.unwrap_or_else(|other| other))
    }
}

impl Drop for Control {
    /// Waits until everything was told.
    fn drop(&mut self) {
        self.messages = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A directive as a number, for threads to exchange.
fn to_code(directive: Directive) -> u8 {
    match directive {
        Directive::Continue => 0,
        Directive::Checkpoint => 1,
        Directive::CheckpointAndStop => 2,
    }
}

/// The directive of a number.
fn from_code(code: u8) -> Directive {
    match code {
        0 => Directive::Continue,
        1 => Directive::Checkpoint,
        _ => Directive::CheckpointAndStop,
    }
}

struct Post {
    agent: ureq::Agent,
    url: String,
    authorization: String,
    progress: Progress,
    directive: Arc<AtomicU8>,
    /// The directive of the last answer.
    told: Directive,
    heard: Instant,
}

impl Post {
    fn new(rank: usize, url: String, token: String, directive: Arc<AtomicU8>) -> Self {
        let agent = ureq::Agent::config_builder().timeout_global(Some(Duration::from_secs(5))).build().new_agent();
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_owned();
        let progress = Progress { rank, pid: std::process::id(), host, step: 0, records: Vec::new() };
        Self {
            agent,
            url,
            authorization: format!("Bearer {token}"),
            progress,
            directive,
            told: Directive::Continue,
            heard: Instant::now(),
        }
    }

    /// Posts until the training loop is done with it.
    fn serve(&mut self, messages: &Receiver<Message>) {
        self.report();
        loop {
            match messages.recv_timeout(HEARTBEAT) {
                Ok(message) => {
                    self.take(message);
                    // Steps that came in the meantime go in the same report.
                    messages.try_iter().for_each(|message| self.take(message));
                    self.report();
                }
                Err(RecvTimeoutError::Timeout) => self.report(),
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn take(&mut self, message: Message) {
        match message {
            Message::Step(step, record) => {
                self.progress.step = step;
                self.progress.records.extend(record.map(|record| *record));
            }
            Message::Event(kind) => {
                self.report();
                let event = Event { rank: self.progress.rank, kind };
                let _ = self.post(control::EVENT_PATH, &event);
            }
        }
    }

    fn report(&mut self) {
        let answer = self
            .post(control::PROGRESS_PATH, &self.progress)
            .and_then(|mut answer| answer.body_mut().read_json::<Answer>());
        match answer {
            Ok(answer) => {
                self.heard = Instant::now();
                self.progress.records.clear();
                if answer.directive != std::mem::replace(&mut self.told, answer.directive) {
                    self.directive.store(to_code(answer.directive), Ordering::Relaxed);
                }
            }
            Err(error) if self.heard.elapsed() > PATIENCE => {
                tracing::error!("the coordinator has not answered for {} s ({error}); ending", PATIENCE.as_secs());
                // Other threads may be inside MPI, waiting for ranks that end in the same way.
                std::process::exit(exit::FAILED);
            }
            Err(error) => tracing::debug!("the coordinator does not answer: {error}"),
        }
    }

    fn post(
        &self,
        path: &str,
        message: &impl serde::Serialize,
    ) -> Result<ureq::http::Response<ureq::Body>, ureq::Error> {
        let request = self.agent.post(format!("{}{path}", self.url)).header("Authorization", &self.authorization);
        request.send_json(message)
    }
}
