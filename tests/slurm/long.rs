//! The long forms: a run that needs three times its time limit, and how long the run stands still when something happens to its
//! job.
//!
//!     cargo test --release --workspace --test programs slurm::long -- --ignored --nocapture --test-threads 1

use std::path::Path;
use std::time::Instant;

use crate::s3_server::{BUCKET, Server};
use crate::slurm::{config, memory, secrets};
use crate::support::slurm::Sandbox;
use crate::support::{self, Place, Running, assert_same_bits, copy, signal};

fn begin(place: &Place) -> Option<Sandbox> {
    let sandbox = Sandbox::start()?;
    copy(Path::new(&place.path("data")), Path::new(&sandbox.path("data")));
    std::fs::create_dir(sandbox.path("runs")).unwrap();
    ["data", "runs"].iter().for_each(|name| drop(sandbox.give(name)));
    Some(sandbox)
}

/// Steps of a run that takes about this long, by the rate of a short one.
fn steps_for(place: &Place, seconds: f64) -> u64 {
    const PROBE: u64 = 400;
    let mut running = Running::start(&place.config(PROBE, 2), &place.path("probe"));
    running.reach(100);
    let begun = Instant::now();
    assert_eq!(running.end().code, Some(0));
    (seconds * (PROBE - 100) as f64 / begun.elapsed().as_secs_f64()) as u64
}

/// The time limit is a third of what the run needs; its store is an S3 server.
#[test]
#[ignore = "long: six minutes"]
fn a_run_longer_than_its_time_limit_finishes_by_itself() {
    let place = Place::new();
    let Some(sandbox) = begin(&place) else { return };
    let server = Server::start(Path::new(&place.path("s3")), 0);
    // Slurm sends its signal 15 to 75 s before the minute is over, by its own clock of 30 s.
    let steps = steps_for(&place, 120.0);
    let file = config(&place, &sandbox, steps);
    let variables = sandbox.file("store.env", &secrets::exports(&server));
    let run = format!("s3://{BUCKET}/long");
    let sets =
        format!("--set 'slurm.time=\"1\"' --set slurm.lead_seconds=15 --set \"slurm.prologue=['. {variables}']\"");
    let line = format!(". {variables}; exec {} submit --config {file} --run {run} {sets}", sandbox.path("bin/lambert"));
    let local = place.path("local");
    // Beside it, so that the run in the queue is slow enough for its limit.
    let undisturbed = Running::start(&place.config(steps, 2), &local);
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
        sandbox.administer("sacct", &["-nPXD", "-j", &ran.out, "-o", "state,elapsed"])
    );
    assert_eq!(last_state(&sandbox, &ran.out), "COMPLETED", "{log}");
    let limits = log.matches("(close to the job's time limit)").count();
    assert!(limits >= 3 && log.matches("requeuing the job").count() >= limits, "{limits}: {log}");
    assert_eq!(undisturbed.end().code, Some(0));
    support::ENVIRONMENT.set(server.environment());
    let newest = support::checkpoints(&run).remove(0);
    support::done(&["checkpoint", "copy", &format!("{run}/checkpoints/{newest}"), &place.path("fetched")]);
    assert_same_bits(&local, &place.path("fetched"));
}

fn last_state(sandbox: &Sandbox, job: &str) -> String {
    let states = sandbox.run("sacct", &["-nPX", "-j", job, "-o", "state"]).out;
    states.split_whitespace().next().unwrap_or_default().to_owned()
}

