//! Runs on several hosts: links that are cut, a host that is lost, a store that is out of reach.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::s3_server::{BUCKET, Server};
use crate::support::hosts::{Host, Network};
use crate::support::{self, Place, Running, assert_same_bits, lambert, open_mpi_5};

/// More steps than any run here makes before it is ended.
const ENDLESS: u64 = 1_000_000;

/// `lambert run` on the first of the hosts.
fn start(network: &Network, hosts: &[usize], config: &str, run: &str, more: &[&str]) -> Running {
    let arguments = network.arguments(hosts, 1);
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).chain(more.iter().copied()).collect();
    let mut command = network.host_of(hosts[0]).command(&lambert());
    command.envs(network.environment().iter().map(|(name, value)| (name, value)));
    Running::start_by(command, config, run, &arguments)
}

/// Where ranks keep what they print if nothing else is said.
fn logs() -> PathBuf {
    format!("/tmp/lambert-logs-{}", rustix::process::geteuid().as_raw()).into()
}

/// The ranks whose output is in files on a host.
fn ranks(host: &Host) -> BTreeSet<String> {
    host.files(&logs()).into_iter().map(|(path, _)| path.file_stem().unwrap().to_str().unwrap().to_owned()).collect()
}

fn only(name: &str) -> BTreeSet<String> {
    BTreeSet::from([name.to_owned()])
}

/// Waits until there is nothing of a run on the host but its logs.
fn wait_for_nothing(host: &Host) {
    let start = Instant::now();
    while !(host.processes().is_empty() && host.left(&logs()).is_empty()) {
        let (processes, files) = (host.processes(), host.left(&logs()));
        assert!(start.elapsed() < Duration::from_secs(90), "left on {}: {processes:?} {files:?}", host.address);
        std::thread::sleep(Duration::from_millis(100));
    }
    eprintln!("nothing is left on {} after {:.1} s", host.address, start.elapsed().as_secs_f64());
}

/// Cuts the second host off for each time in turn: while the first times pass nobody restarts, after the last one does.
fn cut(silence: u64, short: u64, long: u64) {
    let place = Place::new();
    let Some(network) = Network::new(&place, 2) else { return };
    let (config, run) = (place.config(ENDLESS, 2), place.path("run"));
    let mut running =
        start(&network, &[0, 1], &config, &run, &["--set", &format!("cluster.limits.silence_seconds={silence}")]);
    running.reach(5);
    for (seconds, restarts) in [(short, 0), (long, 1)] {
        let begun = Instant::now();
        network.cut(1);
        std::thread::sleep(Duration::from_secs(seconds));
        network.mend(1);
        let before = running.latest().unwrap().step;
        // Not those that were on their way.
        while running.record().unwrap().step < before.min(5) + 20 {}
        running.reach_now(20);
        eprintln!("cut for {seconds} s: steps again after {:.1} s", begun.elapsed().as_secs_f64());
        let status: serde_json::Value = serde_json::from_str(&support::done(&["status", &run, "--json"])).unwrap();
        assert_eq!(status["status"]["restarts"], restarts, "{status}");
        let told = support::done(&["status", &run]);
        assert!(told.contains("\nrank time    ") && told.contains("; slowest: rank "), "{told}");
    }
    network.host_of(0).signal_coordinator("-TERM");
    let ended = running.end();
    assert_eq!(ended.code, Some(75), "{}", ended.log);
    assert!(ended.log.contains("rank 1 (") && ended.log.contains("has sent no heartbeat for "), "{}", ended.log);
    [0, 1].into_iter().for_each(|host| wait_for_nothing(network.host_of(host)));
}

#[test]
fn a_link_is_cut() {
    cut(12, 4, 20);
}

#[test]
#[ignore = "takes six minutes: the limits that a run has unless told otherwise"]
fn a_link_is_cut_for_minutes() {
    cut(90, 20, 300);
}

/// Its rank goes to the host that is to spare, and the run ends with the bits of one that was left alone.
#[test]
fn a_host_is_lost() {
    let place = Place::new();
    let Some(network) = Network::new(&place, 3) else { return };
    let (config, run, reference) = (place.config(250, 2), place.path("run"), place.path("undisturbed"));
    assert_eq!(Running::start(&config, &reference).end().code, Some(0));
    let mut running = start(&network, &[0, 1, 2], &config, &run, &["--set", "cluster.limits.silence_seconds=10"]);
    running.reach(20);
    let begun = Instant::now();
    network.lose(1);
    while running.record().is_some_and(|record| record.step > 100 || begun.elapsed().as_secs() < 2) {}
    eprintln!("a host is lost: steps again after {:.1} s", begun.elapsed().as_secs_f64());
    let ended = running.end();
    assert_eq!(ended.code, Some(0), "{}", ended.log);
    assert_same_bits(&reference, &run);
    let third = network.host_of(2);
    assert_eq!(ranks(third), only("rank-00001"), "{}", ended.log);
    [0, 2].into_iter().for_each(|host| wait_for_nothing(network.host_of(host)));
}

