//! Tests of decisions about the nodes of a Slurm job.

use std::collections::BTreeSet;

use lambert::decide::{
    Event, HostPool, JobSettings, Placement, RankDeath, RestartHistory, Signal, StopReason, Verdict, WorkerEvent,
};
use lambert_config::run::Host;
use lambert_control::{EventKind, FailureKind, GpuStatus, Message, WorkerPhase, WorkerReport};

use crate::scenario::Scenario;

/// Coordinator of `ranks` ranks in a job with the nodes `n1`, `n2`, ..., which have room for one rank each.
fn on_nodes(nodes: usize, ranks: usize) -> Scenario {
    let nodes = (1..=nodes).map(|node| Host { name: format!("n{node}"), ranks: 1 }).collect();
    Scenario::with(|config| config.cluster.ranks = ranks, HostPool::Allocation(nodes))
}

fn report_from(scene: &mut Scenario, rank: usize, host: &str, gpu: Option<GpuStatus>) {
    let (host, gpu, phase) = (host.to_owned(), gpu.map(Box::new), WorkerPhase::AllReduce);
    scene.worker(WorkerEvent::Report(WorkerReport { rank, pid: 7, host, phase, gpu, ..WorkerReport::default() }));
}

/// Starts attempt `lease` with one rank on each node.
fn train(scene: &mut Scenario, lease: u32) {
    scene.give(Event::LeaseTaken(lease));
    for rank in 0..scene.state.settings.ranks {
        report_from(scene, rank, &format!("n{}.cluster", rank + 1), None);
    }
}

/// Nodes that the running attempt excludes.
fn excluded(scene: &Scenario) -> String {
    match &scene.state.running().unwrap().attempt.placement {
        Placement::Allocation(excluded) => excluded.as_ref().map_or(String::new(), |excluded| excluded.nodes.join(",")),
        other => panic!("{other:?}"),
    }
}

/// Hosts of the last failure.
fn blamed(scene: &Scenario) -> String {
    let hosts = &scene.state.history.restarts.last().unwrap().hosts;
    hosts.iter().map(String::as_str).collect::<Vec<_>>().join(",")
}

#[test]
fn a_node_on_which_srun_starts_no_rank_is_excluded() {
    let mut scene = on_nodes(3, 2);
    scene.give(Event::LeaseTaken(1));
    let failed = "srun: error: Task launch for StepId=12.0 failed on node n2: Communication connection failure";
    scene.worker(WorkerEvent::Remark(failed.into())).exit(1).pause();
    assert_eq!(excluded(scene.give(Event::LeaseTaken(2))), "n2");
}

#[test]
fn a_failed_node_that_srun_names_is_excluded() {
    let mut scene = on_nodes(3, 2);
    train(&mut scene, 1);
    scene.worker(WorkerEvent::Remark("srun: error: Node failure on n1".into())).exit(1).pause();
    assert_eq!(blamed(&scene), "n1");
    assert_eq!(excluded(scene.give(Event::LeaseTaken(2))), "n1");
    // A failure that srun reports for all nodes has another cause.
    let mut scene = on_nodes(2, 2);
    train(&mut scene, 1);
    for node in ["n1", "n2"] {
        scene.worker(WorkerEvent::Remark(format!("srun: error: Node failure on {node}")));
    }
    scene.exit(1).pause();
    assert_eq!(blamed(&scene), "");
}

#[test]
fn srun_names_the_node_of_a_rank_that_has_not_reported() {
    let mut scene = on_nodes(3, 2);
    train(&mut scene, 1);
    scene.fail(FailureKind::Transient).pause();
    scene.give(Event::LeaseTaken(2)).worker(WorkerEvent::Node(1, "n2".into()));
    scene.worker(WorkerEvent::Died(RankDeath::Exit { rank: 1, code: 127 })).exit(127).pause();
    let restart = scene.state.history.restarts.last().unwrap();
    assert!(restart.cause.starts_with("lambert-worker did not load for rank 1 on host n2 "), "{}", restart.cause);
    assert_eq!(excluded(scene.give(Event::LeaseTaken(3))), "n2");
}

#[test]
fn nodes_without_a_report_are_those_of_absent_ranks() {
    let absent = |nodes: usize, hosts: &[&str]| {
        let mut scene = on_nodes(nodes, 3);
        scene.give(Event::LeaseTaken(1));
        scene.at += 600.0;
        for (rank, host) in hosts.iter().enumerate() {
            report_from(&mut scene, rank, host, None);
        }
        scene.wait(1.0).exit(1).pause();
        (blamed(&scene), scene.state.history.restarts.last().unwrap().cause.clone())
    };
    let (hosts, cause) = absent(3, &["n2.cluster", "n1"]);
    assert_eq!(hosts, "n3");
    assert_eq!(cause, "rank 2 has not reported within 600 s of the start; no rank on n3 has reported");
    assert_eq!(absent(3, &["n2.cluster"]).0, "n1,n3");
    assert_eq!(absent(3, &["vm", "n1"]).0, "", "the node of rank 0 is unknown");
    assert_eq!(absent(4, &["n2", "n1"]).0, "", "a node may have no rank");
}

