//! What follows from how a run fails: another start, so many of them, or none.

use std::path::Path;

use crate::slurm::config;
use crate::support::slurm::Sandbox;
use crate::support::{Place, signal};

/// A failure is followed by another start of the job until they are used up; one that would come again by none.
pub fn decide(place: &Place, sandbox: &Sandbox) {
    let file = config(place, sandbox, 1_000_000);
    let fatal =
        ["--set", "guard.rollbacks=1", "--set", &format!("test.nan_samples={:?}", (0..2000).collect::<Vec<u64>>())];
    let hopeless = sandbox.submit(&file, &sandbox.path("runs/hopeless"), &fatal);
    // A busy controller does not answer the first question of each start.
    let asked = sandbox.path("runs/asked-$SLURM_JOB_ID-${SLURM_RESTART_COUNT:-0}");
    let busy = format!(
        "slurm.prologue=['''squeue() {{ case $* in *%T*) [ -e {asked} ] || {{ touch {asked}; return 1; }} ;; esac; command \
         squeue \"$@\"; }}''']"
    );
    let once = ["--set", "cluster.restart.limit=0", "--set", "slurm.requeues=1", "--set", &busy];
    let run = sandbox.path("runs/failing");
    let failing = sandbox.submit(&file, &run, &once);

    let mut seen = 0;
    for _ in 0..2 {
        // Not a step of a certain number: the second start may have a checkpoint to go on from.
        seen = sandbox.say(&failing, seen, "\nstep ");
        let line = format!("{} train --run {run}", sandbox.path("bin/lambert-worker"));
        signal(*sandbox.processes(&line).last().unwrap(), "-9");
        seen = sandbox.say(&failing, seen, "giving up after 1 failure within 60 minutes");
    }
    assert_eq!(sandbox.ended(&failing), "FAILED|1:0", "{}", sandbox.log(&failing));
    assert_eq!(sandbox.log(&failing).matches("failure 1: requeuing the job").count(), 1);
    let told = sandbox.lambert(&["status", &run]).out;
    assert_eq!(told.matches("ago: failed: giving up after 1 failure").count(), 2, "{told}");

    assert_eq!(sandbox.ended(&hopeless), "FAILED|65:0", "{}", sandbox.log(&hopeless));
    assert!(!sandbox.log(&hopeless).contains("requeuing the job"), "{}", sandbox.log(&hopeless));
}

/// A preemption while the prologue still copies files: nothing was begun, and it is no failure.
pub fn asked_in_the_prologue(place: &Place, sandbox: &Sandbox) {
    let (run, begun) = (sandbox.path("runs/early"), sandbox.path("runs/begun"));
    let prologue = format!("slurm.prologue=['[ -e {begun} ] || {{ touch {begun}; sleep 3; }}']");
    let more = ["--set", "slurm.requeues=0", "--set", &prologue];
    let job = sandbox.submit(&config(place, sandbox, 1_000_000), &run, &more);
    sandbox.wait("the prologue", || Path::new(&begun).exists().then_some(()));
    assert_eq!(sandbox.run("scancel", &["--batch", "--signal=USR1", &job]).code, 0);
    let seen = sandbox.say(&job, 0, "requeuing the job");
    assert!(!sandbox.log(&job).contains("starting 2 workers"), "{}", sandbox.log(&job));
    sandbox.say(&job, seen, "\nstep ");
    assert_eq!(sandbox.lambert(&["stop", &run]).code, 0);
    assert_eq!(sandbox.ended(&job), "FAILED|76:0", "{}", sandbox.log(&job));
}

/// A run that fails at once, whose job has a comment of the site's: its program is away, as it is with its file system.
fn failing(place: &Place, sandbox: &Sandbox, name: &str, prologue: &str) -> String {
    let (file, folder) = (config(place, sandbox, 10), sandbox.path(name));
    assert_eq!(sandbox.run("cp", &["-r", &sandbox.path("bin"), &folder]).code, 0);
    let comment =
        "[ \"${SLURM_RESTART_COUNT:-0}\" != 0 ] || scontrol update JobId=$SLURM_JOB_ID Comment=\"project 2026\";";
    let line = format!("slurm.prologue=['''{comment} {prologue} rm -f {folder}/lambert''']");
    let sets = ["--set", "slurm.requeues=1", "--set", &line];
    let run = sandbox.path(&format!("runs/{name}"));
    let arguments = [&["submit", "--config", &file, "--run", &run], &sets[..]].concat();
    let ran = sandbox.run(&format!("{folder}/lambert"), &arguments);
    assert_eq!(ran.code, 0, "{}", ran.err);
    ran.out
}

/// The number in somebody else's comment is no number of failures, and the comment stays.
pub fn count_beside_a_comment(place: &Place, sandbox: &Sandbox) {
    let job = failing(place, sandbox, "commented", "");
    assert_eq!(sandbox.ended(&job), "FAILED|1:0", "{}", sandbox.log(&job));
    let log = sandbox.log(&job);
    assert_eq!(log.matches("failure 1: requeuing the job").count(), 1, "{log}");
    assert_eq!(log.matches("failure 2: slurm.requeues is 1").count(), 1, "{log}");
    let told = sandbox.run("squeue", &["--states=all", "-h", "-j", &job, "-o", "%k"]).out;
    assert_eq!(told, "project 2026; lambert: 1 failures");
}

/// Slurm refuses to note the failure: nobody may give a job the priority that is asked for beside it. A job whose failures
/// are not counted would be queued again for ever.
pub fn count_that_is_not_kept(place: &Place, sandbox: &Sandbox) {
    let refused = "sleep() { :; }; scontrol() { case $1 in update) command scontrol \"$@\" Nice=-100 ;; *) command scontrol \"$@\" ;; \
                   esac; };";
    let job = failing(place, sandbox, "uncounted", refused);
    assert_eq!(sandbox.ended(&job), "FAILED|1:0", "{}", sandbox.log(&job));
    let log = sandbox.log(&job);
    let said = "failure 1: cannot store this count in the job's comment, so the job is not requeued";
    assert!(log.contains(said) && !log.contains("requeuing the job"), "{log}");
    assert_eq!(log.matches("ermission denied").count(), 7, "as often as a busy controller is asked: {log}");
}
