//! Tests of runs that are submitted, killed, preempted and stopped under a real Slurm.

mod gpus;
mod long;
mod memory;
mod prep;
mod queue;
mod requeues;
mod secrets;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use crate::support::slurm::Sandbox;
use crate::support::{self, Running, TestDir, assert_same_bits, copy, signal};

/// Writes a configuration with two ranks on two nodes. The user of the sandbox can read the file.
fn config(dir: &TestDir, sandbox: &Sandbox, steps: u64) -> String {
    let text = std::fs::read_to_string(dir.config(steps, 2)).unwrap();
    let text = text.replace(&dir.path("data/train"), &sandbox.path("data/train"));
    let text = format!("{text}[slurm]\nnodes = 2\ntime = \"30\"\n");
    std::fs::write(sandbox.path("run.toml"), text).unwrap();
    sandbox.path("run.toml")
}

/// Kills a rank, kills the coordinator and preempts the job. The run must end with the same bits as an undisturbed run
/// under mpirun.
fn result_is_unchanged_after_kills_and_preemption(dir: &TestDir, sandbox: &Sandbox) {
    const STEPS: u64 = 300;
    let local = std::thread::scope(|scope| {
        let local = scope.spawn(|| {
            let run = dir.path("local");
            assert_eq!(Running::start(&dir.config(STEPS, 2), &run).end().code, Some(0));
            run
        });
        disturb(dir, sandbox, STEPS);
        local.join().unwrap()
    });
    assert_same_bits(&local, &sandbox.path("runs/it's a \"run\""));
}

fn disturb(dir: &TestDir, sandbox: &Sandbox, steps: u64) {
    let run = sandbox.path("runs/it's a \"run\"");
    let name = ["--set", r#"run.name="it's a \"run\"""#];
    let job = sandbox.submit(&config(dir, sandbox, steps), &run, &name);
    assert_eq!(sandbox.run("squeue", &["-h", "-j", &job, "-o", "%j"]).out, "it's a \"run\"");
    sandbox.wait_for_log(&job, 0, "\nstep 5/");

    let ranks = sandbox.processes(&sandbox.path("bin/lambert-worker train"));
    assert_eq!(ranks.len(), 2, "{ranks:?}");
    let begun = Instant::now();
    signal(*ranks.last().unwrap(), "-9");
    let seen = sandbox.wait_for_log(&job, 0, "killed by SIGKILL; restarting all workers");
    let seen = sandbox.wait_for_log(&job, seen, "recovered to step");
    eprintln!("a rank killed: as far again after {:.1} s", begun.elapsed().as_secs_f64());

    let coordinator = sandbox.processes(&sandbox.path("bin/lambert run"));
    let begun = Instant::now();
    signal(coordinator[0], "-9");
    let seen = sandbox.wait_for_log(&job, seen, "the coordinator was killed by SIGKILL");
    let seen = sandbox.wait_for_log(&job, seen, "\nstep ");
    eprintln!("the coordinator killed: steps again after {:.1} s", begun.elapsed().as_secs_f64());

    let begun = Instant::now();
    let urgent = ["--partition=urgent", "--nodes=3", "--exclusive", "sleep", "1"];
    let first = sandbox.run("srun", &urgent);
    assert_eq!(first.code, 0, "{}", first.err);
    eprintln!("the job that goes first was done after {:.1} s", begun.elapsed().as_secs_f64());
    let seen = sandbox.wait_for_log(&job, seen, "(preempted by another job)");
    let seen = sandbox.wait_for_log(&job, seen, "requeuing the job");
    sandbox.wait_for_log(&job, seen, "\nstep ");
    eprintln!("preempted: steps again after {:.1} s", begun.elapsed().as_secs_f64());
    assert_eq!(sandbox.ended(&job), "COMPLETED|0:0", "{}", sandbox.log(&job));
    let reported = sandbox.lambert(&["status", &run]).out;
    for line in [
        format!("job          {job}: completed on n["),
        format!("job end      {job}, "),
        "the coordinator or its node died".to_owned(),
        "ago: preempted by another job".to_owned(),
    ] {
        assert!(reported.contains(&line), "no {line:?} in {reported}");
    }
    let user = sandbox.run("id", &["-u"]).out;
    let shared = Command::new("find").args(["/dev/shm", "-user", &user]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&shared.stdout), "", "killed ranks left shared memory");
    assert!(sandbox.log(&job).contains("starting 2 workers"), "the log was truncated: {}", sandbox.log(&job));
}

