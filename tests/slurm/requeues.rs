//! Requeuing of failed jobs, depending on the cause of the failure.

use std::path::Path;

use crate::slurm::config;
use crate::support::slurm::Sandbox;
use crate::support::{TestDir, signal};

/// A transient failure requeues the job, up to a limit. A permanent failure does not requeue it.
pub fn failures_decide(dir: &TestDir, sandbox: &Sandbox) {
    let file = config(dir, sandbox, 1_000_000);
    let fatal =
        ["--set", "guard.rollbacks=1", "--set", &format!("test.nan_samples={:?}", (0..2000).collect::<Vec<u64>>())];
    let hopeless = sandbox.submit(&file, &sandbox.path("runs/hopeless"), &fatal);
    // Imitates a busy controller, which does not answer the first query of each start.
    let asked = sandbox.path("runs/asked-$SLURM_JOB_ID-${SLURM_RESTART_COUNT:-0}");
    let busy = format!(
        "slurm.prologue=['''squeue() {{ case $* in *%T*) [ -e {asked} ] || {{ touch {asked}; return 1; }} ;; esac; command \
         squeue \"$@\"; }}''']"
    );
    let limits = ["cluster.restart.limit=0", "slurm.requeues=1", "cluster.limits.silence_seconds=6"];
    let sets = [&limits[..], &["slurm.nodes=1", "checkpoint.every_steps=1000000000", &busy]].concat();
    let once: Vec<&str> = sets.iter().flat_map(|set| ["--set", *set]).collect();
    let run = sandbox.path("runs/failing");
    let failing = sandbox.submit(&file, &run, &once);

    let mut seen = 0;
    // The node of a stopped rank is to blame for the first failure. No node is to blame for the second.
    for signal_name in ["-STOP", "-9"] {
        seen = sandbox.wait_for_log(&failing, seen, "\nstep ");
        let line = format!("{} train --run {run}", sandbox.path("bin/lambert-worker"));
        signal(*sandbox.processes(&line).last().unwrap(), signal_name);
        seen = sandbox.wait_for_log(&failing, seen, "giving up after 1 failure within 60 minutes");
    }
    assert_eq!(sandbox.ended(&failing), "FAILED|1:0", "{}", sandbox.log(&failing));
    assert_eq!(sandbox.log(&failing).matches("failure 1: requeuing the job").count(), 1);
    let reported = sandbox.lambert(&["status", &run]).out;
    assert_eq!(reported.matches("ago: failed: giving up after 1 failure").count(), 2, "{reported}");
    let node = excluded_after_first_start(sandbox, &failing);
    assert_eq!(reported.matches(&format!("; the next start excludes {node}")).count(), 2, "{reported}");
    assert_eq!(comment(sandbox, &failing), format!("lambert: 1 failures, step 0, excluded {node}"));

    assert_eq!(sandbox.ended(&hopeless), "FAILED|65:0", "{}", sandbox.log(&hopeless));
    assert!(!sandbox.log(&hopeless).contains("requeuing the job"), "{}", sandbox.log(&hopeless));
}

/// Returns the node that a job excludes. The job must have started twice, and only the first time on this node.
fn excluded_after_first_start(sandbox: &Sandbox, job: &str) -> String {
    let node = sandbox.run("squeue", &["--states=all", "-h", "-j", job, "-o", "%x"]).out;
    let starts = sandbox.run("sacct", &["-nPXD", "-j", job, "-o", "nodelist"]).out;
    let has_node =
        |list: &str| sandbox.run("scontrol", &["show", "hostnames", list]).out.lines().any(|name| name == node);
    assert_eq!(starts.lines().map(has_node).collect::<Vec<_>>(), [true, false], "{node:?} in {starts}");
    node
}

fn comment(sandbox: &Sandbox, job: &str) -> String {
    sandbox.run("squeue", &["--states=all", "-h", "-j", job, "-o", "%k"]).out
}

