//! Tests of decisions after an attempt: end of the run, or restart and backoff.

use std::collections::BTreeSet;

use lambert_config::exit;
use lambert_config::run::Host;
use lambert_control::WorkerReport;
use lambert_control::{EventKind, FailureKind};

use lambert::decide::{
    Action, Attempt, CoordinatorState, Event, HostPool, LastKnown, LeaseRequest, Note, Placement, ProcessExit,
    RankDeath, Settings, Signal, StopReason, Verdict, WorkerEvent,
};
use lambert_control::Versions;

use crate::scenario::Scenario;

#[test]
fn a_run_finishes_after_its_processes_exit() {
    let mut scene = Scenario::new();
    assert_eq!(scene.done, [Action::TakeLease(LeaseRequest::Next)]);
    scene.give(Event::LeaseTaken(4));
    let attempt = Attempt { number: 4, world: 2, placement: Placement::Here };
    assert_eq!(scene.done, [Action::Start(attempt)]);
    scene.report().send_event(EventKind::Finished { step: 9, stopped: false });
    scene.worker(WorkerEvent::Exited(ProcessExit::Code(0)));
    assert_eq!(scene.done, [Action::End]);
    scene.worker(WorkerEvent::Gone(Vec::new()));
    assert_eq!((scene.state.verdict(), &scene.done[..]), (Some(&Verdict::Finished), &[Action::ForgetStop][..]));
    assert_eq!(scene.give(Event::Signal(Signal::Other)).done, [], "nothing after the end");
}

#[test]
fn backoff_grows_and_progress_resets_it() {
    let mut scene = Scenario::with(|config| config.cluster.restart.limit = 100, HostPool::Here);
    let mut pauses = Vec::new();
    for lease in 1..=9 {
        let (pause, wanted) = scene.train(lease, 10).fail(FailureKind::Transient).pause();
        assert_eq!(wanted, LeaseRequest::Exactly(lease + 1));
        pauses.push(pause);
    }
    assert_eq!(pauses, [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0, 60.0]);
    assert_eq!(scene.train(10, 11).fail(FailureKind::Transient).pause().0, 1.0, "one more step");
    scene.train(11, 3).saves(3);
    assert_eq!(scene.fail(FailureKind::Transient).pause().0, 1.0, "a newer checkpoint");
    assert_eq!(scene.state.history.last_save_seconds, Some(2.0));
}

/// Regression test: if each attempt made one step before it crashed, the run was restarted forever.
#[test]
fn restarts_are_limited_per_window_even_with_progress() {
    let mut scene = Scenario::new();
    for lease in 1..=5 {
        scene.train(lease, u64::from(lease)).saves(u64::from(lease)).fail(FailureKind::Transient).pause();
    }
    let mut patient = Scenario { at: scene.at + 3601.0, state: scene.state.clone(), done: Vec::new() };
    scene.train(6, 6).fail(FailureKind::Transient);
    let (code, message) = scene.failure();
    assert!(code == 1 && message.starts_with("giving up after 6 failures within 60 minutes"), "{message}");
    patient.train(6, 6).saves(6).fail(FailureKind::Transient).pause();
    // The successor of a killed coordinator continues the count of failures. After the run has failed, a new start
    // resets the count.
    let later = Settings { unix: 1e9 + patient.at, ..patient.state.settings.clone() };
    let (vanished, _) = CoordinatorState::begin(later, patient.state.history.clone(), LastKnown::default());
    assert_eq!(vanished.history.count(1e9 - 1.0), 6);
    let (reset, _) = CoordinatorState::begin(
        Settings { unix: 1e9 + 9999.0, ..scene.state.settings.clone() },
        scene.state.history,
        LastKnown::default(),
    );
    assert_eq!(reset.history.count(1e9 - 1.0), 0);
}

#[test]
fn a_limit_of_zero_allows_no_restart() {
    let mut scene = Scenario::with(|config| config.cluster.restart.limit = 0, HostPool::Here);
    assert_eq!(scene.train(1, 50).fail(FailureKind::Transient).failure().0, 1);
}

