//! What people, Slurm and other coordinators ask for.

use lambert_control::{Directive, EventKind, FailureKind};
use lambert_control::{WorkerPhase, WorkerReport};

use lambert::decide::{
    Action, Event, JobState, JobView, LeaseRequest, Note, Phase, RankDeath, RestartHistory, Signal, StopReason,
    Verdict, WorkerEvent,
};

use crate::scene::{JOB, Scene};

/// A folder that is full, or a file system that is away, is waited for as a bucket is.
#[test]
fn a_run_under_way_waits_for_its_lease() {
    let mut scene = Scene::new();
    scene.give(Event::LeaseFailed("no space".into()));
    assert_eq!(scene.failure(), (1, "no space"), "a run that begins is to be looked at at once");

    let mut scene = Scene::new();
    assert_eq!(scene.train(1, 5).fail(FailureKind::Transient).pause(), (1.0, LeaseRequest::Exactly(2)));
    for pause in [1.0, 2.0, 4.0] {
        scene.give(Event::LeaseFailed("no space".into()));
        // The creation may have failed when the object was there already.
        let cause = "cannot acquire the lease: no space";
        assert!(matches!(&scene.done[..], [Action::Note(Note::Waiting { cause: said, .. })] if said == cause));
        assert_eq!(scene.give(Event::LeaseSeen(2)).state.verdict(), None);
        scene.done = vec![Action::Note(Note::Waiting { cause: cause.into(), pause, minutes_left: 1.0 })];
        assert_eq!(scene.pause(), (pause, LeaseRequest::Exactly(2)));
    }
    assert!(matches!(scene.train(2, 9).state.phase, Phase::Running(_)));

    scene.fail(FailureKind::Transient).pause();
    scene.give(Event::LeaseFailed("no space".into())).give(Event::LeaseSeen(4));
    assert!(matches!(scene.state.verdict(), Some(Verdict::Replaced(_))), "another has gone further");

    let mut scene = Scene::new();
    scene.train(1, 5).fail(FailureKind::Transient).pause();
    scene.give(Event::LeaseFailed("no space".into())).wait(3601.0).give(Event::LeaseFailed("no space".into()));
    let (code, message) = scene.failure();
    assert!(code == 1 && message.contains("60.0 minutes") && message.ends_with("no space"), "{message}");

    // That the store was asked for long counts.
    let mut scene = Scene::new();
    scene.train(1, 5).fail(FailureKind::Transient).pause();
    scene.wait(7200.0).give(Event::LeaseFailed("no space".into()));
    let (code, message) = scene.failure();
    assert!(code == 1 && message.contains("120.0 minutes"), "{message}");
}

/// Slurm asks ranks to end, and at first nobody else; a rank's death has its own consequence.
#[test]
fn what_slurm_says_to_ranks_counts() {
    let terminated = || WorkerEvent::Report(WorkerReport { has_received_sigterm: true, ..WorkerReport::default() });
    let mut scene = Scene::new();
    scene.train(1, 5).worker(terminated());
    assert_eq!(scene.done, [Action::Note(Note::Stopping), Action::Command(Directive::CheckpointAndStop)]);
    scene.says(EventKind::Finished { step: 6, stopped: true }).exit(0);
    assert_eq!(scene.state.verdict(), Some(&Verdict::Stopped(StopReason::Signal)));

    let mut scene = Scene::new();
    scene.train(1, 5).worker(WorkerEvent::Died(RankDeath::Signal { rank: 1, signal: 9 }));
    assert_eq!(scene.done, [Action::End], "the other ranks wait for it for ever");
    assert_eq!(scene.worker(terminated()).done, [], "the launcher ends the others so");
    assert_eq!(scene.exit(143).pause(), (1.0, LeaseRequest::Exactly(2)));

    let mut scene = Scene::new();
    scene.train(1, 5).give(Event::StopRequested);
    assert_eq!(scene.state.requests.stop, Some(StopReason::Person), "nobody is to start it again");
}

