//! A run that is watched and disturbed.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, ChildStderr, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use lambert_control::StepRecord;
use serde_json::Value;

use super::programs::command;

/// Nothing here takes longer, even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// More steps than any run makes before a test ends it.
pub const ENDLESS: u64 = 1_000_000;

/// A `lambert run` under way, whose step records are read.
pub struct Running {
    coordinator: Child,
    records: Receiver<StepRecord>,
    log: Option<std::thread::JoinHandle<String>>,
    run: String,
}

/// Reads the step records on a thread of its own, so that a test that does not wait for them keeps no run waiting.
fn read_records(output: ChildStdout) -> Receiver<StepRecord> {
    let (sender, records) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let lines = BufReader::new(output).lines().map(|line| serde_json::from_str::<Value>(&line.unwrap()).unwrap());
        // Lines of other things than steps say of what; the test may have ended.
        let records = lines.filter(|line| line.get("event").is_none());
        records.for_each(|record| drop(sender.send(serde_json::from_value(record).unwrap())));
    });
    records
}

/// A `lambert run` that has ended.
pub struct Ended {
    /// `None` if it was killed.
    pub code: Option<i32>,
    /// Its standard error.
    pub log: String,
    /// The records that had not been read yet.
    pub records: Vec<StepRecord>,
}

impl Running {
    /// Starts or resumes the run at `run`.
    pub fn start(config: &str, run: &str) -> Self {
        Self::start_with(config, run, &[])
    }

    /// The same, with more arguments.
    pub fn start_with(config: &str, run: &str, more: &[&str]) -> Self {
        Self::start_in(config, run, more, &[])
    }

    /// The same with these variables, too.
    pub fn start_in(config: &str, run: &str, more: &[&str], environment: &[(&'static str, String)]) -> Self {
        let mut program = command(&[]);
        program.envs(environment.iter().map(|(name, value)| (name, value)));
        Self::start_by(program, config, run, more)
    }

    /// The same by a command that begins in its own way.
    pub fn start_by(mut program: Command, config: &str, run: &str, more: &[&str]) -> Self {
        program.args(["run", "--config", config, "--run", run, "--json"]).args(more);
        let mut coordinator = program.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let records = read_records(coordinator.stdout.take().unwrap());
        let stderr: ChildStderr = coordinator.stderr.take().unwrap();
        let log = std::thread::spawn(move || std::io::read_to_string(stderr).unwrap_or_default());
        Self { coordinator, records, log: Some(log), run: run.to_owned() }
    }

    /// The next step's record; `None` when the coordinator has gone.
    pub fn record(&mut self) -> Option<StepRecord> {
        match self.records.recv_timeout(5 * PATIENCE) {
            Ok(record) => Some(record),
            Err(RecvTimeoutError::Disconnected) => None,
            Err(RecvTimeoutError::Timeout) => panic!("no step in {:?}", 5 * PATIENCE),
        }
    }

    /// The newest step's record that has not been read; the next one, if all have been.
    pub fn latest(&mut self) -> Option<StepRecord> {
        self.records.try_iter().last().or_else(|| self.record())
    }

    /// Waits until `step` is finished, or the run is.
    pub fn reach(&mut self, step: u64) {
        while self.record().is_some_and(|record| record.step < step) {}
    }

    /// Waits for `steps` steps more.
    pub fn reach_now(&mut self, steps: u64) {
        for _ in 0..steps {
            assert!(self.record().is_some(), "the run has ended");
        }
    }

    /// Reads records, so that the run goes on, until something holds.
    pub fn wait_until(&mut self, holds: impl Fn() -> bool) {
        let start = Instant::now();
        while self.record().is_some() && !holds() {
            assert!(start.elapsed() < PATIENCE, "it never came to hold");
        }
    }

    /// Sends signal `number` to the worker of this rank.
    pub fn kill_rank(&self, rank: usize, number: &str) {
        let workers = workers(&self.run);
        let pid = workers.get(&rank).unwrap_or_else(|| panic!("rank {rank} is not among {workers:?}"));
        signal(*pid, number);
    }

    /// The process that was started: the coordinator, where nothing begins before it.
    pub fn pid(&self) -> u32 {
        self.coordinator.id()
    }

    /// Sends signal `number` to the coordinator.
    pub fn kill_coordinator(&self, number: &str) {
        signal(self.coordinator.id(), number);
    }

    /// What it said, if it has ended.
    pub fn last_words(&mut self) -> Option<String> {
        let code = self.coordinator.try_wait().unwrap()?;
        Some(format!("{code}: {}", self.log.take()?.join().unwrap()))
    }

    /// Waits for the end, which must come within `limit`: what should have ended a run may let it make steps for ever.
    pub fn end_within(mut self, limit: Duration) -> Ended {
        let (begun, mut records) = (Instant::now(), Vec::new());
        while let Some(record) = self.record() {
            records.push(record);
            assert!(begun.elapsed() < limit, "the run goes on after {limit:?}");
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

/// A test that fails leaves no run behind that goes on for ever.
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

/// Kills a process, should it still be there.
pub fn kill_if_there(pid: u32) {
    let _ = Command::new("kill").args(["-9", &pid.to_string()]).stderr(Stdio::null()).status().unwrap();
}

/// The workers of a run on this machine: process ids by rank.
pub fn workers(run: &str) -> BTreeMap<usize, u32> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        let read = |name: &str| std::fs::read(entry.path().join(name)).unwrap_or_default();
        let (line, environment) = (read("cmdline"), read("environ"));
        let words: Vec<&[u8]> = line.split(|byte| *byte == 0).collect();
        // mpirun's own command line has the same words, but does not begin with the worker.
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

/// Waits until a run has no worker left.
pub fn wait_for_no_workers(run: &str) {
    let start = Instant::now();
    while !workers(run).is_empty() {
        assert!(start.elapsed() < PATIENCE, "workers of {run} did not end: {:?}", workers(run));
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// An object of a run, as JSON.
pub fn read_json(run: &str, name: &str) -> Value {
    serde_json::from_slice(&std::fs::read(Path::new(run).join(name)).unwrap()).unwrap()
}

/// The time since `start`, also told.
pub fn seconds(what: &str, start: Instant) -> f64 {
    let seconds = start.elapsed().as_secs_f64();
    eprintln!("{what}: {seconds:.1} s");
    seconds
}
