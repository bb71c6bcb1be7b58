//! Attempts and rollbacks that get a run nowhere come to an end.

use lambert_control::{EventKind, FailureKind};

use lambert::decide::{
    Action, Event, JobView, Memory, Room, Seconds, Signal, Standing, State, StopReason, Verdict, Wanted,
};
use lambert_control::WorkerPhase;

use crate::scene::Scene;

/// Longer than the window in which failures are counted.
const LATER: Seconds = 7200.0;

fn rolled_back(step: u64, to: u64) -> EventKind {
    EventKind::RolledBack { message: "the loss".into(), step, to }
}

/// A load that takes longer than its limit was tried for ever: an hour each, one failure in each hour.
#[test]
fn attempts_without_a_new_checkpoint_end_the_run_whatever_their_spacing() {
    let mut scene = Scene::new();
    scene.train(1, 50).saves(50).wait(LATER).fail(FailureKind::Transient).pause();
    for lease in 2..=6 {
        // As far as before, and no further.
        scene.wait(LATER);
        scene.train(lease, 60).saves(50).fail(FailureKind::Transient).pause();
    }
    let mut lucky = Scene { at: scene.at, state: scene.state.clone(), done: Vec::new() };
    scene.wait(LATER);
    let (code, message) = { scene.train(7, 60).fail(FailureKind::Transient).failure() };
    let expected = "given up after 6 attempts without a new checkpoint (cluster.restart.limit = 5); the last: rank 0";
    assert!(code == 1 && message.starts_with(expected), "{message}");
    assert_eq!(scene.state.memory.progress.fruitless, 0, "who starts it again has mended something");
    // A checkpoint further than any is progress.
    lucky.wait(LATER);
    lucky.train(7, 60).saves(51).fail(FailureKind::Transient).pause();
    assert_eq!(lucky.state.memory.progress.fruitless, 0);
}

#[test]
fn the_count_outlives_a_coordinator() {
    let mut scene = Scene::new();
    for lease in 1..=5 {
        scene.train(lease, 5).fail(FailureKind::Transient).pause();
        scene.wait(LATER);
    }
    let memory: Memory = serde_json::from_value(serde_json::to_value(&scene.state.memory).unwrap()).unwrap();
    let (state, done) = State::begin(scene.state.settings.clone(), memory);
    let mut next = Scene { at: 0.0, state, done };
    assert!(next.train(6, 5).fail(FailureKind::Transient).failure().1.starts_with("given up after 6 "));
}

/// A coordinator in a job that is near its time limit while its ranks load.
fn too_short(memory: Memory, start: u32) -> Scene {
    let mut scene = Scene::in_job(memory, 120.0, f64::from(start) * LATER);
    scene.load(start, WorkerPhase::Load).give(Event::Signal(Signal::Other));
    scene.give(Event::Job(JobView { standing: Standing::Running, seconds_left: Some(100.0) }));
    scene.exit(143);
    scene
}

#[test]
fn a_load_that_is_longer_than_the_time_limit_is_not_queued_again_for_ever() {
    let mut memory = Memory::default();
    for start in 1..=5 {
        let scene = too_short(memory, start);
        assert_eq!(scene.state.verdict(), Some(&Verdict::Stopped(StopReason::TimeLimit)), "start {start}");
        memory = scene.state.memory;
    }
    let scene = too_short(memory.clone(), 6);
    let expected = "given up after 6 attempts without a new checkpoint (cluster.restart.limit = 5); the last: close to its time limit";
    assert_eq!(scene.failure(), (70, expected), "a job that ends so is not queued again");
    assert!(!scene.done.contains(&Action::ForgetStop));
    let told = &scene.state.memory.job_ends[5];
    assert_eq!(told.cause, format!("failed: {expected}"));
    // A checkpoint sets the count back.
    let mut scene = Scene::in_job(memory, 120.0, 6.0 * LATER);
    scene.train(6, 5).saves(5).fail(FailureKind::Transient).pause();
    assert_eq!(scene.state.memory.progress.fruitless, 0);
}

