//! Long tests: a run that takes three times its time limit, and the downtime of a run after events of its job.
//!
//!     cargo test --release --workspace --test programs slurm::long -- --ignored --nocapture --test-threads 1
use std::path::Path;
use std::time::Instant;

use crate::s3_server::{BUCKET, Server};
use crate::slurm::{config, memory, secrets};
use crate::support::slurm::Sandbox;
use crate::support::{self, Running, TestDir, assert_same_bits, copy, signal};

fn start_sandbox(dir: &TestDir) -> Option<Sandbox> {
    let sandbox = Sandbox::start()?;
    copy(Path::new(&dir.path("data")), Path::new(&sandbox.path("data")));
    std::fs::create_dir(sandbox.path("runs")).unwrap();
    ["data", "runs"].iter().for_each(|name| drop(sandbox.give_to_user(name)));
    Some(sandbox)
}

/// Returns the number of steps that take about `seconds`, estimated from the speed of a short run.
fn steps_for(dir: &TestDir, seconds: f64) -> u64 {
    const PROBE: u64 = 400;
    let mut running = Running::start(&dir.config(PROBE, 2), &dir.path("probe"));
    running.reach(100);
    let begun = Instant::now();
    assert_eq!(running.end().code, Some(0));
    (seconds * (PROBE - 100) as f64 / begun.elapsed().as_secs_f64()) as u64
}