/// A rank's host cannot read the dataset, as `spoil` sees to: the rank goes to the host that is to spare.
fn on_another_host(spoil: &str, why: &str) {
    let place = Place::new();
    let Some(network) = Network::new(&place, 3) else { return };
    let second =
        network.host_of(1).command(Path::new("sh")).args(["-ec", spoil, "sh", &place.path("data/train")]).status();
    if !second.unwrap().success() {
        eprintln!("SKIPPED: loop devices and e2fsprogs are needed");
        return;
    }
    let ended = start(&network, &[0, 1, 2], &place.config(30, 2), &place.path("run"), &[]).end();
    assert_eq!(ended.code, Some(0), "{}", ended.log);
    let who = format!(", host {}) failed: ", network.host_of(1).name);
    let restarts = ended.log.lines().filter(|line| line.contains("restarting all workers")).collect::<Vec<_>>();
    let [restart] = restarts[..] else { panic!("{restarts:?} in {}", ended.log) };
    assert!(restart.contains(&who) && restart.contains(why), "{restart}");
    assert_eq!(ranks(network.host_of(2)), only("rank-00001"), "{}", ended.log);
}

#[test]
fn a_mount_is_missing_on_one_host() {
    on_another_host("mount -t tmpfs tmpfs $1", "manifest.json");
}

