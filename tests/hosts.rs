//! Tests of runs on several hosts: cut links, a lost host, an unreachable store.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::s3_server::{BUCKET, Server};
use crate::support::hosts::{Host, Network};
use crate::support::{self, Running, TestDir, assert_same_bits, lambert, open_mpi_5};

/// A number of steps that no run completes before its test ends it.
const ENDLESS: u64 = 1_000_000;

/// Starts `lambert run` on the first of the hosts.
fn start(network: &Network, hosts: &[usize], config: &str, run: &str, more: &[&str]) -> Running {
    let arguments = network.arguments(hosts, 1);
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).chain(more.iter().copied()).collect();
    let mut command = network.host_at(hosts[0]).command(&lambert());
    command.envs(network.environment().iter().map(|(name, value)| (name, value)));
    Running::start_by(command, config, run, &arguments)
}

/// Default folder for the output of the ranks.
fn logs() -> PathBuf {
    format!("/tmp/lambert-logs-{}", rustix::process::geteuid().as_raw()).into()
}

/// Returns the names of the ranks whose output is in files on a host.
fn ranks(host: &Host) -> BTreeSet<String> {
    host.files(&logs()).into_iter().map(|(path, _)| path.file_stem().unwrap().to_str().unwrap().to_owned()).collect()
}

fn only(name: &str) -> BTreeSet<String> {
    BTreeSet::from([name.to_owned()])
}

/// Waits until a host has no processes or files of a run except its logs.
fn wait_until_clean(host: &Host) {
    let start = Instant::now();
    while !(host.processes().is_empty() && host.left(&logs()).is_empty()) {
        let (processes, files) = (host.processes(), host.left(&logs()));
        assert!(start.elapsed() < Duration::from_secs(90), "left on {}: {processes:?} {files:?}", host.address);
        std::thread::sleep(Duration::from_millis(100));
    }
    eprintln!("nothing is left on {} after {:.1} s", host.address, start.elapsed().as_secs_f64());
}

/// Cuts off the second host twice. An outage of `short` seconds must cause no restart. An outage of `long` seconds must
/// cause one restart.
fn cut(silence: u64, short: u64, long: u64) {
    let dir = TestDir::new();
    let Some(network) = Network::new(&dir, 2) else { return };
    let (config, run) = (dir.config(ENDLESS, 2), dir.path("run"));
    let mut running =
        start(&network, &[0, 1], &config, &run, &["--set", &format!("cluster.limits.silence_seconds={silence}")]);
    running.reach(5);
    for (seconds, restarts) in [(short, 0), (long, 1)] {
        let begun = Instant::now();
        network.cut(1);
        std::thread::sleep(Duration::from_secs(seconds));
        network.reconnect(1);
        let before = running.latest().unwrap().step;
        // Skips records that were already in flight.
        while running.record().unwrap().step < before.min(5) + 20 {}
        running.reach_now(20);
        eprintln!("cut for {seconds} s: steps again after {:.1} s", begun.elapsed().as_secs_f64());
        let status: serde_json::Value = serde_json::from_str(&support::done(&["status", &run, "--json"])).unwrap();
        assert_eq!(status["status"]["restarts"], restarts, "{status}");
        let reported = support::done(&["status", &run]);
        assert!(reported.contains("\nrank time    ") && reported.contains("; slowest: rank "), "{reported}");
    }
    network.host_at(0).signal_coordinator("-TERM");
    let ended = running.end();
    assert_eq!(ended.code, Some(75), "{}", ended.log);
    assert!(ended.log.contains("rank 1 (") && ended.log.contains("has sent no heartbeat for "), "{}", ended.log);
    [0, 1].into_iter().for_each(|host| wait_until_clean(network.host_at(host)));
}

#[test]
fn a_short_outage_is_tolerated_and_a_long_one_restarts_the_workers() {
    cut(12, 4, 20);
}

#[test]
#[ignore = "takes six minutes: default timeouts"]
fn outages_with_default_timeouts() {
    cut(90, 20, 300);
}

/// The rank must move to the spare host, and the run must end with the same bits as an undisturbed run.
#[test]
fn a_rank_on_a_lost_host_moves_to_the_spare_host() {
    let dir = TestDir::new();
    let Some(network) = Network::new(&dir, 3) else { return };
    let (config, run, reference) = (dir.config(250, 2), dir.path("run"), dir.path("undisturbed"));
    assert_eq!(Running::start(&config, &reference).end().code, Some(0));
    let mut running = start(&network, &[0, 1, 2], &config, &run, &["--set", "cluster.limits.silence_seconds=10"]);
    running.reach(20);
    let begun = Instant::now();
    network.stop(1);
    while running.record().is_some_and(|record| record.step > 100 || begun.elapsed().as_secs() < 2) {}
    eprintln!("a host is lost: steps again after {:.1} s", begun.elapsed().as_secs_f64());
    let ended = running.end();
    assert_eq!(ended.code, Some(0), "{}", ended.log);
    assert_same_bits(&reference, &run);
    let third = network.host_at(2);
    assert_eq!(ranks(third), only("rank-00001"), "{}", ended.log);
    [0, 2].into_iter().for_each(|host| wait_until_clean(network.host_at(host)));
}

