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

/// Renders the batch script of a run.
pub fn render(config: &RunConfig, job: &ScriptParams<'_>) -> Result<String, DirectiveError> {
    // The traps come before the prologue, because the prologue may take minutes and signals may arrive in that time.
    let first: Vec<String> = TRAPS.lines().map(str::to_owned).collect();
    let script = directives::head(&options(config, job), &[first, config.slurm.prologue.clone()].concat())?;
    let coordinator = format!("{} run --run {}", in_shell(job.lambert), in_shell(job.run));
    let body = BODY.replace("@STOPPED@", &exit::INTERRUPTED.to_string()).replace("@FAILED@", &exit::FAILED.to_string());
    let body = body.replace("@REQUEUES@", &config.slurm.requeues.to_string());
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
const BODY: &str = r#"
code=@STOPPED@
for _ in 1 2 3 4; do
    if [ -n "$received_signal" ]; then break; fi
    @COORDINATOR@ &
    coordinator=$!
    # Forward a signal that arrived before coordinator= was set.
    if [ -n "$received_signal" ]; then kill -s "$received_signal" "$coordinator" 2>/dev/null; fi
    while kill -0 "$coordinator" 2>/dev/null; do wait "$coordinator"; done
    wait "$coordinator"
    code=$?
    if [ "$code" -le 128 ]; then break; fi
    if [ -n "$received_signal" ]; then
        # The signal arrived before the coordinator had installed its handlers; no rank had started.
        if [ "$code" -eq $((128 + $(kill -l "$received_signal"))) ]; then code=@STOPPED@; fi
        break
    fi
    # The coordinator was killed, which also ends its ranks. The next coordinator resumes from the newest checkpoint.
    echo "lambert: the coordinator was killed by SIG$(kill -l "$code")" >&2
done
# The program or its file system is not available on this node; another node may have it.
if [ "$code" -gt 125 ]; then code=@FAILED@; fi

# Retries a command: a busy controller, or a failover to the backup controller, can take two minutes.
retry() {
    for pause in 0 2 5 10 20 40 60; do
        sleep "$pause"
        "$@" && return
    done
    return 1
}
job_field() { retry squeue --noheader --jobs="$SLURM_JOB_ID" --format="$1"; }
# Requeues the job, unless Slurm is already ending or requeuing it (scancel, preemption).
requeue() {
    state=$(job_field %T)
    case $state in
    RUNNING)
        echo "lambert: $1: requeuing the job" >&2
        retry scontrol requeue "$SLURM_JOB_ID" || echo "lambert: Slurm did not requeue the job; submit it again" >&2
        ;;
    '') echo "lambert: cannot query the job state from Slurm, so the job is not requeued; submit it again" >&2 ;;
    esac
}
# Splits the job comment into `failures`, lambert's count at its end, and `others`, the text before it.
read_comment() {
    others=$1 failures=0
    if [ "$others" = '(null)' ]; then others=''; fi
    if [[ $1 =~ ^(.*\;\ )?lambert:\ ([0-9]{1,6})\ failures$ ]]; then
        others=${BASH_REMATCH[1]%; } failures=$((10#${BASH_REMATCH[2]}))
    fi
}
# shellcheck disable=SC2317  # retry calls it
keep_comment() {
    scontrol update JobId="$SLURM_JOB_ID" Comment="$1" &&
        [ "$(squeue --noheader --jobs="$SLURM_JOB_ID" --format=%k)" = "$1" ]
}
case $code in
@STOPPED@) requeue 'stopped by the time limit or a preemption' ;;
@FAILED@)
    if ! comment=$(job_field %k); then
        echo "lambert: cannot query the failure count from Slurm, so the job is not requeued; submit it again" >&2
        exit "$code"
    fi
    read_comment "$comment"
    failures=$((failures + 1))
    if [ "$failures" -gt @REQUEUES@ ]; then
        echo "lambert: failure $failures: slurm.requeues is @REQUEUES@, so the job is not requeued" >&2
    elif retry keep_comment "${others:+$others; }lambert: $failures failures"; then
        requeue "failure $failures"
    else
        echo "lambert: failure $failures: cannot store this count in the job's comment, so the job is not requeued; submit it again" >&2
    fi
    ;;
esac
exit "$code"
"#;

#[cfg(test)]
mod tests {
    use super::*;
    use lambert_config::run::Slurm;
    use std::process::Command;

