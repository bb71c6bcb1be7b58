//! Tests of requests from users, Slurm and other coordinators.

use lambert_control::{Directive, EventKind, FailureKind};
use lambert_control::{WorkerPhase, WorkerReport};

use lambert::decide::{
    Action, Event, JobState, JobView, LeaseRequest, Note, Phase, RankDeath, RestartHistory, Signal, StopReason,
    Verdict, WorkerEvent,
};

use crate::scenario::{JOB, Scenario};

/// If a directory is full or a file system is unavailable, the lease request is retried, as with an object store.
#[test]
fn an_active_run_retries_its_lease() {
    let mut scene = Scenario::new();
    scene.give(Event::LeaseFailed("no space".into()));
    assert_eq!(scene.failure(), (1, "no space"), "a first start that fails is not retried");

    let mut scene = Scenario::new();
    assert_eq!(scene.train(1, 5).fail(FailureKind::Transient).pause(), (1.0, LeaseRequest::Exactly(2)));
    for pause in [1.0, 2.0, 4.0] {
        scene.give(Event::LeaseFailed("no space".into()));
        // The lease request may have failed although the lease object was created.
        let cause = "cannot acquire the lease: no space";
        assert!(matches!(&scene.done[..], [Action::Note(Note::Waiting { cause: text, .. })] if text == cause));
        assert_eq!(scene.give(Event::LeaseSeen(2)).state.verdict(), None);
        scene.done = vec![Action::Note(Note::Waiting { cause: cause.into(), pause, minutes_left: 1.0 })];
        assert_eq!(scene.pause(), (pause, LeaseRequest::Exactly(2)));
    }
    assert!(matches!(scene.train(2, 9).state.phase, Phase::Running(_)));

    scene.fail(FailureKind::Transient).pause();
    scene.give(Event::LeaseFailed("no space".into())).give(Event::LeaseSeen(4));
    assert!(matches!(scene.state.verdict(), Some(Verdict::Replaced(_))), "another coordinator has a later lease");

    let mut scene = Scenario::new();
    scene.train(1, 5).fail(FailureKind::Transient).pause();
    scene.give(Event::LeaseFailed("no space".into())).wait(3601.0).give(Event::LeaseFailed("no space".into()));
    let (code, message) = scene.failure();
    assert!(code == 1 && message.contains("60.0 minutes") && message.ends_with("no space"), "{message}");

    // The time for which a lease request waits counts toward the start timeout.
    let mut scene = Scenario::new();
    scene.train(1, 5).fail(FailureKind::Transient).pause();
    scene.wait(7200.0).give(Event::LeaseFailed("no space".into()));
    let (code, message) = scene.failure();
    assert!(code == 1 && message.contains("120.0 minutes"), "{message}");
}

/// Slurm signals the ranks before the coordinator. The death of a rank is handled separately.
#[test]
fn a_signal_to_the_ranks_stops_the_run() {
    let terminated = || WorkerEvent::Report(WorkerReport { has_received_sigterm: true, ..WorkerReport::default() });
    let mut scene = Scenario::new();
    scene.train(1, 5).worker(terminated());
    assert_eq!(scene.done, [Action::Note(Note::Stopping), Action::Command(Directive::CheckpointAndStop)]);
    scene.send_event(EventKind::Finished { step: 6, stopped: true }).exit(0);
    assert_eq!(scene.state.verdict(), Some(&Verdict::Stopped(StopReason::Signal)));

    let mut scene = Scenario::new();
    scene.train(1, 5).worker(WorkerEvent::Died(RankDeath::Signal { rank: 1, signal: 9 }));
    assert_eq!(scene.done, [Action::End], "the other ranks would wait forever");
    assert_eq!(scene.worker(terminated()).done, [], "signals from the launcher are ignored");
    assert_eq!(scene.exit(143).pause(), (1.0, LeaseRequest::Exactly(2)));

    let mut scene = Scenario::new();
    scene.train(1, 5).give(Event::StopRequested);
    assert_eq!(scene.state.requests.stop, Some(StopReason::User), "the stop request was lost");
}

/// A start may take minutes, for example to resolve names. The events of this time come before its failure.
#[test]
fn a_start_that_fails_after_a_request_ends_the_run() {
    let failed = || Event::StartFailed(1, 1, "cannot resolve b".into());
    for (request, verdict) in [
        (Event::StopRequested, Verdict::Stopped(StopReason::User)),
        (Event::Signal(Signal::Other), Verdict::Stopped(StopReason::Signal)),
    ] {
        let mut scene = Scenario::new();
        scene.give(Event::LeaseTaken(1)).give(request).give(failed());
        assert_eq!(scene.state.verdict(), Some(&verdict));
        assert!(scene.done.contains(&Action::Note(Note::StartFailed("cannot resolve b".into()))));
    }
    let mut scene = Scenario::new();
    scene.give(Event::LeaseTaken(1)).give(Event::LeaseSeen(2)).give(failed());
    assert!(matches!(scene.state.verdict(), Some(Verdict::Replaced(_))));

    let mut scene = Scenario::new();
    scene.give(Event::LeaseTaken(1)).give(Event::Signal(Signal::Interrupt)).wait(2.0);
    scene.give(Event::Signal(Signal::Interrupt)).give(failed());
    assert!(matches!(scene.state.verdict(), Some(Verdict::Failed(1, _))), "{:?}", scene.state.verdict());
}

