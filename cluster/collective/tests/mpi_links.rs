//! Tests with simulated hosts (Linux namespaces). The links between the hosts are cut temporarily or permanently, or
//! are slow. Each rank of a job runs a test named `rank_that_*`.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

mod jobs;
mod suite;

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use jobs::as_rank;
use lambert_collective::all_reduce;
use lambert_collective::mpi::MpiOptions;

/// Simulated hosts, connected by a switch. The first host starts the job.
struct Hosts {
    /// Processes that create the hosts. The last one is the switch.
    hosts: Vec<Child>,
    /// Process IDs of the init processes of the hosts.
    inits: Vec<u32>,
    job: Option<Child>,
    folder: tempfile::TempDir,
}

impl Hosts {
    /// Creates two hosts. If the machine does not allow this, prints a message and returns `None`.
    fn new() -> Option<Self> {
        Self::with_count(2)
    }

    fn with_count(count: u32) -> Option<Self> {
        let tools = "command -v unshare nsenter ip tc >/dev/null && [ $(id -u) = 0 ]";
        if !Command::new("sh").args(["-c", tools]).status().unwrap().success() {
            eprintln!("SKIPPED: simulated hosts need root, iproute2 and util-linux");
            return None;
        }
        let mut hosts = Self { hosts: vec![], inits: vec![], job: None, folder: tempfile::tempdir().unwrap() };
        (0..=count).for_each(|number| hosts.add(number));
        let switch = hosts.inits[count as usize];
        sh(&format!("nsenter -t {switch} -n sh -c 'ip link add switch type bridge; ip link set switch up'"));
        let mut cases = String::new();
        for (number, init) in (1..=count).zip(&hosts.inits) {
            sh(&format!(
                "ip link add eth0 netns {init} type veth peer name to{number} netns {switch}
                 nsenter -t {switch} -n ip link set to{number} master switch up
                 nsenter -t {init} -n sh -c 'ip link set lo up; ip link set eth0 up; ip addr add 10.213.7.{number}/24 dev eth0'"
            ));
            cases += &format!("10.213.7.{number}) to={init};;\n");
        }
        // Replacement for ssh. mpirun calls this script with a host and a command. The script runs in the PID namespace
        // of the first host, so it exits together with that host. It sees the /proc of this machine, so nsenter finds
        // the process of the destination host.
        let agent = format!("#!/bin/sh\ncase $1 in\n{cases}esac\nshift\nexec nsenter -t $to -n -u sh -c \"$*\"\n");
        std::fs::write(hosts.agent(), agent).unwrap();
        std::fs::set_permissions(hosts.agent(), std::fs::Permissions::from_mode(0o755)).unwrap();
        Some(hosts)
    }

    fn add(&mut self, number: u32) {
        // Open MPI names its files by host name and PID. PIDs start at 1 in each namespace, so the host names must be
        // unique.
        let own = self.folder.path().file_name().unwrap().to_str().unwrap().trim_start_matches('.').to_lowercase();
        let script = format!("hostname {own}-{number}; exec sleep 600");
        let host = Command::new("unshare")
            .args(["--net", "--uts", "--pid", "--fork", "--kill-child", "sh", "-c", &script])
            .spawn()
            .unwrap();
        let pid = host.id();
        self.hosts.push(host);
        self.inits.push(wait_until(|| {
            let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
            let child: u32 = children.split_whitespace().next()?.parse().ok()?;
            let is_up = std::fs::read_to_string(format!("/proc/{child}/comm")).ok()? == "sleep\n";
            is_up.then_some(child)
        }));
    }

    fn agent(&self) -> PathBuf {
        self.folder.path().join("agent")
    }

    /// Starts `test` as a rank on each host.
    fn start(&mut self, test: &str) {
        self.start_with(test, &[]);
    }

    /// Starts `test` as a rank on each host, with additional environment variables.
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

    /// Waits until rank 0 has completed `more` further sums.
    fn wait_for_sums(&self, more: u64) {
        let sums = || self.read("sums")?.parse::<u64>().ok();
        let before = sums().unwrap_or(0);
        wait_until(|| sums().filter(|sums| *sums >= before + more));
    }
}

