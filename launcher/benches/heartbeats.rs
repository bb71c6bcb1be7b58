//! Benchmark of the CPU time that a heartbeat of a worker costs the coordinator, for several numbers of ranks. The
//! heartbeats are real HTTP requests over the loopback interface. The benchmark includes the control server and the
//! decision function of `lambert run`. To run it: `cargo bench -p lambert-launcher --bench heartbeats`.

#![allow(clippy::unwrap_used, reason = "a panic is how a bench reports")]

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use lambert::decide::{
    Attempt, CoordinatorState, Event, HostPool, LastKnown, Placement, RestartHistory, Settings, decide,
};
use lambert::run::control::ControlServer;
use lambert::run::launch::processes;
use lambert_config::RunConfig;
use lambert_config::run::ControlChannel;
use lambert_control::{REPORT_PATH, SigningKey, WorkerPhase, WorkerReport};

/// Number of reports in a measurement, summed over all ranks.
const REPORTS: usize = 40_000;

fn main() {
    processes::allow_connections();
    println!(
        "{:>6} {:>10} {:>14} {:>16} {:>14}",
        "ranks", "reports/s", "server us each", "decision us each", "refused"
    );
    for ranks in [10, 100, 1000] {
        measure(ranks);
    }
}

fn measure(ranks: usize) {
    let (events, inbox) = channel();
    let attempt = Attempt { number: 1, world: ranks, placement: Placement::Here };
    let server = ControlServer::start(&ControlChannel::default(), &attempt, events).unwrap();
    let decision = std::thread::Builder::new().name("decision".into()).spawn(move || attend(ranks, &inbox)).unwrap();
    let address = server.url().strip_prefix("http://").unwrap().to_owned();
    let key = SigningKey::new(server.secret(), attempt.number);
    let requests = |sequence| (0..ranks).map(|rank| request(rank, sequence, &address, &key)).collect::<Vec<_>>();
    let rounds: Vec<_> = (1..=1 + REPORTS as u64 / ranks as u64).map(requests).collect();
    let mut streams: Vec<_> = (0..ranks).map(|_| TcpStream::connect(&address).unwrap()).collect();
    round(&mut streams, &rounds[0]);
    let (before, start) = (cpu_of("control"), Instant::now());
    rounds[1..].iter().for_each(|requests| round(&mut streams, requests));
    let (seconds, served) = (start.elapsed().as_secs_f64(), (cpu_of("control") - before).as_secs_f64());
    let refused = server.refused();
    drop(server);
    let (decided, decisions) = decision.join().unwrap();
    let each = |seconds: f64, times: usize| 1e6 * seconds / times as f64;
    println!(
        "{ranks:>6} {:>10.0} {:>14.1} {:>16.2} {refused:>14}",
        REPORTS as f64 / seconds,
        each(served, REPORTS),
        each(decided.as_secs_f64(), decisions)
    );
}

/// Handles events as `lambert run` does. Returns the CPU time and the number of reports.
fn attend(ranks: usize, inbox: &Receiver<Event>) -> (Duration, usize) {
    let mut config = RunConfig::default();
    config.cluster.ranks = ranks;
    let (mut state, _) = CoordinatorState::begin(
        Settings::new(&config, HostPool::Here, 0.0),
        RestartHistory::default(),
        LastKnown::default(),
    );
    (state, _) = decide(state, 0.0, Event::LeaseTaken(1));
    let (start, before, mut reports) = (Instant::now(), cpu_of("decision"), 0);
    while let Ok(event) = inbox.recv() {
        (state, _) = decide(state, start.elapsed().as_secs_f64(), event);
        reports += 1;
    }
    (cpu_of("decision") - before, reports)
}

fn request(rank: usize, sequence: u64, address: &str, key: &SigningKey) -> String {
    let report = WorkerReport {
        rank,
        pid: 1,
        host: "host".into(),
        step: 7,
        phase: WorkerPhase::Step,
        ..WorkerReport::default()
    };
    let body = serde_json::to_string(&report).unwrap();
    let (length, authorization) = (body.len(), key.sign_report(rank, sequence, body.as_bytes()));
    format!(
        "POST {REPORT_PATH} HTTP/1.1\r\nhost: {address}\r\nauthorization: {authorization}\r\n\
         content-length: {length}\r\n\r\n{body}"
    )
}

/// Sends one report per rank, and then reads the responses.
fn round(streams: &mut [TcpStream], requests: &[String]) {
    streams.iter_mut().zip(requests).for_each(|(stream, request)| stream.write_all(request.as_bytes()).unwrap());
    for stream in streams {
        let (mut answer, mut at) = ([0; 1024], 0);
        while !answer[..at].ends_with(b"}") {
            at += stream.read(&mut answer[at..]).unwrap();
        }
        assert!(answer.starts_with(b"HTTP/1.1 200"));
    }
}

/// CPU time of this process's threads with this name, from the kernel's nanosecond counters.
fn cpu_of(name: &str) -> Duration {
    let threads = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let of_name = threads
        .filter(|thread| std::fs::read_to_string(thread.path().join("comm")).is_ok_and(|comm| comm.trim() == name));
    let nanoseconds = |text: String| text.split(' ').next().and_then(|number| number.parse::<u64>().ok());
    let each = of_name.filter_map(|thread| nanoseconds(std::fs::read_to_string(thread.path().join("schedstat")).ok()?));
    Duration::from_nanos(each.sum())
}
