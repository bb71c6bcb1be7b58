//! Tests of the batch script of a run.

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
    assert!(rest.contains("trap 'forward_signal TERM' TERM\nmodule load cuda\n\n# The prologue may have "), "{rest}");
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

/// A job whose commands are shell functions: `lambert`, those of Slurm, and `sleep`, which only advances the time.
struct FakeJob {
    folder: tempfile::TempDir,
}

/// The comment, the excluded nodes and the calls are files in the working directory.
const FAKES: &str = r#"
sleep() { SECONDS=$((SECONDS + $1)); }
squeue() { case $* in *%T*) echo RUNNING ;; *%k*) cat comment ;; *%x*) cat nodes ;; esac }
sinfo() { printf '%s\n' 'n1 mix' 'n2 alloc' 'n3 alloc' 'n4 idle' 'n5 down*' 'n6 idle' 'n7 drain'; }
sbatch() { echo "sbatch $*" >>calls; }
scontrol() {
    if [ "$1" = show ]; then echo "$3" | tr , '\n'; return; fi
    echo "$*" >>calls
    local change
    for change in "${@:3}"; do
        case $change in
        Comment=*) printf %s "${change#*=}" >comment ;;
        ExcNodeList=*) printf %s "${change#*=}" >nodes ;;
        esac
    done
}
"#;

impl FakeJob {
    fn new(comment: &str) -> Self {
        let job = Self { folder: tempfile::tempdir().unwrap() };
        job.set("comment", comment);
        job.set("nodes", "(null)");
        job
    }

    fn set(&self, file: &str, text: &str) {
        std::fs::write(self.folder.path().join(file), text).unwrap();
    }

    /// Runs the script with a coordinator that executes `coordinator`. The shell lines `slurm` may replace the functions.
    /// Returns the exit code and the log.
    fn run(&self, coordinator: &str, slurm: &str) -> (i32, String) {
        let mut config = config();
        config.slurm.prologue = vec![format!("{FAKES}\nlambert() {{ {coordinator}; }}\n{slurm}")];
        let script = render(&config, &ScriptParams { lambert: "lambert", ..JOB }).unwrap();
        let path = self.folder.path().join("script");
        std::fs::write(&path, script).unwrap();
        let mut bash = Command::new("bash");
        bash.arg("script").current_dir(self.folder.path()).env("TMPDIR", self.folder.path());
        bash.env("SLURM_JOB_ID", "12").env("SLURM_JOB_PARTITION", "gpu").env("SLURM_JOB_NUM_NODES", "3");
        let output = bash.env("SLURM_RESTART_COUNT", "1").env("SLURMD_NODENAME", "n2").output().unwrap();
        let left = std::fs::read_dir(self.folder.path()).unwrap().flatten();
        let left: Vec<_> =
            left.map(|file| file.file_name()).filter(|name| name.to_string_lossy().contains("tmp")).collect();
        assert_eq!(left, [""; 0], "files that the script left");
        (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
    }

    fn comment(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("comment")).unwrap()
    }

    /// Nodes that the job excludes.
    fn nodes(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("nodes")).unwrap()
    }

    /// Commands of scontrol since the last call of this function.
    fn calls(&self) -> String {
        let path = self.folder.path().join("calls");
        let calls = std::fs::read_to_string(&path).unwrap_or_default();
        let _ = std::fs::remove_file(path);
        calls
    }
}

/// Coordinator that fails after a checkpoint at a step.
fn fails_at(step: u64) -> String {
    format!("echo \"step {step}\" >\"$LAMBERT_JOB_REPORT\"; return 1")
}

#[test]
fn failures_are_counted_since_the_furthest_checkpoint() {
    let job = FakeJob::new("project x");
    let requeue = "requeue 12\n";
    for (coordinator, comment, is_requeued) in [
        (fails_at(0), "lambert: 1 failures, step 0", true),
        (fails_at(10), "lambert: 1 failures, step 10", true),
        (fails_at(10), "lambert: 2 failures, step 10", true),
        ("kill -9 $BASHPID".to_owned(), "lambert: 3 failures, step 10", true),
        (fails_at(300), "lambert: 1 failures, step 300", true),
        // A rollback has invalidated checkpoints.
        (fails_at(200), "lambert: 2 failures, step 300", true),
        (fails_at(300), "lambert: 3 failures, step 300", true),
        (fails_at(299), "lambert: 3 failures, step 300", false),
        (fails_at(301), "lambert: 1 failures, step 301", true),
    ] {
        let (code, log) = job.run(&coordinator, "");
        assert_eq!((code, job.comment()), (1, format!("project x; {comment}")), "{log}");
        assert_eq!(job.calls().ends_with(requeue), is_requeued, "{log}");
    }
}

