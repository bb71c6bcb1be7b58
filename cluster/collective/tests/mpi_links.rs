//! Hosts, made of namespaces, and the cables between them: cut for a while, cut for good, slow. The tests named `rank_that_*`
//! are what a rank does.

#![allow(clippy::unwrap_used, reason = "a panic is how a test reports")]

mod jobs;
mod suite;

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use jobs::as_rank;
use lambert_collective::all_reduce;
use lambert_collective::mpi::Options;

/// Hosts, the first of which starts the job, and a switch.
struct Hosts {
    /// The switch is the last.
    hosts: Vec<Child>,
    /// Their first processes.
    inits: Vec<u32>,
    job: Option<Child>,
    folder: tempfile::TempDir,
}

impl Hosts {
    /// Two of them; `None`, with a word, where such hosts cannot be made.
    fn new() -> Option<Self> {
        Self::of(2)
    }

    fn of(count: u32) -> Option<Self> {
        let tools = "command -v unshare nsenter ip tc >/dev/null && [ $(id -u) = 0 ]";
        if !Command::new("sh").args(["-c", tools]).status().unwrap().success() {
            eprintln!("SKIPPED: hosts are made by root, with iproute2 and util-linux");
            return None;
        }
        let mut hosts = Self { hosts: vec![], inits: vec![], job: None, folder: tempfile::tempdir().unwrap() };
        (0..=count).for_each(|number| hosts.add(number));
        let switch = hosts.inits[count as usize];
        sh(&format!("nsenter -t {switch} -n sh -c 'ip link add switch type bridge; ip link set switch up'"));
        let mut ways = String::new();
        for (number, init) in (1..=count).zip(&hosts.inits) {
            sh(&format!(
                "ip link add eth0 netns {init} type veth peer name to{number} netns {switch}
                 nsenter -t {switch} -n ip link set to{number} master switch up
                 nsenter -t {init} -n sh -c 'ip link set lo up; ip link set eth0 up; ip addr add 10.213.7.{number}/24 dev eth0'"
            ));
            ways += &format!("10.213.7.{number}) to={init};;\n");
        }
        // What mpirun starts another host's daemon with: the host, then the command. It stays among the first host's processes
        // and sees this machine's /proc, so that it finds the way, and ends with the first host.
        let agent = format!("#!/bin/sh\ncase $1 in\n{ways}esac\nshift\nexec nsenter -t $to -n -u sh -c \"$*\"\n");
        std::fs::write(hosts.agent(), agent).unwrap();
        std::fs::set_permissions(hosts.agent(), std::fs::Permissions::from_mode(0o755)).unwrap();
        Some(hosts)
    }

    fn add(&mut self, number: u32) {
        // Open MPI names its files by host and process, and each first host counts its processes from 1.
        let own = self.folder.path().file_name().unwrap().to_str().unwrap().trim_start_matches('.').to_lowercase();
        let script = format!("hostname {own}-{number}; exec sleep 600");
        let host = Command::new("unshare")
            .args(["--net", "--uts", "--pid", "--fork", "--kill-child", "sh", "-c", &script])
            .spawn()
            .unwrap();
        let pid = host.id();
        self.hosts.push(host);
        self.inits.push(until(|| {
            let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
            let child: u32 = children.split_whitespace().next()?.parse().ok()?;
            let is_up = std::fs::read_to_string(format!("/proc/{child}/comm")).ok()? == "sleep\n";
            is_up.then_some(child)
        }));
    }

    fn agent(&self) -> PathBuf {
        self.folder.path().join("agent")
    }

    /// Runs `test` as a rank on each host.
    fn start(&mut self, test: &str) {
        self.start_with(test, &[]);
    }

    /// The same with these variables.
    fn start_with(&mut self, test: &str, variables: &[(&str, String)]) {
        let (init, count) = (self.inits[0].to_string(), self.inits.len() - 1);
        let names = (1..=count).map(|number| format!("10.213.7.{number}:1")).collect::<Vec<_>>().join(",");
        let mut mpirun = Command::new("nsenter");
        mpirun
            .args(["-t", &init, "-n", "-u", "-p", "mpirun", "--allow-run-as-root", "--bind-to", "none"])
            .args(["--timeout", "100", "-n", &count.to_string(), "--host", &names])
            .args(["--mca", "orte_tmpdir_base"])
            .arg(self.folder.path())
            .args(["--mca", "plm_rsh_agent"])
            .arg(self.agent())
            .args(["--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include", "eth0"])
            .args(["--mca", "oob_tcp_if_include", "eth0", "-x", jobs::FOLDER])
            .args(variables.iter().flat_map(|(name, value)| ["-x".to_owned(), format!("{name}={value}")]))
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", test, "--nocapture"])
            .env(jobs::FOLDER, self.folder.path())
            .stdout(Stdio::null());
        self.job = Some(mpirun.spawn().unwrap());
    }