/// The time limit is a third of the duration of the run. The store is an S3 server.
#[test]
#[ignore = "long: six minutes"]
fn a_run_longer_than_its_time_limit_finishes() {
    let dir = TestDir::new();
    let Some(sandbox) = start_sandbox(&dir) else { return };
    let server = Server::start(Path::new(&dir.path("s3")), 0);
    // Slurm checks time limits with a timer of 30 s. It therefore sends its signal 15 to 75 s before the limit of one
    // minute.
    let steps = steps_for(&dir, 120.0);
    let file = config(&dir, &sandbox, steps);
    let variables = sandbox.file("store.env", &secrets::exports(&server));
    let run = format!("s3://{BUCKET}/long");
    let sets =
        format!("--set 'slurm.time=\"1\"' --set slurm.lead_seconds=15 --set \"slurm.prologue=['. {variables}']\"");
    let line = format!(". {variables}; exec {} submit --config {file} --run {run} {sets}", sandbox.path("bin/lambert"));
    let local = dir.path("local");
    // This run executes concurrently, to slow down the queued run.
    let undisturbed = Running::start(&dir.config(steps, 2), &local);
    let begun = Instant::now();
    let ran = sandbox.run("sh", &["-c", &line]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    while !["COMPLETED", "FAILED", "TIMEOUT", "CANCELLED"].contains(&last_state(&sandbox, &ran.out).as_str()) {
        assert!(begun.elapsed().as_secs() < 1500, "{}", sandbox.log(&ran.out));
        std::thread::sleep(std::time::Duration::from_secs(1));
    }
    let log = sandbox.log(&ran.out);
    eprintln!(
        "{steps} steps in {:.0} s; {}",
        begun.elapsed().as_secs_f64(),
        sandbox.run_as_root("sacct", &["-nPXD", "-j", &ran.out, "-o", "state,elapsed"])
    );
    assert_eq!(last_state(&sandbox, &ran.out), "COMPLETED", "{log}");
    let limits = log.matches("(close to the job's time limit)").count();
    assert!(limits >= 3 && log.matches("requeuing the job").count() >= limits, "{limits}: {log}");
    assert_eq!(undisturbed.end().code, Some(0));
    support::ENVIRONMENT.set(server.environment());
    let newest = support::checkpoints(&run).remove(0);
    support::done(&["checkpoint", "copy", &format!("{run}/checkpoints/{newest}"), &dir.path("fetched")]);
    assert_same_bits(&local, &dir.path("fetched"));
}

fn last_state(sandbox: &Sandbox, job: &str) -> String {
    let states = sandbox.run("sacct", &["-nPX", "-j", job, "-o", "state"]).out;
    states.split_whitespace().next().unwrap_or_default().to_owned()
}

/// Row of the table: an event and its durations, seconds.
struct Row {
    what: &'static str,
    /// Durations from the event to the next step.
    all: Vec<f64>,
    /// Delay of Slurm within each duration: the time from the end of the batch script to the next start of the job.
    slurm: Vec<f64>,
}

impl Row {
    fn print(&self) {
        let sorted = |values: &[f64]| {
            let mut values = values.to_vec();
            values.sort_by(f64::total_cmp);
            values
        };
        let own: Vec<f64> =
            self.all.iter().zip(self.slurm.iter().chain(std::iter::repeat(&0.0))).map(|(a, s)| a - s).collect();
        let show = |values: &[f64]| {
            let values = sorted(values);
            let at = |share: f64| values[((values.len() - 1) as f64 * share).round() as usize];
            format!("{:.1} ({:.1} to {:.1})", at(0.5), at(0.0), at(1.0))
        };
        eprintln!("| {} | {} | {} | {} |", self.what, self.all.len(), show(&self.all), show(&own));
    }
}

/// Measures the time from `event` to the next step that is not in the log yet. Returns this time and the part of it
/// that is the delay of Slurm, seconds.
fn time_to_next_step(sandbox: &Sandbox, job: &str, restart: Restart, event: impl FnOnce()) -> (f64, f64) {
    let seen = sandbox.log(job).len();
    let begun = Instant::now();
    event();
    let mut slurm = 0.0;
    let mut seen = seen;
    if restart == Restart::SameCoordinator {
        // This line is printed immediately. The next line for a step may take ten seconds.
        sandbox.wait_for_log(job, seen, "recovered to step");
        return (begun.elapsed().as_secs_f64(), slurm);
    }
    if restart == Restart::Requeue {
        seen = sandbox.wait_for_log(job, seen, "stopped: step");
        let ended = Instant::now();
        // The plan is the first output of a coordinator.
        seen = sandbox.wait_for_log(job, seen, "\ntotal: ");
        slurm = ended.elapsed().as_secs_f64();
    }
    seen = sandbox.wait_for_log(job, seen, "starting 2 workers");
    sandbox.wait_for_log(job, seen, "\nstep ");
    (begun.elapsed().as_secs_f64(), slurm)
}

/// Kind of restart.
#[derive(Clone, Copy, PartialEq)]
enum Restart {
    /// The job is requeued.
    Requeue,
    /// The batch script starts another coordinator.
    NewCoordinator,
    /// The same coordinator restarts the workers.
    SameCoordinator,
}

const TIMES: usize = 5;
/// Number of times that the batch script restarts a killed coordinator before it requeues the job.
const IN_PLACE: usize = 3;

fn measure(sandbox: &Sandbox, job: &str, what: &'static str, restart: Restart, event: impl Fn()) {
    let times: Vec<(f64, f64)> = (0..if restart == Restart::NewCoordinator { IN_PLACE } else { TIMES })
        .map(|_| {
            // The first steps after a start are always printed. After this pause, lines of steps are rare.
            std::thread::sleep(std::time::Duration::from_secs(2));
            time_to_next_step(sandbox, job, restart, &event)
        })
        .collect();
    let (all, slurm) = times.into_iter().unzip();
    Row { what, all, slurm }.print();
}

fn urgent(sandbox: &Sandbox) {
    let ran = sandbox.run("srun", &["--partition=urgent", "--nodes=3", "--exclusive", "true"]);
    assert_eq!(ran.code, 0, "{}", ran.err);
}

/// Measures five repetitions of most events. The table is in docs/experiments/slurm.md.
#[test]
#[ignore = "long: five minutes"]
fn downtime_of_a_run() {
    let dir = TestDir::new();
    let Some(sandbox) = start_sandbox(&dir) else { return };
    let (file, run) = (config(&dir, &sandbox, 10_000_000), sandbox.path("runs/long"));
    let job = sandbox.submit(&file, &run, &["--set", "cluster.restart.limit=1000"]);
    sandbox.wait_for_log(&job, 0, "\nstep 5/");
    eprintln!("| event | times | to the next step: median (range), s | without Slurm's own delay |\n|---|---|---|---|");
    measure(&sandbox, &job, "a rank killed", Restart::SameCoordinator, || {
        let line = sandbox.path("bin/lambert-worker train");
        signal(*sandbox.processes(&line).last().unwrap(), "-9");
    });
    measure(&sandbox, &job, "the coordinator killed", Restart::NewCoordinator, || {
        signal(sandbox.processes(&sandbox.path("bin/lambert run"))[0], "-9");
    });
    measure(&sandbox, &job, "scontrol requeue", Restart::Requeue, || {
        assert_eq!(sandbox.run("scontrol", &["requeue", &job]).code, 0);
    });
    measure(&sandbox, &job, "preempted, with the user signal", Restart::Requeue, || urgent(&sandbox));
    let conf = sandbox.folder().join("slurm.conf");
    let text = std::fs::read_to_string(&conf).unwrap();
    std::fs::write(&conf, text.replace("SlurmctldParameters=preempt_send_user_signal\n", "")).unwrap();
    sandbox.run_as_root("scontrol", &["reconfigure"]);
    measure(&sandbox, &job, "preempted, without", Restart::Requeue, || urgent(&sandbox));
    suspended(&sandbox, &job);
    cancelled(&sandbox, &file, &run, &job);
}

/// Suspends the job twice: for less time than the timeouts of the ranks (90 s) and of the coordinator (45 s), and then
/// for more time than both timeouts.
fn suspended(sandbox: &Sandbox, job: &str) {
    for seconds in [3, 100] {
        let starts = sandbox.log(job).matches("starting 2 workers").count();
        sandbox.run_as_root("scontrol", &["suspend", job]);
        sandbox.wait_for_state(job, "SUSPENDED");
        std::thread::sleep(std::time::Duration::from_secs(seconds));
        let (step, begun) = (step(sandbox), Instant::now());
        sandbox.run_as_root("scontrol", &["resume", job]);
        sandbox.wait("a step after a suspension", || (self::step(sandbox) > step).then_some(()));
        let again = sandbox.log(job).matches("starting 2 workers").count() - starts;
        eprintln!("| resumed after {seconds} s | 1 | {:.1}, restarts: {again} | |", begun.elapsed().as_secs_f64());
    }
}

/// Returns the step in the status of the run.
fn step(sandbox: &Sandbox) -> u64 {
    let text = std::fs::read_to_string(sandbox.path("runs/long/status.json")).unwrap_or_default();
    serde_json::from_str::<serde_json::Value>(&text).ok().and_then(|status| status["step"].as_u64()).unwrap_or(0)
}

fn cancelled(sandbox: &Sandbox, file: &str, run: &str, job: &str) {
    let mut job = job.to_owned();
    let mut times = Vec::new();
    for _ in 0..TIMES {
        let begun = Instant::now();
        assert_eq!(sandbox.run("scancel", &[&job]).code, 0);
        assert!(sandbox.ended(&job).starts_with("CANCELLED"), "{}", sandbox.log(&job));
        sandbox.wait_for_log(&job, 0, "(stopped by a user)");
        times.push(begun.elapsed().as_secs_f64());
        assert!(!sandbox.log(&job).ends_with("requeuing the job\n"));
        support::done(&["checkpoint", "verify", run]);
        let last = sandbox.wait("the end of the job before", || {
            let ran = sandbox.lambert(&["submit", "--config", file, "--run", run]);
            (ran.code == 0).then_some(ran.out)
        });
        job = last;
        sandbox.wait_for_log(&job, 0, "\nstep ");
    }
    Row { what: "scancel, to the end with a checkpoint", all: times, slurm: Vec::new() }.print();
    assert_eq!(sandbox.run("scancel", &[&job]).code, 0);
}

/// Long version of a test that `jobs_run_in_a_real_slurm` runs with three starts.
#[test]
#[ignore = "long: eight minutes"]
fn ranks_of_a_node_share_memory_at_every_start() {
    let dir = TestDir::new();
    let Some(sandbox) = start_sandbox(&dir) else { return };
    memory::starts(&dir, &sandbox, 20);
}
