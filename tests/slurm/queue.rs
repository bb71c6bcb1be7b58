//! Requests to jobs that do not run: pending, suspended, requeued.

use std::path::Path;

use crate::slurm::config;
use crate::support::slurm::Sandbox;
use crate::support::{Place, checkpoints};

/// A run at the bottom of the queue: `lambert status` knows why, `lambert stop` takes it out.
pub fn requests_hold(place: &Place, sandbox: &Sandbox) {
    let file = config(place, sandbox, 1_000_000);
    let (suspended, requeued) = (sandbox.path("runs/suspended"), sandbox.path("runs/requeued"));
    let one = sandbox.submit(&file, &suspended, &[]);
    let other = sandbox.submit(&file, &requeued, &[]);
    pending(sandbox, &file);
    held(sandbox, &file);
    between_two_starts(sandbox, &requeued, &other);
    in_the_middle(sandbox, &suspended, &one);
}

fn pending(sandbox: &Sandbox, file: &str) {
    let run = sandbox.path("runs/pending");
    let later = ["--set", "slurm.options=[\"--begin=now+1hour\"]"];
    let job = sandbox.submit(file, &run, &later);
    let told = sandbox.lambert(&["status", &run]).out;
    assert!(told.contains("not started yet"), "{told}");
    // The reason is BeginTime, or Resources where the scheduler has not looked yet.
    for text in [format!("job          {job}: pending ("), "), expected to start 20".to_owned()] {
        assert!(told.contains(&text), "no {text:?} in {told}");
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

/// A request that nobody could honour yet is honoured by the coordinator that comes, before it starts a rank.
fn held(sandbox: &Sandbox, file: &str) {
    let run = sandbox.path("runs/held");
    let job = sandbox.submit(file, &run, &["--set", "slurm.options=[\"--hold\"]"]);
    // What `lambert stop` leaves where it may not cancel the job: another user's, say.
    sandbox.file("runs/held/control/stop", "asked\n");
    assert_eq!(sandbox.run("scontrol", &["release", &job]).code, 0);
    assert_eq!(sandbox.ended(&job), "FAILED|76:0", "{}", sandbox.log(&job));
    assert!(!sandbox.log(&job).contains("starting 2 workers"), "{}", sandbox.log(&job));
}

/// The job was requeued by hand; before it starts again the run is stopped.
fn between_two_starts(sandbox: &Sandbox, run: &str, job: &str) {
    sandbox.say(job, 0, "\nstep 5/");
    assert_eq!(sandbox.run("scontrol", &["requeue", job]).code, 0);
    sandbox.say(job, 0, "(requeued)");
    sandbox.state(job, "PENDING");
    // Slurm has no reason before its scheduler has looked at the job.
    sandbox.wait("a status with the reason why the job waits", || {
        let told = sandbox.lambert(&["status", run]).out;
        let texts = [", queued again", "requeued 1 time", "ago: requeued", ": pending ("];
        texts.iter().all(|text| told.contains(text)).then_some(())
    });
    let stopped = sandbox.lambert(&["stop", run]);
    assert_eq!(stopped.out, format!("cancelled pending job {job}"), "{}", stopped.err);
    assert!(sandbox.ended(job).starts_with("CANCELLED"));
    assert!(!checkpoints(run).is_empty());
    assert_eq!(sandbox.log(job).matches("starting 2 workers").count(), 1, "{}", sandbox.log(job));
}

fn in_the_middle(sandbox: &Sandbox, run: &str, job: &str) {
    sandbox.say(job, 0, "\nstep 5/");
    sandbox.administer("scontrol", &["suspend", job]);
    sandbox.state(job, "SUSPENDED");
    let told = sandbox.lambert(&["status", run]).out;
    assert!(told.contains(", suspended with its job"), "{told}");
    let stopped = sandbox.lambert(&["stop", run]);
    assert!(stopped.out.contains(&format!("job {job} is suspended")), "{}{}", stopped.out, stopped.err);
    sandbox.administer("scontrol", &["resume", job]);
    assert_eq!(sandbox.ended(job), "FAILED|76:0", "{}", sandbox.log(job));
    assert!(!checkpoints(run).is_empty());
    assert_eq!(sandbox.log(job).matches("starting 2 workers").count(), 1, "{}", sandbox.log(job));
}

/// Two that look at the same time find no job, and only one may queue it.
pub fn one_of_two_submissions(place: &Place, sandbox: &Sandbox) {
    let (file, run) = (config(place, sandbox, 1_000_000), sandbox.path("runs/twice"));
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
    assert!(!Path::new(&run).join("control/submission").exists());
}