/// A requested end must not requeue the job, and must leave a checkpoint of the last step.
fn requested_ends_are_not_requeued(dir: &TestDir, sandbox: &Sandbox) {
    let file = config(dir, sandbox, 1_000_000);
    let (stopped, cancelled) = (sandbox.path("runs/stopped"), sandbox.path("runs/cancelled"));
    let one = sandbox.submit(&file, &stopped, &[]);
    let other = sandbox.submit(&file, &cancelled, &[]);
    for job in [&one, &other] {
        sandbox.wait_for_log(job, 0, "\nstep 5/");
    }
    assert_eq!(sandbox.lambert(&["stop", &stopped]).code, 0);
    assert_eq!(sandbox.run("scancel", &[&other]).code, 0);
    assert_eq!(sandbox.ended(&one), "FAILED|76:0", "{}", sandbox.log(&one));
    assert!(sandbox.ended(&other).starts_with("CANCELLED"), "{}", sandbox.log(&other));
    assert!(sandbox.log(&other).contains("(stopped by a user)"), "{}", sandbox.log(&other));
    for (run, job) in [(&stopped, &one), (&cancelled, &other)] {
        let log = sandbox.log(job);
        assert!(!log.contains("requeuing the job"), "{log}");
        assert!(!support::checkpoints(run).is_empty(), "{log}");
    }
}

/// Signals the job step of the ranks but not the batch script, as a preemption without the user signal does.
fn sigterm_to_the_step_stops_the_run(dir: &TestDir, sandbox: &Sandbox) {
    let run = sandbox.path("runs/asked");
    let job = sandbox.submit(&config(dir, sandbox, 1_000_000), &run, &[]);
    sandbox.wait_for_log(&job, 0, "\nstep 5/");
    assert_eq!(sandbox.run("scancel", &["--signal=TERM", &format!("{job}.0")]).code, 0);
    let seen = sandbox.wait_for_log(&job, 0, "stopping: the workers save a checkpoint");
    let seen = sandbox.wait_for_log(&job, seen, "requeuing the job");
    sandbox.wait_for_log(&job, seen, "\nstep ");
    assert_eq!(sandbox.run("scancel", &[&job]).code, 0);
    assert!(sandbox.ended(&job).starts_with("CANCELLED"), "{}", sandbox.log(&job));
}

/// Jobs that could never start must be rejected with an error that names the wrong key. Nothing may be queued or
/// written.
fn impossible_jobs_are_rejected(dir: &TestDir, sandbox: &Sandbox) {
    let file = config(dir, sandbox, 10);
    let (sum, run) = ("slurm.", sandbox.path("runs/refused"));
    for (set, message) in [
        ("partition=\"nowhere\"", "partition: unknown partition \"nowhere\"; expected one of batch, urgent"),
        ("color=\"red\"", "color: "),
        ("account=\"nobody\"", "account: no access to \"nobody\"; expected one of lab"),
        ("qos=\"best\"", "qos: no access to \"best\"; expected one of normal, patient"),
        ("time=\"2:00:00\"", "time: is 2:00:00; partition batch allows at most 3600 s"),
        ("lead_seconds=1800", "lead_seconds = 1800: must be less than the time limit \"30\""),
        ("output=\"no/such/%j\"", "output: directory "),
        ("export=[\"AWS_SECRET_ACCESS_KEY\"]", "export: AWS_SECRET_ACCESS_KEY: Slurm would store its value in files"),
    ] {
        let set = format!("{sum}{set}");
        let more = ["submit", "--config", &file, "--run", &run, "--set", "slurm.partition=\"batch\"", "--set", &set];
        let ran = sandbox.lambert(&more);
        assert_eq!(ran.code, 2, "{set}: {}", ran.err);
        assert!(ran.err.contains(&format!("{sum}{message}")), "{set}: {}", ran.err);
    }
    let many = ["--set", "slurm.nodes=4", "--set", "cluster.ranks=4", "--set", "slurm.partition=\"batch\""];
    let ran = sandbox.lambert(&[&["submit", "--config", &file, "--run", &run], &many[..]].concat());
    assert_eq!(ran.code, 2, "{}", ran.err);
    assert!(ran.err.contains("slurm.nodes: is 4; partition batch has 3"), "{}", ran.err);
    assert_eq!(sandbox.run("squeue", &["-h"]).out, "");
    assert!(!Path::new(&run).exists(), "a rejected job wrote its run");
}

