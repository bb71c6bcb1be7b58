//! Shared memory of the ranks of a node. It is in a directory that is removed at the end of the job step.

use std::collections::BTreeSet;

use crate::slurm::config;
use crate::support::slurm::Sandbox;
use crate::support::{TestDir, signal};

/// Two ranks on one node must map the shared memory segments of each other after every start.
pub fn is_shared(dir: &TestDir, sandbox: &Sandbox) {
    starts(dir, sandbox, 3);
}

/// Starts a run `starts` times. Kills a rank after each start except the last.
pub fn starts(dir: &TestDir, sandbox: &Sandbox, starts: usize) {
    let run = sandbox.path("runs/shared");
    let more = ["--set", "slurm.nodes=1", "--set", "cluster.restart.limit=1000"];
    let job = sandbox.submit(&config(dir, sandbox, 1_000_000), &run, &more);
    let (mut seen, mut without) = (0, Vec::new());
    for start in 1..=starts {
        seen = sandbox.wait_for_log(&job, seen, "starting 2 workers");
        seen = sandbox.wait_for_log(&job, seen, "\nstep ");
        let ranks = sandbox.processes(&format!("{} train --run {run}", sandbox.path("bin/lambert-worker")));
        assert_eq!(ranks.len(), 2, "{ranks:?}");
        let segments: Vec<_> = ranks.iter().map(|rank| segments(*rank)).collect();
        if segments[0].len() != 2 || segments[0] != segments[1] {
            without.push((start, segments));
        }
        if start < starts {
            signal(ranks[1], "-9");
        }
    }
    eprintln!("{} of {starts} starts had shared memory", starts - without.len());
    assert!(without.is_empty(), "starts without shared memory: {without:?}");
    assert_eq!(sandbox.run("scancel", &[&job]).code, 0);
    sandbox.ended(&job);
}

/// Returns the files in the directory of the job step that a process has mapped. Omits deleted files.
fn segments(pid: u32) -> BTreeSet<String> {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let files = maps.lines().filter_map(|line| line.find("/dev/shm/lambert-mpirun-").map(|at| line[at..].to_owned()));
    files.filter(|file| !file.ends_with(" (deleted)")).collect()
}
