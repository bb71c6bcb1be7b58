//! The workers of one attempt, from their start to the last process gone: what they say comes out as messages.

use std::io::{BufRead, BufReader, Read};
use std::process::ExitStatus;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use lambert_config::control::{Directive, TOKEN_VARIABLE, URL_VARIABLE};
use tempfile::TempDir;

use super::control::{ControlError, ControlServer};
use super::mpirun::{self, Start};
use super::order::Order;
use super::processes::{self, ProcessError, Tree};
use super::session;
use super::watch::Message;

/// How long workers that are asked to end may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long what they said last may take to arrive.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// Why workers cannot be started or ended.
#[derive(Debug, thiserror::Error)]
pub enum WorkersError {
    /// No control channel.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// A process.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// No folder for mpirun.
    #[error("cannot make a folder for mpirun's session files")]
    Session(#[source] std::io::Error),
    /// No thread.
    #[error("cannot start a thread that reads what the workers print")]
    Reader(#[source] std::io::Error),
}

/// Workers under way. Dropping them ends them.
#[derive(Debug)]
pub struct Workers {
    tree: Tree,
    server: Option<ControlServer>,
    inbox: Receiver<Message>,
    /// When they were started.
    pub started: Instant,
    _session: Option<TempDir>,
}

impl Workers {
    /// Starts all ranks of `order` as `attempt`. Call this on the main thread, whose end is theirs.
    pub fn start(order: &Order, attempt: u32) -> Result<Self, WorkersError> {
        let cluster = &order.config.cluster;
        let hosts = mpirun::hosts(&cluster.mpirun_arguments, std::env::var("SLURM_JOB_NUM_NODES").ok().as_deref());
        let session = session::folder(hosts).map_err(WorkersError::Session)?;
        let line = mpirun::command(&Start {
            cluster,
            worker: &order.worker,
            run: order.store.url(),
            attempt,
            root: rustix::process::geteuid().is_root(),
            session: session.as_ref().map(TempDir::path),
        });
        let (messages, inbox) = channel();
        let server = ControlServer::start(hosts, &processes::host(), cluster.ranks, messages.clone())?;
        let environment = [(URL_VARIABLE, server.url()), (TOKEN_VARIABLE, server.token())];
        tracing::debug!("starting {line:?}");
        let mut tree = Tree::start(&line, &environment)?;
        let outputs = [
            tree.root.stdout.take().map(|output| Box::new(output) as Box<dyn Read + Send>),
            tree.root.stderr.take().map(|output| Box::new(output) as Box<dyn Read + Send>),
        ];
        let workers = Self { tree, server: Some(server), inbox, started: Instant::now(), _session: session };
        for output in outputs.into_iter().flatten() {
            read_lines(output, messages.clone())?;
        }
        Ok(workers)
    }

    /// The next message, if one comes within `patience`.
    pub fn next(&self, patience: Duration) -> Option<Message> {
        match self.inbox.recv_timeout(patience) {
            Ok(message) => Some(message),
            Err(RecvTimeoutError::Timeout) => None,
            // Cannot be while the server has its sender; without one there is nothing to wait for.
            Err(RecvTimeoutError::Disconnected) => None,
        }
    }

    /// How mpirun, or the only worker, ended, if it has.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>, ProcessError> {
        self.tree.ended()
    }

    /// What the ranks are told from now on.
    pub fn direct(&self, directive: Directive) {
        if let Some(server) = &self.server {
            server.direct(directive);
        }
    }

    /// Ends what is left of them; returns when no process is, with the messages that were still on their way.
    pub fn end(&mut self) -> Result<Vec<Message>, ProcessError> {
        self.tree.end(PATIENCE)?;
        self.server = None;
        // The last senders are the readers of the output, which end with it.
        let deadline = Instant::now() + LAST_WORDS;
        let mut last = Vec::new();
        while let Ok(message) = self.inbox.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            last.push(message);
        }
        Ok(last)
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        if let Err(error) = self.tree.end(PATIENCE) {
            tracing::error!("workers may be left over: {error}");
        }
    }
}

fn read_lines(output: Box<dyn Read + Send>, messages: Sender<Message>) -> Result<(), WorkersError> {
    let read = move || {
        let mut output = BufReader::new(output);
        let mut line = Vec::new();
        while output.read_until(b'\n', &mut line).is_ok_and(|bytes| bytes > 0) {
            let text = String::from_utf8_lossy(&line).trim_end().to_owned();
            line.clear();
            if messages.send(Message::Line(text)).is_err() {
                return;
            }
        }
    };
    std::thread::Builder::new().name("output".into()).spawn(read).map(drop).map_err(WorkersError::Reader)
}