/// Runs the script `fault` on the second host. After that, this host cannot read the dataset. Its rank must move to the
/// spare host.
fn assert_moves_to_the_spare_host(fault: &str, why: &str) {
    let dir = TestDir::new();
    let Some(network) = Network::new(&dir, 3) else { return };
    let second =
        network.host_at(1).command(Path::new("sh")).args(["-ec", fault, "sh", &dir.path("data/train")]).status();
    if !second.unwrap().success() {
        eprintln!("SKIPPED: loop devices and e2fsprogs are needed");
        return;
    }
    let ended = start(&network, &[0, 1, 2], &dir.config(30, 2), &dir.path("run"), &[]).end();
    assert_eq!(ended.code, Some(0), "{}", ended.log);
    let who = format!(", host {}) failed: ", network.host_at(1).name);
    let restarts = ended.log.lines().filter(|line| line.contains("restarting all workers")).collect::<Vec<_>>();
    let [restart] = restarts[..] else { panic!("{restarts:?} in {}", ended.log) };
    assert!(restart.contains(&who) && restart.contains(why), "{restart}");
    assert_eq!(ranks(network.host_at(2)), only("rank-00001"), "{}", ended.log);
}

#[test]
fn a_rank_on_a_host_without_the_mount_moves() {
    assert_moves_to_the_spare_host("mount -t tmpfs tmpfs $1", "manifest.json");
}