#[test]
fn the_host_of_a_defective_gpu_is_blamed() {
    let gpu = |xid| Some(GpuStatus { index: 3, uuid: "GPU-a".into(), xids: vec![xid], ..GpuStatus::default() });
    let end = |xid, end: &dyn Fn(&mut Scenario)| {
        let mut scene = on_nodes(2, 2);
        train(&mut scene, 1);
        report_from(&mut scene, 1, "n2.cluster", gpu(xid));
        end(&mut scene);
        scene.pause();
        (blamed(&scene), scene.state.history.restarts.last().unwrap().cause.clone())
    };
    let killed = |scene: &mut Scenario| {
        scene.worker(WorkerEvent::Died(RankDeath::Signal { rank: 0, signal: 6 })).exit(134);
    };
    let peer = |scene: &mut Scenario| {
        let failed = EventKind::Failed { message: "NCCL".into(), kind: FailureKind::Transient, missing: Vec::new() };
        scene.worker(WorkerEvent::Message(0, Message::Event(failed))).exit(1);
    };
    let hung = |scene: &mut Scenario| {
        for _ in 0..100 {
            scene.at += 60.0;
            for rank in 0..2 {
                let (host, phase) = (format!("n{}.cluster", rank + 1), WorkerPhase::AllReduce);
                let (gpu, seconds_in_phase) = (gpu(if rank == 1 { 79 } else { 13 }).map(Box::new), scene.at);
                let report =
                    WorkerReport { rank, pid: 7, host, phase, gpu, seconds_in_phase, ..WorkerReport::default() };
                scene.worker(WorkerEvent::Report(report));
            }
            scene.give(Event::Tick);
        }
        scene.exit(1);
    };
    let note = "; rank 1: GPU 3 (GPU-a) reported Xid 79 (GPU has fallen off the bus)";
    for xid in [48, 74, 79, 95] {
        assert_eq!(end(xid, &killed).0, "n2", "Xid {xid}");
    }
    let (hosts, cause) = end(79, &killed);
    assert_eq!((hosts.as_str(), cause), ("n2", format!("rank 0 (pid 7, host n1.cluster) killed by SIGABRT{note}")));
    assert_eq!(end(79, &peer).0, "n2");
    assert_eq!(end(79, &hung).0, "n2");
    for xid in [13, 31, 43, 45] {
        assert_eq!(end(xid, &killed).0, "", "a program may cause Xid {xid}");
    }
    let mut alone = on_nodes(1, 1);
    train(&mut alone, 1);
    report_from(&mut alone, 0, "n1", gpu(79));
    alone.exit(134).pause();
    assert_eq!(alone.state.history.restarts[0].hosts, BTreeSet::from(["n1".to_owned()]));
}

/// The same coordinator, in a Slurm job that excludes nodes for a day.
fn in_job(mut scene: Scenario) -> Scenario {
    let job = JobSettings { id: "12".into(), lead: 120.0, exclude_seconds: 86_400.0, ..JobSettings::default() };
    scene.state.settings.job = Some(job);
    scene.state.history.begin_job(1e9, "12");
    scene
}

/// Rank `rank` reports a failure of its host.
fn fail_host(scene: &mut Scenario, rank: usize) {
    let failed = EventKind::Failed { message: "ECC".into(), kind: FailureKind::Host, missing: Vec::new() };
    scene.worker(WorkerEvent::Message(rank, Message::Event(failed))).exit(1);
}

#[test]
fn a_requeued_job_excludes_the_nodes_of_recent_failures() {
    let mut scene = in_job(on_nodes(3, 3));
    scene.state.settings.restarts = 50;
    for (lease, rank) in [(1, 1), (2, 0), (3, 2), (4, 2), (5, 2)] {
        train(&mut scene, lease);
        fail_host(&mut scene, rank);
        scene.pause();
    }
    let later = Scenario { at: scene.at, state: scene.state.clone(), done: Vec::new() };
    train(&mut scene, 6);
    fail_host(&mut scene, 2);
    assert_eq!(scene.failure().0, 1);
    assert_eq!(scene.state.excluded, ["n3", "n1"], "the most recent two");
    assert_eq!(scene.state.history.job_ends[0].excluded, ["n3", "n1"]);
    // A time limit hours later also requeues the job.
    let stop = |seconds: f64, signal| {
        let mut scene = Scenario { at: later.at + seconds, state: later.state.clone(), done: Vec::new() };
        scene.give(Event::LeaseTaken(6)).give(Event::Signal(signal)).exit(143);
        (scene.state.verdict().unwrap().clone(), scene.state.excluded.join(" "))
    };
    assert_eq!(stop(80_000.0, Signal::Other), (Verdict::Stopped(StopReason::Signal), "n3 n1".to_owned()));
    assert_eq!(stop(90_000.0, Signal::Other).1, "", "a day later");
    assert_eq!(stop(1.0, Signal::Interrupt), (Verdict::Stopped(StopReason::User), String::new()), "it is not requeued");
}

