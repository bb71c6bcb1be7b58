//! Concurrent runs of a sweep, each a separate `lambert run` process.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use lambert_config::exit;
use lambert_progress::signals::{ignores, leave_to_command};
use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;

use super::grid::TrialSettings;
use super::slots::RunSlot;
use crate::failure::Failure;
use crate::host::GPU_VARIABLE;
use crate::run::launch::processes::{ExitSignal, end_with_parent};
use crate::text::signal_name;

/// Polling interval of running processes.
const POLL: Duration = Duration::from_millis(100);
/// Maximum number of bytes to show from the end of the log of a failed run.
const SHOWN: u64 = 2000;

/// A run to execute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedRun {
    /// Run name.
    pub name: String,
    /// Settings that differ from the common configuration.
    pub settings: TrialSettings,
    /// Arguments of `lambert run`.
    pub arguments: Vec<String>,
}

/// A finished `lambert run` process.
#[derive(Debug)]
pub struct FinishedRun {
    /// The run.
    pub planned: PlannedRun,
    /// Exit code. `None` if a signal killed the process.
    pub code: Option<i32>,
    /// Description of the exit.
    pub how: String,
    /// End of the log.
    pub output: String,
    /// True if `lambert tune` had told the run to stop.
    pub stopping: bool,
}

/// Runs cannot be executed.
#[derive(Debug, thiserror::Error)]
pub enum RunsError {
    /// The process of a run cannot be started.
    #[error("cannot start {} for {name}", program.display())]
    Start {
        /// Path of lambert.
        program: PathBuf,
        /// Run name.
        name: String,
        /// System error.
        source: std::io::Error,
    },
    /// Another system error.
    #[error("cannot {what}")]
    System {
        /// Operation.
        what: &'static str,
        /// System error.
        source: std::io::Error,
    },
}

struct RunningProcess {
    planned: PlannedRun,
    slot: RunSlot,
    child: Child,
    log: File,
}

/// Executes `planned` runs in parallel, one per slot. Calls `started` and `ended` for each run. After a signal, no more
/// runs are started. The signal is forwarded to the running processes, which save a checkpoint and stop. These
/// processes also stop if this process is killed. Call this function on the main thread.
///
/// # Errors
/// A run cannot be started, or `ended` fails. The running processes are stopped first.
pub fn execute(
    program: &Path,
    planned: Vec<PlannedRun>,
    slots: Vec<RunSlot>,
    started: impl Fn(&PlannedRun),
    mut ended: impl FnMut(FinishedRun) -> Result<(), Failure>,
) -> Result<StopCause, Failure> {
    // If SIGHUP was ignored when this process started (nohup), it stays ignored.
    let handled = [SIGINT, SIGTERM, SIGUSR1].into_iter().chain((!ignores(SIGHUP)).then_some(SIGHUP));
    let refused = |source| Failure::failed(RunsError::System { what: "handle signals", source });
    let mut signals = Signals::new(handled).map_err(refused)?;
    leave_to_command();
    let mut waiting = planned.into_iter();
    let mut pool = RunPool { program, free: slots, running: Vec::new(), stopped: StopCause::No, failed: None };
    loop {
        signals.pending().for_each(|signal| pool.stop(signal, signal));
        while let Some(end) = pool.take_ended() {
            if let (Err(failure), None) = (ended(end), &pool.failed) {
                pool.failed = Some(failure);
            }
        }
        if pool.failed.is_some() && pool.stopped == StopCause::No {
            pool.stop(SIGTERM, SIGTERM);
        }
        while pool.has_room()
            && let Some(planned) = waiting.next()
        {
            started(&planned);
            pool.start(planned);
        }
        let over = pool.stopped != StopCause::No || waiting.len() == 0;
        if pool.running.is_empty() && over {
            return pool.failed.map_or(Ok(pool.stopped), Err);
        }
        std::thread::sleep(POLL);
    }
}

/// Running processes and free slots.
struct RunPool<'a> {
    program: &'a Path,
    free: Vec<RunSlot>,
    running: Vec<RunningProcess>,
    stopped: StopCause,
    /// Error that prevents further starts.
    failed: Option<Failure>,
}

