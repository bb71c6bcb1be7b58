//! Requests for jobs that are not running because they are pending, suspended or requeued.

use std::path::Path;
use std::time::Duration;

use crate::slurm::config;
use crate::support::slurm::Sandbox;
use crate::support::{TestDir, checkpoints};

/// For a pending run, `lambert status` must print the reason, and `lambert stop` must cancel the job.
pub fn stop_requests_apply_to_inactive_jobs(dir: &TestDir, sandbox: &Sandbox) {
    let file = config(dir, sandbox, 1_000_000);
    let (suspended, requeued) = (sandbox.path("runs/suspended"), sandbox.path("runs/requeued"));
    let one = sandbox.submit(&file, &suspended, &[]);
    let other = sandbox.submit(&file, &requeued, &[]);
    stop_pending(sandbox, &file);
    stop_while_held(sandbox, &file);
    stop_requeued(sandbox, &requeued, &other);
    stop_suspended(sandbox, &suspended, &one);
}

fn stop_pending(sandbox: &Sandbox, file: &str) {
    let run = sandbox.path("runs/pending");
    let later = ["--set", "slurm.options=[\"--begin=now+1hour\"]"];
    let job = sandbox.submit(file, &run, &later);
    let reported = sandbox.lambert(&["status", &run]).out;
    assert!(reported.contains("not started yet"), "{reported}");
    // The reason is BeginTime. Before the scheduler has evaluated the job, the reason is Resources.
    for text in [format!("job          {job}: pending ("), "), expected to start 20".to_owned()] {
        assert!(reported.contains(&text), "no {text:?} in {reported}");
    }
    let twice = sandbox.lambert(&["submit", "--config", file, "--run", &run]);
    assert_eq!(twice.code, 2, "{}", twice.err);
    assert!(twice.err.contains(&format!("is already in the queue as job {job} (PENDING)")), "{}", twice.err);
    let stopped = sandbox.lambert(&["stop", &run]);
    assert_eq!(stopped.out, format!("cancelled pending job {job}"), "{}", stopped.err);
    assert!(sandbox.ended(&job).starts_with("CANCELLED"));
    let again = sandbox.lambert(&["stop", &run]);
    assert_eq!(again.code, 1, "{}", again.out);
}

/// If a stop request is made while the job is pending, the coordinator must follow the request before it starts any
/// rank.
fn stop_while_held(sandbox: &Sandbox, file: &str) {
    let run = sandbox.path("runs/held");
    let job = sandbox.submit(file, &run, &["--set", "slurm.options=[\"--hold\"]"]);
    // `lambert stop` writes this file if it cannot cancel the job, for example a job of another user.
    sandbox.file("runs/held/control/stop", "asked\n");
    assert_eq!(sandbox.run("scontrol", &["release", &job]).code, 0);
    assert_eq!(sandbox.ended(&job), "FAILED|76:0", "{}", sandbox.log(&job));
    assert!(!sandbox.log(&job).contains("starting 2 workers"), "{}", sandbox.log(&job));
}

/// The job was requeued manually. The run is stopped before the job starts again.
fn stop_requeued(sandbox: &Sandbox, run: &str, job: &str) {
    sandbox.wait_for_log(job, 0, "\nstep 5/");
    assert_eq!(sandbox.run("scontrol", &["requeue", job]).code, 0);
    sandbox.wait_for_log(job, 0, "(requeued)");
    sandbox.wait_for_state(job, "PENDING");
    // Slurm shows no reason before its scheduler has evaluated the job.
    sandbox.wait("a status with the reason why the job waits", || {
        let reported = sandbox.lambert(&["status", run]).out;
        let texts = [", queued again", "requeued 1 time", "ago: requeued", ": pending ("];
        texts.iter().all(|text| reported.contains(text)).then_some(())
    });
    follow_while_slurm_does_not_answer(sandbox, run);
    let stopped = sandbox.lambert(&["stop", run]);
    assert_eq!(stopped.out, format!("cancelled pending job {job}"), "{}", stopped.err);
    assert!(sandbox.ended(job).starts_with("CANCELLED"));
    assert!(!checkpoints(run).is_empty());
    assert_eq!(sandbox.log(job).matches("starting 2 workers").count(), 1, "{}", sandbox.log(job));
}