#[test]
fn signals_apply_in_every_phase() {
    let mut scene = Scenario::new();
    assert_eq!(
        scene.give(Event::Signal(Signal::Other)).state.verdict(),
        Some(&Verdict::Stopped(StopReason::Signal)),
        "while a lease is waited for"
    );

    let mut scene = Scenario::new();
    scene.train(1, 5).fail(FailureKind::Transient);
    assert_eq!(
        scene.give(Event::Signal(Signal::Other)).state.verdict(),
        Some(&Verdict::Stopped(StopReason::Signal)),
        "in a pause"
    );

    let mut scene = Scenario::new();
    scene.train(1, 5).give(Event::Signal(Signal::Other));
    assert_eq!(scene.done, [Action::Note(Note::Stopping), Action::Command(Directive::CheckpointAndStop)]);
    assert_eq!(scene.give(Event::StopRequested).done, [], "a repeated command");
    assert_eq!(scene.give(Event::Signal(Signal::Other)).done, [], "`timeout` signals a process and its group");
    scene.at += 1.0;
    assert_eq!(scene.give(Event::Signal(Signal::Other)).done, [Action::End]);
    scene.worker(WorkerEvent::Gone(Vec::new()));
    assert!(scene.failure().1.starts_with("ended by a second signal without a checkpoint"));

    let mut scene = Scenario::new();
    scene.train(1, 5).give(Event::StopRequested).fail(FailureKind::Transient);
    assert!(scene.failure().1.starts_with("the workers failed before the requested checkpoint and stop: rank 0"));
}

/// The job is requeued for another reason, so the failure must not count towards `slurm.requeues`.
#[test]
fn a_failure_while_a_job_ends_does_not_count_as_its_failure() {
    let failed = |job_state, kind| {
        let mut scene = in_job(RestartHistory::default());
        scene.train(1, 5).give(Event::Signal(Signal::Other));
        scene.give(Event::Job(JobView { job_state, seconds_left: Some(100.0) })).fail(kind);
        (scene.state.verdict().unwrap().clone(), scene.state.history.progress.attempts_without_checkpoint, scene.done)
    };
    let message = "the workers failed before the requested checkpoint and stop: rank 0 (pid 7, host a) failed: so";
    for (job_state, reason) in [
        (JobState::Running, StopReason::TimeLimit),
        (JobState::Preempted, StopReason::Preempted),
        (JobState::Requeued, StopReason::Requeued),
    ] {
        for kind in [FailureKind::Transient, FailureKind::Host] {
            let (verdict, attempts, done) = failed(job_state, kind);
            assert_eq!((verdict, attempts), (Verdict::Stopped(reason), 1), "the limit on attempts still applies");
            assert_eq!(done, [Action::Note(Note::StopFailed(message.into()))]);
        }
    }
    let verdict = Verdict::Failed(1, message.into());
    assert_eq!(failed(JobState::Cancelled, FailureKind::Transient).0, verdict, "the user waits for a checkpoint");
    assert_eq!(failed(JobState::Running, FailureKind::Permanent).0, verdict, "it would fail again");
}

/// If the current attempt does not complete a request, the next attempt gets the request.
#[test]
fn a_checkpoint_request_is_kept_until_a_save() {
    let mut scene = Scenario::new();
    scene.train(1, 5).give(Event::SaveRequested);
    assert_eq!(scene.done, [Action::Note(Note::Saving), Action::Command(Directive::Checkpoint)]);
    scene.wait(50.0);
    scene.report().fail(FailureKind::Transient).pause();
    scene.give(Event::LeaseTaken(2));
    assert!(matches!(scene.done[..], [Action::Start(_), Action::Command(Directive::Checkpoint)]), "{:?}", scene.done);
    scene.report().send_event(EventKind::Checkpoint { name: "c".into(), step: 5, seconds: 0.1, written: 0.2 });
    scene.fail(FailureKind::Transient).pause();
    assert!(matches!(scene.give(Event::LeaseTaken(3)).done[..], [Action::Start(_)]), "{:?}", scene.done);
}

