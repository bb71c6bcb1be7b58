//! The batch script of a run: what sbatch is asked for, and how the coordinator is looked after inside the job.

use lambert_config::{RunConfig, exit};

use super::directives::{self, in_shell};

/// What a script is made of, beside the configuration.
#[derive(Debug, Clone, Copy)]
pub struct Job<'a> {
    /// The run's URL.
    pub run: &'a str,
    /// The program lambert, by a path that holds on the nodes.
    pub lambert: &'a str,
    /// The folder that the job begins in.
    pub folder: &'a str,
}

/// The script for a job of the run that `config` describes.
pub fn render(config: &RunConfig, job: &Job<'_>) -> String {
    // Traps go before the prologue, which may take minutes.
    let first: Vec<String> = TRAPS.lines().map(str::to_owned).collect();
    let script = directives::head(&options(config, job), &[first, config.slurm.prologue.clone()].concat());
    let coordinator = format!("{} run --run {}", in_shell(job.lambert), in_shell(job.run));
    let body = BODY.replace("@STOPPED@", &exit::STOPPED.to_string()).replace("@FAILED@", &exit::FAILED.to_string());
    let body = body.replace("@REQUEUES@", &config.slurm.requeues.to_string());
    // Last: a run's name may have any text in it.
    script + &body.replace("@COORDINATOR@", &coordinator)
}

/// What sbatch is asked for.
fn options(config: &RunConfig, job: &Job<'_>) -> Vec<String> {
    let (slurm, cluster) = (&config.slurm, &config.cluster);
    let mut options = vec![
        format!("--job-name={}", config.run.name),
        format!("--nodes={}", slurm.nodes),
        format!("--ntasks={}", cluster.ranks),
        format!("--ntasks-per-node={}", slurm.ranks_per_node(cluster.ranks)),
        format!("--cpus-per-task={}", cluster.threads),
    ];
    options.extend((slurm.gpus_per_node > 0).then(|| format!("--gpus-per-node={}", slurm.gpus_per_node)));
    // B: the shell below is signalled, and only it.
    options.push(format!("--signal=B:USR1@{}", slurm.lead_seconds));
    options.extend(directives::common(slurm, job.folder));
    options
}

/// What is asked of the job while it runs.
const TRAPS: &str = r#"# The first signal goes on to the coordinator, which saves a checkpoint and ends; a second one would end it without.
coordinator='' asked=''
# shellcheck disable=SC2317  # the traps call it
pass_on() {
    if [ -n "$coordinator" ] && [ -z "$asked" ]; then kill -s "$1" "$coordinator" 2>/dev/null; fi
    asked=$1
}
trap 'pass_on USR1' USR1
trap 'pass_on TERM' TERM
"#;

/// The coordinator is a child in the background, because bash runs a trap only when no child is in the foreground. Each
/// signal ends `wait`, which then has a code that is nobody's: the last `wait` has the coordinator's.
const BODY: &str = r#"
code=@STOPPED@
for _ in 1 2 3 4; do
    if [ -n "$asked" ]; then break; fi
    @COORDINATOR@ &
    coordinator=$!
    # What came between these two lines.
    if [ -n "$asked" ]; then kill -s "$asked" "$coordinator" 2>/dev/null; fi
    while kill -0 "$coordinator" 2>/dev/null; do wait "$coordinator"; done
    wait "$coordinator"
    code=$?
    if [ "$code" -le 128 ]; then break; fi
    if [ -n "$asked" ]; then
        # Before it listened: nothing was under way yet.
        if [ "$code" -eq $((128 + $(kill -l "$asked"))) ]; then code=@STOPPED@; fi
        break
    fi
    # It was killed; its ranks go with it. The next one takes the run from the newest checkpoint.
    echo "lambert: the coordinator was killed by signal $((code - 128))" >&2
done
# The program is not there, or its file system is away: another node may have it.
if [ "$code" -gt 125 ]; then code=@FAILED@; fi

# A controller that is busy, or whose place another takes, may not answer for two minutes.
patiently() {
    for pause in 0 2 5 10 20 40 60; do
        sleep "$pause"
        "$@" && return
    done
    return 1
}
ask() { patiently squeue --noheader --jobs="$SLURM_JOB_ID" --format="$1"; }
# A job that Slurm itself ends or queues again (scancel, a preemption's end) runs no more.
again() {
    state=$(ask %T)
    case $state in
    RUNNING)
        echo "lambert: $1: the job is queued again" >&2
        patiently scontrol requeue "$SLURM_JOB_ID" || echo "lambert: Slurm has not queued the job again: submit it anew" >&2
        ;;
    '') echo "lambert: Slurm does not say whether the job runs, and it is not queued again: submit it anew" >&2 ;;
    esac
}
case $code in
@STOPPED@) again 'stopped, because of the time limit or of a job that goes first' ;;
@FAILED@)
    if ! comment=$(ask %k); then
        echo "lambert: Slurm does not say how often the run has failed, and it is not queued again: submit it anew" >&2
        exit "$code"
    fi
    failures=$(printf %s "$comment" | tr -dc '0-9')
    failures=$((${failures:-0} + 1))
    if [ "$failures" -gt @REQUEUES@ ]; then
        echo "lambert: failure $failures; slurm.requeues is @REQUEUES@, and the job is not queued again" >&2
    else
        scontrol update JobId="$SLURM_JOB_ID" Comment="lambert: $failures failures"
        again "failure $failures"
    fi
    ;;
esac
exit "$code"
"#;

#[cfg(test)]
mod tests {
    use super::*;

    const JOB: Job<'_> = Job { run: "/runs/it's a \"run\"", lambert: "/opt/lam bert/lambert", folder: "/home/me" };

    fn config() -> RunConfig {
        let mut config = RunConfig::default();
        (config.run.name, config.cluster.ranks, config.cluster.threads) = ("a \"b\" c's".to_owned(), 8, 4);
        (config.slurm.nodes, config.slurm.gpus_per_node, config.slurm.exclusive) = (2, 4, true);
        (config.slurm.time, config.slurm.partition) = (Some("1-0".to_owned()), Some("gpu".to_owned()));
        config.slurm.prologue = vec!["module load cuda".to_owned()];
        config.slurm.options = vec!["--mail-type=END".to_owned()];
        config
    }

    #[test]
    fn all_that_is_asked_for_stands_in_the_script() {
        let script = render(&config(), &JOB);
        let head = r##"#!/bin/bash
#SBATCH "--job-name=a \"b\" c's"
#SBATCH --nodes=2
#SBATCH --ntasks=8
#SBATCH --ntasks-per-node=4
#SBATCH --cpus-per-task=4
#SBATCH --gpus-per-node=4
#SBATCH --signal=B:USR1@120
#SBATCH --time=1-0
#SBATCH --partition=gpu
#SBATCH --exclusive
#SBATCH --chdir=/home/me
#SBATCH --output=lambert-%j.log
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --export=NONE
#SBATCH --mail-type=END

"##;
        assert_eq!(&script[..head.len()], head);
        let rest = &script[head.len()..];
        assert!(rest.starts_with("# The first signal"), "{rest}");
        assert!(rest.contains("trap 'pass_on TERM' TERM\nmodule load cuda\n\ncode=75\n"), "{rest}");
        assert!(script.contains(r#"'/opt/lam bert/lambert' run --run '/runs/it'\''s a "run"' &"#), "{script}");
    }

    #[test]
    fn shellcheck_finds_nothing() {
        directives::shellcheck(&render(&config(), &JOB));
    }
}
