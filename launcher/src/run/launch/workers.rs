//! The processes of one attempt, from start to exit. Their output and their exit become events.

use std::io::Read;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use lambert_config::RunConfig;
use lambert_control::Directive;
use lambert_control::{TOKEN_VARIABLE, URL_VARIABLE};

use super::lines::{Piece, each_piece};
use super::processes::{self, ProcessError, ProcessTree};
use super::scratch::{ScratchDirs, ScratchError};
use super::{LaunchParams, Launcher, OutputParser, environment};
use crate::decide::{Attempt, Event, Placement, WorkerEvent};
use crate::logs;
use crate::run::control::address::AddressError;
use crate::run::control::{ControlError, ControlServer};
use crate::run::spec::RunSpec;
use crate::slurm::nodes;

/// Time limit for reading the remaining output after the exit.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);

/// Workers cannot be started or terminated.
#[derive(Debug, thiserror::Error)]
pub enum WorkersError {
    /// The control server cannot start.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// A scratch directory cannot be created.
    #[error(transparent)]
    ScratchDirs(#[from] ScratchError),
    /// A process operation failed.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// The working directory no longer exists.
    #[error("the working directory was deleted; start lambert in another one")]
    WorkingDirectoryDeleted(#[source] std::io::Error),
    /// A thread cannot start.
    #[error("cannot start a thread to read the output of the workers")]
    Reader(#[source] std::io::Error),
}

impl WorkersError {
    /// True for an error of the user, which a retry cannot fix.
    pub fn is_usage(&self) -> bool {
        matches!(
            self,
            Self::WorkingDirectoryDeleted(_) | Self::Control(ControlError::Address(AddressError::Interface { .. }))
        )
    }
}

/// The running workers of an attempt. Terminates them when dropped.
#[derive(Debug)]
pub struct Workers {
    number: u32,
    tree: ProcessTree,
    server: Option<ControlServer>,
    events: Sender<Event>,
    exited: bool,
    /// Channel that is disconnected once all output has been read.
    readers: Receiver<()>,
    scratch: ScratchDirs,
}

/// Returns the CPUs of each rank in the current Slurm job.
fn cpus_per_rank(config: &RunConfig, attempt: &Attempt) -> usize {
    let nodes = match &attempt.placement {
        Placement::Allocation(Some(left_out)) => Some(left_out.used),
        _ => None,
    };
    let gpus = config.slurm.gpus_per_node.max(nodes::gpus());
    config.cpus_per_rank(gpus, || nodes::cpus_per_rank(attempt.world, nodes))
}

/// Scratch directories of workers that are not started yet. They are removed if the start fails.
struct UnusedScratch(Option<ScratchDirs>);

impl UnusedScratch {
    /// Leaves the directories to the workers.
    fn keep(mut self) {
        self.0 = None;
    }
}

impl Drop for UnusedScratch {
    fn drop(&mut self) {
        if let Some(scratch) = &self.0 {
            scratch.remove();
        }
    }
}

impl Workers {
    /// Starts all ranks of `attempt`. Call this function on the main thread, because the kernel ends the ranks when the
    /// thread that started them exits.
    pub fn start(
        spec: &RunSpec,
        launcher: &dyn Launcher,
        attempt: &Attempt,
        events: Sender<Event>,
    ) -> Result<Self, WorkersError> {
        // A program that starts in a removed directory fails with a confusing message.
        std::env::current_dir().map_err(WorkersError::WorkingDirectoryDeleted)?;
        let cluster = &spec.config.cluster;
        let scratch = ScratchDirs::new(spec.store.url(), attempt.number);
        let is_set = |name: &str| std::env::var_os(name).is_some();
        let ras = environment::ras_address(&spec.config.device, (spec.store.url(), attempt.number), is_set);
        let mut for_gpus = environment::for_gpus(&spec.config.device, is_set);
        for_gpus.extend(ras.as_deref().map(|address| (environment::RAS_ADDRESS, address)));
        ScratchDirs::create(&launcher.folders(&scratch))?;
        let unused = UnusedScratch(Some(scratch.clone()));
        let present = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
        let present = present.chain(for_gpus.iter().map(|(name, _)| (*name).to_owned()));
        let traced = spec.config.metrics.traced();
        let line = launcher.command(&LaunchParams {
            attempt,
            cluster,
            cpus_per_rank: cpus_per_rank(&spec.config, attempt),
            worker: &spec.worker,
            run: spec.store.url(),
            variables: &environment::passed_on(present, &cluster.environment),
            scratch: &scratch,
            logs: logs::folder(cluster, spec.store.url(), attempt.number).as_deref(),
            traced: traced.as_ref(),
        });
        let server = ControlServer::start(&cluster.control, attempt, events.clone())?;
        // The receiver may already be dropped.
        let listening =
            WorkerEvent::Listening { address: server.address().to_owned(), is_loopback: server.is_on_loopback() };
        let _ = events.send(Event::Worker(attempt.number, listening));
        let mut environment = vec![(URL_VARIABLE, server.url()), (TOKEN_VARIABLE, server.secret())];
        environment.extend(for_gpus);
        tracing::debug!("starting {line:?}");
        let mut tree = ProcessTree::start(&line, &environment, launcher.exit_signal())?;
        let outputs = [
            tree.root.stdout.take().map(|output| Box::new(output) as Box<dyn Read + Send>),
            tree.root.stderr.take().map(|output| Box::new(output) as Box<dyn Read + Send>),
        ];
        let (alive, readers) = channel();
        let (number, server) = (attempt.number, Some(server));
        unused.keep();
        let workers = Self { number, tree, server, events, exited: false, readers, scratch };
        for output in outputs.into_iter().flatten() {
            workers.read(output, launcher.parser(), alive.clone())?;
        }
        Ok(workers)
    }

    fn read(
        &self,
        output: Box<dyn Read + Send>,
        mut parser: Box<dyn OutputParser>,
        alive: Sender<()>,
    ) -> Result<(), WorkersError> {
        let (number, events) = (self.number, self.events.clone());
        let read = move || {
            let _alive = alive;
            // The receiver may already be dropped.
            let send_all = |parsed: Vec<WorkerEvent>| {
                parsed.into_iter().for_each(|event| drop(events.send(Event::Worker(number, event))));
            };
            each_piece(output, |piece| match piece {
                Piece::Start(text) => send_all(parser.line(text)),
                Piece::Continuation(text) => send_all(parser.continuation(text)),
            });
            send_all(parser.end());
        };
        std::thread::Builder::new().name("output".into()).spawn(read).map(drop).map_err(WorkersError::Reader)
    }

    /// Sends a command to the ranks.
    pub fn send_command(&self, directive: Directive) {
        if let Some(server) = &self.server {
            server.send_command(directive);
        }
    }

    /// Number of requests refused by the control server.
    pub fn refused(&self) -> u64 {
        self.server.as_ref().map_or(0, ControlServer::refused)
    }

    /// Starts terminating the processes, without waiting for them.
    pub fn end(&mut self) -> Result<(), ProcessError> {
        self.tree.end()
    }

    /// Sends events for exited processes. Returns true once the termination is complete and the last event has been
    /// sent.
    pub fn poll(&mut self) -> Result<bool, ProcessError> {
        if !self.exited
            && let Some(status) = self.tree.ended()?
        {
            self.exited = true;
            self.send_event(WorkerEvent::Exited(processes::exit(status)));
        }
        let Some(survivors) = self.tree.poll_end()? else { return Ok(false) };
        self.drain_output();
        self.send_event(WorkerEvent::Gone(survivors));
        Ok(true)
    }

    /// Waits up to [`DRAIN_TIMEOUT`] for the remaining output, then stops the control server.
    fn drain_output(&mut self) {
        let deadline = Instant::now() + DRAIN_TIMEOUT;
        let remaining = || deadline.saturating_duration_since(Instant::now());
        while !matches!(self.readers.recv_timeout(remaining()), Err(RecvTimeoutError::Disconnected)) {
            if remaining().is_zero() {
                break;
            }
        }
        self.server = None;
    }

    fn send_event(&self, event: WorkerEvent) {
        let _ = self.events.send(Event::Worker(self.number, event));
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        match self.tree.end_now() {
            Ok(left) if left.is_empty() => {}
            Ok(left) => tracing::error!("cannot kill processes: {}", left.join(", ")),
            Err(error) => tracing::error!("workers may still be running: {error}"),
        }
        self.scratch.remove();
    }
}