/// The disk is an image file that is truncated after it was mounted. Therefore every read fails with an input/output
/// error.
#[test]
fn a_rank_on_a_host_with_a_failed_disk_moves() {
    let fault = "truncate -s 16M /mnt/disk && mkfs.ext4 -q /mnt/disk && mkdir /mnt/data && mount -o loop /mnt/disk /mnt/data
                 cp $1/* /mnt/data && umount /mnt/data && mount -o loop,ro /mnt/disk /mnt/data && ls -l /mnt/data >/dev/null
                 mount --bind /mnt/data $1 && truncate -s 4096 /mnt/disk";
    assert_moves_to_the_spare_host(fault, "Input/output error");
}

/// Starts a run with host names, and with the control channel over IPv6. The output of each rank must be in a file on
/// its host. No other file and no shared memory may remain.
fn assert_only_logs_remain(mpi: &[(&'static str, String)]) {
    let dir = TestDir::new();
    let Some(network) = Network::with(&dir, 2, mpi) else { return };
    let (first, second) = (network.host_at(0), network.host_at(1));
    let address = format!("cluster.control.address={:?}", first.six);
    let (config, run) = (dir.config(ENDLESS, 4), dir.path("run"));
    let names = r#"cluster.hosts=["a:2", "b:2"]"#;
    let mut running = start(&network, &[0, 1], &config, &run, &["--set", &address, "--set", names]);
    running.reach(10);
    for host in [first, second] {
        assert_ne!(support::tree(&host.shared_memory()).len(), 0, "the ranks of {} share no memory", host.address);
    }
    let environment = std::fs::read(format!("/proc/{}/environ", support::workers(&run)[&1])).unwrap();
    let url = format!("LAMBERT_CONTROL_URL=http://[{}]:", first.six);
    assert!(String::from_utf8_lossy(&environment).contains(&url), "no {url}");
    first.signal_coordinator("-9");
    [first, second].into_iter().for_each(Host::kill_ranks);
    running.end();
    [first, second].into_iter().for_each(wait_until_clean);
    let two = |first, second| BTreeSet::from([format!("rank-{first:05}"), format!("rank-{second:05}")]);
    assert_eq!((ranks(first), ranks(second)), (two(0, 1), two(2, 3)));
}

#[test]
fn only_logs_remain_on_the_hosts() {
    assert_only_logs_remain(&[]);
}

#[test]
fn only_logs_remain_with_open_mpi_5() {
    let Some(mpi) = open_mpi_5() else { return };
    assert_only_logs_remain(&mpi);
}

/// The first coordinator loses the network. Meanwhile a coordinator on the second host takes over the run.
#[test]
fn a_coordinator_cut_off_from_the_store_is_replaced() {
    let dir = TestDir::new();
    let Some(network) = Network::new(&dir, 2) else { return };
    let server = Server::start_at(Path::new(&dir.path("s3")), &network.gateway(), 0);
    let url = format!("s3://{BUCKET}/run");
    let config = dir.config(ENDLESS, 1);
    let start = |host: usize| {
        let mut command = network.host_at(host).command(&lambert());
        command.envs(server.environment().iter().map(|(name, value)| (*name, value.clone())));
        command.env("AWS_ALLOW_HTTP", "true");
        Running::start_by(command, &config, &url, &[])
    };
    let mut first = start(0);
    first.reach(10);
    network.cut(0);
    let mut second = start(1);
    second.reach_now(30);
    network.reconnect(0);
    let begun = Instant::now();
    let ended = first.end();
    eprintln!("from its return to its end: {:.1} s", begun.elapsed().as_secs_f64());
    assert_eq!(ended.code, Some(77), "{}", ended.log);
    assert!(ended.log.contains("another coordinator has taken over the run"), "{}", ended.log);
    second.reach_now(30);
    network.host_at(1).signal_coordinator("-TERM");
    let ended = second.end();
    assert_eq!(ended.code, Some(75), "{}", ended.log);
    assert!(ended.log.contains("attempt 2: ") && !ended.log.contains("restarting all workers"), "{}", ended.log);
}

/// Trains BERT-base on two hosts with one rank each and a link of `megabits` Mbit/s. Returns the median duration of a
/// step and the median of its exposed communication, seconds. Asserts that the gradients were sent over the link.
fn step_of_bert_base(megabits: u32, sets: &[&str]) -> [f64; 2] {
    const STEPS: u64 = 4;
    let dir = TestDir::new();
    let Some(network) = Network::new(&dir, 2) else { panic!("there are no hosts") };
    network.slow_down(megabits);
    // The vocabulary of the test is padded to the size of BERT's vocabulary. The samples have similar lengths, so that
    // each rank has one micro-batch.
    let mut pieces = std::fs::read_to_string(dir.path("vocab.txt")).unwrap();
    let existing = pieces.lines().count();
    (existing..30_522).for_each(|number| pieces += &format!("[unused{number}]\n"));
    let (vocabulary, data) = (dir.file("base.txt", pieces), dir.path("base"));
    let prep = format!(
        "[[source]]\npath = {:?}\ndocuments = \"blank-line\"\n[output]\nurl = {data:?}\n[vocabulary]\nfile = {vocabulary:?}\n\
         [samples]\nsequence_length = 512\npair = \"none\"\npacking = \"full-sentences\"\nshort_sequence_probability = 0.0\n",
        dir.path("corpus.txt")
    );
    support::done(&["prep", "--config", &dir.file("base-prep.toml", prep)]);
    let text = format!(
        "[objective]\npair = \"none\"\n\
         [[stage]]\nname = \"one\"\ndata = {:?}\nsteps = {STEPS}\nglobal_batch = 4\nmicro_batch_tokens = 1024\n\
         learning_rate = 1e-4\n[checkpoint]\nevery_minutes = 0\n[cluster]\nranks = 2\nall_reduce.backend = \"mpi\"\n[device]\nkind = \"cpu\"\n",
        dir.path("base/train")
    );
    let config = dir.file("base.toml", text);
    let more: Vec<&str> = sets.iter().flat_map(|set| ["--set", set]).collect();
    let sent = network.host_at(0).sent();
    let mut running = start(&network, &[0, 1], &config, &dir.path("run"), &more);
    let mut records: Vec<_> = (0..STEPS).map(|_| running.record().unwrap()).collect();
    let sent = network.host_at(0).sent() - sent;
    let bytes = if sets.iter().any(|set| set.contains("bf16")) { 2 } else { 4 };
    assert!(sent > STEPS * bytes * 100_000_000, "the link did not carry the gradients: {sent} bytes were sent");
    running.kill_coordinator("-KILL");
    records.remove(0);
    let median = |of: fn(&lambert_control::StepRecord) -> f64| {
        let mut seconds: Vec<f64> = records.iter().map(of).collect();
        seconds.sort_by(f64::total_cmp);
        seconds[seconds.len() / 2]
    };
    let (step, exposed) = (median(|record| record.times.seconds), median(|record| record.times.communication));
    eprintln!("{megabits} Mbit/s, {sets:?}: a step {step:.2} s, communication that nothing hid {exposed:.2} s");
    [step, exposed]
}

/// At 1 Gbit/s, the last backward pass takes longer than the all-reduce.
#[test]
#[ignore = "minutes, on an idle machine: CONTRIBUTING.md"]
fn the_backward_pass_hides_the_all_reduce() {
    let [_, without] = step_of_bert_base(1000, &["cluster.all_reduce.overlap=false"]);
    let [_, with] = step_of_bert_base(1000, &[]);
    assert!(with <= 0.4 * without, "{with:.2} s of {without:.2} s are not hidden");
}

#[test]
#[ignore = "a quarter of an hour, on an idle machine: CONTRIBUTING.md"]
fn step_times_over_slow_links() {
    for megabits in [100, 1000, 10_000] {
        for wire in ["fp32", "bf16"] {
            for overlap in [false, true] {
                let sets =
                    [format!("cluster.all_reduce.dtype={wire:?}"), format!("cluster.all_reduce.overlap={overlap}")];
                let [step, exposed] = step_of_bert_base(megabits, &sets.each_ref().map(String::as_str));
                // This line is input for docs/links/plot.py.
                eprintln!("links,{megabits},{wire},{overlap},{step:.2},{exposed:.2}");
            }
        }
    }
}
