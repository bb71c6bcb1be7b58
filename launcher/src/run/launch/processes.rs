//! Tree of a program and its descendants. The program is terminated when its coordinator ends. The coordinator can also
//! terminate the whole tree.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitOptions};

use super::descendants;
use crate::decide::ProcessExit;
use crate::host::stat;

/// A process operation failed.
#[derive(Debug, thiserror::Error)]
pub enum ProcessError {
    /// This process cannot become a subreaper.
    #[error("cannot become the parent of orphaned workers")]
    Reaper(#[source] io::Error),
    /// A program cannot be started.
    #[error("cannot start {program}")]
    Start {
        program: String,
        /// System error.
        source: io::Error,
    },
    /// The child's status is unavailable.
    #[error("cannot wait for the workers")]
    Wait(#[source] io::Error),
}

/// Makes this process a subreaper. Orphaned descendants become children of this process, so that it can find and
/// terminate all workers. Descendants that exist already are left alone.
pub fn adopt_orphans() -> Result<(), ProcessError> {
    descendants::remember_earlier().map_err(ProcessError::Wait)?;
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))
        .map_err(|error| ProcessError::Reaper(error.into()))
}

/// Raises the limit of open files to its maximum, because each rank has a connection.
pub fn allow_connections() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    // If this fails, a run with few ranks still works.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
}

/// Signal that asks a program to exit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExitSignal {
    /// SIGTERM.
    Terminate,
    /// SIGINT. In addition, SIGTERM is blocked in the program. This signal is for programs that kill their ranks on
    /// SIGTERM, because a supervisor may send SIGTERM to all processes.
    Interrupt,
}

impl ExitSignal {
    fn signal(self) -> Signal {
        match self {
            Self::Terminate => Signal::TERM,
            Self::Interrupt => Signal::INT,
        }
    }
}

/// Makes the kernel send `exit_signal` to the program of `command` when the calling thread ends. Call this function on
/// the main thread.
pub fn end_with_parent(command: &mut Command, exit_signal: ExitSignal) {
    let parent = rustix::process::getpid();
    // SAFETY: the closure runs between fork and exec, where only async-signal-safe calls are allowed. The closure only
    // makes system calls and allocates nothing.
    unsafe {
        command.pre_exec(move || {
            if exit_signal == ExitSignal::Interrupt {
                block_sigterm()?;
                reset_sigint();
            }
            rustix::process::set_parent_process_death_signal(Some(exit_signal.signal()))?;
            // If the parent died before the call above, the kernel would send no signal.
            match rustix::process::getppid() == Some(parent) {
                true => Ok(()),
                false => Err(io::ErrorKind::BrokenPipe.into()),
            }
        });
    }
}

/// Blocks SIGTERM in this thread and in the program that it executes, so that the handler of the program never runs.
fn block_sigterm() -> io::Result<()> {
    // SAFETY: both calls write only to a signal set on this stack.
    let failed = unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, libc::SIGTERM);
        libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut())
    };
    if failed == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(failed)) }
}

/// Resets SIGINT to its default action. A shell ignores SIGINT in background jobs, and programs inherit this setting.
/// Without the reset, SIGINT could then not end the program.
fn reset_sigint() {
    // SAFETY: the call sets the default action. This process loses no handler, because exec follows.
    unsafe { libc::signal(libc::SIGINT, libc::SIG_DFL) };
}

/// Time between the exit signal and SIGKILL.
const EXIT_TIMEOUT: Duration = Duration::from_secs(5);
/// Time to wait for processes after SIGKILL. A process in uninterruptible sleep, e.g. on an unavailable file system,
/// may never exit.
const KILL_TIMEOUT: Duration = Duration::from_secs(20);

/// Time between the exit of the program and SIGKILL to its descendants, which may still forward output and remove
/// files.
const GRACE: Duration = Duration::from_millis(600);

/// A started program and its descendants.
#[derive(Debug)]
pub struct ProcessTree {
    /// The program. The caller can take its output pipes.
    pub root: Child,
    exit_signal: ExitSignal,
    ending: Option<Deadlines>,
    /// Time at which the exit of the program was first noticed.
    over: Option<Instant>,
}

/// Deadlines of a termination.
#[derive(Debug, Clone, Copy)]
struct Deadlines {
    force: Instant,
    leave: Instant,
}

