//! Runs the commands in the section "From one host to several" of docs/guides/several-hosts.md. Also checks the error
//! messages that the page quotes.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use crate::support::hosts::Network;
use crate::support::{TestDir, lambert};

/// Returns the text below a heading of the page, up to the next heading.
fn section(heading: &str) -> String {
    let page =
        std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/guides/several-hosts.md")).unwrap();
    let (_, rest) = page.split_once(&format!("\n{heading}\n")).unwrap();
    rest.split("\n#").next().unwrap().to_owned()
}

/// Creates two hosts with the folder `/srv` as on the page. Writes a configuration with `steps` steps and the
/// `[cluster]` table of the page.
fn hosts(dir: &TestDir, steps: u64) -> Option<Network> {
    let network = Network::new(dir, 2)?;
    let key = dir.path("ssh-key");
    dir.file("ssh", format!("#!/bin/sh\nexec dbclient -y -y -i {key} \"$@\"\n"));
    let programs = lambert().parent().unwrap().to_str().unwrap().to_owned();
    let folder = dir.path("");
    let script = format!(
        "chmod +x {folder}/ssh && mkdir -p {folder}/bin && ln -sf {programs}/lambert {programs}/lambert-worker {folder}/bin/
         mount --bind {folder} /srv"
    );
    for host in 0..2 {
        assert!(run_on(&network, host, &script).0);
    }
    let text = std::fs::read_to_string(dir.config(steps, 2)).unwrap();
    let (model, _) = text.split_once("[cluster]").unwrap();
    let cluster = section("## From one host to several").split("```").nth(1).unwrap().replacen("toml", "", 1);
    dir.file("run.toml", model.to_owned() + &cluster);
    Some(network)
}

/// Runs a script on a host. Returns true if it succeeded, and its output.
fn run_on(network: &Network, host: usize, script: &str) -> (bool, String) {
    let path = format!("/srv:/srv/bin:{}", std::env::var("PATH").unwrap());
    let output = network
        .host_at(host)
        .command(Path::new("sh"))
        .args(["-ec", script])
        .envs([("OMPI_ALLOW_RUN_AS_ROOT", "1"), ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"), ("PATH", &path)])
        .output()
        .unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&text).into_owned())
}

/// Blocks all TCP packets that the hosts receive, except packets whose source or destination is the port of ssh or one
/// of the ports `open`. Uses routes, because the kernel may lack a firewall.
fn close_all_but(network: &Network, open: &[&str]) {
    let mut script = "ip rule add pref 100 lookup local; ip rule del pref 0\n".to_owned();
    for ports in ["22"].iter().chain(open) {
        for side in ["dport", "sport"] {
            script += &format!("ip rule add pref 10 iif eth0 ipproto tcp {side} {ports} lookup local\n");
        }
    }
    script += "ip rule add pref 50 iif eth0 ipproto tcp blackhole";
    for host in 0..2 {
        let (done, printed) = run_on(network, host, &script);
        assert!(done, "{printed}");
    }
}

#[test]
fn the_commands_of_the_page_work() {
    let dir = TestDir::new();
    let Some(network) = hosts(&dir, 50) else { return };
    close_all_but(&network, &["41000-41023"]);
    let page = section("## From one host to several");
    let lines: Vec<&str> =
        page.lines().filter_map(|line| line.strip_prefix("    ")).filter(|line| !line.starts_with('"')).collect();
    assert_eq!(lines.len(), 8, "{lines:?}");
    for line in lines {
        let begun = Instant::now();
        let (done, printed) = run_on(&network, 0, line);
        assert!(done, "{line}: {printed}");
        eprintln!("{line}: {:.1} s", begun.elapsed().as_secs_f64());
        let second = &network.host_at(1).name;
        let expected = match line.split_whitespace().next().unwrap() {
            "getent" => "10.212.",
            "mpirun" => second,
            "ip" => "UP",
            "ssh" if line.ends_with("hostname") => second,
            "ssh" if line.contains("ls") => "/srv/data/train/manifest.json",
            "ssh" => "mpirun (Open MPI) 4",
            "lambert" if line.contains("status") => "50/50",
            _ => "no CPU pinning (single NUMA node)",
        };
        assert!(
            printed.contains(expected) || line.starts_with("lambert run") && printed.contains("pinn"),
            "{line}: {printed}"
        );
    }
}

