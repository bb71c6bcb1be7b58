//! Runs in the queue of a real Slurm: submitted, killed, preempted, stopped.

mod causes;
mod long;
mod memory;
mod prep;
mod queue;
mod secrets;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use crate::support::slurm::Sandbox;
use crate::support::{self, Place, Running, assert_same_bits, copy, signal};

/// A run of two ranks on two nodes, as the user of the sandbox reads it.
fn config(place: &Place, sandbox: &Sandbox, steps: u64) -> String {
    let text = std::fs::read_to_string(place.config(steps, 2)).unwrap();
    let text = text.replace(&place.path("data/train"), &sandbox.path("data/train"));
    let text = format!("{text}[slurm]\nnodes = 2\ntime = \"30\"\n");
    std::fs::write(sandbox.path("run.toml"), text).unwrap();
    sandbox.path("run.toml")
}

/// What happens to a job happens to this one: a rank is killed, the coordinator is, and another job goes first. It ends with
/// the bits of an undisturbed run under mpirun.
fn survives(place: &Place, sandbox: &Sandbox) {
    const STEPS: u64 = 300;
    let local = std::thread::scope(|scope| {
        let local = scope.spawn(|| {
            let run = place.path("local");
            assert_eq!(Running::start(&place.config(STEPS, 2), &run).end().code, Some(0));
            run
        });
        disturb(place, sandbox, STEPS);
        local.join().unwrap()
    });
    assert_same_bits(&local, &sandbox.path("runs/it's a \"run\""));
}

fn disturb(place: &Place, sandbox: &Sandbox, steps: u64) {
    let run = sandbox.path("runs/it's a \"run\"");
    let name = ["--set", r#"run.name="it's a \"run\"""#];
    let job = sandbox.submit(&config(place, sandbox, steps), &run, &name);
    assert_eq!(sandbox.run("squeue", &["-h", "-j", &job, "-o", "%j"]).out, "it's a \"run\"");
    sandbox.say(&job, 0, "\nstep 5/");

    let ranks = sandbox.processes(&sandbox.path("bin/lambert-worker train"));
    assert_eq!(ranks.len(), 2, "{ranks:?}");
    let begun = Instant::now();
    signal(*ranks.last().unwrap(), "-9");
    let seen = sandbox.say(&job, 0, "killed by SIGKILL; restarting all workers");
    let seen = sandbox.say(&job, seen, "recovered to step");
    eprintln!("a rank killed: as far again after {:.1} s", begun.elapsed().as_secs_f64());

    let coordinator = sandbox.processes(&sandbox.path("bin/lambert run"));
    let begun = Instant::now();
    signal(coordinator[0], "-9");
    let seen = sandbox.say(&job, seen, "the coordinator killed by SIGKILL");
    let seen = sandbox.say(&job, seen, "\nstep ");
    eprintln!("the coordinator killed: steps again after {:.1} s", begun.elapsed().as_secs_f64());

    let begun = Instant::now();
    let urgent = ["--partition=urgent", "--nodes=3", "--exclusive", "sleep", "1"];
    let first = sandbox.run("srun", &urgent);
    assert_eq!(first.code, 0, "{}", first.err);
    eprintln!("the job that goes first was done after {:.1} s", begun.elapsed().as_secs_f64());
    let seen = sandbox.say(&job, seen, "(preempted by another job)");
    let seen = sandbox.say(&job, seen, "requeuing the job");
    sandbox.say(&job, seen, "\nstep ");
    eprintln!("preempted: steps again after {:.1} s", begun.elapsed().as_secs_f64());
    assert_eq!(sandbox.ended(&job), "COMPLETED|0:0", "{}", sandbox.log(&job));
    let told = sandbox.lambert(&["status", &run]).out;
    for line in [
        format!("job          {job}: completed on n["),
        format!("job end      {job}, "),
        "the coordinator or its node died".to_owned(),
        "ago: preempted by another job".to_owned(),
    ] {
        assert!(told.contains(&line), "no {line:?} in {told}");
    }
    let user = sandbox.run("id", &["-u"]).out;
    let shared = Command::new("find").args(["/dev/shm", "-user", &user]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&shared.stdout), "", "ranks that were killed have left memory behind");
    assert!(sandbox.log(&job).contains("starting 2 workers"), "the log was truncated: {}", sandbox.log(&job));
}