#[test]
fn a_coordinator_ignores_its_own_lease_and_yields_to_a_successor() {
    let mut scene = Scenario::new();
    scene.train(1, 5).fail(FailureKind::Transient).pause();
    // The poller sees the lease before this coordinator receives it.
    assert_eq!(scene.give(Event::LeaseSeen(2)).state.phase, Phase::Leasing(LeaseRequest::Exactly(2)));
    scene.train(2, 5).give(Event::LeaseSeen(2));
    assert!(matches!(scene.state.phase, Phase::Running(_)));
    assert_eq!(scene.give(Event::LeaseSeen(3)).done, [Action::End]);
    scene.worker(WorkerEvent::Gone(Vec::new()));
    assert!(matches!(scene.state.verdict(), Some(Verdict::Replaced(_))));

    let mut scene = Scenario::new();
    scene.train(1, 5).fail(FailureKind::Transient).pause();
    scene.give(Event::LeaseHeld(2));
    assert!(
        matches!(scene.state.verdict(), Some(Verdict::Replaced(_))),
        "the next lease belongs to another coordinator"
    );

    let mut scene = Scenario::new();
    scene.train(1, 5).fail(FailureKind::Transient).give(Event::LeaseSeen(2));
    assert!(matches!(scene.state.verdict(), Some(Verdict::Replaced(_))), "in a pause");
}

/// The directory of the run is moved or removed during an attempt, at the end of an attempt, or between two attempts.
#[test]
fn a_removed_run_ends_the_coordinator() {
    let gone = |attempt| Event::LeaseGone(attempt, "no lease".into());
    let left = Some(Verdict::Replaced("no lease".into()));
    let mut scene = Scenario::new();
    scene.train(2, 5);
    assert_eq!(scene.give(gone(1)).done, [], "a response from before this attempt");
    assert_eq!(scene.give(gone(2)).done, [Action::End]);
    assert_eq!(scene.worker(WorkerEvent::Gone(Vec::new())).state.verdict(), left.as_ref());

    let mut scene = Scenario::new();
    scene.train(1, 5).give(Event::LeaseSeen(2));
    scene.give(gone(1)).worker(WorkerEvent::Gone(Vec::new()));
    assert_eq!(scene.state.verdict(), left.as_ref(), "while it ends for another reason");

    let mut scene = Scenario::new();
    scene.train(1, 5).fail(FailureKind::Transient).give(gone(1));
    assert_eq!(scene.state.verdict(), left.as_ref(), "in a pause");

    let mut scene = Scenario::new();
    scene.train(1, 5).fail(FailureKind::Transient).pause();
    assert_eq!(scene.give(gone(1)).state.verdict(), left.as_ref(), "while the next lease is taken");
}

/// Creates a coordinator in a Slurm job.
fn in_job(history: RestartHistory) -> Scenario {
    Scenario::in_job(history, 60.0, 0.0)
}

#[test]
fn slurm_gives_the_reason_for_a_signal_in_a_job() {
    for (job_state, reason, forgets) in [
        (JobState::Cancelled, StopReason::User, true),
        (JobState::Preempted, StopReason::Preempted, false),
        (JobState::Running, StopReason::TimeLimit, false),
    ] {
        let mut scene = in_job(RestartHistory::default());
        scene.train(1, 5).give(Event::Signal(Signal::Other));
        let stop = [Action::Note(Note::Stopping), Action::Command(Directive::CheckpointAndStop)];
        assert_eq!(scene.done, [&[Action::AskSlurm][..], &stop].concat());
        scene.give(Event::Job(JobView { job_state, seconds_left: Some(100.0) }));
        assert_eq!(scene.give(Event::Signal(Signal::Other)).done, [], "a second SIGTERM has an effect");
        scene.send_event(EventKind::Finished { step: 6, stopped: true }).exit(0);
        assert_eq!(scene.state.verdict(), Some(&Verdict::Stopped(reason)));
        assert_eq!(scene.done.contains(&Action::ForgetStop), forgets, "a stop request may have arrived meanwhile");
        let end = &scene.state.history.job_ends[0];
        assert_eq!((end.job.as_str(), end.step, end.cause.as_str()), (JOB, Some(5), reason.to_string().as_str()));
        assert_eq!(scene.state.history.job, None);
    }
}

#[test]
fn a_job_too_short_for_a_checkpoint_is_reported() {
    let history = RestartHistory { last_save_seconds: Some(90.0), ..RestartHistory::default() };
    let mut scene = in_job(history);
    assert_eq!(scene.done[0], Action::Note(Note::ShortLead { save: 90.0, lead: 60.0 }));
    scene.train(1, 5).give(Event::Signal(Signal::Other));
    scene.give(Event::Job(JobView { job_state: JobState::Preempted, seconds_left: Some(20.0) }));
    assert_eq!(scene.done, [Action::Note(Note::ShortOfTime { left: 20.0, save: 90.0 })]);
    assert_eq!(in_job(RestartHistory { last_save_seconds: Some(59.0), ..RestartHistory::default() }).done.len(), 1);
}