    fn on_first(&self, command: &str) {
        sh(&format!("nsenter -t {} -n {command}", self.inits[0]));
    }

    fn read(&self, name: &str) -> Option<String> {
        std::fs::read_to_string(self.folder.path().join(name)).ok()
    }

    /// Waits until a rank has made `more` sums than now.
    fn reach(&self, more: u64) {
        let sums = || self.read("sums")?.parse::<u64>().ok();
        let before = sums().unwrap_or(0);
        until(|| sums().filter(|sums| *sums >= before + more));
    }
}

impl Drop for Hosts {
    /// The end of a host's first process ends all others there, and its end of the cable.
    fn drop(&mut self) {
        for mut child in self.hosts.drain(..).chain(self.job.take()) {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn sh(script: &str) {
    assert!(Command::new("sh").args(["-ec", script]).status().unwrap().success(), "{script}");
}

fn until<T>(mut look: impl FnMut() -> Option<T>) -> T {
    let begin = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(begin.elapsed() < Duration::from_secs(60), "nothing happens");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// All that a backend must do, with a host for each rank.
#[test]
fn the_suite_over_two_and_three_hosts() {
    for count in [2, 3] {
        let Some(mut hosts) = Hosts::of(count) else { return };
        hosts.start("rank_that_runs_the_suite");
        until(|| hosts.read("passed"));
        assert!(hosts.job.take().unwrap().wait().unwrap().success(), "{count} hosts");
    }
}

#[test]
fn rank_that_runs_the_suite() {
    let Some(mut ends) = as_rank(Options::default()) else { return };
    suite::everything(&mut ends, suite::F32);
    if ends.group.rank() == 0 {
        jobs::write("passed", "");
    }
    ends.finish().unwrap();
}

const STALL: Duration = Duration::from_secs(8);

#[test]
fn a_cut_is_survived_before_the_limit_and_named_after_it() {
    let Some(mut hosts) = Hosts::new() else { return };
    hosts.start("rank_that_sums_for_ever");
    hosts.reach(10);
    let begin = Instant::now();
    hosts.on_first("ip link set eth0 down");
    std::thread::sleep(Duration::from_millis(2500));
    hosts.on_first("ip link set eth0 up");
    hosts.reach(10);
    eprintln!("cut for 2.5 s: sums again after {:.1} s", begin.elapsed().as_secs_f64());
    hosts.on_first("ip link set eth0 down");
    let cut = Instant::now();
    for rank in 0..2 {
        let words = until(|| hosts.read(&format!("noticed-{rank}")));
        let expected = format!("reduction of a bucket: deadline exceeded, still waiting for rank {}", 1 - rank);
        assert_eq!(words, expected);
    }
    let took = cut.elapsed();
    assert!(took > STALL / 2 && took < STALL + Duration::from_secs(5), "noticed after {took:?}");
    eprintln!("cut for good: noticed by both after {:.1} s", took.as_secs_f64());
}

#[test]
fn rank_that_sums_for_ever() {
    let Some(mut ends) = as_rank(Options { stall: STALL, ..Options::default() }) else { return };
    let mut values = vec![0.0; 1 << 20];
    for sums in 0u64.. {
        if let Err(error) = all_reduce(&mut *ends.reducer, &mut values, None) {
            jobs::write(&format!("noticed-{}", ends.group.rank()), &error.to_string());
            jobs::wait_for(&["noticed-0", "noticed-1"]);
            return;
        }
        if ends.group.rank() == 0 {
            jobs::write("sums", &sums.to_string());
        }
    }
}

/// 1 Mbit/s: a segment of 256 KiB takes two seconds, and four are under way.
#[test]
fn a_slow_link_is_a_straggler() {
    let Some(mut hosts) = Hosts::new() else { return };
    hosts.start("rank_that_sums_slowly");
    until(|| hosts.read("joined"));
    hosts.on_first("tc qdisc add dev eth0 root tbf rate 1mbit burst 32kb latency 2s");
    jobs::write_in(hosts.folder.path(), "slow", "");
    let begin = Instant::now();
    until(|| hosts.read("summed"));
    let took = begin.elapsed();
    eprintln!("4 MiB at 1 Mbit/s took {:.1} s", took.as_secs_f64());
    assert!(took > 2 * SLOW_STALL, "the link was not slow: {took:?}");
}

const SLOW_STALL: Duration = Duration::from_secs(12);

#[test]
fn rank_that_sums_slowly() {
    let Some(mut ends) = as_rank(Options { stall: SLOW_STALL, ..Options::default() }) else { return };
    ends.group.barrier().unwrap();
    jobs::write("joined", "");
    jobs::wait_for(&["slow"]);
    let mut values = vec![1.0; 1 << 20];
    all_reduce(&mut *ends.reducer, &mut values, None).unwrap();
    assert!(values.iter().all(|value| *value == 2.0));
    jobs::write("summed", "");
    ends.group.barrier().unwrap();
}

/// What the bytes alone take in a ring over four hosts at 1 Gbit/s, beside what a sum of BERT-base's gradients takes.
#[test]
#[ignore = "half a minute, and needs a machine that does nothing else"]
fn four_hosts_are_near_the_bound_of_a_ring() {
    let Some(mut hosts) = Hosts::of(4) else { return };
    for host in 0..4 {
        let shape = "tc qdisc add dev eth0 root tbf rate 1gbit burst 1250000 latency 50ms";
        sh(&format!("nsenter -t {} -n {shape}", hosts.inits[host]));
    }
    hosts.start("rank_that_sums_gradients");
    let seconds: f64 = until(|| hosts.read("seconds")?.parse().ok());
    let bound = 2.0 * 3.0 / 4.0 * 4.0 * GRADIENTS as f64 / 125e6;
    eprintln!("4 hosts: {seconds:.2} s, the bytes alone take {bound:.2} s: {:.3}", bound / seconds);
    assert!(bound / seconds > 0.9);
}

/// BERT-base's.
const GRADIENTS: usize = 110_000_000;

#[test]
fn rank_that_sums_gradients() {
    let Some(mut ends) = as_rank(Options::default()) else { return };
    let mut values = vec![1.0; GRADIENTS];
    let mut seconds = Vec::new();
    for _ in 0..4 {
        ends.group.barrier().unwrap();
        let begin = Instant::now();
        all_reduce(&mut *ends.reducer, &mut values, None).unwrap();
        seconds.push(begin.elapsed().as_secs_f64());
    }
    // The first one warms up.
    seconds.remove(0);
    seconds.sort_by(f64::total_cmp);
    if ends.group.rank() == 0 {
        jobs::write("seconds", &seconds[1].to_string());
    }
    ends.group.barrier().unwrap();
    ends.finish().unwrap();
}

/// Every twentieth message is late by 50 ms: right sums, later, and nobody suspected.
#[test]
fn a_link_that_delays_is_waited_for() {
    let Some(mut hosts) = Hosts::new() else { return };
    let path = |name: &str| hosts.folder.path().join(name).to_str().unwrap().to_owned();
    let (library, delays) = (path("delays.so"), path("delays"));
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/jobs/delayed_writes.c");
    sh(&format!("cc -shared -fPIC -O1 -o {library} {source} -ldl"));
    let mut seconds = Vec::new();
    for variables in [&[][..], &[("LD_PRELOAD", library), ("LAMBERT_TEST_DELAYS", delays)]] {
        let _ = std::fs::remove_file(hosts.folder.path().join("summed"));
        hosts.start_with("rank_that_sums_a_little", variables);
        seconds.push(until(|| hosts.read("summed")?.parse::<f64>().ok()));
        let _ = hosts.job.take().unwrap().wait();
    }
    let late = hosts.read("delays").map_or(0, |delays| delays.len());
    eprintln!("40 sums of 4 MiB: {:.2} s, {:.2} s with {late} messages late by 50 ms", seconds[0], seconds[1]);
    assert!(late > 20, "{late} messages were late");
}

#[test]
fn rank_that_sums_a_little() {
    let Some(mut ends) = as_rank(Options { stall: Duration::from_secs(2), ..Options::default() }) else { return };
    ends.group.barrier().unwrap();
    let begin = Instant::now();
    for sum in 0..40 {
        let mut values = vec![sum as f32 + 1.0; 1 << 20];
        all_reduce(&mut *ends.reducer, &mut values, None).unwrap();
        assert!(values.iter().all(|value| *value == 2.0 * (sum as f32 + 1.0)));
    }
    let seconds = begin.elapsed().as_secs_f64();
    ends.group.barrier().unwrap();
    if ends.group.rank() == 0 {
        jobs::write("summed", &seconds.to_string());
    }
    ends.finish().unwrap();
}
