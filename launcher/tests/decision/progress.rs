//! Tests of the limits on attempts and rollbacks without progress.

use lambert_control::{EventKind, FailureKind};

use lambert::decide::{
    Action, CoordinatorState, Event, HostPool, JobState, JobView, LastKnown, LeaseRequest, RestartHistory, Seconds,
    Signal, StopReason, Verdict,
};
use lambert_control::WorkerPhase;

use crate::scenario::Scenario;

/// Time that is longer than the window in which failures are counted.
const LATER: Seconds = 7200.0;

fn rolled_back(step: u64, last_kept: u64) -> EventKind {
    EventKind::RolledBack { message: "the loss".into(), step, last_kept }
}

/// Regression test: if loading the checkpoint exceeded the time limit, the load was retried forever, with one failure
/// per hour.
#[test]
fn attempts_without_a_new_checkpoint_end_the_run_at_any_interval() {
    let mut scene = Scenario::new();
    scene.train(1, 50).saves(50).wait(LATER).fail(FailureKind::Transient).pause();
    for lease in 2..=6 {
        // The checkpoint is at the same step as the checkpoint of the previous attempt.
        scene.wait(LATER);
        scene.train(lease, 60).saves(50).fail(FailureKind::Transient).pause();
    }
    let mut lucky = Scenario { at: scene.at, state: scene.state.clone(), done: Vec::new() };
    scene.wait(LATER);
    let (code, message) = { scene.train(7, 60).fail(FailureKind::Transient).failure() };
    let expected =
        "giving up after 6 attempts without a new checkpoint (cluster.restart.limit = 5); last attempt: rank 0";
    assert!(code == 1 && message.starts_with(expected), "{message}");
    assert_eq!(scene.state.history.progress.attempts_without_checkpoint, 0, "a manual start resets the count");
    // A checkpoint at a later step is progress.
    lucky.wait(LATER);
    lucky.train(7, 60).saves(51).fail(FailureKind::Transient).pause();
    assert_eq!(lucky.state.history.progress.attempts_without_checkpoint, 0);
}

#[test]
fn the_count_is_kept_across_coordinators() {
    let mut scene = Scenario::new();
    for lease in 1..=5 {
        scene.train(lease, 5).fail(FailureKind::Transient).pause();
        scene.wait(LATER);
    }
    let history: RestartHistory = serde_json::from_value(serde_json::to_value(&scene.state.history).unwrap()).unwrap();
    let (state, done) = CoordinatorState::begin(scene.state.settings.clone(), history, LastKnown::default());
    let mut next = Scenario { at: 0.0, state, done };
    assert!(next.train(6, 5).fail(FailureKind::Transient).failure().1.starts_with("giving up after 6 "));
}

/// Simulates a coordinator in a Slurm job that reaches its time limit while the ranks load the checkpoint.
fn too_short(history: RestartHistory, start: u32) -> Scenario {
    let mut scene = Scenario::in_job(history, 120.0, f64::from(start) * LATER);
    scene.load(start, WorkerPhase::Load).give(Event::Signal(Signal::Other));
    scene.give(Event::Job(JobView { job_state: JobState::Running, seconds_left: Some(100.0) }));
    scene.exit(143);
    scene
}

#[test]
fn a_load_longer_than_the_time_limit_is_not_requeued_forever() {
    let mut history = RestartHistory::default();
    for start in 1..=5 {
        let scene = too_short(history, start);
        assert_eq!(scene.state.verdict(), Some(&Verdict::Stopped(StopReason::TimeLimit)), "start {start}");
        history = scene.state.history;
    }
    let scene = too_short(history.clone(), 6);
    let expected = "giving up after 6 attempts without a new checkpoint (cluster.restart.limit = 5); last attempt: close to the job's time limit";
    assert_eq!(scene.failure(), (70, expected), "the job would be requeued");
    assert!(!scene.done.contains(&Action::ForgetStop));
    let reported = &scene.state.history.job_ends[5];
    assert_eq!(reported.cause, format!("failed: {expected}"));
    // A new checkpoint resets the count.
    let mut scene = Scenario::in_job(history, 120.0, 6.0 * LATER);
    scene.train(6, 5).saves(5).fail(FailureKind::Transient).pause();
    assert_eq!(scene.state.history.progress.attempts_without_checkpoint, 0);
}

/// Slurm kills the job, or the node of the job fails. Then the job is requeued.
#[test]
fn a_coordinator_killed_in_its_job_is_counted() {
    let mut history = RestartHistory::default();
    for start in 1..=6 {
        let mut scene = Scenario::in_job(history, 120.0, f64::from(start) * LATER);
        assert_eq!(scene.done, [Action::TakeLease(LeaseRequest::Next)], "start {start}");
        scene.load(start, WorkerPhase::Load);
        history = scene.state.history;
    }
    let scene = Scenario::in_job(history.clone(), 120.0, 7.0 * LATER);
    let expected = "giving up after 6 attempts without a new checkpoint (cluster.restart.limit = 5); last attempt: the coordinator \
                    or its node died";
    assert_eq!(scene.failure(), (70, expected));
    assert_eq!(scene.done, []);
    // The recorded end of the job has the step of the run.
    let last = LastKnown { step: 40, checkpoint: None };
    let (state, _) = CoordinatorState::begin(scene.state.settings, history.clone(), last);
    assert_eq!(state.history.job_ends.last().unwrap().step, Some(40));
    // A user can start the run after any number of kills.
    let by_hand = Scenario::new();
    let (state, done) = CoordinatorState::begin(by_hand.state.settings, history, LastKnown::default());
    assert_eq!(
        (done, state.history.progress.attempts_without_checkpoint),
        (vec![Action::TakeLease(LeaseRequest::Next)], 5)
    );
}