/// Versions up to 0.2 store no step.
#[test]
fn a_count_without_a_step_is_continued() {
    let job = FakeJob::new("lambert: 2 failures");
    job.run(&fails_at(10), "");
    assert_eq!(job.comment(), "lambert: 3 failures, step 10");
    let job = FakeJob::new("lambert: 2 failures");
    job.run("return 1", "");
    assert_eq!(job.comment(), "lambert: 3 failures", "a coordinator of such a version writes no report");
}

#[test]
fn a_job_that_slurm_ends_or_requeues_is_not_counted() {
    for state in ["COMPLETING", "PENDING", "CANCELLED", "NODE_FAIL", "PREEMPTED", "TIMEOUT"] {
        let job = FakeJob::new("project x");
        let (code, log) = job.run(&fails_at(10), &format!("squeue() {{ echo {state}; }}"));
        assert_eq!((code, log.as_str(), job.comment().as_str(), job.calls().as_str()), (1, "", "project x", ""));
    }
    let job = FakeJob::new("project x");
    let (code, log) = job.run("return 75", "");
    assert_eq!((code, log.as_str()), (75, "lambert: stopped by the time limit or a preemption: requeuing the job\n"));
    assert_eq!((job.comment().as_str(), job.calls().as_str()), ("project x", "requeue 12\n"));
    let (code, log) = job.run("return 70", "");
    assert_eq!((code, log.as_str(), job.calls().as_str()), (70, "", ""));
}

/// Shell lines: Slurm cannot be contacted for the first `calls` calls of squeue. Each pause takes a hundred times as long.
fn outage(calls: u32) -> String {
    format!(
        r#"sleep() {{ SECONDS=$((SECONDS + 100 * $1)); }}
squeue() {{
    echo >>attempts
    if [ "$(wc -l <attempts)" -le {calls} ]; then
        echo 'slurm_load_jobs error: Unable to contact slurm controller (connect failure)' >&2
        return 1
    fi
    echo RUNNING
}}"#
    )
}

#[test]
fn a_job_waits_hours_for_the_slurm_controller() {
    let job = FakeJob::new("");
    let (code, log) = job.run("return 75", &outage(8));
    assert_eq!((code, job.calls().as_str()), (75, "requeue 12\n"), "{log}");
    let job = FakeJob::new("");
    let (code, log) = job.run("return 75", &outage(u32::MAX));
    assert_eq!((code, job.calls().as_str()), (75, ""), "{log}");
    // Pauses of 200, 400, 800 and then 1,000 s.
    let attempts = std::fs::read_to_string(job.folder.path().join("attempts")).unwrap();
    assert_eq!(attempts.lines().count(), 10, "{log}");
    let expected = "slurm_load_jobs error: Unable to contact slurm controller (connect failure)\n\
                    lambert: cannot query the job state from Slurm, so the job is not requeued; submit it again\n";
    assert_eq!(log, expected);
}

#[test]
fn a_refusal_of_slurm_is_final() {
    let requeue = |text: &str| {
        let job = FakeJob::new("");
        let refused = format!("scontrol() {{ echo \"$*\" >>calls; echo '{text}' >&2; return 1; }}");
        let (code, log) = job.run("return 75", &refused);
        assert!(code == 75 && log.ends_with("Slurm did not requeue the job; submit it again\n"), "{log}");
        job.calls().lines().count()
    };
    assert_eq!(requeue("slurm_requeue error: Access/permission denied"), 1);
    assert_eq!(requeue("Requested operation is presently disabled for job 12"), 1);
    assert_eq!(requeue("slurm_requeue error: Resource temporarily unavailable"), 7, "retries for two minutes");
}

/// The controller has requeued the job, but its reply was lost. A second request would be refused.
#[test]
fn a_lost_reply_to_a_requeue_is_no_failure() {
    let job = FakeJob::new("");
    let lost = r#"
squeue() { if [ -e calls ]; then echo COMPLETING; else echo RUNNING; fi; }
scontrol() { echo "$*" >>calls; echo 'Unable to contact slurm controller (receive failure)' >&2; return 1; }"#;
    let (code, log) = job.run("return 75", lost);
    assert_eq!((code, job.calls().as_str()), (75, "requeue 12\n"), "{log}");
    assert!(!log.contains("did not requeue"), "{log}");
}