/// Asserts that `lambert run` prints the expected messages within `seconds`, and that the page quotes them.
fn says(network: &Network, seconds: u64, more: &str, expected: &[&str]) {
    let page = section("## What a fault looks like");
    let line = format!(
        "timeout {seconds} lambert run --config /srv/run.toml --run /srv/runs/$$ --ranks 2 --set cluster.limits.join_seconds=10 {more}"
    );
    let (_, printed) = run_on(network, 0, &format!("{line} || echo exit code $?"));
    for expected in expected {
        assert!(page.contains(expected), "the page does not quote: {expected}");
        let expected = expected.replace("600 s", "10 s");
        assert!(printed.contains(&expected), "{more}: no {expected} in {printed}");
    }
}

#[test]
#[ignore = "two minutes of faults"]
fn faults_print_the_messages_of_the_page() {
    let dir = TestDir::new();
    let Some(network) = hosts(&dir, 1_000_000) else { return };
    says(&network, 5, r#"--set 'cluster.hosts=["a:1", "nosuch:1"]'"#, &["Temporary failure in name resolution"]);
    let key = dir.path("ssh-key");
    std::fs::rename(&key, dir.path("hidden")).unwrap();
    says(&network, 5, "", &["No auth methods could be used"]);
    std::fs::rename(dir.path("hidden"), &key).unwrap();
    let programs = lambert().parent().unwrap().to_str().unwrap().to_owned();
    assert!(run_on(&network, 1, &format!("mount -t tmpfs tmpfs {programs}")).0);
    says(&network, 8, "", &["could not access or execute an executable"]);
    assert!(run_on(&network, 1, &format!("umount {programs}")).0);
    assert!(run_on(&network, 1, "orted=$(readlink -f $(command -v orted)); mount --bind /bin/false $orted").0);
    says(&network, 5, "", &["unable to reliably start one or more daemons"]);
    assert!(run_on(&network, 1, "umount $(readlink -f $(command -v orted))").0);
    let arguments = |daemons: &str, sums: &str| {
        format!(
            "--set 'cluster.mpirun_arguments=[\"--mca\", \"oob_tcp_if_include\", \"{daemons}\", \"--mca\", \"btl_tcp_if_include\", \
             \"{sums}\"]'"
        )
    };
    let nothing = "None of the TCP networks specified to be included for out-of-band communications could be found";
    says(&network, 5, &arguments("eth9", "eth0"), &[nothing]);
    says(&network, 8, &arguments("eth0", "eth9"), &["MPI_Comm_dup failed: MPI error 17: MPI_ERR_INTERN"]);
    let interface = ["cluster.control.interface: no interface eth9", "exit code 2"];
    says(&network, 8, "--set 'cluster.control.interface=\"eth9\"'", &interface);
    let exits = "--set cluster.limits.join_seconds=60 --set cluster.limits.coordinator_seconds=2";
    for (open, more, expected) in [
        (&["41000-41007"][..], "", &["no rank has reported (rank 0 has not reported within 600 s of the start)"][..]),
        (&["41000-41015"], "", &["is slow: joining the other ranks", "hangs: joining the other ranks for 600 s"]),
        (&["41008-41023"], exits, &["rank 1 (not yet reported) exited: no reply from the coordinator"]),
    ] {
        let dir = TestDir::new();
        let Some(network) = hosts(&dir, 1_000_000) else { return };
        close_all_but(&network, open);
        says(&network, 25, more, expected);
    }
}

/// Ranks must reject MPI launchers that are not supported.
#[test]
fn unsupported_launchers_are_rejected_by_name() {
    let dir = TestDir::new();
    let (config, run) = (dir.config(5, 1), dir.path("run"));
    assert_eq!(crate::support::Running::start(&config, &run).end().code, Some(0));
    let worker = lambert().with_file_name("lambert-worker");
    let output = Command::new(worker)
        .args(["train", "--run", &run, "--attempt", "1"])
        .envs([("PMI_RANK", "0"), ("PMI_SIZE", "2")])
        .output()
        .unwrap();
    let printed = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{printed}");
    assert!(printed.contains("MPICH's or Intel MPI's mpirun started 2 processes (PMI_SIZE)"), "{printed}");
}