/// Name of a test in the output, and the test function.
type Case = (&'static str, fn(&TestDir, &Sandbox));

#[test]
fn jobs_run_in_a_real_slurm() {
    let Some(sandbox) = Sandbox::start() else { return };
    let dir = TestDir::new();
    copy(Path::new(&dir.path("data")), Path::new(&sandbox.path("data")));
    std::fs::create_dir(sandbox.path("runs")).unwrap();
    ["data", "runs"].iter().for_each(|name| drop(sandbox.give_to_user(name)));
    let cases: [Case; 14] = [
        ("impossible jobs", impossible_jobs_are_rejected),
        ("kills and preemption", result_is_unchanged_after_kills_and_preemption),
        ("requested ends", requested_ends_are_not_requeued),
        ("SIGTERM to the step", sigterm_to_the_step_stops_the_run),
        ("stop of inactive jobs", queue::stop_requests_apply_to_inactive_jobs),
        ("concurrent submissions", queue::one_of_two_concurrent_submissions_succeeds),
        ("shared memory", memory::is_shared),
        ("GPUs and CPUs of ranks", gpus::belong_to_the_ranks),
        ("transient and permanent failures", requeues::failures_decide),
        ("comment of the site", requeues::the_failure_count_keeps_other_comments),
        ("rejected failure count", requeues::a_rejected_failure_count_ends_the_job),
        ("preemption in the prologue", requeues::preemption_in_the_prologue),
        ("array of preparations", prep::an_array_and_its_join),
        ("secrets", secrets::secrets_are_not_exposed),
    ];
    for (name, case) in cases {
        let begun = Instant::now();
        case(&dir, &sandbox);
        eprintln!("{name}: {:.1} s", begun.elapsed().as_secs_f64());
    }
    let folder = sandbox.folder().to_owned();
    let user = folder.file_name().unwrap().to_owned();
    drop(sandbox);
    assert!(!folder.exists(), "{} was not removed", folder.display());
    assert!(!Command::new("id").arg(user).output().unwrap().status.success(), "the user was not removed");
}

/// Without Slurm nothing can be queued, but `--dry-run` still prints the script.
#[test]
fn submit_without_slurm_fails_and_dry_run_works() {
    let dir = TestDir::new();
    let (file, run) = (dir.config(10, 1), dir.path("run"));
    let environment = [("PATH", dir.path("nothing"))];
    let ran = support::run_in(&["submit", "--config", &file, "--run", &run], &environment);
    assert_eq!(ran.code, 2, "{}", ran.err);
    assert!(ran.err.contains("cannot start sinfo; check that Slurm is installed"), "{}", ran.err);
    let shown = support::run_in(&["submit", "--config", &file, "--run", &run, "--dry-run"], &environment);
    assert_eq!(shown.code, 0, "{}", shown.err);
    assert!(shown.out.starts_with("#!/bin/bash\n#SBATCH --job-name=run\n"), "{}", shown.out);
    assert!(!Path::new(&run).exists());
    let gpus = ["--set", "slurm.gpus_per_node=8", "--set", "device.kind=\"cpu\""];
    let shown = support::run_in(
        &[&["submit", "--config", &file, "--run", &run, "--dry-run"], &gpus[..]].concat(),
        &environment,
    );
    assert_eq!(shown.code, 0, "{}", shown.err);
    let warning = "slurm.gpus_per_node = 8 reserves GPUs, but device.kind = \"cpu\" trains on CPUs";
    assert!(shown.err.contains(warning), "{}", shown.err);
}

/// The current state of a run and the duration of its checkpoints determine whether the run can be queued.
#[test]
fn submit_rejects_an_active_run_and_a_short_lead_time() {
    let dir = TestDir::new();
    let (file, run) = (dir.config(1_000_000, 1), dir.path("run"));
    let submit = |more: &[&str]| {
        let line = [&["submit", "--config", &file, "--run", &run], more].concat();
        support::run_in(&line, &[("PATH", dir.path("nothing"))])
    };
    let mut running = Running::start(&file, &run);
    running.reach(3);
    let refused = submit(&[]);
    assert_eq!(refused.code, 2, "{}", refused.err);
    for text in ["is running: its coordinator (pid ", "`lambert stop "] {
        assert!(refused.err.contains(text), "no {text:?} in {}", refused.err);
    }
    running.kill_coordinator("-TERM");
    assert_eq!(running.end().code, Some(75));
    let later = submit(&[]);
    assert!(later.err.contains("cannot start sinfo"), "the run is still active: {}", later.err);

    let object = Path::new(&run).join("coordinator.json");
    let mut memory: serde_json::Value = serde_json::from_slice(&std::fs::read(&object).unwrap()).unwrap();
    assert!(memory["recent_saves"].as_array().is_some_and(|saves| !saves.is_empty()), "{memory}");
    memory["recent_saves"] = serde_json::json!([200.0, 130.0, 140.0]);
    std::fs::write(object, memory.to_string()).unwrap();
    let short = submit(&[]);
    assert_eq!(short.code, 2, "{}", short.err);
    let printed = "slurm.lead_seconds = 120: must be at least 141: a checkpoint takes 140.0 s (median) and a step ";
    assert!(short.err.contains(printed), "{}", short.err);
    let long = submit(&["--set", "slurm.lead_seconds=142"]);
    assert!(long.err.contains("cannot start sinfo"), "{}", long.err);
}

/// A name with a line break would add a line to the batch script.
#[test]
fn a_line_break_in_a_name_is_rejected() {
    let dir = TestDir::new();
    let (file, run) = (dir.config(10, 1), dir.path("run"));
    let folder = dir.path("two\nlines");
    std::fs::create_dir(&folder).unwrap();
    let dry = |more: &[&str], folder: &str| {
        let mut command = Command::new(support::lambert());
        command.args(["submit", "--dry-run", "--config", &file, "--run", &run]).args(more).current_dir(folder);
        let output = command.output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        (output.status.code(), text(output.stdout), text(output.stderr))
    };
    for (more, folder, option) in [
        (&["--set", "run.name=\"a\\ntouch x\""][..], dir.path(""), "--job-name=a\\ntouch x"),
        (&[][..], folder, "--chdir="),
    ] {
        let (code, out, err) = dry(more, &folder);
        assert_eq!((code, out.as_str()), (Some(2), ""), "{err}");
        assert!(err.contains(option) && err.contains("has a control character"), "{err}");
    }
}

#[test]
fn shellcheck_finds_no_issue_in_the_sandbox() {
    let scripts =
        ["up.sh", "down.sh", "packages.sh", "demo.sh"].map(|name| PathBuf::from("cluster/slurm-sandbox").join(name));
    match Command::new("shellcheck").args(scripts).output() {
        Ok(output) => assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout)),
        Err(_) => eprintln!("SKIPPED: shellcheck is missing"),
    }
}