#[test]
fn signals_count_in_every_phase() {
    let mut scene = Scene::new();
    assert_eq!(
        scene.give(Event::Signal(Signal::Other)).state.verdict(),
        Some(&Verdict::Stopped(StopReason::Signal)),
        "while a lease is waited for"
    );

    let mut scene = Scene::new();
    scene.train(1, 5).fail(FailureKind::Transient);
    assert_eq!(
        scene.give(Event::Signal(Signal::Other)).state.verdict(),
        Some(&Verdict::Stopped(StopReason::Signal)),
        "in a pause"
    );

    let mut scene = Scene::new();
    scene.train(1, 5).give(Event::Signal(Signal::Other));
    assert_eq!(scene.done, [Action::Note(Note::Stopping), Action::Command(Directive::CheckpointAndStop)]);
    assert_eq!(scene.give(Event::StopRequested).done, [], "said once");
    assert_eq!(scene.give(Event::Signal(Signal::Other)).done, [], "`timeout` signals a process and its group");
    scene.at += 1.0;
    assert_eq!(scene.give(Event::Signal(Signal::Other)).done, [Action::End]);
    scene.worker(WorkerEvent::Gone(Vec::new()));
    assert!(scene.failure().1.starts_with("ended without a checkpoint by a second signal"));

    let mut scene = Scene::new();
    scene.train(1, 5).give(Event::StopRequested).fail(FailureKind::Transient);
    assert!(scene.failure().1.starts_with("the workers failed before the requested checkpoint and stop: rank 0"));
}

/// A request that was not honoured by the attempt that heard it is passed on to the next.
#[test]
fn a_request_for_a_checkpoint_lives_until_one_is_saved() {
    let mut scene = Scene::new();
    scene.train(1, 5).give(Event::SaveRequested);
    assert_eq!(scene.done, [Action::Note(Note::Saving), Action::Command(Directive::Checkpoint)]);
    scene.wait(50.0);
    scene.report().fail(FailureKind::Transient).pause();
    scene.give(Event::LeaseTaken(2));
    assert!(matches!(scene.done[..], [Action::Start(_), Action::Command(Directive::Checkpoint)]), "{:?}", scene.done);
    scene.report().says(EventKind::Checkpoint { name: "c".into(), step: 5, seconds: 0.1, written: 0.2 });
    scene.fail(FailureKind::Transient).pause();
    assert!(matches!(scene.give(Event::LeaseTaken(3)).done[..], [Action::Start(_)]), "{:?}", scene.done);
}

#[test]
fn a_coordinator_does_not_evict_itself_and_leaves_to_a_successor() {
    let mut scene = Scene::new();
    scene.train(1, 5).fail(FailureKind::Transient).pause();
    // The poller sees the lease that this coordinator is about to get.
    assert_eq!(scene.give(Event::LeaseSeen(2)).state.phase, Phase::Leasing(LeaseRequest::Exactly(2)));
    scene.train(2, 5).give(Event::LeaseSeen(2));
    assert!(matches!(scene.state.phase, Phase::Running(_)));
    assert_eq!(scene.give(Event::LeaseSeen(3)).done, [Action::End]);
    scene.worker(WorkerEvent::Gone(Vec::new()));
    assert!(matches!(scene.state.verdict(), Some(Verdict::Replaced(_))));

    let mut scene = Scene::new();
    scene.train(1, 5).fail(FailureKind::Transient).pause();
    scene.give(Event::LeaseHeld(2));
    assert!(matches!(scene.state.verdict(), Some(Verdict::Replaced(_))), "the one after its own is another's");

    let mut scene = Scene::new();
    scene.train(1, 5).fail(FailureKind::Transient).give(Event::LeaseSeen(2));
    assert!(matches!(scene.state.verdict(), Some(Verdict::Replaced(_))), "in a pause");
}

