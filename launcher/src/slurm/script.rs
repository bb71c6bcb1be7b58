//! Batch script of a run: sbatch options, and supervision of the coordinator inside the job.

use lambert_config::{RunConfig, exit};

use super::directives::{self, DirectiveError, in_shell};

/// Parameters of the script that are not in the configuration.
#[derive(Debug, Clone, Copy)]
pub struct ScriptParams<'a> {
    /// URL of the run.
    pub run: &'a str,
    /// Path of lambert on the nodes.
    pub lambert: &'a str,
    /// Working directory of the job.
    pub folder: &'a str,
    /// CPUs of each rank.
    pub cpus_per_rank: usize,
}

/// Time for which a job that has to be requeued waits for the Slurm controller, hours. An upgrade of the controller takes
/// less.
const OUTAGE_HOURS: u32 = 2;

/// Renders the batch script of a run.
pub fn render(config: &RunConfig, job: &ScriptParams<'_>) -> Result<String, DirectiveError> {
    // The traps come before the prologue, because the prologue may take minutes and signals may arrive in that time.
    let first: Vec<String> = TRAPS.lines().map(str::to_owned).collect();
    let script = directives::head(&options(config, job), &[first, config.slurm.prologue.clone()].concat())?;
    let coordinator = format!("{} run --run {}", in_shell(job.lambert), in_shell(job.run));
    let body = BODY.replace("@STOPPED@", &exit::INTERRUPTED.to_string()).replace("@FAILED@", &exit::FAILED.to_string());
    let body = body.replace("@USAGE@", &exit::USAGE.to_string());
    let own_node = if config.slurm.exclude_hours > 0.0 { "$SLURMD_NODENAME" } else { "''" };
    let body = body.replace("@OWN_NODE@", own_node);
    let body = body.replace("@REQUEUES@", &config.slurm.requeues.to_string());
    let body = body.replace("@OUTAGE_HOURS@", &OUTAGE_HOURS.to_string());
    // This placeholder is replaced last, because the URL of the run may contain the text of another placeholder.
    Ok(script + &body.replace("@COORDINATOR@", &coordinator))
}

/// Returns the sbatch options.
fn options(config: &RunConfig, job: &ScriptParams<'_>) -> Vec<String> {
    let (slurm, cluster) = (&config.slurm, &config.cluster);
    let mut options = vec![
        format!("--job-name={}", config.run.name),
        format!("--nodes={}", slurm.nodes),
        format!("--ntasks={}", cluster.ranks),
        format!("--ntasks-per-node={}", slurm.ranks_per_node(cluster.ranks)),
        format!("--cpus-per-task={}", job.cpus_per_rank),
    ];
    options.extend((slurm.gpus_per_node > 0).then(|| format!("--gpus-per-node={}", slurm.gpus_per_node)));
    // With `B:`, Slurm signals only the batch shell, not the job steps.
    options.push(format!("--signal=B:USR1@{}", slurm.lead_seconds));
    options.extend(directives::common(slurm, job.folder));
    options
}

/// Signal handling of the batch script.
const TRAPS: &str = r#"# Forward only the first signal: the coordinator then saves a checkpoint and exits.
# A second signal would end it without a checkpoint.
coordinator='' received_signal=''
# shellcheck disable=SC2317  # the traps call it
forward_signal() {
    if [ -n "$coordinator" ] && [ -z "$received_signal" ]; then kill -s "$1" "$coordinator" 2>/dev/null; fi
    received_signal=$1
}
trap 'forward_signal USR1' USR1
trap 'forward_signal TERM' TERM
"#;

/// Main part of the batch script. The coordinator runs in the background, because bash runs no traps while it waits for
/// a foreground command. A signal interrupts `wait`, which then returns an exit code that stands for the signal. Only
/// the last `wait` returns the exit code of the coordinator.
const BODY: &str = include_str!("run_job.sh");

#[cfg(test)]
mod tests;
