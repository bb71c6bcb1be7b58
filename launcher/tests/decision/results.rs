//! Tests that the result that rank 0 reports is final, no matter how the processes exit.

use lambert_control::{EventKind, FailureKind};

use lambert::decide::{Action, Event, Note, ProcessExit, RankDeath, Signal, StopReason, Verdict, WorkerEvent};

use crate::scenario::Scenario;

fn finished(stopped: bool) -> EventKind {
    EventKind::Finished { step: 9, stopped }
}

/// Simulates a run that has finished, or that has saved its checkpoint after a stop request.
fn done(stopped: bool) -> Scenario {
    let mut scene = Scenario::new();
    scene.train(1, 5);
    if stopped {
        scene.give(Event::StopRequested);
    }
    scene.saves(9).send_event(finished(stopped));
    scene
}

fn result(stopped: bool) -> Verdict {
    if stopped { Verdict::Stopped(StopReason::User) } else { Verdict::Finished }
}

/// For example, a destructor may abort. Regression test: such a run was restarted repeatedly. Each time it loaded its
/// last checkpoint and crashed again.
#[test]
fn a_crash_after_the_result_is_a_warning() {
    let crashes = [
        (WorkerEvent::Died(RankDeath::Signal { rank: 1, signal: 6 }), 134, "rank 1 (pid 7, host b) killed by SIGABRT"),
        (WorkerEvent::Died(RankDeath::Exit { rank: 0, code: 3 }), 3, "rank 0 (pid 7, host a) exited with code 3"),
        (WorkerEvent::Remark("prterun noticed".into()), 1, "the launcher exited with code 1: prterun noticed"),
    ];
    for stopped in [false, true] {
        for (crash, code, message) in &crashes {
            let mut scene = done(stopped);
            scene.worker(crash.clone()).worker(WorkerEvent::Exited(ProcessExit::Code(*code)));
            scene.worker(WorkerEvent::Gone(Vec::new()));
            assert_eq!(scene.done[0], Action::Note(Note::ResultStands((*message).to_owned())));
            assert_eq!(scene.state.verdict(), Some(&result(stopped)));
        }
    }
    // The result may arrive after the exit of the process.
    let mut scene = Scenario::new();
    scene
        .train(1, 5)
        .worker(WorkerEvent::Died(RankDeath::Signal { rank: 1, signal: 6 }))
        .send_event(finished(false))
        .exit(134);
    assert_eq!(scene.state.verdict(), Some(&Verdict::Finished));
    // An error that a rank reports after the result is also only a warning.
    let mut scene = done(false);
    let (message, kind) = ("MPI_Finalize".into(), FailureKind::Transient);
    scene.send_event(EventKind::Failed { message, kind, missing: Vec::new() }).exit(1);
    let reported = "rank 0 (pid 7, host a) failed: MPI_Finalize".to_owned();
    assert_eq!(scene.done[0], Action::Note(Note::ResultStands(reported)));
    assert_eq!(scene.state.verdict(), Some(&Verdict::Finished));
    // A clean exit is not a crash.
    let mut scene = done(false);
    assert_eq!(scene.exit(0).done, [Action::ForgetStop]);
}

/// For example, mpirun wakes a stopped rank before it ends it, and this rank then completes the last step.
#[test]
fn the_reason_for_the_end_of_an_attempt_is_a_warning_after_the_result() {
    for stopped in [false, true] {
        let mut scene = Scenario::new();
        scene.train(1, 5).wait(91.0);
        assert_eq!(scene.done, [Action::End]);
        if stopped {
            scene.give(Event::StopRequested);
        }
        scene.send_event(finished(stopped)).exit(0);
        let reason = "2 ranks on 2 hosts (a, b) have sent no heartbeat for 90 s".to_owned();
        assert_eq!(scene.done[0], Action::Note(Note::ResultStands(reason)));
        assert_eq!(scene.state.verdict(), Some(&result(stopped)));
    }
}

#[test]
fn only_rank_0_reports_the_result() {
    let mut scene = Scenario::new();
    let text = lambert_control::Message::Event(finished(false));
    scene.train(1, 5).worker(WorkerEvent::Message(1, text)).exit(134).pause();
}

#[test]
fn a_finished_run_cannot_be_taken_over() {
    let mut scene = done(false);
    scene
        .worker(WorkerEvent::Exited(ProcessExit::Code(0)))
        .give(Event::LeaseSeen(2))
        .worker(WorkerEvent::Gone(Vec::new()));
    assert_eq!(scene.state.verdict(), Some(&Verdict::Finished), "while its processes are being ended");
    let mut scene = done(false);
    scene.give(Event::LeaseSeen(2)).worker(WorkerEvent::Gone(Vec::new()));
    assert_eq!(scene.state.verdict(), Some(&Verdict::Finished), "while its processes exit");
    // A stopped run belongs to the other coordinator. A requeued job must not take the run back.
    let mut scene = done(true);
    scene.give(Event::LeaseSeen(2)).worker(WorkerEvent::Gone(Vec::new()));
    assert!(matches!(scene.state.verdict(), Some(Verdict::Replaced(_))));
}

#[test]
fn a_second_signal_does_not_change_the_result() {
    for stopped in [false, true] {
        let mut scene = done(stopped);
        scene.give(Event::Signal(Signal::Interrupt));
        scene.at += 2.0;
        scene.give(Event::Signal(Signal::Interrupt)).worker(WorkerEvent::Gone(Vec::new()));
        assert_eq!(scene.state.verdict(), Some(&result(stopped)));
    }
}