/// Slurm ends a job by SIGKILL, or its node fails, and queues it again.
#[test]
fn a_coordinator_that_is_killed_in_its_job_counts() {
    let mut memory = Memory::default();
    for start in 1..=6 {
        let mut scene = Scene::in_job(memory, 120.0, f64::from(start) * LATER);
        assert_eq!(scene.done, [Action::TakeLease(Wanted::Next)], "start {start}");
        scene.load(start, WorkerPhase::Load);
        memory = scene.state.memory;
    }
    let scene = Scene::in_job(memory.clone(), 120.0, 7.0 * LATER);
    let expected = "given up after 6 attempts without a new checkpoint (cluster.restart.limit = 5); the last: the coordinator was \
                    killed, or its node failed";
    assert_eq!(scene.failure(), (70, expected));
    assert_eq!(scene.done, []);
    // By hand, whoever has killed it.
    let by_hand = Scene::new();
    let (state, done) = State::begin(by_hand.state.settings, memory);
    assert_eq!((done, state.memory.progress.fruitless), (vec![Action::TakeLease(Wanted::Next)], 5));
}

#[test]
fn what_a_person_stops_does_not_count() {
    for in_job in [false, true] {
        let mut memory = Memory::default();
        for start in 1..=20 {
            let (state, _) = State::begin(Scene::new().state.settings, memory.clone());
            let mut scene = Scene { at: 0.0, state, done: Vec::new() };
            if in_job {
                scene = Scene::in_job(memory, 120.0, 0.0);
            }
            let request = [Event::StopRequested, Event::Signal(Signal::Interrupt)][start as usize % 2].clone();
            scene.load(start, WorkerPhase::Load).give(request).exit(143);
            assert_eq!(scene.state.verdict(), Some(&Verdict::Stopped(StopReason::Person)));
            memory = scene.state.memory;
        }
        assert_eq!(memory.progress.fruitless, 0);
    }
    // Nor what a supervisor stops that is not Slurm: it has its own rules.
    let mut scene = Scene::new();
    scene.load(1, WorkerPhase::Load).give(Event::Signal(Signal::Other)).exit(143);
    assert_eq!(scene.state.memory.progress.fruitless, 0);
}

/// A host whose clock was a year ahead has recorded failures; the next kill gave the run up.
#[test]
fn failures_from_the_future_do_not_count() {
    let mut ahead = Scene::new();
    ahead.state.settings.unix += 3e7;
    for lease in 1..=5 {
        ahead.train(lease, u64::from(lease)).saves(u64::from(lease)).fail(FailureKind::Transient).pause();
    }
    let (state, done) = State::begin(Scene::new().state.settings, ahead.state.memory);
    let mut scene = Scene { at: 0.0, state, done };
    scene.train(6, 9).fail(FailureKind::Transient).pause();
    assert_eq!(scene.state.memory.restarts.len(), 1);
}

#[test]
fn going_back_does_not_wait_and_has_its_limit() {
    let mut scene = Scene::with(|config| config.guard.rollbacks = 2, Room::Here);
    for lease in 1..=2 {
        // Checkpoints on the way to the step that derails the run are no way past it.
        scene.train(lease, 9).saves(7).says(rolled_back(9, 7)).exit(0);
        assert_eq!(scene.pause(), (0.0, Wanted::Exactly(lease + 1)));
    }
    let mut past = Scene { at: scene.at, state: scene.state.clone(), done: Vec::new() };
    scene.train(3, 9).saves(7).saves(9).says(rolled_back(9, 7)).exit(0);
    assert_eq!(scene.failure(), (65, "given up after 2 rollbacks without progress; the last: the loss"));
    past.train(3, 12).saves(10).says(rolled_back(12, 10)).exit(0);
    assert_eq!(past.pause().0, 0.0, "a checkpoint beyond the step of the rollback");
    assert_eq!(past.state.memory.progress.rollbacks, 1);
}

/// The way back to where a run was before it went back is progress.
#[test]
fn attempts_after_a_rollback_are_measured_from_there() {
    let mut scene = Scene::new();
    scene.train(1, 51).saves(50).says(rolled_back(51, 20)).exit(0).pause();
    for lease in 2..=9 {
        scene.wait(LATER);
        scene.train(lease, 30).saves(20 + u64::from(lease)).fail(FailureKind::Transient).pause();
    }
}