/// Coordinator that is stopped by the time limit. The next start excludes `nodes`.
fn excludes(nodes: &str) -> String {
    format!("printf 'step 7\\nexclude {nodes}\\n' >\"$LAMBERT_JOB_REPORT\"; return 75")
}

/// The job needs three nodes. Of seven, five are up.
#[test]
fn failed_nodes_are_excluded_after_the_requeue() {
    let job = FakeJob::new("project x; lambert: 2 failures, step 7");
    let (_, log) = job.run(&excludes("n3"), "");
    let comment = "project x; lambert: 2 failures, step 7, excluded n3";
    assert_eq!(
        job.calls(),
        format!(
            "sbatch --test-only --exclude=n3 script\nrequeue 12\nupdate JobId=12 ExcNodeList=n3 Comment={comment}\n"
        )
    );
    assert!(log.contains("requeuing the job\nlambert: excluded nodes of the next start: n3\n"), "{log}");
    assert_eq!((job.comment().as_str(), job.nodes().as_str()), (comment, "n3"));
    // Nothing changes at the next end.
    job.run(&excludes("n3"), "");
    assert_eq!(job.calls(), "requeue 12\n");
    // A failure keeps the nodes while it is counted.
    job.run("printf 'step 7\\nexclude n3 n5\\n' >\"$LAMBERT_JOB_REPORT\"; return 1", "");
    let comment = "project x; lambert: 3 failures, step 7, excluded n3";
    let update = "update JobId=12 ExcNodeList=n3,n5";
    assert_eq!(
        job.calls(),
        format!(
            "update JobId=12 Comment={comment}\nsbatch --test-only --exclude=n3,n5 script\nrequeue 12\n{update} Comment={comment},n5\n"
        )
    );
    // The failures were long ago. A user has excluded another node meanwhile.
    job.set("nodes", "n3,n6,n5");
    job.run(&excludes(""), "");
    assert_eq!((job.comment().as_str(), job.nodes().as_str()), ("project x; lambert: 3 failures, step 7", "n6"));
}

#[test]
fn a_job_keeps_enough_nodes() {
    let excluded = |by_user: &str, failed: &str, slurm: &str| {
        let job = FakeJob::new("");
        job.set("nodes", by_user);
        let (code, log) = job.run(&excludes(failed), slurm);
        assert!(code == 75 && job.calls().contains("requeue 12\n"), "{log}");
        (job.nodes(), job.comment(), log)
    };
    let (nodes, comment, _) = excluded("(null)", "n3 n1", "");
    assert_eq!((nodes.as_str(), comment.as_str()), ("n3,n1", "lambert: 0 failures, excluded n3,n1"));
    let (nodes, _, log) = excluded("n6", "n3 n1", "");
    assert_eq!(nodes, "n6,n3");
    assert!(log.contains("node n1 is not excluded, because partition gpu has too few other nodes"), "{log}");
    assert_eq!(excluded("n6,n4", "n5 n3", "").0, "n6,n4,n5", "n5 is down");
    let (nodes, comment, log) = excluded("n3", "n3 elsewhere", "");
    assert_eq!((nodes.as_str(), comment.as_str()), ("n3", ""), "{log}");
    let (nodes, _, log) = excluded("n6", "n3", "sbatch() { return 1; }");
    assert!(nodes == "n6" && log.contains("n3: not excluded, because the job could then never start"), "{log}");
    for fails in ["sinfo() { return 1; }", "scontrol() { echo \"$*\" >>calls; [ \"$1\" = requeue ]; }"] {
        assert_eq!(excluded("n6", "n3", fails).0, "n6", "{fails}");
    }
}

/// Slurm sends SIGTERM to all processes of a job that it requeues, also to subshells of the script.
#[test]
fn signals_do_not_change_the_comment() {
    let job = FakeJob::new("project x");
    let signals = "printf() { kill -s TERM \"$BASHPID\"; builtin printf \"$@\"; }";
    let (code, log) = job.run("echo 'exclude n3' >\"$LAMBERT_JOB_REPORT\"; return 1", signals);
    assert_eq!(code, 1, "{log}");
    assert_eq!(
        (job.comment().as_str(), job.nodes().as_str()),
        ("project x; lambert: 1 failures, excluded n3", "n3"),
        "{log}"
    );
}