/// The run's folder is moved or removed: in an attempt, while one ends, and between two.
#[test]
fn a_run_that_is_not_there_any_more_is_left() {
    let gone = |attempt| Event::LeaseGone(attempt, "no lease".into());
    let left = Some(Verdict::Replaced("no lease".into()));
    let mut scene = Scene::new();
    scene.train(2, 5);
    assert_eq!(scene.give(gone(1)).done, [], "an answer from before this attempt");
    assert_eq!(scene.give(gone(2)).done, [Action::End]);
    assert_eq!(scene.worker(WorkerEvent::Gone(Vec::new())).state.verdict(), left.as_ref());

    let mut scene = Scene::new();
    scene.train(1, 5).give(Event::LeaseSeen(2));
    scene.give(gone(1)).worker(WorkerEvent::Gone(Vec::new()));
    assert_eq!(scene.state.verdict(), left.as_ref(), "while it ends for another reason");

    let mut scene = Scene::new();
    scene.train(1, 5).fail(FailureKind::Transient).give(gone(1));
    assert_eq!(scene.state.verdict(), left.as_ref(), "in a pause");

    let mut scene = Scene::new();
    scene.train(1, 5).fail(FailureKind::Transient).pause();
    assert_eq!(scene.give(gone(1)).state.verdict(), left.as_ref(), "while the next lease is taken");
}

/// A coordinator in a job of Slurm.
fn in_job(history: RestartHistory) -> Scene {
    Scene::in_job(history, 60.0, 0.0)
}

#[test]
fn in_a_job_slurm_says_what_a_signal_means() {
    for (job_state, reason, forgets) in [
        (JobState::Cancelled, StopReason::Person, true),
        (JobState::Preempted, StopReason::Preempted, false),
        (JobState::Running, StopReason::TimeLimit, false),
    ] {
        let mut scene = in_job(RestartHistory::default());
        scene.train(1, 5).give(Event::Signal(Signal::Other));
        let stop = [Action::Note(Note::Stopping), Action::Command(Directive::CheckpointAndStop)];
        assert_eq!(scene.done, [&[Action::AskSlurm][..], &stop].concat());
        scene.give(Event::Job(JobView { job_state, seconds_left: Some(100.0) }));
        assert_eq!(scene.give(Event::Signal(Signal::Other)).done, [], "SIGTERM comes twice, and ends nothing");
        scene.says(EventKind::Finished { step: 6, stopped: true }).exit(0);
        assert_eq!(scene.state.verdict(), Some(&Verdict::Stopped(reason)));
        assert_eq!(scene.done.contains(&Action::ForgetStop), forgets, "a request may have come meanwhile");
        let end = &scene.state.history.job_ends[0];
        assert_eq!((end.job.as_str(), end.step, end.cause.as_str()), (JOB, Some(5), reason.to_string().as_str()));
        assert_eq!(scene.state.history.job, None);
    }
}

#[test]
fn a_job_that_is_too_short_for_a_checkpoint_is_known() {
    let history = RestartHistory { last_save_seconds: Some(90.0), ..RestartHistory::default() };
    let mut scene = in_job(history);
    assert_eq!(scene.done[0], Action::Note(Note::ShortLead { save: 90.0, lead: 60.0 }));
    scene.train(1, 5).give(Event::Signal(Signal::Other));
    scene.give(Event::Job(JobView { job_state: JobState::Preempted, seconds_left: Some(20.0) }));
    assert_eq!(scene.done, [Action::Note(Note::ShortOfTime { left: 20.0, save: 90.0 })]);
    assert_eq!(in_job(RestartHistory { last_save_seconds: Some(59.0), ..RestartHistory::default() }).done.len(), 1);
}

/// A coordinator that was killed in its job has said nothing; the next one knows.
#[test]
fn a_coordinator_that_vanished_is_remembered_by_the_next() {
    let mut scene = in_job(RestartHistory::default());
    scene.train(1, 5);
    let next = in_job(scene.state.history.clone());
    let end = &next.state.history.job_ends[0];
    assert_eq!((end.step, end.cause.as_str()), (None, "the coordinator or its node died"));
}

