//! A run under test, which a test can observe, signal and kill.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, ChildStderr, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use lambert_control::StepRecord;
use serde_json::Value;

use super::programs::command;

/// Timeout of every wait. It is sufficient on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(120);

/// A number of steps that no run completes before its test ends it.
pub const ENDLESS: u64 = 1_000_000;

/// Active `lambert run`, whose step records are read.
pub struct Running {
    coordinator: Child,
    records: Receiver<StepRecord>,
    log: Option<std::thread::JoinHandle<String>>,
    run: String,
}

/// Reads the step records in a thread, so that the run is not blocked if a test does not read them.
fn read_records(output: ChildStdout) -> Receiver<StepRecord> {
    let (sender, records) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let lines = BufReader::new(output).lines().map(|line| serde_json::from_str::<Value>(&line.unwrap()).unwrap());
        // Skips lines of events. Sending fails if the test has dropped the receiver.
        let records = lines.filter(|line| line.get("event").is_none());
        records.for_each(|record| drop(sender.send(serde_json::from_value(record).unwrap())));
    });
    records
}

/// `lambert run` that has ended.
pub struct Ended {
    /// Exit code. `None` if the coordinator was killed.
    pub code: Option<i32>,
    /// Standard error.
    pub log: String,
    /// Records that were not read before.
    pub records: Vec<StepRecord>,
}

impl Running {
    /// Starts or resumes the run at `run`.
    pub fn start(config: &str, run: &str) -> Self {
        Self::start_with(config, run, &[])
    }

    /// Like [`Running::start`], with additional arguments.
    pub fn start_with(config: &str, run: &str, more: &[&str]) -> Self {
        Self::start_in(config, run, more, &[])
    }

    /// Like [`Running::start_with`], with environment variables.
    pub fn start_in(config: &str, run: &str, more: &[&str], environment: &[(&'static str, String)]) -> Self {
        let mut program = command(&[]);
        program.envs(environment.iter().map(|(name, value)| (name, value)));
        Self::start_by(program, config, run, more)
    }

    /// Like [`Running::start_with`], with `program` in place of `lambert`.
    pub fn start_by(mut program: Command, config: &str, run: &str, more: &[&str]) -> Self {
        program.args(["run", "--config", config, "--run", run, "--json"]).args(more);
        let mut coordinator = program.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let records = read_records(coordinator.stdout.take().unwrap());
        let stderr: ChildStderr = coordinator.stderr.take().unwrap();
        let log = std::thread::spawn(move || std::io::read_to_string(stderr).unwrap_or_default());
        Self { coordinator, records, log: Some(log), run: run.to_owned() }
    }

    /// Returns the next step record, or `None` once the coordinator has exited.
    pub fn record(&mut self) -> Option<StepRecord> {
        match self.records.recv_timeout(5 * TIMEOUT) {
            Ok(record) => Some(record),
            Err(RecvTimeoutError::Disconnected) => None,
            Err(RecvTimeoutError::Timeout) => panic!("no step in {:?}", 5 * TIMEOUT),
        }
    }

    /// Returns the newest unread record, or the next one if all have been read.
    pub fn latest(&mut self) -> Option<StepRecord> {
        self.records.try_iter().last().or_else(|| self.record())
    }

    /// Waits until `step` is finished or the run ends.
    pub fn reach(&mut self, step: u64) {
        while self.record().is_some_and(|record| record.step < step) {}
    }

    /// Waits for `steps` more steps.
    pub fn reach_now(&mut self, steps: u64) {
        for _ in 0..steps {
            assert!(self.record().is_some(), "the run has ended");
        }
    }

    /// Reads records until the condition is true. (The run continues meanwhile.)
    pub fn wait_until(&mut self, holds: impl Fn() -> bool) {
        let start = Instant::now();
        while self.record().is_some() && !holds() {
            assert!(start.elapsed() < TIMEOUT, "timed out");
        }
    }

    /// Sends signal `number` to the worker of this rank.
    pub fn kill_rank(&self, rank: usize, number: &str) {
        let workers = workers(&self.run);
        let pid = workers.get(&rank).unwrap_or_else(|| panic!("rank {rank} is not among {workers:?}"));
        signal(*pid, number);
    }

    /// Process ID of the coordinator, or of the program that starts it.
    pub fn pid(&self) -> u32 {
        self.coordinator.id()
    }

    /// Sends signal `number` to the coordinator.
    pub fn kill_coordinator(&self, number: &str) {
        signal(self.coordinator.id(), number);
    }

    /// Returns the log if the run has ended.
    pub fn log_if_ended(&mut self) -> Option<String> {
        let code = self.coordinator.try_wait().unwrap()?;
        Some(format!("{code}: {}", self.log.take()?.join().unwrap()))
    }

    /// Waits at most `limit` for the end of a run that might otherwise continue forever.
    pub fn end_within(mut self, limit: Duration) -> Ended {
        let (begun, mut records) = (Instant::now(), Vec::new());
        while let Some(record) = self.record() {
            records.push(record);
            assert!(begun.elapsed() < limit, "the run has not ended after {limit:?}");
        }
        Ended { records, ..self.end() }
    }

    /// Waits for the end.
    pub fn end(mut self) -> Ended {
        let records = std::iter::from_fn(|| self.record()).collect();
        let code = self.coordinator.wait().unwrap().code();
        Ended { code, log: self.log.take().unwrap().join().unwrap(), records }
    }
}

/// Ends the run if a test fails.
impl Drop for Running {
    fn drop(&mut self) {
        if matches!(self.coordinator.try_wait(), Ok(None)) {
            let _ = self.coordinator.kill();
            let _ = self.coordinator.wait();
        }
    }
}

/// Sends a signal.
pub fn signal(pid: u32, number: &str) {
    assert!(Command::new("kill").args([number, &pid.to_string()]).status().unwrap().success());
}

/// Kills a process if it still exists.
pub fn kill_if_there(pid: u32) {
    let _ = Command::new("kill").args(["-9", &pid.to_string()]).stderr(Stdio::null()).status().unwrap();
}

/// Returns the process IDs of the workers of a run on this machine, by rank.
pub fn workers(run: &str) -> BTreeMap<usize, u32> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        let read = |name: &str| std::fs::read(entry.path().join(name)).unwrap_or_default();
        let (line, environment) = (read("cmdline"), read("environ"));
        let words: Vec<&[u8]> = line.split(|byte| *byte == 0).collect();
        // The command line of mpirun contains the same words, but does not start with the worker.
        if !words[0].ends_with(b"lambert-worker") || !words.contains(&run.as_bytes()) {
            continue;
        }
        let rank = environment.split(|byte| *byte == 0).find_map(|variable| {
            std::str::from_utf8(variable.strip_prefix(b"OMPI_COMM_WORLD_RANK=")?).ok()?.parse().ok()
        });
        found.insert(rank.unwrap_or(0), pid);
    }
    found
}

/// Waits until a run has no workers.
pub fn wait_for_no_workers(run: &str) {
    let start = Instant::now();
    while !workers(run).is_empty() {
        assert!(start.elapsed() < TIMEOUT, "workers of {run} did not end: {:?}", workers(run));
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Reads an object of a run as JSON.
pub fn read_json(run: &str, name: &str) -> Value {
    serde_json::from_slice(&std::fs::read(Path::new(run).join(name)).unwrap()).unwrap()
}

/// Prints and returns the seconds since `start`.
pub fn seconds(what: &str, start: Instant) -> f64 {
    let seconds = start.elapsed().as_secs_f64();
    eprintln!("{what}: {seconds:.1} s");
    seconds
}
