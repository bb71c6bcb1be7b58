//! Tests of attempt monitoring.

use super::*;
use crate::decide::{ProcessExit, RankDeath};
use lambert_config::exit;
use lambert_control::{GpuStatus, Versions};

fn monitor() -> AttemptMonitor {
    watch_on(&[])
}

fn watch_on(rank_hosts: &[&str]) -> AttemptMonitor {
    let mut monitor = AttemptMonitor::new(rank_hosts.iter().map(|place| (*place).to_owned()).collect());
    for rank in 0..2 {
        let report = WorkerReport { rank, pid: 40 + rank as u32, host: "x".into(), step: 5, ..WorkerReport::default() };
        monitor.take(0.0, WorkerEvent::Report(report));
    }
    monitor
}

fn tell(monitor: &mut AttemptMonitor, rank: usize, kind: EventKind) {
    monitor.take(1.0, WorkerEvent::Message(rank, Message::Event(kind)));
}

fn names(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

fn failed(message: &str, kind: FailureKind) -> EventKind {
    EventKind::Failed { message: message.into(), kind, missing: Vec::new() }
}

fn ended(mut monitor: AttemptMonitor, code: i32) -> AbnormalEnd {
    monitor.take(2.0, WorkerEvent::Exited(ProcessExit::Code(code)));
    monitor.failure(2)
}

fn failure(monitor: AttemptMonitor, code: i32) -> (String, FailureKind) {
    match ended(monitor, code) {
        AbnormalEnd::Failed(failure) => (failure.message, failure.kind),
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_result_of_rank_0_is_final() {
    let mut monitor = monitor();
    assert!(failure(monitor.clone(), 0).0.contains("before the workers reported completion"));
    assert_eq!(monitor.reported_end(), None);
    tell(&mut monitor, 1, EventKind::Finished { step: 9, stopped: false });
    assert_eq!(monitor.reported_end(), None, "rank 0 says so");
    tell(&mut monitor, 0, EventKind::Finished { step: 9, stopped: false });
    assert_eq!((monitor.reported_end(), monitor.crash(2)), (Some(ReportedEnd::Finished), None));
    tell(&mut monitor, 0, EventKind::Finished { step: 9, stopped: true });
    assert_eq!(monitor.reported_end(), Some(ReportedEnd::Stopped));
    let rollback = Rollback { message: "the loss".into(), step: 9, last_kept: 7 };
    tell(&mut monitor, 0, EventKind::RolledBack { message: "the loss".into(), step: 9, last_kept: 7 });
    monitor.take(1.0, WorkerEvent::Died(RankDeath::Signal { rank: 1, signal: 9 }));
    assert_eq!(monitor.reported_end(), Some(ReportedEnd::RolledBack(rollback)));
    assert_eq!(monitor.crash(2).as_deref(), Some("rank 1 (pid 41, host x) killed by SIGKILL"));
    monitor.versions.mismatch = Some("versions".into());
    assert_eq!(monitor.reported_end(), None, "it was not to work at all");
}

#[test]
fn the_killed_rank_is_named_despite_errors_of_survivors() {
    let mut monitor = monitor();
    monitor.take(1.0, WorkerEvent::Died(RankDeath::Signal { rank: 1, signal: 9 }));
    tell(&mut monitor, 0, failed("the all-reduce failed", FailureKind::Transient));
    let expected = ("rank 1 (pid 41, host x) killed by SIGKILL".to_owned(), FailureKind::Transient);
    assert_eq!(failure(monitor, 137), expected);
}

#[test]
fn permanent_and_host_failures_take_precedence() {
    for kind in [FailureKind::Permanent, FailureKind::Host, FailureKind::LeaseLost, FailureKind::Usage] {
        let mut monitor = monitor();
        monitor.take(1.0, WorkerEvent::Died(RankDeath::Signal { rank: 1, signal: 9 }));
        tell(&mut monitor, 1, failed("a peer left", FailureKind::Transient));
        tell(&mut monitor, 0, failed("shard-00001 is damaged", kind));
        let AbnormalEnd::Failed(failure) = ended(monitor, 1) else { panic!() };
        assert_eq!(failure.message, "rank 0 (pid 40, host x) failed: shard-00001 is damaged");
        assert_eq!((failure.kind, !failure.hosts.is_empty()), (kind, kind == FailureKind::Host));
    }
}

#[test]
fn the_error_of_the_dead_rank_is_the_cause() {
    let mut monitor = monitor();
    monitor.take(1.0, WorkerEvent::Died(RankDeath::Exit { rank: 1, code: 1 }));
    tell(&mut monitor, 0, failed("a peer left", FailureKind::Transient));
    tell(&mut monitor, 1, failed("the store is away", FailureKind::Transient));
    assert!(failure(monitor, 1).0.ends_with("failed: the store is away"));
}

#[test]
fn an_invalid_configuration_is_permanent() {
    assert_eq!(failure(monitor(), 2).1, FailureKind::Usage);
}

#[test]
fn an_attempt_without_reports_is_not_counted() {
    let mut monitor = AttemptMonitor::default();
    monitor.take(1.0, WorkerEvent::Remark("no route to host b".into()));
    assert_eq!(
        ended(monitor.clone(), 1),
        AbnormalEnd::Absent("the launcher exited with code 1: no route to host b".into())
    );
    monitor.take(1.0, WorkerEvent::Died(RankDeath::Exit { rank: 1, code: 1 }));
    assert!(matches!(ended(monitor, 1), AbnormalEnd::Failed(_)), "a rank that died was there");
    let mut alone = AttemptMonitor::default();
    alone.take(1.0, WorkerEvent::Exited(ProcessExit::Signal(9)));
    assert!(matches!(alone.failure(1), AbnormalEnd::Failed(_)), "the only process is the rank");
}

#[test]
fn a_missing_ssh_is_a_usage_error() {
    for remark in [
        "The value of the MCA parameter \"plm_rsh_agent\" was set to a path that could not be found: plm_rsh_agent: ssh",
        "No available launching agents were found. This is an unusual error",
    ] {
        let mut monitor = AttemptMonitor::default();
        monitor.take(1.0, WorkerEvent::Remark(remark.into()));
        let (message, kind) = failure(monitor, 243);
        assert!(message.starts_with("mpirun found no ssh in PATH"), "{message}");
        assert_eq!(kind, FailureKind::Usage);
    }
}

#[test]
fn a_host_lost_by_the_launcher_is_blamed() {
    let mut monitor = watch_on(&["10.0.0.1", "10.0.0.2"]);
    let remark = "ORTE has lost communication with a remote daemon. HNP daemon : [[27258,0],0] on node 10.0.0.1 Remote daemon: \
                  [[27258,0],1] on node 10.0.0.2 This is usually due to";
    monitor.take(1.0, WorkerEvent::Remark(remark.into()));
    let AbnormalEnd::Failed(failure) = ended(monitor, 205) else { panic!() };
    assert_eq!((failure.kind, failure.hosts), (FailureKind::Transient, names(&["10.0.0.2"])));
}

#[test]
fn hosts_in_launcher_messages_are_blamed() {
    let complained = |remark: &str| {
        let mut monitor = AttemptMonitor::new(["10.0.0.1", "10.0.0.1", "10.0.0.12", "d"].map(str::to_owned).into());
        monitor.take(1.0, WorkerEvent::Remark(remark.into()));
        monitor.hosts_in_messages()
    };
    let exited = "dbclient: Connection to root@10.0.0.12:22 exited: Connect failed: No route to host";
    assert_eq!(complained(exited), names(&["10.0.0.12"]));
    assert_eq!(complained("ssh: connect to host d port 22: Connection refused"), names(&["d"]));
    assert_eq!(complained("cannot reach 10.0.0.1."), names(&["10.0.0.1"]));
    assert_eq!(complained("cannot reach 10.0.0.12, d"), names(&["10.0.0.12", "d"]));
    assert_eq!(complained("[10.0.0.1:77] cannot reach d"), names(&["d"]), "the first host reports it");
    for other in ["a daemon died", "[d:77] a daemon died", "10.0.0.13"] {
        assert_eq!(complained(other), names(&[]), "{other}");
    }
}

#[test]
fn a_version_mismatch_is_detected() {
    let mut monitor = AttemptMonitor::default();
    let report = |rank, mpi: &str| {
        let versions = Versions { mpi: mpi.into(), ..Versions::current() };
        WorkerEvent::Report(WorkerReport { rank, versions: Some(versions), ..WorkerReport::default() })
    };
    monitor.take(0.0, report(0, "four"));
    monitor.take(0.0, report(1, "four"));
    assert_eq!(monitor.versions.mismatch, None);
    monitor.take(0.0, report(2, "five"));
    assert_eq!(monitor.versions.mismatch.as_deref(), Some("rank 0 has MPI library four, rank 2 has five"));
}

/// The test covers a coordinator that was suspended. After it is resumed, it learns from these events that its ranks
/// have exited.
#[test]
fn ranks_without_replies_from_a_suspended_coordinator_have_not_failed() {
    let is_unsupervised =
        |monitor: AttemptMonitor, code: i32| matches!(ended(monitor, code), AbnormalEnd::Unsupervised(_));
    let mut named = monitor();
    assert!(!is_unsupervised(named.clone(), exit::UNSUPERVISED), "the coordinator was not suspended");
    named.suspended(100.0);
    named.suspended(30.0);
    let message = "the workers exited: no reply from this coordinator, which was suspended for 100 s";
    assert_eq!(ended(named.clone(), exit::UNSUPERVISED), AbnormalEnd::Unsupervised(message.into()));
    named.take(1.0, WorkerEvent::Died(RankDeath::Exit { rank: 1, code: exit::UNSUPERVISED }));
    // Other ranks notice the loss of a peer before they notice that the coordinator is silent.
    tell(&mut named, 0, failed("the all-reduce failed", FailureKind::Transient));
    assert!(is_unsupervised(named.clone(), exit::UNSUPERVISED));
    tell(&mut named, 0, failed("a damaged shard", FailureKind::Permanent));
    assert!(!is_unsupervised(named, exit::UNSUPERVISED));
    let mut crashed = monitor();
    crashed.suspended(100.0);
    crashed.take(1.0, WorkerEvent::Died(RankDeath::Signal { rank: 1, signal: 11 }));
    assert!(!is_unsupervised(crashed, exit::UNSUPERVISED));
}

#[test]
fn a_rank_without_replies_from_a_running_coordinator_has_failed() {
    let end = |mut monitor: AttemptMonitor, address: &str, rank: Option<usize>| {
        let is_loopback = address.starts_with("127.") || address.starts_with("[::1]");
        monitor.take(0.0, WorkerEvent::Listening { address: address.into(), is_loopback });
        let death = rank.map(|rank| WorkerEvent::Died(RankDeath::Exit { rank, code: exit::UNSUPERVISED }));
        death.into_iter().for_each(|death| monitor.take(46.0, death));
        ended(monitor, exit::UNSUPERVISED)
    };
    let failed = |message: &str, host: Option<&str>| {
        let kind = if host.is_some() { FailureKind::Host } else { FailureKind::Transient };
        AbnormalEnd::Failed(AttemptFailure {
            message: message.into(),
            kind,
            hosts: host.map(str::to_owned).into_iter().collect(),
        })
    };
    let hosts = ["a", "b"];
    let of_b = "rank 1 (pid 41, host x) exited: no reply from the coordinator at 10.0.0.1:4000 for 46 s; check the \
                network between this host and b";
    assert_eq!(end(watch_on(&hosts), "10.0.0.1:4000", Some(1)), failed(of_b, Some("b")));
    let unknown = "the workers exited: no reply from the coordinator at 10.0.0.1:4000; check the network between this \
                   host and the hosts of the ranks";
    assert_eq!(end(watch_on(&hosts), "10.0.0.1:4000", None), failed(unknown, None));
    for (address, end) in ["127.0.0.1:4000", "[::1]:4000"].map(|address| (address, end(monitor(), address, Some(0)))) {
        let alone = format!(
            "rank 0 (pid 40, host x) exited: no reply from the coordinator at {address} for 46 s; check the load of \
             this host"
        );
        assert_eq!(end, failed(&alone, None), "another host is no better");
    }
    let silent = AttemptMonitor::new(hosts.map(str::to_owned).into());
    let absent = "rank 1 (not yet reported) exited: no reply from the coordinator at head:4000; check the network \
                  between this host and b";
    assert_eq!(end(silent, "head:4000", Some(1)), AbnormalEnd::Absent(absent.into()));
    let mut alone = AttemptMonitor::default();
    alone.take(1.0, WorkerEvent::Exited(ProcessExit::Code(exit::UNSUPERVISED)));
    assert!(matches!(alone.failure(1), AbnormalEnd::Absent(_)), "it has never reported");
}

#[test]
fn xid_errors_are_part_of_the_failure_of_their_rank() {
    let gpu = GpuStatus { index: 3, uuid: "GPU-a".into(), xids: vec![79], ..GpuStatus::default() };
    let report = |rank, gpu: Option<GpuStatus>| {
        let gpu = gpu.map(Box::new);
        WorkerReport { rank, pid: 7, host: "x".into(), gpu, ..WorkerReport::default() }
    };
    let killed = |rank| {
        let mut monitor = AttemptMonitor::default();
        monitor.take(1.0, WorkerEvent::Report(report(0, None)));
        monitor.take(1.0, WorkerEvent::Report(report(1, Some(gpu.clone()))));
        monitor.take(2.0, WorkerEvent::Died(RankDeath::Signal { rank, signal: 9 }));
        monitor.crash(2).unwrap()
    };
    assert_eq!(killed(0), "rank 0 (pid 7, host x) killed by SIGKILL");
    let note = "; its GPU 3 (GPU-a) reported Xid 79 (GPU has fallen off the bus)";
    assert_eq!(killed(1), format!("rank 1 (pid 7, host x) killed by SIGKILL{note}"));
    let mut monitor = AttemptMonitor::default();
    monitor.take(1.0, WorkerEvent::Report(report(0, Some(gpu.clone()))));
    tell(&mut monitor, 0, failed("NCCL", FailureKind::Transient));
    assert_eq!(monitor.crash(1).unwrap(), format!("rank 0 (pid 7, host x) failed: NCCL{note}"));
}

/// Monitor of an attempt with two ranks on each of the hosts `a`, `b` and `c`.
fn on_three_hosts() -> AttemptMonitor {
    let mut monitor = AttemptMonitor::new(["a", "a", "b", "b", "c", "c"].map(str::to_owned).into());
    for rank in 0..6 {
        let report = WorkerReport { rank, pid: 7, host: "x".into(), ..WorkerReport::default() };
        monitor.take(0.0, WorkerEvent::Report(report));
    }
    monitor
}

#[test]
fn hosts_of_missing_ranks_are_avoided() {
    let blamed = |reports: &[(usize, &[usize])]| {
        let mut monitor = on_three_hosts();
        for (rank, missing) in reports {
            let (message, kind) = ("the all-reduce failed".to_owned(), FailureKind::Transient);
            tell(&mut monitor, *rank, EventKind::Failed { message, kind, missing: missing.to_vec() });
        }
        let AbnormalEnd::Failed(failure) = ended(monitor, 1) else { panic!() };
        assert_eq!(failure.kind, FailureKind::Transient);
        (failure.message, failure.hosts)
    };
    let (message, hosts) = blamed(&[(0, &[2, 3, 4]), (1, &[2, 3, 4, 5])]);
    assert_eq!(message, "rank 0 (pid 7, host x) failed: the all-reduce failed; missing hosts: b, c");
    assert_eq!(hosts, names(&["b", "c"]));
    // Host a has lost its network. Its ranks are the first to report.
    assert_eq!(blamed(&[(0, &[2, 3, 4, 5]), (2, &[0, 1]), (3, &[0, 1])]).1, names(&["a"]));
    assert_eq!(blamed(&[(0, &[2, 3, 4, 5]), (2, &[0, 1])]).1, names(&[]), "either side may be cut off");
    assert_eq!(blamed(&[(0, &[0, 2, 4])]).1, names(&[]), "no host is better");
    assert_eq!(blamed(&[(0, &[])]).0, "rank 0 (pid 7, host x) failed: the all-reduce failed");
}

/// For example, a shared file system is unavailable.
#[test]
fn host_failures_on_several_hosts_are_transient() {
    let end = |ranks: &[usize]| {
        let mut monitor = on_three_hosts();
        ranks.iter().for_each(|rank| tell(&mut monitor, *rank, failed("Stale file handle", FailureKind::Host)));
        let AbnormalEnd::Failed(failure) = ended(monitor, 1) else { panic!() };
        failure
    };
    let expected = "4 ranks on 2 hosts failed, first rank 3 (pid 7, host x): Stale file handle";
    assert_eq!(end(&[3, 0, 2, 1]), AttemptFailure::transient(expected.into()));
    let of_one = end(&[3, 2]);
    assert_eq!((of_one.kind, of_one.hosts), (FailureKind::Host, names(&["b"])));
    assert_eq!(of_one.message, "rank 3 (pid 7, host x) failed: Stale file handle");
}