/// A killed coordinator leaves no record of its end. Its successor infers the kill.
#[test]
fn a_killed_coordinator_is_recorded_by_its_successor() {
    let mut scene = in_job(RestartHistory::default());
    scene.train(1, 5);
    let next = in_job(scene.state.history.clone());
    let end = &next.state.history.job_ends[0];
    assert_eq!((end.step, end.cause.as_str()), (None, "the coordinator or its node died"));
}

/// Before the end of the first step there is nothing to save, and loading the checkpoint may take longer than the time
/// that the job has left.
#[test]
fn a_stop_before_the_end_of_the_first_step_ends_the_run_at_once() {
    let stop = Action::Command(Directive::CheckpointAndStop);
    let ended = [Action::Note(Note::NothingToSave), stop, Action::End];
    for phase in [WorkerPhase::Join, WorkerPhase::Load, WorkerPhase::Read, WorkerPhase::Step, WorkerPhase::AllReduce] {
        let mut scene = Scenario::new();
        scene.load(1, phase).give(Event::StopRequested);
        assert_eq!(scene.done, ended, "{phase}");
        assert_eq!(scene.exit(143).state.verdict(), Some(&Verdict::Stopped(StopReason::User)), "{phase}");
        assert_eq!(scene.state.checkpoint, None, "a checkpoint was recorded");
    }
    let mut scene = Scenario::new();
    scene.give(Event::LeaseTaken(1)).give(Event::Signal(Signal::Other));
    assert_eq!(scene.done, ended, "no rank has reported");
    // A second signal has no effect.
    scene.at += 2.0;
    assert_eq!(scene.give(Event::Signal(Signal::Other)).done, []);
    scene.worker(WorkerEvent::Gone(Vec::new()));
    assert_eq!(scene.failure().0, 1);
    // The kill of a rank during a stop is not a failure. A run that finishes during a stop is a success.
    let mut scene = Scenario::new();
    scene.load(1, WorkerPhase::Load).give(Event::Signal(Signal::Other));
    scene.worker(WorkerEvent::Died(RankDeath::Signal { rank: 1, signal: 15 })).exit(143);
    assert_eq!(scene.state.verdict(), Some(&Verdict::Stopped(StopReason::Signal)));
    let mut scene = Scenario::new();
    scene
        .load(1, WorkerPhase::Step)
        .give(Event::StopRequested)
        .send_event(EventKind::Finished { step: 9, stopped: false })
        .exit(143);
    assert_eq!(scene.state.verdict(), Some(&Verdict::Finished));
}

#[test]
fn a_stop_waits_for_its_checkpoint_after_the_first_step() {
    let stop = [Action::Note(Note::Stopping), Action::Command(Directive::CheckpointAndStop)];
    for phase in [WorkerPhase::Save, WorkerPhase::Evaluate] {
        assert_eq!(Scenario::new().load(1, phase).give(Event::StopRequested).done, stop, "{phase}");
    }
    assert_eq!(Scenario::new().load(1, WorkerPhase::Step).saves(5).give(Event::StopRequested).done, stop);
    assert_eq!(Scenario::new().train(1, 5).give(Event::StopRequested).done, stop);
}

/// Checkpoint commits are atomic, so waiting for a checkpoint is safe. However, the ranks must end in time, because a
/// job that Slurm kills is not requeued.
#[test]
fn ranks_are_ended_before_the_time_limit_of_the_job() {
    let stop = || {
        let mut scene = Scenario::in_job(RestartHistory::default(), 120.0, 0.0);
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
    // The checkpoint may be committed at the last moment.
    let mut scene = stop();
    scene.wait(50.0).report().wait(46.0);
    scene.saves(6).send_event(EventKind::Finished { step: 6, stopped: true }).exit(0);
    assert_eq!(scene.state.verdict(), Some(&Verdict::Stopped(StopReason::TimeLimit)));
    assert_eq!(scene.state.checkpoint.as_deref(), Some("step-6"));
    // Ranks that have finished get time to exit. A stop by a user has no deadline.
    let mut scene = stop();
    scene.send_event(EventKind::Finished { step: 6, stopped: true });
    assert_eq!(scene.wait(25.0).done, []);
    let mut scene = Scenario::in_job(RestartHistory::default(), 120.0, 0.0);
    scene.train(1, 5).give(Event::Signal(Signal::Other));
    scene.give(Event::Job(JobView { job_state: JobState::Cancelled, seconds_left: Some(20.0) }));
    assert_eq!(scene.wait(19.0).done, []);
}
