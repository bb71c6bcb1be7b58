//! GPUs and CPUs of the ranks of a job. The nodes of the sandbox have two GPUs each, but no GPU driver, so the ranks
//! compute on CPUs.

use std::collections::BTreeMap;

use crate::slurm::config;
use crate::support::slurm::Sandbox;
use crate::support::{TestDir, signal};

/// Returns the environment of a process.
fn environment(pid: u32) -> BTreeMap<String, String> {
    let text = String::from_utf8(std::fs::read(format!("/proc/{pid}/environ")).unwrap()).unwrap();
    text.split('\0').filter_map(|line| line.split_once('=')).map(|(name, value)| (name.into(), value.into())).collect()
}

/// After every start, each rank must have all GPUs of its node, and the ranks must share the CPUs of the node. The
/// default of 8 CPUs for each rank would be more than the 4 CPUs of a node.
pub fn belong_to_the_ranks(dir: &TestDir, sandbox: &Sandbox) {
    let run = sandbox.path("runs/gpus");
    let more = ["slurm.nodes=1", "slurm.gpus_per_node=2", "device.kind=\"auto\""].map(|set| ["--set", set]).concat();
    let job = sandbox.submit(&config(dir, sandbox, 1_000_000), &run, &more);
    let mut seen = 0;
    for start in 0..2 {
        seen = sandbox.wait_for_log(&job, seen, "starting 2 workers");
        seen = sandbox.wait_for_log(&job, seen, "\nstep ");
        let ranks = sandbox.processes(&format!("{} train --run {run}", sandbox.path("bin/lambert-worker")));
        assert_eq!(ranks.len(), 2, "{ranks:?}");
        for rank in &ranks {
            let environment = environment(*rank);
            for (name, value) in [
                ("CUDA_VISIBLE_DEVICES", "0,1"),
                ("SLURM_CPUS_PER_TASK", "2"),
                ("PYTORCH_ALLOC_CONF", "expandable_segments:True"),
            ] {
                assert_eq!(environment.get(name).map(String::as_str), Some(value), "{name} of start {start}");
            }
            assert!(environment.contains_key("NCCL_RAS_ADDR"), "{environment:?}");
        }
        if start == 0 {
            signal(ranks[1], "-9");
        }
    }
    let shown = sandbox.run("scontrol", &["show", "job", &job]).out;
    assert!(shown.contains("NumCPUs=4 ") && shown.contains("TresPerNode=gres:gpu:2"), "{shown}");
    assert_eq!(sandbox.run("scancel", &[&job]).code, 0);
    sandbox.ended(&job);
}
