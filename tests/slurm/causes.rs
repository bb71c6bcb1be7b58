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
    let once = ["--set", "cluster.restarts=0", "--set", "slurm.requeues=1", "--set", &busy];
    let run = sandbox.path("runs/failing");
    let failing = sandbox.submit(&file, &run, &once);

    let mut seen = 0;
    for _ in 0..2 {
        // Not a step of a certain number: the second start may have a checkpoint to go on from.
        seen = sandbox.say(&failing, seen, "\nstep ");
        let line = format!("{} train --run {run}", sandbox.path("bin/lambert-worker"));
        signal(*sandbox.processes(&line).last().unwrap(), "-9");
        seen = sandbox.say(&failing, seen, "given up after 1 failures within 60 minutes");
    }
    assert_eq!(sandbox.ended(&failing), "FAILED|1:0", "{}", sandbox.log(&failing));
    assert_eq!(sandbox.log(&failing).matches("failure 1: the job is queued again").count(), 1);
    let told = sandbox.lambert(&["status", &run]).out;
    assert_eq!(told.matches("ago: failed: given up after 1 failures").count(), 2, "{told}");

    assert_eq!(sandbox.ended(&hopeless), "FAILED|65:0", "{}", sandbox.log(&hopeless));
    assert!(!sandbox.log(&hopeless).contains("queued again"), "{}", sandbox.log(&hopeless));
}

/// A preemption while the prologue still copies files: nothing was begun, and it is no failure.
pub fn asked_in_the_prologue(place: &Place, sandbox: &Sandbox) {
    let (run, begun) = (sandbox.path("runs/early"), sandbox.path("runs/begun"));
    let prologue = format!("slurm.prologue=['[ -e {begun} ] || {{ touch {begun}; sleep 3; }}']");
    let more = ["--set", "slurm.requeues=0", "--set", &prologue];
    let job = sandbox.submit(&config(place, sandbox, 1_000_000), &run, &more);
    sandbox.wait("the prologue", || Path::new(&begun).exists().then_some(()));
    assert_eq!(sandbox.run("scancel", &["--batch", "--signal=USR1", &job]).code, 0);
    let seen = sandbox.say(&job, 0, "the job is queued again");
    assert!(!sandbox.log(&job).contains("starting 2 rank(s)"), "{}", sandbox.log(&job));
    sandbox.say(&job, seen, "\nstep ");
    assert_eq!(sandbox.lambert(&["stop", &run]).code, 0);
    assert_eq!(sandbox.ended(&job), "FAILED|76:0", "{}", sandbox.log(&job));
}