#[test]
fn permanent_failures_are_not_retried() {
    for (kind, code) in [(FailureKind::Permanent, 70), (FailureKind::RetryLater, 1), (FailureKind::Usage, 2)] {
        let mut scene = Scenario::new();
        assert_eq!(scene.train(1, 5).fail(kind).failure().0, code);
    }
    let mut scene = Scenario::new();
    scene.train(1, 5).fail(FailureKind::LeaseLost);
    assert!(matches!(scene.state.verdict(), Some(Verdict::Replaced(_))));
}

/// Rank 1 exits as a program that the dynamic loader cannot load.
fn fail_to_load(scene: &mut Scenario) -> &mut Scenario {
    scene.worker(WorkerEvent::Line(1, "w: error while loading shared libraries: libtorch.so: no file".into()));
    scene.worker(WorkerEvent::Died(RankDeath::Exit { rank: 1, code: 127 })).exit(127)
}

/// Regression test: the start was repeated until the restart limit.
#[test]
fn a_program_that_does_not_load_is_permanent_in_the_first_attempt_only() {
    let mut scene = on_hosts(3);
    scene.give(Event::LeaseTaken(1));
    let (code, message) = fail_to_load(&mut scene).failure();
    let expected = "lambert-worker did not load for rank 1 on host b (exit code 127): libtorch.so: no file; install ";
    assert!(code == exit::USAGE && message.starts_with(expected), "{code} {message}");
    // Later, a file system may be unavailable. The host is then replaced.
    let mut scene = on_hosts(3);
    scene.give(Event::LeaseTaken(1)).exit(1).pause();
    scene.give(Event::LeaseTaken(2));
    assert_eq!(hosts(&scene), "ab");
    fail_to_load(&mut scene).pause();
    assert_eq!(hosts(scene.give(Event::LeaseTaken(3))), "ac");
}

/// Another rank has reported, and mpirun has not said which rank ended.
#[test]
fn a_program_that_does_not_load_is_found_without_a_death() {
    let mut scene = Scenario::new();
    scene.give(Event::LeaseTaken(1)).report_of(0);
    scene.worker(WorkerEvent::Line(1, "w: error while loading shared libraries: libtorch.so: no file".into()));
    let (code, message) = scene.exit(127).failure();
    assert!(code == exit::USAGE && message.starts_with("lambert-worker did not load for rank 1 "), "{code} {message}");
}

/// The exit code of a rank that has reported has another cause.
#[test]
fn a_program_that_has_reported_did_load() {
    let mut scene = Scenario::new();
    scene.give(Event::LeaseTaken(1)).report();
    fail_to_load(&mut scene).pause();
}

/// Coordinator with the hosts `a`, `b`, ..., of one rank each.
fn on_hosts(count: usize) -> Scenario {
    let hosts = "abcdefgh".chars().take(count).map(|name| Host { name: name.into(), ranks: 1 }).collect();
    Scenario::with(|_| (), HostPool::Hosts(hosts))
}