/// `lambert status --follow` of a pending run must not end because squeue fails. The first squeue fails here; the others
/// are those of Slurm.
fn follow_while_slurm_does_not_answer(sandbox: &Sandbox, run: &str) {
    let failed = sandbox.path("failed");
    let script = format!("#!/bin/sh\nmkdir {failed} 2>&- && exit 1\nPATH=${{PATH#*:}} exec squeue \"$@\"\n");
    let squeue = sandbox.file("failing/squeue", &script);
    assert_eq!(sandbox.run("chmod", &["+x", &squeue]).code, 0);
    let follow =
        format!("PATH={}:$PATH; exec {} status {run} --follow", sandbox.path("failing"), sandbox.path("bin/lambert"));
    let mut follower = sandbox.start_command("sh", &["-c", &follow]);
    sandbox.wait("a failed squeue", || Path::new(&failed).exists().then_some(()));
    // The follower reads the status every second.
    std::thread::sleep(Duration::from_secs(2));
    let ended = follower.try_wait().unwrap();
    follower.kill().unwrap();
    follower.wait().unwrap();
    assert_eq!(ended, None, "the follower of a pending run ended");
}

fn stop_suspended(sandbox: &Sandbox, run: &str, job: &str) {
    sandbox.wait_for_log(job, 0, "\nstep 5/");
    sandbox.run_as_root("scontrol", &["suspend", job]);
    sandbox.wait_for_state(job, "SUSPENDED");
    let reported = sandbox.lambert(&["status", run]).out;
    assert!(reported.contains(", suspended with its job"), "{reported}");
    let stopped = sandbox.lambert(&["stop", run]);
    assert!(stopped.out.contains(&format!("job {job} is suspended")), "{}{}", stopped.out, stopped.err);
    sandbox.run_as_root("scontrol", &["resume", job]);
    assert_eq!(sandbox.ended(job), "FAILED|76:0", "{}", sandbox.log(job));
    assert!(!checkpoints(run).is_empty());
    assert_eq!(sandbox.log(job).matches("starting 2 workers").count(), 1, "{}", sandbox.log(job));
}

/// Two concurrent submissions both find no job in the queue. Only one of them may queue a job.
pub fn one_of_two_concurrent_submissions_succeeds(dir: &TestDir, sandbox: &Sandbox) {
    let (file, run) = (config(dir, sandbox, 1_000_000), sandbox.path("runs/twice"));
    let more = ["--set", "slurm.options=[\"--hold\"]", "--set", "run.name='twice'"];
    let line = [&["submit", "--config", &file, "--run", &run], &more[..]].concat();
    let both = std::thread::scope(|scope| {
        let submissions = [(); 2].map(|()| scope.spawn(|| sandbox.lambert(&line)));
        submissions.map(|submission| submission.join().unwrap())
    });
    let queued = sandbox.run("squeue", &["-h", "-n", "twice", "-o", "%i"]).out;
    let codes = both.iter().map(|ran| (ran.code, &ran.err)).collect::<Vec<_>>();
    assert_eq!(queued.lines().count(), 1, "{queued}: {codes:?}");
    assert_eq!(both.iter().filter(|ran| ran.code == 0).count(), 1, "{codes:?}");
    let refused = both.iter().find(|ran| ran.code != 0).unwrap();
    let why = ["another `lambert submit` (pid ", "is already in the queue as job "];
    assert!(why.iter().any(|why| refused.err.contains(why)), "{}", refused.err);
    assert_eq!(sandbox.run("scancel", &[&queued]).code, 0);
    let locks = std::fs::read_dir(Path::new(&run).join("control/submissions")).unwrap();
    for lock in locks.map(|lock| lock.unwrap().path()) {
        let content: serde_json::Value = serde_json::from_slice(&std::fs::read(&lock).unwrap()).unwrap();
        assert_eq!(content["released"], true, "{}", lock.display());
    }
}