/// A disk whose blocks are gone: every read is an input/output error.
#[test]
fn a_disk_fails_on_one_host() {
    let spoil = "truncate -s 16M /mnt/disk && mkfs.ext4 -q /mnt/disk && mkdir /mnt/data && mount -o loop /mnt/disk /mnt/data
                 cp $1/* /mnt/data && umount /mnt/data && mount -o loop,ro /mnt/disk /mnt/data && ls -l /mnt/data >/dev/null
                 mount --bind /mnt/data $1 && truncate -s 4096 /mnt/disk";
    on_another_host(spoil, "Input/output error");
}

/// Hosts by their names, the control channel over IPv6; a file of each rank's output on its own host; nothing else stays there,
/// in memory neither.
fn what_stays(mpi: &[(&'static str, String)]) {
    let place = Place::new();
    let Some(network) = Network::with(&place, 2, mpi) else { return };
    let (first, second) = (network.host_of(0), network.host_of(1));
    let address = format!("cluster.control.address={:?}", first.six);
    let (config, run) = (place.config(ENDLESS, 4), place.path("run"));
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
    [first, second].into_iter().for_each(wait_for_nothing);
    let two = |first, second| BTreeSet::from([format!("rank-{first:05}"), format!("rank-{second:05}")]);
    assert_eq!((ranks(first), ranks(second)), (two(0, 1), two(2, 3)));
}

#[test]
fn what_ranks_print_stays_on_their_hosts_and_nothing_else_does() {
    what_stays(&[]);
}

#[test]
fn so_it_is_with_open_mpi_5() {
    let Some(mpi) = open_mpi_5() else { return };
    what_stays(&mpi);
}

/// The first coordinator is cut off from the store and from everybody; one on the second host begins meanwhile.
#[test]
fn a_store_is_out_of_reach() {
    let place = Place::new();
    let Some(network) = Network::new(&place, 2) else { return };
    let server = Server::start_at(Path::new(&place.path("s3")), &network.outside(), 0);
    let url = format!("s3://{BUCKET}/run");
    let config = place.config(ENDLESS, 1);
    let start = |host: usize| {
        let mut command = network.host_of(host).command(&lambert());
        command.envs(server.environment().iter().map(|(name, value)| (*name, value.clone())));
        command.env("AWS_ALLOW_HTTP", "true");
        Running::start_by(command, &config, &url, &[])
    };
    let mut first = start(0);
    first.reach(10);
    network.cut(0);
    let mut second = start(1);
    second.reach_now(30);
    network.mend(0);
    let begun = Instant::now();
    let ended = first.end();
    eprintln!("from its return to its end: {:.1} s", begun.elapsed().as_secs_f64());
    assert_eq!(ended.code, Some(77), "{}", ended.log);
    assert!(ended.log.contains("another coordinator has taken over the run"), "{}", ended.log);
    second.reach_now(30);
    network.host_of(1).signal_coordinator("-TERM");
    let ended = second.end();
    assert_eq!(ended.code, Some(75), "{}", ended.log);
    assert!(ended.log.contains("attempt 2: ") && !ended.log.contains("started again"), "{}", ended.log);
}

/// What a step of BERT-base costs on two hosts with a link of so many Mbit/s, one rank each: the median seconds of a step, and of
/// communication that nothing hid; and that the link carried the gradients.
fn step_of_bert_base(megabits: u32, sets: &[&str]) -> [f64; 2] {
    const STEPS: u64 = 4;
    let place = Place::new();
    let Some(network) = Network::new(&place, 2) else { panic!("there are no hosts") };
    network.slow_down(megabits);
    // The place's pieces, and as many others as make BERT's number; samples of like lengths, so that each rank has one
    // micro-batch.
    let mut pieces = std::fs::read_to_string(place.path("vocab.txt")).unwrap();
    let there = pieces.lines().count();
    (there..30_522).for_each(|number| pieces += &format!("[unused{number}]\n"));
    let (vocabulary, data) = (place.file("base.txt", pieces), place.path("base"));
    let prep = format!(
        "[[source]]\npath = {:?}\ndocuments = \"blank-line\"\n[output]\nurl = {data:?}\n[vocabulary]\nfile = {vocabulary:?}\n\
         [samples]\nsequence_length = 512\npair = \"none\"\npacking = \"full-sentences\"\nshort_sequence_probability = 0.0\n",
        place.path("corpus.txt")
    );
    support::done(&["prep", "--config", &place.file("base-prep.toml", prep)]);
    let text = format!(
        "[objective]\npair = \"none\"\n\
         [[stage]]\nname = \"one\"\ndata = {:?}\nsteps = {STEPS}\nglobal_batch = 4\nmicro_batch_tokens = 1024\n\
         learning_rate = 1e-4\n[checkpoint]\nevery_minutes = 0\n[cluster]\nranks = 2\nall_reduce.backend = \"mpi\"\n[device]\nkind = \"cpu\"\n",
        place.path("base/train")
    );
    let config = place.file("base.toml", text);
    let more: Vec<&str> = sets.iter().flat_map(|set| ["--set", set]).collect();
    let sent = network.host_of(0).sent();
    let mut running = start(&network, &[0, 1], &config, &place.path("run"), &more);
    let mut records: Vec<_> = (0..STEPS).map(|_| running.record().unwrap()).collect();
    let sent = network.host_of(0).sent() - sent;
    let bytes = if sets.iter().any(|set| set.contains("bf16")) { 2 } else { 4 };
    assert!(sent > STEPS * bytes * 100_000_000, "the gradients took another way: {sent} bytes were sent");
    running.kill_coordinator("-KILL");
    records.remove(0);
    let median = |of: fn(&lambert_control::StepRecord) -> f64| {
        let mut seconds: Vec<f64> = records.iter().map(of).collect();
        seconds.sort_by(f64::total_cmp);
        seconds[seconds.len() / 2]
    };
    let (step, exposed) = (median(|record| record.times.seconds), median(|record| record.times.communicate));
    eprintln!("{megabits} Mbit/s, {sets:?}: a step {step:.2} s, communication that nothing hid {exposed:.2} s");
    [step, exposed]
}

/// At 1 Gbit/s the last backward pass is longer than the sum takes.
#[test]
#[ignore = "minutes, and needs a machine that does nothing else: CONTRIBUTING.md"]
fn the_backward_pass_hides_the_sum_of_the_gradients() {
    let [_, without] = step_of_bert_base(1000, &["cluster.all_reduce.overlap=false"]);
    let [_, with] = step_of_bert_base(1000, &[]);
    assert!(with <= 0.4 * without, "{with:.2} s of {without:.2} s are not hidden");
}

#[test]
#[ignore = "a quarter of an hour, and needs a machine that does nothing else: CONTRIBUTING.md"]
fn a_step_over_links_of_any_speed() {
    for megabits in [100, 1000, 10_000] {
        for wire in ["fp32", "bf16"] {
            for overlap in [false, true] {
                let sets =
                    [format!("cluster.all_reduce.dtype={wire:?}"), format!("cluster.all_reduce.overlap={overlap}")];
                let [step, exposed] = step_of_bert_base(megabits, &sets.each_ref().map(String::as_str));
                // For docs/links/plot.py.
                eprintln!("links,{megabits},{wire},{overlap},{step:.2},{exposed:.2}");
            }
        }
    }
}