/// One row of the table: an event, and the seconds of each time.
struct Row {
    what: &'static str,
    /// From the event to the next step.
    all: Vec<f64>,
    /// Of that, from the script's end to the next start of the job, which is Slurm's.
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

/// Measures from `event` to the next step behind what the log has; how much of it was Slurm's.
fn time(sandbox: &Sandbox, job: &str, restart: Restart, event: impl FnOnce()) -> (f64, f64) {
    let seen = sandbox.log(job).len();
    let begun = Instant::now();
    event();
    let mut slurm = 0.0;
    let mut seen = seen;
    if restart == Restart::InPlace {
        // The display's next line may be ten seconds away.
        sandbox.say(job, seen, "recovered to step");
        return (begun.elapsed().as_secs_f64(), slurm);
    }
    if restart == Restart::Yes {
        seen = sandbox.say(job, seen, "stopped: step");
        let ended = Instant::now();
        // The plan that a coordinator prints first.
        seen = sandbox.say(job, seen, "\ntotal: ");
        slurm = ended.elapsed().as_secs_f64();
    }
    seen = sandbox.say(job, seen, "starting 2 workers");
    sandbox.say(job, seen, "\nstep ");
    (begun.elapsed().as_secs_f64(), slurm)
}

/// How the run goes on.
#[derive(Clone, Copy, PartialEq)]
enum Restart {
    /// By another start of the job.
    Yes,
    /// By another coordinator in the same job.
    No,
    /// By the same coordinator.
    InPlace,
}

const TIMES: usize = 5;
/// The batch script starts a coordinator that a signal has killed again so often; then the job is queued again.
const IN_PLACE: usize = 3;

fn measure(sandbox: &Sandbox, job: &str, what: &'static str, restart: Restart, event: impl Fn()) {
    let times: Vec<(f64, f64)> = (0..if restart == Restart::No { IN_PLACE } else { TIMES })
        .map(|_| {
            // Far enough for lines to be rare: the first are printed in any case.
            std::thread::sleep(std::time::Duration::from_secs(2));
            time(sandbox, job, restart, &event)
        })
        .collect();
    let (all, slurm) = times.into_iter().unzip();
    Row { what, all, slurm }.print();
}

fn urgent(sandbox: &Sandbox) {
    let ran = sandbox.run("srun", &["--partition=urgent", "--nodes=3", "--exclusive", "true"]);
    assert_eq!(ran.code, 0, "{}", ran.err);
}

/// Five times each; the table is in docs/experiments/slurm.md.
#[test]
#[ignore = "long: five minutes"]
fn how_long_a_run_stands_still() {
    let place = Place::new();
    let Some(sandbox) = begin(&place) else { return };
    let (file, run) = (config(&place, &sandbox, 10_000_000), sandbox.path("runs/long"));
    let job = sandbox.submit(&file, &run, &["--set", "cluster.restart.limit=1000"]);
    sandbox.say(&job, 0, "\nstep 5/");
    eprintln!("| event | times | to the next step: median (range), s | without Slurm's own delay |\n|---|---|---|---|");
    measure(&sandbox, &job, "a rank killed", Restart::InPlace, || {
        let line = sandbox.path("bin/lambert-worker train");
        signal(*sandbox.processes(&line).last().unwrap(), "-9");
    });
    measure(&sandbox, &job, "the coordinator killed", Restart::No, || {
        signal(sandbox.processes(&sandbox.path("bin/lambert run"))[0], "-9");
    });
    measure(&sandbox, &job, "scontrol requeue", Restart::Yes, || {
        assert_eq!(sandbox.run("scontrol", &["requeue", &job]).code, 0);
    });
    measure(&sandbox, &job, "preempted, with the user signal", Restart::Yes, || urgent(&sandbox));
    let conf = sandbox.folder().join("slurm.conf");
    let text = std::fs::read_to_string(&conf).unwrap();
    std::fs::write(&conf, text.replace("SlurmctldParameters=preempt_send_user_signal\n", "")).unwrap();
    sandbox.administer("scontrol", &["reconfigure"]);
    measure(&sandbox, &job, "preempted, without", Restart::Yes, || urgent(&sandbox));
    suspended(&sandbox, &job);
    cancelled(&sandbox, &file, &run, &job);
}

/// Longer than ranks may be silent (90 s) and a coordinator may be (45 s).
fn suspended(sandbox: &Sandbox, job: &str) {
    for seconds in [3, 100] {
        let starts = sandbox.log(job).matches("starting 2 workers").count();
        sandbox.administer("scontrol", &["suspend", job]);
        sandbox.state(job, "SUSPENDED");
        std::thread::sleep(std::time::Duration::from_secs(seconds));
        let (step, begun) = (step(sandbox), Instant::now());
        sandbox.administer("scontrol", &["resume", job]);
        sandbox.wait("a step after a suspension", || (self::step(sandbox) > step).then_some(()));
        let again = sandbox.log(job).matches("starting 2 workers").count() - starts;
        eprintln!("| resumed after {seconds} s | 1 | {:.1}, restarts: {again} | |", begun.elapsed().as_secs_f64());
    }
}

/// The step of the run's status.
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
        sandbox.say(&job, 0, "(stopped by a user)");
        times.push(begun.elapsed().as_secs_f64());
        assert!(!sandbox.log(&job).ends_with("requeuing the job\n"));
        support::done(&["checkpoint", "verify", run]);
        let last = sandbox.wait("the end of the job before", || {
            let ran = sandbox.lambert(&["submit", "--config", file, "--run", run]);
            (ran.code == 0).then_some(ran.out)
        });
        job = last;
        sandbox.say(&job, 0, "\nstep ");
    }
    Row { what: "scancel, to the end with a checkpoint", all: times, slurm: Vec::new() }.print();
    assert_eq!(sandbox.run("scancel", &[&job]).code, 0);
}

/// The long form of what `runs_in_a_queue` looks at three times.
#[test]
#[ignore = "long: eight minutes"]
fn ranks_of_a_node_share_memory_at_every_start() {
    let place = Place::new();
    let Some(sandbox) = begin(&place) else { return };
    memory::starts(&place, &sandbox, 20);
}