impl Drop for Hosts {
    /// Killing the init process of a namespace kills its other processes and removes its network interface.
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

fn wait_until<T>(mut check: impl FnMut() -> Option<T>) -> T {
    let begin = Instant::now();
    loop {
        if let Some(value) = check() {
            return value;
        }
        assert!(begin.elapsed() < Duration::from_secs(60), "timed out after 60 s");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// One rank per host.
#[test]
fn the_suite_passes_over_two_and_three_hosts() {
    for count in [2, 3] {
        let Some(mut hosts) = Hosts::with_count(count) else { return };
        hosts.start("rank_that_runs_the_suite");
        wait_until(|| hosts.read("passed"));
        assert!(hosts.job.take().unwrap().wait().unwrap().success(), "{count} hosts");
    }
}

#[test]
fn rank_that_runs_the_suite() {
    let Some(mut endpoints) = as_rank(MpiOptions::default()) else { return };
    suite::run_all_checks(&mut endpoints, suite::F32);
    if endpoints.group.rank() == 0 {
        jobs::write("passed", "");
    }
    endpoints.finish().unwrap();
}

const STALL: Duration = Duration::from_secs(8);

#[test]
fn a_cut_link_recovers_before_the_timeout_and_is_reported_after_it() {
    let Some(mut hosts) = Hosts::new() else { return };
    hosts.start("rank_that_sums_until_an_error");
    hosts.wait_for_sums(10);
    let begin = Instant::now();
    hosts.on_first("ip link set eth0 down");
    std::thread::sleep(Duration::from_millis(2500));
    hosts.on_first("ip link set eth0 up");
    hosts.wait_for_sums(10);
    eprintln!("link cut for 2.5 s: sums resumed after {:.1} s", begin.elapsed().as_secs_f64());
    hosts.on_first("ip link set eth0 down");
    let cut = Instant::now();
    for rank in 0..2 {
        let error = wait_until(|| hosts.read(&format!("error-{rank}")));
        let expected = format!("bucket all-reduce: deadline exceeded, still waiting for rank {}", 1 - rank);
        assert_eq!(error, expected);
    }
    let took = cut.elapsed();
    assert!(took > STALL / 2 && took < STALL + Duration::from_secs(5), "detected after {took:?}");
    eprintln!("link cut permanently: detected by both ranks after {:.1} s", took.as_secs_f64());
}

#[test]
fn rank_that_sums_until_an_error() {
    let Some(mut endpoints) = as_rank(MpiOptions { stall_timeout: STALL, ..MpiOptions::default() }) else { return };
    let mut values = vec![0.0; 1 << 20];
    for sums in 0u64.. {
        if let Err(error) = all_reduce(&mut *endpoints.reducer, &mut values, None) {
            jobs::write(&format!("error-{}", endpoints.group.rank()), &error.to_string());
            jobs::wait_for(&["error-0", "error-1"]);
            return;
        }
        if endpoints.group.rank() == 0 {
            jobs::write("sums", &sums.to_string());
        }
    }
}

/// At 2 Mbit/s a segment of 256 KiB takes a second, and four segments are in flight.
#[test]
fn a_slow_link_does_not_time_out() {
    let Some(mut hosts) = Hosts::new() else { return };
    hosts.start("rank_that_sums_slowly");
    wait_until(|| hosts.read("joined"));
    hosts.on_first("tc qdisc add dev eth0 root tbf rate 2mbit burst 32kb latency 2s");
    jobs::write_in(hosts.folder.path(), "slow", "");
    let begin = Instant::now();
    wait_until(|| hosts.read("summed"));
    let took = begin.elapsed();
    eprintln!("4 MiB at 2 Mbit/s took {:.1} s", took.as_secs_f64());
    assert!(took > 2 * SLOW_STALL, "the link was not slow: {took:?}");
}

const SLOW_STALL: Duration = Duration::from_secs(6);

#[test]
fn rank_that_sums_slowly() {
    let Some(mut endpoints) = as_rank(MpiOptions { stall_timeout: SLOW_STALL, ..MpiOptions::default() }) else {
        return;
    };
    endpoints.group.barrier().unwrap();
    jobs::write("joined", "");
    jobs::wait_for(&["slow"]);
    let mut values = vec![1.0; 1 << 20];
    all_reduce(&mut *endpoints.reducer, &mut values, None).unwrap();
    assert!(values.iter().all(|value| *value == 2.0));
    jobs::write("summed", "");
    endpoints.group.barrier().unwrap();
}

/// Compares an all-reduce with the bandwidth bound of a ring. The all-reduce sums the gradients of BERT-base over four
/// hosts at 1 Gbit/s.
#[test]
#[ignore = "takes half a minute and needs an idle machine"]
fn four_hosts_reach_90_percent_of_the_ring_bound() {
    let Some(mut hosts) = Hosts::with_count(4) else { return };
    for host in 0..4 {
        let shape = "tc qdisc add dev eth0 root tbf rate 1gbit burst 1250000 latency 50ms";
        sh(&format!("nsenter -t {} -n {shape}", hosts.inits[host]));
    }
    hosts.start("rank_that_sums_gradients");
    let seconds: f64 = wait_until(|| hosts.read("seconds")?.parse().ok());
    let bound = 2.0 * 3.0 / 4.0 * 4.0 * GRADIENTS as f64 / 125e6;
    eprintln!("4 hosts: {seconds:.2} s, bandwidth bound {bound:.2} s: {:.3}", bound / seconds);
    assert!(bound / seconds > 0.9);
}

/// Number of gradients of BERT-base.
const GRADIENTS: usize = 110_000_000;

#[test]
fn rank_that_sums_gradients() {
    let Some(mut endpoints) = as_rank(MpiOptions::default()) else { return };
    let mut values = vec![1.0; GRADIENTS];
    let mut seconds = Vec::new();
    for _ in 0..4 {
        endpoints.group.barrier().unwrap();
        let begin = Instant::now();
        all_reduce(&mut *endpoints.reducer, &mut values, None).unwrap();
        seconds.push(begin.elapsed().as_secs_f64());
    }
    // The first sum is a warm-up.
    seconds.remove(0);
    seconds.sort_by(f64::total_cmp);
    if endpoints.group.rank() == 0 {
        jobs::write("seconds", &seconds[1].to_string());
    }
    endpoints.group.barrier().unwrap();
    endpoints.finish().unwrap();
}

/// Every twentieth message is delayed by 50 ms. Sums must stay correct, and no operation may time out.
#[test]
fn delayed_messages_do_not_time_out() {
    let Some(mut hosts) = Hosts::new() else { return };
    let path = |name: &str| hosts.folder.path().join(name).to_str().unwrap().to_owned();
    let (library, delays) = (path("delays.so"), path("delays"));
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/jobs/delayed_writes.c");
    sh(&format!("cc -shared -fPIC -O1 -o {library} {source} -ldl"));
    let mut seconds = Vec::new();
    for variables in [&[][..], &[("LD_PRELOAD", library), ("LAMBERT_TEST_DELAYS", delays)]] {
        let _ = std::fs::remove_file(hosts.folder.path().join("summed"));
        hosts.start_with("rank_that_sums_40_times", variables);
        seconds.push(wait_until(|| hosts.read("summed")?.parse::<f64>().ok()));
        let _ = hosts.job.take().unwrap().wait();
    }
    let late = hosts.read("delays").map_or(0, |delays| delays.len());
    eprintln!("40 sums of 4 MiB: {:.2} s; {:.2} s with {late} messages delayed by 50 ms", seconds[0], seconds[1]);
    assert!(late > 20, "only {late} messages were delayed");
}

#[test]
fn rank_that_sums_40_times() {
    let Some(mut endpoints) = as_rank(MpiOptions { stall_timeout: Duration::from_secs(2), ..MpiOptions::default() })
    else {
        return;
    };
    endpoints.group.barrier().unwrap();
    let begin = Instant::now();
    for sum in 0..40 {
        let mut values = vec![sum as f32 + 1.0; 1 << 20];
        all_reduce(&mut *endpoints.reducer, &mut values, None).unwrap();
        assert!(values.iter().all(|value| *value == 2.0 * (sum as f32 + 1.0)));
    }
    let seconds = begin.elapsed().as_secs_f64();
    endpoints.group.barrier().unwrap();
    if endpoints.group.rank() == 0 {
        jobs::write("summed", &seconds.to_string());
    }
    endpoints.finish().unwrap();
}