    const JOB: ScriptParams<'_> = ScriptParams {
        run: "/runs/it's a \"run\"",
        lambert: "/opt/lam bert/lambert",
        folder: "/home/me",
        cpus_per_rank: 6,
    };

    fn config() -> RunConfig {
        let mut config = RunConfig::default();
        (config.run.name, config.cluster.ranks) = ("a \"b\" c's".to_owned(), 8);
        (config.slurm.nodes, config.slurm.gpus_per_node, config.slurm.exclusive) = (2, 4, true);
        (config.slurm.time, config.slurm.partition) = (Some("1-0".to_owned()), Some("gpu".to_owned()));
        config.slurm.prologue = vec!["module load cuda".to_owned()];
        config.slurm.options = vec!["--mail-type=END".to_owned()];
        config
    }

    #[test]
    fn all_requested_options_are_in_the_script() {
        let script = render(&config(), &JOB).unwrap();
        let head = r##"#!/bin/bash
#SBATCH "--job-name=a \"b\" c's"
#SBATCH --nodes=2
#SBATCH --ntasks=8
#SBATCH --ntasks-per-node=4
#SBATCH --cpus-per-task=6
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
        assert!(rest.starts_with("# Forward only the first signal"), "{rest}");
        assert!(rest.contains("trap 'forward_signal TERM' TERM\nmodule load cuda\n\ncode=75\n"), "{rest}");
        assert!(script.contains(r#"'/opt/lam bert/lambert' run --run '/runs/it'\''s a "run"' &"#), "{script}");
    }

    #[test]
    fn shellcheck_finds_no_issue() {
        directives::shellcheck(&render(&config(), &JOB).unwrap());
    }

    /// Run names and paths cannot add lines to the script.
    #[test]
    fn control_characters_are_rejected_in_every_directive() {
        let text = "a\ntouch /tmp/x";
        let mut configs: Vec<RunConfig> = (0..8).map(|_| config()).collect();
        configs[0].run.name = text.into();
        for (config, set) in configs[1..].iter_mut().zip([
            |slurm: &mut Slurm, text: String| slurm.partition = Some(text),
            |slurm: &mut Slurm, text: String| slurm.account = Some(text),
            |slurm: &mut Slurm, text: String| slurm.qos = Some(text),
            |slurm: &mut Slurm, text: String| slurm.constraint = Some(text),
            |slurm: &mut Slurm, text: String| slurm.output = text,
            |slurm: &mut Slurm, text: String| slurm.export = vec![text],
            |slurm: &mut Slurm, text: String| slurm.options = vec![text],
        ]) {
            set(&mut config.slurm, text.to_owned());
        }
        for config in configs {
            let error = render(&config, &JOB).unwrap_err().to_string();
            assert!(error.contains(r"a\ntouch /tmp/x") && error.contains("has a control character"), "{error}");
        }
        let error = render(&config(), &ScriptParams { folder: "/home/me\r/x", ..JOB }).unwrap_err().to_string();
        assert!(error.contains(r"--chdir=/home/me\r/x"), "{error}");
    }

    /// Extracts the shell function from the script and tests it.
    #[test]
    fn only_the_failure_count_of_lambert_is_read_from_a_comment() {
        let script = render(&config(), &JOB).unwrap();
        let function = script.split_once("\nread_comment() {").unwrap().1.split_once("\n}\n").unwrap().0;
        let read = |comment: &str| {
            let line = format!(
                "read_comment() {{{function}\n}}\nread_comment \"$1\"; printf '%s|%s' \"$failures\" \"$others\""
            );
            let output = Command::new("bash").args(["-euc", &line, "bash", comment]).output().unwrap();
            assert!(output.status.success(), "{comment}: {}", String::from_utf8_lossy(&output.stderr));
            String::from_utf8(output.stdout).unwrap()
        };
        assert_eq!(read(""), "0|");
        assert_eq!(read("(null)"), "0|");
        assert_eq!(read("lambert: 3 failures"), "3|");
        assert_eq!(read("lambert: 08 failures"), "8|", "no octal number");
        assert_eq!(read("project 2026"), "0|project 2026");
        assert_eq!(read("project 2026; lambert: 2 failures"), "2|project 2026");
        for other in ["my lambert: 2 failures", "lambert: 2 failures; mine", "lambert: x failures", "lambert: 2"] {
            assert_eq!(read(other), format!("0|{other}"));
        }
    }
}