#[test]
fn manual_stops_are_not_counted() {
    for in_job in [false, true] {
        let mut history = RestartHistory::default();
        for start in 1..=20 {
            let (state, _) =
                CoordinatorState::begin(Scenario::new().state.settings, history.clone(), LastKnown::default());
            let mut scene = Scenario { at: 0.0, state, done: Vec::new() };
            if in_job {
                scene = Scenario::in_job(history, 120.0, 0.0);
            }
            let request = [Event::StopRequested, Event::Signal(Signal::Interrupt)][start as usize % 2].clone();
            scene.load(start, WorkerPhase::Load).give(request).exit(143);
            assert_eq!(scene.state.verdict(), Some(&Verdict::Stopped(StopReason::User)));
            history = scene.state.history;
        }
        assert_eq!(history.progress.attempts_without_checkpoint, 0);
    }
    // Stops by supervisors other than Slurm are not counted, because these supervisors have their own rules.
    let mut scene = Scenario::new();
    scene.load(1, WorkerPhase::Load).give(Event::Signal(Signal::Other)).exit(143);
    assert_eq!(scene.state.history.progress.attempts_without_checkpoint, 0);
}

/// Regression test: failures recorded by a host whose clock was a year ahead made the run fail at the next kill.
#[test]
fn failures_from_the_future_are_not_counted() {
    let mut ahead = Scenario::new();
    ahead.state.settings.unix += 3e7;
    for lease in 1..=5 {
        ahead.train(lease, u64::from(lease)).saves(u64::from(lease)).fail(FailureKind::Transient).pause();
    }
    let (state, done) =
        CoordinatorState::begin(Scenario::new().state.settings, ahead.state.history, LastKnown::default());
    let mut scene = Scenario { at: 0.0, state, done };
    scene.train(6, 9).fail(FailureKind::Transient).pause();
    assert_eq!(scene.state.history.restarts.len(), 1);
}

/// If the clock is set back during a run, earlier failures leave the window in time. Timeouts stay the same.
#[test]
fn a_clock_that_is_set_back_keeps_failures_in_their_window() {
    let mut scene = Scenario::new();
    scene.train(1, 9).saves(9).fail(FailureKind::Transient).pause();
    let (before, unix) = (scene.state.clone(), scene.state.settings.unix - 86_400.0);
    scene.state.set_unix(scene.at, unix);
    assert_eq!(scene.state.phase, before.phase);
    assert_eq!(scene.state.history.restarts[0].unix, unix + scene.at);
    let later = scene.state.settings.window + 1.0;
    assert_eq!(scene.state.history.count(unix + scene.at + later - scene.state.settings.window), 0);
    scene.state.set_unix(scene.at, unix + 500.0);
    assert_eq!(scene.state.history.restarts[0].unix, unix + scene.at, "a clock that is set forward changes no failure");
}

#[test]
fn rollbacks_restart_at_once_and_are_limited() {
    let mut scene = Scenario::with(|config| config.guard.rollbacks = 2, HostPool::Here);
    for lease in 1..=2 {
        // A checkpoint before the diverging step is not progress.
        scene.train(lease, 9).saves(7).send_event(rolled_back(9, 7)).exit(0);
        assert_eq!(scene.pause(), (0.0, LeaseRequest::Exactly(lease + 1)));
    }
    let mut past = Scenario { at: scene.at, state: scene.state.clone(), done: Vec::new() };
    scene.train(3, 9).saves(7).saves(9).send_event(rolled_back(9, 7)).exit(0);
    let (code, message) = scene.failure();
    assert_eq!(code, 65);
    let (cause, advice) =
        ("giving up after 2 rollbacks without progress; the last: the loss", "; lower the learning rate");
    assert!(message.starts_with(cause) && message.contains(advice), "{message}");
    past.train(3, 12).saves(10).send_event(rolled_back(12, 10)).exit(0);
    assert_eq!(past.pause().0, 0.0, "a checkpoint beyond the step of the rollback");
    assert_eq!(past.state.history.progress.rollbacks, 1);
}

/// Progress after a rollback counts from the step of the rollback.
#[test]
fn progress_after_a_rollback_counts_from_its_step() {
    let mut scene = Scenario::new();
    scene.train(1, 51).saves(50).send_event(rolled_back(51, 20)).exit(0).pause();
    for lease in 2..=9 {
        scene.wait(LATER);
        scene.train(lease, 30).saves(20 + u64::from(lease)).fail(FailureKind::Transient).pause();
    }
}