/// The job is preempted while its prologue copies files. No worker was started. This preemption must not count as a
/// failure.
pub fn preemption_in_the_prologue(dir: &TestDir, sandbox: &Sandbox) {
    let (run, begun) = (sandbox.path("runs/early"), sandbox.path("runs/begun"));
    let prologue = format!("slurm.prologue=['[ -e {begun} ] || {{ touch {begun}; sleep 3; }}']");
    let more = ["--set", "slurm.requeues=0", "--set", &prologue];
    let job = sandbox.submit(&config(dir, sandbox, 1_000_000), &run, &more);
    sandbox.wait("the prologue", || Path::new(&begun).exists().then_some(()));
    assert_eq!(sandbox.run("scancel", &["--batch", "--signal=USR1", &job]).code, 0);
    let seen = sandbox.wait_for_log(&job, 0, "requeuing the job");
    assert!(!sandbox.log(&job).contains("starting 2 workers"), "{}", sandbox.log(&job));
    sandbox.wait_for_log(&job, seen, "\nstep ");
    assert_eq!(sandbox.lambert(&["stop", &run]).code, 0);
    assert_eq!(sandbox.ended(&job), "FAILED|76:0", "{}", sandbox.log(&job));
}

/// Submits a run that fails immediately because its program is missing, as if its file system were unavailable. The job
/// has a comment that another program of the site has set.
fn failing(dir: &TestDir, sandbox: &Sandbox, name: &str, prologue: &str) -> String {
    let (file, folder) = (config(dir, sandbox, 10), sandbox.path(name));
    assert_eq!(sandbox.run("cp", &["-r", &sandbox.path("bin"), &folder]).code, 0);
    let comment =
        "[ \"${SLURM_RESTART_COUNT:-0}\" != 0 ] || scontrol update JobId=$SLURM_JOB_ID Comment=\"project 2026\";";
    let shown =
        "echo restarts: ${SLURM_RESTART_COUNT:-0}, comment: $(squeue --noheader --jobs=$SLURM_JOB_ID --format=%k) >&2;";
    let line = format!("slurm.prologue=['''{comment} {shown} {prologue} rm -f {folder}/lambert''']");
    let sets = ["--set", "slurm.requeues=1", "--set", &line];
    let run = sandbox.path(&format!("runs/{name}"));
    let arguments = [&["submit", "--config", &file, "--run", &run], &sets[..]].concat();
    let ran = sandbox.run(&format!("{folder}/lambert"), &arguments);
    assert_eq!(ran.code, 0, "{}", ran.err);
    ran.out
}

/// A number in a comment of another program must not count as a failure count, and the comment must be kept.
pub fn the_failure_count_keeps_other_comments(dir: &TestDir, sandbox: &Sandbox) {
    let job = failing(dir, sandbox, "commented", "");
    assert_eq!(sandbox.ended(&job), "FAILED|1:0", "{}", sandbox.log(&job));
    let log = sandbox.log(&job);
    assert_eq!(log.matches("failure 1: requeuing the job").count(), 1, "{log}");
    assert_eq!(log.matches("failure 2 since the last new checkpoint: slurm.requeues is 1").count(), 1, "{log}");
    // The coordinator did not start, so it reported no step.
    let node = excluded_after_first_start(sandbox, &job);
    assert_eq!(comment(sandbox, &job), format!("project 2026; lambert: 1 failures, excluded {node}"));
}

/// Slurm rejects the update that records the failure, because here the update also sets a priority that requires
/// privileges. Without a failure count the job would be requeued forever.
pub fn a_rejected_failure_count_ends_the_job(dir: &TestDir, sandbox: &Sandbox) {
    let refused = "sleep() { :; }; scontrol() { case $1 in update) command scontrol \"$@\" Nice=-100 ;; *) command scontrol \"$@\" ;; \
                   esac; };";
    let job = failing(dir, sandbox, "uncounted", refused);
    assert_eq!(sandbox.ended(&job), "FAILED|1:0", "{}", sandbox.log(&job));
    let log = sandbox.log(&job);
    let text = "failure 1: cannot store this count in the job's comment, so the job is not requeued";
    assert!(log.contains(text) && !log.contains("requeuing the job"), "{log}");
    assert_eq!(log.matches("ermission denied").count(), 1, "a refusal is final: {log}");
}