/// A job that stops at its time limit has progress, too.
#[test]
fn progress_between_failures_starts_the_count_again() {
    let job = FakeJob::new("lambert: 2 failures");
    let stops_at = |step: u64| format!("echo \"step {step}\" >\"$LAMBERT_JOB_REPORT\"; return 75");
    for (step, comment) in [
        (100, "lambert: 2 failures, step 100"),
        (100, "lambert: 2 failures, step 100"),
        (200, "lambert: 0 failures, step 200"),
    ] {
        let (code, log) = job.run(&stops_at(step), "");
        assert_eq!((code, job.comment().as_str()), (75, comment), "{log}");
    }
    job.run(&fails_at(200), "");
    assert_eq!(job.comment(), "lambert: 1 failures, step 200");
}

/// A prologue may end the shell at errors. A comment of another program may be in another encoding.
#[test]
fn shell_options_and_encodings_do_not_change_the_count() {
    let job = FakeJob::new("");
    std::fs::write(job.folder.path().join("comment"), b"projekt \xfc; lambert: 1 failures").unwrap();
    let (code, log) = job.run("return 1", "export LC_ALL=C.UTF-8; set -e");
    assert_eq!(code, 1, "{log}");
    assert!(log.contains("failure 2: requeuing the job"), "{log}");
    assert_eq!(std::fs::read(job.folder.path().join("comment")).unwrap(), b"projekt \xfc; lambert: 2 failures");
}

/// The coordinator ends before it starts a rank, or does not start.
#[test]
fn a_node_without_a_working_coordinator_is_excluded() {
    for coordinator in ["return 2", "return 126", "return 127"] {
        let job = FakeJob::new("");
        let (code, log) = job.run(coordinator, "");
        assert_eq!((code, job.nodes().as_str()), (1, "n2"), "{coordinator}: {log}");
        assert_eq!(job.comment(), "lambert: 1 failures, excluded n2");
    }
    // Nodes that are excluded remain so, as long as no report of a coordinator says otherwise.
    let job = FakeJob::new("lambert: 1 failures, excluded n3");
    job.set("nodes", "n3");
    job.run("return 127", "");
    assert_eq!((job.comment().as_str(), job.nodes().as_str()), ("lambert: 2 failures, excluded n2,n3", "n2,n3"));
    job.run("return 1", "");
    assert_eq!(job.nodes(), "n2,n3");
    let job = FakeJob::new("");
    let (code, log) = job.run("return 2", "SLURM_RESTART_COUNT=0");
    assert_eq!((code, log.as_str(), job.calls().as_str()), (2, "", ""), "the first start of the job");
    let (code, log) = job.run("echo 'step 0' >\"$LAMBERT_JOB_REPORT\"; return 2", "");
    assert_eq!((code, log.as_str(), job.calls().as_str()), (2, "", ""), "the coordinator has decided");
}

/// Extracts the shell function from the script and tests it.
#[test]
fn only_the_failure_count_of_lambert_is_read_from_a_comment() {
    let script = render(&config(), &JOB).unwrap();
    let function = script.split_once("\nread_comment() {").unwrap().1.split_once("\n}\n").unwrap().0;
    let read = |comment: &str| {
        let print = "printf '%s|%s' \"$failures${counted_step:+@$counted_step}${excluded:+ -$excluded}\" \"$others\"";
        let line = format!("read_comment() {{{function}\n}}\nread_comment \"$1\"; {print}");
        let output = Command::new("bash").args(["-euc", &line, "bash", comment]).output().unwrap();
        assert!(output.status.success(), "{comment}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    assert_eq!(read(""), "0|");
    assert_eq!(read("(null)"), "0|");
    assert_eq!(read("lambert: 3 failures"), "3|");
    assert_eq!(read("lambert: 08 failures"), "8|", "no octal number");
    assert_eq!(read("lambert: 3 failures, step 080"), "3@080|");
    assert_eq!(read("a; lambert: 3 failures, step 80"), "3@80|a");
    assert_eq!(read("a; lambert: 3 failures, step 80, excluded n3,n-4"), "3@80 -n3 n-4|a");
    assert_eq!(read("lambert: 0 failures, excluded n3"), "0 -n3|");
    assert_eq!(read("project 2026"), "0|project 2026");
    assert_eq!(read("project 2026; lambert: 2 failures"), "2|project 2026");
    for other in [
        "my lambert: 2 failures",
        "lambert: 2 failures; mine",
        "lambert: x failures",
        "lambert: 2",
        "lambert: 2 failures, step x",
    ] {
        assert_eq!(read(other), format!("0|{other}"));
    }
}