#[test]
fn nodes_of_earlier_starts_and_unreachable_nodes_are_excluded() {
    let mut scene = in_job(on_nodes(2, 2));
    train(&mut scene, 1);
    fail_host(&mut scene, 0);
    let history: RestartHistory = serde_json::from_value(serde_json::to_value(&scene.state.history).unwrap()).unwrap();
    // The next start has other nodes.
    let mut next = in_job(on_nodes(2, 2));
    next.state.history = history;
    let HostPool::Allocation(nodes) = &mut next.state.settings.host_pool else { panic!() };
    (nodes[0].name, nodes[1].name) = ("n7".into(), "n8".into());
    next.give(Event::LeaseTaken(2));
    next.worker(WorkerEvent::Remark("srun: error: Task launch for StepId=12.0 failed on node n8: no".into())).exit(1);
    next.at += 3601.0;
    next.state.settings.start_timeout = 0.0;
    next.give(Event::Tick).give(Event::LeaseFailed("no space".into()));
    assert_eq!(next.failure().0, 1);
    assert_eq!(next.state.excluded, ["n8", "n1"]);
}

#[test]
fn no_node_is_excluded_if_that_is_disabled() {
    let mut scene = in_job(on_nodes(2, 2));
    scene.state.settings.job.as_mut().unwrap().exclude_seconds = 0.0;
    scene.state.settings.restarts = 0;
    train(&mut scene, 1);
    fail_host(&mut scene, 0);
    assert_eq!(scene.failure().0, 1);
    assert_eq!(scene.state.excluded, [""; 0]);
}

/// Coordinator on two nodes whose job has trained before, up to a checkpoint.
fn requeued(job: &str) -> Scenario {
    let mut scene = in_job(on_nodes(2, 2));
    train(&mut scene, 1);
    scene.saves(7).give(Event::Signal(Signal::Other));
    scene.send_event(EventKind::Finished { step: 8, stopped: true }).exit(0);
    let mut next = in_job(on_nodes(2, 2));
    next.state.history = scene.state.history;
    next.state.settings.job.as_mut().unwrap().id = job.into();
    next
}

fn fail_setup(scene: &mut Scenario, rank: usize) -> &mut Scenario {
    let failed = EventKind::Failed { message: "no GPU".into(), kind: FailureKind::Usage, missing: Vec::new() };
    scene.worker(WorkerEvent::Message(rank, Message::Event(failed)))
}

#[test]
fn a_misconfigured_node_of_a_requeued_job_is_a_failure_of_the_node() {
    let mut scene = requeued("12");
    for lease in 2..=4 {
        train(&mut scene, lease);
        fail_setup(&mut scene, 1).exit(2).pause();
        assert_eq!(blamed(&scene), "n2");
    }
    train(&mut scene, 5);
    let (code, message) = { fail_setup(&mut scene, 1).exit(2).failure() };
    assert!(code == 1 && message.starts_with("giving up after 4 failures of host n2 "), "{message}");
    assert_eq!(scene.state.excluded, ["n2"], "the job is requeued");

    let mut scene = requeued("12");
    train(&mut scene, 2);
    scene.worker(WorkerEvent::Died(RankDeath::Exit { rank: 0, code: 2 })).exit(2).pause();
    assert_eq!(blamed(&scene), "n1");

    let mut scene = requeued("12");
    train(&mut scene, 2);
    fail_setup(&mut scene, 0);
    assert_eq!(fail_setup(&mut scene, 1).exit(2).failure().0, 2, "both nodes");

    let mut scene = requeued("13");
    train(&mut scene, 2);
    assert_eq!(fail_setup(&mut scene, 1).exit(2).failure().0, 2, "the first start of a job may have other settings");
    let mut scene = in_job(on_nodes(2, 2));
    train(&mut scene, 1);
    assert_eq!(fail_setup(&mut scene, 1).exit(2).failure().0, 2, "the run has never trained");
}

#[test]
fn a_program_that_does_not_load_in_a_requeued_job_is_a_failure_of_the_node() {
    let end = |job: &str| {
        let mut scene = requeued(job);
        scene.give(Event::LeaseTaken(2)).worker(WorkerEvent::Node(1, "n2".into()));
        scene.worker(WorkerEvent::Died(RankDeath::Exit { rank: 1, code: 127 })).exit(127);
        scene
    };
    let mut scene = end("12");
    scene.pause();
    assert_eq!(blamed(&scene), "n2");
    assert_eq!(end("13").failure().0, 2);
    let none = || Event::StartFailed(2, 2, "this host has no interface eth0".to_owned());
    assert_eq!(requeued("12").give(Event::LeaseTaken(2)).give(none()).pause().0, 1.0);
    assert_eq!(requeued("13").give(Event::LeaseTaken(2)).give(none()).failure().0, 2);
}