/// Nothing is lost by an end before the first step has ended; a load may take an hour, and a job has less.
#[test]
fn a_stop_before_the_first_step_has_ended_is_heeded_at_once() {
    for phase in [WorkerPhase::Join, WorkerPhase::Load, WorkerPhase::Read, WorkerPhase::Step, WorkerPhase::Exchange] {
        let mut scene = Scene::new();
        scene.load(1, phase).give(Event::StopRequested);
        assert_eq!(scene.done, [Action::Note(Note::NothingToSave), Action::End], "{phase}");
        assert_eq!(scene.exit(143).state.verdict(), Some(&Verdict::Stopped(StopReason::Person)), "{phase}");
        assert_eq!(scene.state.checkpoint, None, "the next start begins the run");
    }
    let mut scene = Scene::new();
    scene.give(Event::LeaseTaken(1)).give(Event::Signal(Signal::Other));
    assert_eq!(scene.done, [Action::Note(Note::NothingToSave), Action::End], "no rank has reported");
    // A second signal changes nothing any more.
    scene.at += 2.0;
    assert_eq!(scene.give(Event::Signal(Signal::Other)).done, []);
    scene.worker(WorkerEvent::Gone(Vec::new()));
    assert_eq!(scene.failure().0, 1);
    // Who is killed meanwhile is no failure, and what ended well by then has.
    let mut scene = Scene::new();
    scene.load(1, WorkerPhase::Load).give(Event::Signal(Signal::Other));
    scene.worker(WorkerEvent::Died(RankDeath::Signal { rank: 1, signal: 15 })).exit(143);
    assert_eq!(scene.state.verdict(), Some(&Verdict::Stopped(StopReason::Signal)));
    let mut scene = Scene::new();
    scene
        .load(1, WorkerPhase::Step)
        .give(Event::StopRequested)
        .says(EventKind::Finished { step: 9, stopped: false })
        .exit(143);
    assert_eq!(scene.state.verdict(), Some(&Verdict::Finished));
}

#[test]
fn a_stop_waits_for_its_checkpoint_where_there_is_something_to_save() {
    let stop = [Action::Note(Note::Stopping), Action::Command(Directive::CheckpointAndStop)];
    for phase in [WorkerPhase::Save, WorkerPhase::Evaluate] {
        assert_eq!(Scene::new().load(1, phase).give(Event::StopRequested).done, stop, "{phase}");
    }
    assert_eq!(Scene::new().load(1, WorkerPhase::Step).saves(5).give(Event::StopRequested).done, stop);
    assert_eq!(Scene::new().train(1, 5).give(Event::StopRequested).done, stop);
}

/// Commits are atomic, so that nothing is lost by waiting; but a job that is killed is not queued again.
#[test]
fn ranks_are_ended_when_a_job_has_time_for_nothing_else() {
    let stop = || {
        let mut scene = Scene::in_job(RestartHistory::default(), 120.0, 0.0);
        scene.train(1, 5).saves(4).give(Event::Signal(Signal::Other));
        scene.give(Event::Job(JobView { job_state: JobState::Running, seconds_left: Some(180.0) }));
        scene
    };
    let mut scene = stop();
    for _ in 0..94 {
        assert_eq!(scene.wait(1.0).report().done, []);
    }
    assert_eq!(scene.wait(1.0).done, [Action::Note(Note::OutOfTime), Action::End]);
    assert_eq!(scene.exit(143).state.verdict(), Some(&Verdict::Stopped(StopReason::TimeLimit)));
    assert_eq!(scene.state.checkpoint.as_deref(), Some("step-4"));
    // It may have been saved at the last moment.
    let mut scene = stop();
    scene.wait(50.0).report().wait(46.0);
    scene.saves(6).says(EventKind::Finished { step: 6, stopped: true }).exit(0);
    assert_eq!(scene.state.verdict(), Some(&Verdict::Stopped(StopReason::TimeLimit)));
    assert_eq!(scene.state.checkpoint.as_deref(), Some("step-6"));
    // Ranks that are done have time to leave, and nobody hurries them for a person.
    let mut scene = stop();
    scene.says(EventKind::Finished { step: 6, stopped: true });
    assert_eq!(scene.wait(25.0).done, []);
    let mut scene = Scene::in_job(RestartHistory::default(), 120.0, 0.0);
    scene.train(1, 5).give(Event::Signal(Signal::Other));
    scene.give(Event::Job(JobView { job_state: JobState::Cancelled, seconds_left: Some(20.0) }));
    assert_eq!(scene.wait(19.0).done, []);
}