impl RunPool<'_> {
    /// Prevents further starts because of signal `by`, and sends `signal` to the running processes.
    fn stop(&mut self, by: i32, signal: i32) {
        self.running.iter().for_each(|run| forward(&run.child, signal));
        self.stopped = StopCause::By(by);
    }

    /// Removes a finished run from the pool and returns it, if there is one.
    fn take_ended(&mut self) -> Option<FinishedRun> {
        let over = |run: &mut RunningProcess| !matches!(run.child.try_wait(), Ok(None));
        let index = self.running.iter_mut().position(over)?;
        let mut run = self.running.swap_remove(index);
        self.free.push(run.slot.clone());
        let status = run.child.try_wait().ok().flatten();
        let end = run.end(status, self.stopped != StopCause::No);
        match end.code {
            // `lambert stop` or a signal stopped only this run. The next `lambert tune` resumes the run.
            Some(exit::INTERRUPTED | exit::STOPPED_BY_USER) if !end.stopping => self.stop(SIGINT, SIGTERM),
            Some(exit::TAKEN_OVER) if !end.stopping => {
                self.stop(SIGTERM, SIGTERM);
                self.stopped = StopCause::Replaced(end.planned.name.clone());
            }
            _ => {}
        }
        Some(end)
    }

    fn has_room(&self) -> bool {
        self.stopped == StopCause::No && self.failed.is_none() && !self.free.is_empty()
    }

    fn start(&mut self, planned: PlannedRun) {
        let Some(slot) = self.free.pop() else { return };
        match start(self.program, planned, slot) {
            Ok(run) => self.running.push(run),
            Err(error) => self.failed = Some(Failure::failed(error)),
        }
    }
}

/// Reason for which runs were not executed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StopCause {
    /// All runs were executed.
    No,
    /// This signal stopped the sweep.
    By(i32),
    /// Another coordinator took over the run with this name. This coordinator may belong to another `lambert tune` with
    /// the same `--runs`.
    Replaced(String),
}

fn start(program: &Path, planned: PlannedRun, slot: RunSlot) -> Result<RunningProcess, RunsError> {
    let log = tempfile::tempfile().map_err(|source| RunsError::System { what: "create a temporary file", source })?;
    let copy = log.try_clone().map_err(|source| RunsError::System { what: "use a temporary file", source })?;
    let mut command = Command::new(program);
    command.args(&planned.arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(copy);
    command.envs(slot.gpus.iter().map(|gpus| (GPU_VARIABLE, gpus)));
    // The child has its own process group, so signals from the terminal reach only this process, which forwards them.
    command.process_group(0);
    end_with_parent(&mut command, ExitSignal::Terminate);
    let child = command.spawn().map_err(|source| RunsError::Start {
        program: program.to_owned(),
        name: planned.name.clone(),
        source,
    })?;
    Ok(RunningProcess { planned, slot, child, log })
}

fn forward(child: &Child, signal: i32) {
    let signal = match signal {
        SIGINT => Signal::INT,
        SIGHUP => Signal::HUP,
        SIGUSR1 => Signal::USR1,
        _ => Signal::TERM,
    };
    if let Some(pid) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        // The child may have exited in the meantime.
        let _ = kill_process(pid, signal);
    }
}

impl RunningProcess {
    fn end(mut self, status: Option<ExitStatus>, stopping: bool) -> FinishedRun {
        let mut output = String::new();
        let length = self.log.metadata().map_or(0, |facts| facts.len());
        let mut bytes = Vec::new();
        if self.log.seek(SeekFrom::Start(length.saturating_sub(SHOWN))).is_ok()
            && self.log.read_to_end(&mut bytes).is_ok()
        {
            output = String::from_utf8_lossy(&bytes).trim_end().to_owned();
        }
        let code = status.and_then(|status| status.code());
        let how = match (code, status.and_then(|status| status.signal())) {
            (Some(code), _) => format!("exit code {code}"),
            (None, Some(signal)) => signal_name(signal),
            (None, None) => "unknown exit status".to_owned(),
        };
        FinishedRun { planned: self.planned, code, how, output, stopping }
    }
}