/// Hosts of the running attempt.
fn hosts(scene: &Scenario) -> String {
    match &scene.state.running().unwrap().attempt.placement {
        Placement::Hosts(hosts) => hosts.iter().map(|host| host.name.as_str()).collect(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn host_failures_move_the_ranks() {
    let mut scene = on_hosts(3);
    // Rank 0 fails on a different host each time, and then on host a again.
    for (lease, names) in [(1, "ab"), (2, "bc"), (3, "ca"), (4, "ab"), (5, "ab")] {
        assert_eq!(hosts(scene.train(lease, 5)), names);
        scene.fail(FailureKind::Host).pause();
    }
    let (_, message) = { scene.train(6, 5).fail(FailureKind::Host).failure() };
    assert!(message.starts_with("giving up after 4 failures of host a without progress"), "{message}");
}

#[test]
fn the_fourth_failure_of_the_same_host_ends_the_run() {
    let mut scene = Scenario::new();
    for lease in 1..=3 {
        scene.train(lease, 5).fail(FailureKind::Host).pause();
    }
    let (_, message) = { scene.train(4, 5).fail(FailureKind::Host).failure() };
    assert!(
        message.starts_with("giving up after 4 failures of host a without progress; last failure: rank 0"),
        "{message}"
    );
}

/// Regression test: the run ended after the fourth attempt, and healthy hosts were avoided.
#[test]
fn an_outage_of_a_shared_file_system_blames_no_host() {
    let mut scene = on_hosts(3);
    let mut pauses = Vec::new();
    for lease in 1..=5 {
        assert_eq!(hosts(scene.train(lease, 5)), "ab");
        let failed = || EventKind::Failed { message: "stale".into(), kind: FailureKind::Host, missing: Vec::new() };
        let message = |rank| WorkerEvent::Message(rank, lambert_control::Message::Event(failed()));
        // Rank 0 reports its failure while the attempt is ended.
        scene.worker(message(1)).worker(WorkerEvent::Died(RankDeath::Exit { rank: 1, code: 1 }));
        assert_eq!(scene.done, [Action::End]);
        scene.worker(message(0)).exit(1);
        pauses.push(scene.pause().0);
    }
    assert_eq!(pauses, [1.0, 2.0, 4.0, 8.0, 16.0]);
    let restart = &scene.state.history.restarts[4];
    assert_eq!(restart.cause, "2 ranks on 2 hosts failed, first rank 1 (pid 7, host b): stale");
    assert!(restart.hosts.is_empty() && restart.counts_toward_limit, "{restart:?}");
}

/// Regression test: only one of several lost hosts was avoided, and none if the launcher named several.
#[test]
fn all_lost_hosts_are_avoided_at_once() {
    let mut scene = on_hosts(8);
    scene.state.settings.ranks = 4;
    scene.give(Event::LeaseTaken(1));
    assert_eq!(hosts(&scene), "abcd");
    let report = |rank| WorkerReport { rank, pid: 7, host: "x".into(), ..WorkerReport::default() };
    for rank in 0..4 {
        scene.worker(WorkerEvent::Report(report(rank)));
    }
    scene.at += 91.0;
    for rank in [0, 3] {
        scene.worker(WorkerEvent::Report(report(rank)));
    }
    scene.wait(0.0).exit(1).pause();
    scene.give(Event::LeaseTaken(2));
    assert_eq!(hosts(&scene), "adef");
    // No rank starts. The launcher names two hosts, and then all hosts of the attempt.
    let remark = |host: char| WorkerEvent::Remark(format!("ssh: connect to host {host} port 22: No route to host"));
    for (lease, lost, next) in [(3, "de", "afgh"), (4, "afgh", "abcd")] {
        for host in lost.chars() {
            scene.worker(remark(host));
        }
        scene.exit(1).pause();
        scene.give(Event::LeaseTaken(lease));
        assert_eq!(hosts(&scene), next);
    }
}

/// The verdict does not depend on the exit status of the processes.
#[test]
fn finished_ranks_that_do_not_exit_are_ended() {
    let ends = [(false, Verdict::Finished), (true, Verdict::Stopped(StopReason::User))];
    for (stopped, verdict) in ends {
        let mut scene = Scenario::new();
        scene.train(1, 5);
        if stopped {
            scene.give(Event::StopRequested);
        }
        scene.send_event(EventKind::Finished { step: 9, stopped }).wait(30.0);
        assert_eq!(scene.done, []);
        scene.wait(1.0);
        let output = "the workers have not exited 31 s after finishing; terminating them";
        assert!(
            matches!(&scene.done[..], [Action::Note(Note::Slow(text)), Action::End] if text == output),
            "{:?}",
            scene.done
        );
        scene.worker(WorkerEvent::Exited(ProcessExit::Signal(9))).worker(WorkerEvent::Gone(Vec::new()));
        assert_eq!(scene.state.verdict(), Some(&verdict));
    }
}

/// An address or a mount is temporarily missing.
#[test]
fn a_failed_restart_is_retried() {
    let none = || "this host has no interface eth0".to_owned();
    let mut scene = Scenario::new();
    scene.give(Event::LeaseTaken(1)).give(Event::StartFailed(1, 2, none()));
    assert_eq!(scene.failure(), (2, &*none()), "a first start that fails is not retried");

    let mut scene = Scenario::new();
    scene.train(1, 5).fail(FailureKind::Transient).pause();
    for (lease, pause) in [(2, 1.0), (3, 2.0)] {
        scene.give(Event::LeaseTaken(lease)).give(Event::StartFailed(lease, 2, none()));
        assert_eq!(scene.pause(), (pause, LeaseRequest::Exactly(lease + 1)));
    }
    scene.wait(3601.0).give(Event::LeaseTaken(4)).give(Event::StartFailed(4, 2, none()));
    let (code, message) = scene.failure();
    assert!(code == 1 && message.contains("minutes") && message.ends_with(&none()), "{message}");
}

#[test]
fn an_attempt_without_reports_is_retried_and_not_counted() {
    let mut scene = Scenario::new();
    let (mut lease, mut pauses) = (0, Vec::new());
    let message = loop {
        lease += 1;
        scene.give(Event::LeaseTaken(lease)).wait(10.0);
        scene.worker(WorkerEvent::Remark("no route to host b".into())).exit(1);
        match scene.state.verdict() {
            None => pauses.push(scene.pause().0),
            Some(_) => break scene.failure().1.to_owned(),
        }
    };
    assert_eq!(pauses[..7], [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0]);
    assert!((3600.0..3700.0).contains(&scene.at), "given up after {} s", scene.at);
    assert!(message.ends_with("the launcher exited with code 1: no route to host b"), "{message}");
    assert_eq!(scene.state.history.restarts, [], "counted as a restart");
}

/// Simulates that a rank exits because it gets no reply from the coordinator.
fn leave(scene: &mut Scenario, rank: usize) {
    scene.worker(WorkerEvent::Died(RankDeath::Exit { rank, code: exit::UNSUPERVISED })).exit(exit::UNSUPERVISED);
}

/// Regression test: such attempts were repeated without a pause and without a limit.
#[test]
fn ranks_that_cannot_reach_the_coordinator_are_retried_for_the_start_timeout() {
    let mut scene = Scenario::with(|config| config.cluster.restart.start_timeout_minutes = 1.0, HostPool::Here);
    let (mut lease, mut pauses) = (0, Vec::new());
    while scene.state.verdict().is_none() {
        lease += 1;
        assert!(lease < 100, "no limit");
        let listening = WorkerEvent::Listening { address: "10.0.0.1:4000".into(), is_loopback: false };
        scene.give(Event::LeaseTaken(lease)).worker(listening).wait(6.0);
        leave(&mut scene, 1);
        if scene.state.verdict().is_none() {
            pauses.push(scene.pause().0);
        }
    }
    assert_eq!(pauses, [1.0, 2.0, 4.0, 8.0, 16.0]);
    let (code, message) = scene.failure();
    assert!(code == 1 && message.starts_with("giving up: no rank has reported for 1.1 minutes"), "{message}");
    assert!(message.contains("rank 1 (not yet reported) exited: no reply from the coordinator at 10.0.0.1:4000"));
}

#[test]
fn a_rank_that_loses_the_coordinator_counts_as_a_failure_of_its_host() {
    let host = |name: &str| Host { name: name.into(), ranks: 1 };
    let mut scene = Scenario::with(|_| (), HostPool::Hosts(vec![host("a"), host("b"), host("c")]));
    scene.train(1, 5).wait(46.0);
    leave(&mut scene, 1);
    assert_eq!(scene.pause().0, 1.0);
    let restart = &scene.state.history.restarts[0];
    assert_eq!((&restart.hosts, restart.counts_toward_limit), (&BTreeSet::from(["b".to_owned()]), true));
    scene.give(Event::LeaseTaken(2));
    let Placement::Hosts(hosts) = &scene.state.running().unwrap().attempt.placement else { panic!() };
    assert_eq!(hosts.iter().map(|host| host.name.as_str()).collect::<String>(), "ac");

    let mut scene = Scenario::with(|config| config.cluster.restart.limit = 2, HostPool::Here);
    for lease in 1..=2 {
        leave(scene.train(lease, 5), 0);
        scene.pause();
    }
    leave(scene.train(3, 5), 0);
    assert!(scene.failure().1.starts_with("giving up after 3 failures"), "{}", scene.failure().1);
}

/// The ranks did not fail, so nothing counts. The events arrive in any order after the coordinator is resumed.
#[test]
fn restarts_after_suspensions_are_unlimited() {
    let mut scene = Scenario::with(|config| config.cluster.restart.limit = 1, HostPool::Here);
    for lease in 1..=8 {
        scene.train(lease, 5);
        let death = WorkerEvent::Died(RankDeath::Exit { rank: 1, code: exit::UNSUPERVISED });
        if lease % 2 == 0 {
            scene.worker(death).give(Event::Suspended(60.0));
        } else {
            scene.give(Event::Suspended(60.0)).worker(death);
        }
        scene.exit(exit::UNSUPERVISED);
        assert_eq!(scene.pause().0, 0.0);
    }
    // The suspension ended before the attempt, or was too short.
    scene.give(Event::Suspended(60.0)).train(9, 6).give(Event::Suspended(20.0));
    leave(&mut scene, 1);
    assert_eq!(scene.pause().0, 1.0);
    assert_eq!(scene.state.history.count(1e9 - 1.0), 1);
}

#[test]
fn a_silent_rank_ends_its_attempt_and_its_host_is_recorded() {
    let mut scene = Scenario::new();
    scene.train(1, 5);
    scene.at += 91.0;
    scene.worker(WorkerEvent::Report(WorkerReport { rank: 1, pid: 7, host: "b".into(), ..WorkerReport::default() }));
    assert_eq!(scene.give(Event::Tick).done, [Action::End]);
    scene.worker(WorkerEvent::Gone(vec!["pid 12 (state D)".into()]));
    assert_eq!(scene.done[0], Action::Note(Note::LeftoverProcesses(vec!["pid 12 (state D)".into()])));
    let restart = &scene.state.history.restarts[0];
    assert_eq!(restart.hosts, BTreeSet::from(["a".to_owned()]));
    assert_eq!(restart.cause, "rank 0 (pid 7, host a) has sent no heartbeat for 90 s");
}

#[test]
fn a_version_mismatch_is_rejected() {
    let mut scene = Scenario::new();
    let versions = Versions { program: "0.0.9".into(), ..Versions::current() };
    scene.give(Event::LeaseTaken(1));
    scene.worker(WorkerEvent::Report(WorkerReport { versions: Some(versions), ..WorkerReport::default() }));
    assert_eq!(scene.done, [Action::End]);
    scene.worker(WorkerEvent::Gone(Vec::new()));
    let (code, message) = scene.failure();
    let own = env!("CARGO_PKG_VERSION");
    let expected = format!("version mismatch: this coordinator has program {own}, rank 0 has 0.0.9");
    assert_eq!((code, message), (2, &*expected));
}

#[test]
fn downtime_is_counted_once() {
    let mut scene = Scenario::new();
    scene.train(1, 100).wait(1.0).fail(FailureKind::Transient).pause();
    scene.train(2, 40).wait(10.0).fail(FailureKind::Transient).pause();
    assert_eq!(scene.state.history.restarts[0].seconds, Some(11.0), "another failure ends the measurement");
    scene.train(3, 60).wait(20.0);
    scene.record(100);
    assert_eq!(scene.done, [Action::Note(Note::Recovered { step: 100, seconds: 22.0 })]);
    assert_eq!(scene.state.history.seconds_lost, 33.0);
}