/// Ends that are meant: nobody queues the job again, and a checkpoint of the last step is there.
fn ends(place: &Place, sandbox: &Sandbox) {
    let file = config(place, sandbox, 1_000_000);
    let (stopped, cancelled) = (sandbox.path("runs/stopped"), sandbox.path("runs/cancelled"));
    let one = sandbox.submit(&file, &stopped, &[]);
    let other = sandbox.submit(&file, &cancelled, &[]);
    for job in [&one, &other] {
        sandbox.say(job, 0, "\nstep 5/");
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

/// A step that is asked to end, and its job not: what a preemption is without the user signal.
fn ranks_are_asked_first(place: &Place, sandbox: &Sandbox) {
    let run = sandbox.path("runs/asked");
    let job = sandbox.submit(&config(place, sandbox, 1_000_000), &run, &[]);
    sandbox.say(&job, 0, "\nstep 5/");
    assert_eq!(sandbox.run("scancel", &["--signal=TERM", &format!("{job}.0")]).code, 0);
    let seen = sandbox.say(&job, 0, "stopping: the workers save a checkpoint");
    let seen = sandbox.say(&job, seen, "requeuing the job");
    sandbox.say(&job, seen, "\nstep ");
    assert_eq!(sandbox.run("scancel", &[&job]).code, 0);
    assert!(sandbox.ended(&job).starts_with("CANCELLED"), "{}", sandbox.log(&job));
}

/// What could never start is refused, each fault with its key, and nothing is queued or written.
fn refuses(place: &Place, sandbox: &Sandbox) {
    let file = config(place, sandbox, 10);
    let (sum, run) = ("slurm.", sandbox.path("runs/refused"));
    for (set, message) in [
        ("partition=\"nowhere\"", "partition: unknown partition \"nowhere\"; expected one of batch, urgent"),
        ("colour=\"red\"", "colour: "),
        ("account=\"nobody\"", "account: no access to \"nobody\"; expected one of lab"),
        ("qos=\"best\"", "qos: no access to \"best\"; expected one of normal, patient"),
        ("time=\"2:00:00\"", "time: is 2:00:00; partition batch allows at most 3600 s"),
        ("lead_seconds=1800", "lead_seconds: is 1800; must be less than the time limit \"30\""),
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
    assert!(!Path::new(&run).exists(), "a refused job has written its run");
}

/// A name for people, and what happens.
type Scene = (&'static str, fn(&Place, &Sandbox));

#[test]
fn runs_in_a_queue() {
    let Some(sandbox) = Sandbox::start() else { return };
    let place = Place::new();
    copy(Path::new(&place.path("data")), Path::new(&sandbox.path("data")));
    std::fs::create_dir(sandbox.path("runs")).unwrap();
    ["data", "runs"].iter().for_each(|name| drop(sandbox.give(name)));
    let scenes: [Scene; 13] = [
        ("refuses", refuses),
        ("survives", survives),
        ("ends", ends),
        ("ranks are asked first", ranks_are_asked_first),
        ("requests hold", queue::requests_hold),
        ("one of two submissions", queue::one_of_two_submissions),
        ("ranks share memory", memory::is_shared),
        ("causes decide", causes::decide),
        ("a comment of others", causes::count_beside_a_comment),
        ("a count that is not kept", causes::count_that_is_not_kept),
        ("asked in the prologue", causes::asked_in_the_prologue),
        ("a preparation", prep::an_array_and_its_join),
        ("secrets stay", secrets::stay),
    ];
    for (name, scene) in scenes {
        let begun = Instant::now();
        scene(&place, &sandbox);
        eprintln!("{name}: {:.1} s", begun.elapsed().as_secs_f64());
    }
    let folder = sandbox.folder().to_owned();
    let user = folder.file_name().unwrap().to_owned();
    drop(sandbox);
    assert!(!folder.exists(), "{} is left", folder.display());
    assert!(!Command::new("id").arg(user).output().unwrap().status.success(), "the user is left");
}

/// Without a Slurm nothing is queued, and the script can be had all the same.
#[test]
fn a_machine_without_slurm() {
    let place = Place::new();
    let (file, run) = (place.config(10, 1), place.path("run"));
    let environment = [("PATH", place.path("nothing"))];
    let ran = support::run_in(&["submit", "--config", &file, "--run", &run], &environment);
    assert_eq!(ran.code, 2, "{}", ran.err);
    assert!(ran.err.contains("cannot start sinfo; check that Slurm is installed"), "{}", ran.err);
    let shown = support::run_in(&["submit", "--config", &file, "--run", &run, "--dry-run"], &environment);
    assert_eq!(shown.code, 0, "{}", shown.err);
    assert!(shown.out.starts_with("#!/bin/bash\n#SBATCH --job-name=run\n"), "{}", shown.out);
    assert!(!Path::new(&run).exists());
}

/// What a run does at the moment, and how long its checkpoints take, decide whether it is queued.
#[test]
fn a_run_under_way_is_not_queued_and_neither_is_a_short_lead() {
    let place = Place::new();
    let (file, run) = (place.config(1_000_000, 1), place.path("run"));
    let submit = |more: &[&str]| {
        let line = [&["submit", "--config", &file, "--run", &run], more].concat();
        support::run_in(&line, &[("PATH", place.path("nothing"))])
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
    assert!(later.err.contains("cannot start sinfo"), "it is not under way any more: {}", later.err);

    let object = Path::new(&run).join("coordinator.json");
    let mut memory: serde_json::Value = serde_json::from_slice(&std::fs::read(&object).unwrap()).unwrap();
    assert!(memory["recent_saves"].as_array().is_some_and(|saves| !saves.is_empty()), "{memory}");
    memory["recent_saves"] = serde_json::json!([200.0, 130.0, 140.0]);
    std::fs::write(object, memory.to_string()).unwrap();
    let short = submit(&[]);
    assert_eq!(short.code, 2, "{}", short.err);
    let said = "slurm.lead_seconds: is 120; must be at least 141: a checkpoint takes 140.0 s (median) and a step ";
    assert!(short.err.contains(said), "{}", short.err);
    let long = submit(&["--set", "slurm.lead_seconds=142"]);
    assert!(long.err.contains("cannot start sinfo"), "{}", long.err);
}

/// A name with a line break would begin a line of the batch script.
#[test]
fn a_line_break_in_a_name_reaches_no_script() {
    let place = Place::new();
    let (file, run) = (place.config(10, 1), place.path("run"));
    let folder = place.path("two\nlines");
    std::fs::create_dir(&folder).unwrap();
    let dry = |more: &[&str], folder: &str| {
        let mut command = Command::new(support::lambert());
        command.args(["submit", "--dry-run", "--config", &file, "--run", &run]).args(more).current_dir(folder);
        let output = command.output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        (output.status.code(), text(output.stdout), text(output.stderr))
    };
    for (more, folder, option) in [
        (&["--set", "run.name=\"a\\ntouch x\""][..], place.path(""), "--job-name=a\\ntouch x"),
        (&[][..], folder, "--chdir="),
    ] {
        let (code, out, err) = dry(more, &folder);
        assert_eq!((code, out.as_str()), (Some(2), ""), "{err}");
        assert!(err.contains(option) && err.contains("has a control character"), "{err}");
    }
}

#[test]
fn shellcheck_finds_nothing_in_the_sandbox() {
    let scripts =
        ["up.sh", "down.sh", "packages.sh", "demo.sh"].map(|name| PathBuf::from("cluster/slurm-sandbox").join(name));
    match Command::new("shellcheck").args(scripts).output() {
        Ok(output) => assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout)),
        Err(_) => eprintln!("SKIPPED: shellcheck is missing"),
    }
}