impl ProcessTree {
    /// Starts `line` (program and arguments) with additional `environment` in a new process group. Its output goes to
    /// pipes. The program receives `exit_signal` when the calling thread ends, so call this function on the main
    /// thread.
    pub fn start(
        line: &[OsString],
        environment: &[(&str, &str)],
        exit_signal: ExitSignal,
    ) -> Result<Self, ProcessError> {
        let (program, arguments) =
            line.split_first().map_or((OsString::new(), line), |(first, rest)| (first.clone(), rest));
        let mut command = Command::new(&program);
        command.args(arguments).envs(environment.iter().copied());
        // With a new process group, Ctrl-C on the terminal reaches only the coordinator, which first saves a
        // checkpoint.
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        end_with_parent(&mut command, exit_signal);
        let root = command
            .spawn()
            .map_err(|source| ProcessError::Start { program: program.to_string_lossy().into_owned(), source })?;
        descendants::begin_group(root.id());
        Ok(Self { root, exit_signal, ending: None, over: None })
    }

    /// Exit status of the program, if it has exited.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>, ProcessError> {
        self.root.try_wait().map_err(ProcessError::Wait)
    }

    /// Sends the exit signal to the program. mpirun forwards the signal to other hosts. After a timeout,
    /// [`ProcessTree::poll_end`] kills the remaining processes.
    pub fn end(&mut self) -> Result<(), ProcessError> {
        self.end_within(EXIT_TIMEOUT, KILL_TIMEOUT)
    }

    fn end_within(&mut self, exit_timeout: Duration, kill_timeout: Duration) -> Result<(), ProcessError> {
        let mut force = Instant::now();
        if self.ended()?.is_none() {
            signal(self.root.id(), self.exit_signal.signal());
            force += exit_timeout;
        }
        self.ending.get_or_insert(Deadlines { force, leave: force + kill_timeout });
        Ok(())
    }

    /// Continues the termination. Returns `None` while processes remain on this host. At the end, returns the processes
    /// that cannot be killed.
    pub fn poll_end(&mut self) -> Result<Option<Vec<String>>, ProcessError> {
        let Some(Deadlines { force, leave }) = self.ending else { return Ok(None) };
        let now = Instant::now();
        let ended = self.ended()?.is_some();
        if !ended && now < force {
            return Ok(None);
        }
        let left = living()?;
        if ended && left.is_empty() {
            self.reap()?;
            return Ok(Some(Vec::new()));
        }
        if ended && now < *self.over.get_or_insert(now) + GRACE {
            self.reap()?;
            return Ok(None);
        }
        left.iter().for_each(|pid| signal(*pid, Signal::KILL));
        self.reap()?;
        Ok((now >= leave).then(|| left.into_iter().map(describe).collect()))
    }

    /// Terminates the program and its descendants and waits for them.
    pub fn end_now(&mut self) -> Result<Vec<String>, ProcessError> {
        self.end()?;
        loop {
            match self.poll_end()? {
                Some(left) => return Ok(left),
                None => std::thread::sleep(Duration::from_millis(20)),
            }
        }
    }

    /// Reaps dead orphans if the program itself has already been reaped.
    fn reap(&mut self) -> Result<(), ProcessError> {
        if self.ended()?.is_some() {
            let family = descendants::of_attempts().map_err(ProcessError::Wait)?;
            let zombies = family.into_iter().filter(|process| process.state == 'Z');
            for process in zombies.filter(|process| process.parent == std::process::id()) {
                let pid = i32::try_from(process.pid).ok().and_then(Pid::from_raw);
                let _ = rustix::process::waitpid(pid, WaitOptions::NOHANG);
            }
        }
        Ok(())
    }
}

fn signal(pid: u32, signal: Signal) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        // A process that has just exited cannot be signalled.
        let _ = rustix::process::kill_process(pid, signal);
    }
}

/// Returns the process IDs of all living processes of an attempt.
fn living() -> Result<Vec<u32>, ProcessError> {
    let family = descendants::of_attempts().map_err(ProcessError::Wait)?;
    Ok(family.into_iter().filter(|process| process.state != 'Z').map(|process| process.pid).collect())
}

/// Describes a process: `pid 12 (lambert-worker, uninterruptible)`.
fn describe(pid: u32) -> String {
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = match stat(&text) {
        Some(('D', _)) => "uninterruptible".to_owned(),
        Some((state, _)) => format!("state {state}"),
        None => "already ended".to_owned(),
    };
    format!("pid {pid} ({}, {state})", name.trim())
}

