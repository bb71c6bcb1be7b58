//! Tests of attempt monitoring.

use super::*;
use crate::decide::{Death, Exit};
use lambert_config::exit;
use lambert_control::{FailureKind, Versions};

fn watch() -> Watch {
    watch_on(&[])
}

fn watch_on(places: &[&str]) -> Watch {
    let mut watch = Watch::new(places.iter().map(|place| (*place).to_owned()).collect());
    for rank in 0..2 {
        let report = WorkerReport { rank, pid: 40 + rank as u32, host: "x".into(), step: 5, ..WorkerReport::default() };
        watch.take(0.0, WorkerEvent::Report(report));
    }
    watch
}

fn tell(watch: &mut Watch, rank: usize, kind: EventKind) {
    watch.take(1.0, WorkerEvent::Message(rank, Message::Event(kind)));
}

fn failed(message: &str, fault: FailureKind) -> EventKind {
    EventKind::Failed { message: message.into(), kind: fault }
}

fn ended(mut watch: Watch, code: i32) -> Ending {
    watch.take(2.0, WorkerEvent::Exited(Exit::Code(code)));
    watch.failure(2)
}

fn failure(watch: Watch, code: i32) -> (String, FailureKind) {
    match ended(watch, code) {
        Ending::Failed(failure) => (failure.message, failure.fault),
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_word_of_rank_0_is_the_result_whatever_follows() {
    let mut watch = watch();
    assert!(failure(watch.clone(), 0).0.contains("before the ranks had said"));
    assert_eq!(watch.result(), None);
    tell(&mut watch, 1, EventKind::Finished { step: 9, stopped: false });
    assert_eq!(watch.result(), None, "rank 0 says so");
    tell(&mut watch, 0, EventKind::Finished { step: 9, stopped: false });
    assert_eq!((watch.result(), watch.crash(2)), (Some(Ending::Finished), None));
    tell(&mut watch, 0, EventKind::Finished { step: 9, stopped: true });
    assert_eq!(watch.result(), Some(Ending::Stopped));
    let rollback = Rollback { message: "the loss".into(), step: 9, to: 7 };
    tell(&mut watch, 0, EventKind::RolledBack { message: "the loss".into(), step: 9, to: 7 });
    watch.take(1.0, WorkerEvent::Died(Death::Signal { rank: 1, signal: 9 }));
    assert_eq!(watch.result(), Some(Ending::RolledBack(rollback)));
    assert_eq!(watch.crash(2).as_deref(), Some("rank 1 (pid 41 on host x) was killed by signal 9"));
    watch.versions.mismatch = Some("versions".into());
    assert_eq!(watch.result(), None, "it was not to work at all");
}

#[test]
fn the_killed_rank_is_named_whatever_the_survivors_say() {
    let mut watch = watch();
    watch.take(1.0, WorkerEvent::Died(Death::Signal { rank: 1, signal: 9 }));
    tell(&mut watch, 0, failed("the all-reduce failed", FailureKind::Transient));
    let expected = ("rank 1 (pid 41 on host x) was killed by signal 9".to_owned(), FailureKind::Transient);
    assert_eq!(failure(watch, 137), expected);
}

#[test]
fn a_lasting_fault_and_one_of_a_host_come_before_everything() {
    for fault in [FailureKind::Permanent, FailureKind::Host, FailureKind::LeaseLost, FailureKind::Usage] {
        let mut watch = watch();
        watch.take(1.0, WorkerEvent::Died(Death::Signal { rank: 1, signal: 9 }));
        tell(&mut watch, 1, failed("a peer left", FailureKind::Transient));
        tell(&mut watch, 0, failed("shard-00001 is damaged", fault));
        let Ending::Failed(failure) = ended(watch, 1) else { panic!() };
        assert_eq!(failure.message, "rank 0 (pid 40 on host x) failed: shard-00001 is damaged");
        assert_eq!((failure.fault, failure.host.is_some()), (fault, fault == FailureKind::Host));
    }
}

#[test]
fn what_the_dead_rank_said_is_its_cause() {
    let mut watch = watch();
    watch.take(1.0, WorkerEvent::Died(Death::Exit { rank: 1, code: 1 }));
    tell(&mut watch, 0, failed("a peer left", FailureKind::Transient));
    tell(&mut watch, 1, failed("the store is away", FailureKind::Transient));
    assert!(failure(watch, 1).0.ends_with("failed: the store is away"));
}

#[test]
fn a_wrong_configuration_is_final() {
    assert_eq!(failure(watch(), 2).1, FailureKind::Usage);
}

#[test]
fn a_start_that_no_rank_reports_from_is_none() {
    let mut watch = Watch::default();
    watch.take(1.0, WorkerEvent::Remark("no route to host b".into()));
    assert_eq!(ended(watch.clone(), 1), Ending::Absent("the launcher exited with code 1: no route to host b".into()));
    watch.take(1.0, WorkerEvent::Died(Death::Exit { rank: 1, code: 1 }));
    assert!(matches!(ended(watch, 1), Ending::Failed(_)), "a rank that died was there");
    let mut alone = Watch::default();
    alone.take(1.0, WorkerEvent::Exited(Exit::Signal(9)));
    assert!(matches!(alone.failure(1), Ending::Failed(_)), "the only process is the rank");
}

#[test]
fn a_host_that_the_launcher_has_lost_is_to_blame() {
    let mut watch = watch_on(&["10.0.0.1", "10.0.0.2"]);
    let remark = "ORTE has lost communication with a remote daemon. HNP daemon : [[27258,0],0] on node x Remote daemon: \
                  [[27258,0],1] on node 10.0.0.2 This is usually due to";
    watch.take(1.0, WorkerEvent::Remark(remark.into()));
    let Ending::Failed(failure) = ended(watch, 205) else { panic!() };
    assert_eq!((failure.fault, failure.host.as_deref()), (FailureKind::Transient, Some("10.0.0.2")));
}

#[test]
fn the_one_host_that_a_launcher_names_is_the_one_it_complains_of() {
    let complained = |remark: &str| {
        let mut watch = Watch::new(["10.0.0.1", "10.0.0.1", "10.0.0.12", "d"].map(str::to_owned).into());
        watch.take(1.0, WorkerEvent::Remark(remark.into()));
        watch.complained_of()
    };
    let exited = "dbclient: Connection to root@10.0.0.12:22 exited: Connect failed: No route to host";
    assert_eq!(complained(exited).as_deref(), Some("10.0.0.12"));
    assert_eq!(complained("ssh: connect to host d port 22: Connection refused").as_deref(), Some("d"));
    assert_eq!(complained("cannot reach 10.0.0.1."), Some("10.0.0.1".to_owned()));
    for other in ["a daemon died", "10.0.0.1 cannot reach d", "10.0.0.13"] {
        assert_eq!(complained(other), None, "{other}");
    }
}

#[test]
fn a_mismatch_of_versions_is_found() {
    let mut watch = Watch::default();
    let report = |rank, mpi: &str| {
        let versions = Versions { mpi: mpi.into(), ..Versions::current() };
        WorkerEvent::Report(WorkerReport { rank, versions: Some(versions), ..WorkerReport::default() })
    };
    watch.take(0.0, report(0, "four"));
    watch.take(0.0, report(1, "four"));
    assert_eq!(watch.versions.mismatch, None);
    watch.take(0.0, report(2, "five"));
    assert_eq!(watch.versions.mismatch.as_deref(), Some("rank 0 has MPI library four, rank 2 has five"));
}

/// A suspended coordinator learns in one of these ways that its ranks have exited.
#[test]
fn ranks_that_this_coordinator_left_alone_have_not_failed() {
    let is_unsupervised = |watch: Watch, code: i32| matches!(ended(watch, code), Ending::Unsupervised(_));
    let mut named = watch();
    assert!(is_unsupervised(named.clone(), exit::UNSUPERVISED));
    named.take(1.0, WorkerEvent::Died(Death::Exit { rank: 1, code: exit::UNSUPERVISED }));
    // Other ranks see a lost peer before they see that the coordinator is silent.
    tell(&mut named, 0, failed("the all-reduce failed", FailureKind::Transient));
    assert!(is_unsupervised(named.clone(), exit::UNSUPERVISED));
    tell(&mut named, 0, failed("a damaged shard", FailureKind::Permanent));
    assert!(!is_unsupervised(named, exit::UNSUPERVISED));
    let mut crashed = watch();
    crashed.take(1.0, WorkerEvent::Died(Death::Signal { rank: 1, signal: 11 }));
    assert!(!is_unsupervised(crashed, exit::UNSUPERVISED));
}
