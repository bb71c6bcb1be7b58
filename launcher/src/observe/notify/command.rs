//! A running notification command.

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::{MemfdFlags, memfd_create};

use crate::child_groups;
use crate::text::signal_name;

/// Replaces the shell by the command. The shell is on a local file system, the command may be on one that hangs.
const EXEC: &str = r#"exec "$@""#;
/// Maximum number of bytes of standard error kept.
const KEPT: usize = 500;

/// A command with its time limit.
#[derive(Debug)]
pub struct NotifyCommand {
    child: Child,
    errors: Option<ChildStderr>,
    /// Last bytes of standard error.
    tail: Vec<u8>,
    begun: Instant,
    deadline: Instant,
    is_killed: bool,
}

impl NotifyCommand {
    /// Starts `command` with `line` on its standard input, which is a file: a command that does not read it blocks
    /// nobody.
    ///
    /// # Errors
    /// The system cannot start a process.
    pub fn start(command: &[String], line: &str, timeout: Duration) -> io::Result<Self> {
        let mut input = File::from(memfd_create("event", MemfdFlags::CLOEXEC)?);
        writeln!(input, "{line}")?;
        input.rewind()?;
        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", EXEC, "notify"]).args(command);
        shell.stdin(input).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = child_groups::spawn(&mut shell)?;
        let errors = child.stderr.take();
        if let Some(errors) = &errors {
            rustix::io::ioctl_fionbio(errors, true)?;
        }
        let begun = Instant::now();
        Ok(Self { child, errors, tail: Vec::new(), begun, deadline: begun + timeout, is_killed: false })
    }

    /// Lowers the time limit.
    pub fn limit(&mut self, deadline: Instant) {
        self.deadline = self.deadline.min(deadline);
    }

    /// Returns the result once the command has ended; kills it and the processes it started at its deadline.
    pub fn poll(&mut self) -> Option<Result<(), String>> {
        self.read_errors();
        match self.child.try_wait() {
            Ok(None) if Instant::now() < self.deadline => None,
            Ok(None) => {
                child_groups::kill(&self.child);
                self.is_killed = true;
                None
            }
            Ok(Some(status)) => {
                // Processes that the command has left behind.
                child_groups::kill(&self.child);
                child_groups::forget(&self.child);
                Some(if status.success() { Ok(()) } else { Err(self.failure(status)) })
            }
            Err(error) => {
                child_groups::forget(&self.child);
                Some(Err(format!("has an unknown exit status: {error}")))
            }
        }
    }

    fn read_errors(&mut self) {
        let mut bytes = [0; 4096];
        while let Some(read) = self.errors.as_mut().and_then(|errors| errors.read(&mut bytes).ok()).filter(|n| *n > 0) {
            self.tail.extend_from_slice(&bytes[..read]);
            self.tail.drain(..self.tail.len().saturating_sub(KEPT));
        }
    }

    fn failure(&self, status: std::process::ExitStatus) -> String {
        use std::os::unix::process::ExitStatusExt;
        let how = match (self.is_killed, status.code(), status.signal()) {
            (true, ..) => {
                let seconds = (self.deadline - self.begun).as_secs_f64();
                format!("was killed after {seconds:.0} s (notify.timeout_seconds, or 10 s at the end of the run)")
            }
            (_, Some(code), _) => format!("exited with code {code}"),
            (_, None, signal) => format!("was killed by {}", signal_name(signal.unwrap_or_default())),
        };
        let text = String::from_utf8_lossy(&self.tail);
        match text.trim() {
            "" => how,
            text => format!("{how}: {text}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(command: &[&str], timeout: Duration) -> Result<(), String> {
        let command: Vec<String> = command.iter().map(|word| (*word).to_owned()).collect();
        let mut running = NotifyCommand::start(&command, r#"{"event":"end"}"#, timeout).unwrap();
        loop {
            if let Some(ended) = running.poll() {
                return ended;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn commands_end_or_are_killed() {
        let long = Duration::from_secs(60);
        let reads = "read line; test \"$line\" = '{\"event\":\"end\"}'";
        assert_eq!(end(&["sh", "-c", reads], long), Ok(()));
        let failed = end(&["sh", "-c", "echo no route to host >&2; exit 3"], long);
        assert_eq!(failed, Err("exited with code 3: no route to host".to_owned()));
        let missing = end(&["./no-such-command"], long).unwrap_err();
        assert!(missing.starts_with("exited with code 127") && missing.contains("not found"), "{missing}");
        let hung = end(&["sh", "-c", "sleep 1000 & wait"], Duration::from_millis(100)).unwrap_err();
        assert!(hung.starts_with("was killed after 0 s"), "{hung}");
    }
}