/// Converts an exit status.
pub fn exit(status: ExitStatus) -> ProcessExit {
    use std::os::unix::process::ExitStatusExt;
    match (status.code(), status.signal()) {
        (Some(code), _) => ProcessExit::Code(code),
        (None, signal) => ProcessExit::Signal(signal.unwrap_or_default()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::lives;
    use std::io::Read;

    fn end(tree: &mut ProcessTree) {
        tree.end_within(Duration::from_millis(100), KILL_TIMEOUT).unwrap();
        loop {
            match tree.poll_end().unwrap() {
                Some(left) => return assert_eq!(left, [""; 0]),
                None => std::thread::sleep(Duration::from_millis(10)),
            }
        }
    }

    /// A single test, because all tests share the children of this process.
    #[test]
    fn a_process_tree_is_ended_including_orphans() {
        let mut earlier = Command::new("sh").args(["-c", "sleep 61 & wait"]).process_group(0).spawn().unwrap();
        adopt_orphans().unwrap();
        // The coordinator runs these programs itself, such as squeue. The second one has already exited.
        let mut own = Command::new("sleep").arg("62").spawn().unwrap();
        let mut exited = Command::new("sh").args(["-c", "exit 7"]).spawn().unwrap();
        // The shell leaves an orphan behind that ignores SIGTERM.
        let script = "setsid sh -c 'trap \"\" TERM; while :; do sleep 0.1; done' & sleep 0.3; exit 3";
        let line: Vec<OsString> = ["sh", "-c", script].map(OsString::from).into();
        let mut tree = ProcessTree::start(&line, &[], ExitSignal::Terminate).unwrap();
        let status = loop {
            match tree.ended().unwrap() {
                Some(status) => break status,
                None => std::thread::sleep(Duration::from_millis(10)),
            }
        };
        assert_eq!(exit(status), ProcessExit::Code(3));
        assert!(!living().unwrap().is_empty(), "the orphan is ours now");
        end(&mut tree);
        assert_eq!(living().unwrap(), Vec::<u32>::new());

        let script = "trap '' TERM; echo $WORD; sleep 60 & wait";
        let line: Vec<OsString> = ["sh", "-c", script].map(OsString::from).into();
        let mut stubborn = ProcessTree::start(&line, &[("WORD", "ready")], ExitSignal::Terminate).unwrap();
        let mut printed = [0; 6];
        stubborn.root.stdout.take().unwrap().read_exact(&mut printed).unwrap();
        assert_eq!(&printed, b"ready\n");
        let pid = stubborn.root.id();
        assert!(lives(pid));
        end(&mut stubborn);
        assert!(!lives(pid));
        assert_eq!(exit(stubborn.ended().unwrap().unwrap()), ProcessExit::Signal(9));

        // SIGTERM to all processes has no effect, although the program has a handler for it, like mpirun. The test uses
        // bash, because dash unblocks all signals.
        let script =
            "trap 'echo term; exit 4' TERM; trap 'echo int; exit 5' INT; echo ready; while :; do sleep 0.05; done";
        let line: Vec<OsString> = ["bash", "-c", script].map(OsString::from).into();
        let mut shielded = ProcessTree::start(&line, &[], ExitSignal::Interrupt).unwrap();
        let mut output = shielded.root.stdout.take().unwrap();
        output.read_exact(&mut printed).unwrap();
        signal(shielded.root.id(), Signal::TERM);
        std::thread::sleep(Duration::from_millis(300));
        assert!(shielded.ended().unwrap().is_none(), "it has heard SIGTERM");
        shielded.end_within(Duration::from_secs(10), KILL_TIMEOUT).unwrap();
        while shielded.poll_end().unwrap().is_none() {
            std::thread::sleep(Duration::from_millis(10));
        }
        assert_eq!(exit(shielded.ended().unwrap().unwrap()), ProcessExit::Code(5));

        assert!(lives(earlier.id()) && lives(own.id()), "they belong to no attempt");
        assert_eq!(exited.wait().unwrap().code(), Some(7), "its status is for the caller");
        own.kill().unwrap();
        own.wait().unwrap();
        // The group still has the child of the shell.
        let group = i32::try_from(earlier.id()).ok().and_then(Pid::from_raw).unwrap();
        rustix::process::kill_process_group(group, Signal::KILL).unwrap();
        earlier.wait().unwrap();
    }
}
