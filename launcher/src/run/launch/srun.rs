//! Slurm's srun with PMIx. The ranks are a step of the Slurm job in which the coordinator runs.

use std::ffi::OsString;
use std::process::Command;

use super::{CommandLine, LaunchError, LaunchParams, Launcher, OutputParser};
use crate::decide::{Placement, RankDeath, WorkerEvent};
use crate::slurm::record::is_in_job;

/// The srun program in PATH, for use inside a Slurm job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Srun {
    /// Slurm version, e.g. `22.05.8`.
    pub version: String,
}

impl Srun {
    /// Determines the version of the srun in PATH and checks its PMIx support.
    pub fn find() -> Result<Self, LaunchError> {
        if !is_in_job() {
            return Err(LaunchError::NoJob);
        }
        let asked = |flag: &str| {
            let output = Command::new("srun").arg(flag).output().map_err(|source| LaunchError::NoSrun { source })?;
            // srun prints the list of plugins to stderr.
            Ok(String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr))
        };
        let version = asked("--version")?.trim().trim_start_matches("slurm ").to_owned();
        let plugins = asked("--mpi=list")?;
        match plugins.split_whitespace().any(|plugin| plugin == "pmix") {
            true => Ok(Self { version }),
            false => Err(LaunchError::NoPmix { version }),
        }
    }
}

impl Launcher for Srun {
    fn name(&self) -> String {
        format!("srun (Slurm {})", self.version)
    }

    fn command(&self, start: &LaunchParams<'_>) -> CommandLine {
        let world = start.attempt.world;
        let mut line: CommandLine = vec!["srun".into(), "--mpi=pmix".into()];
        line.push(format!("--ntasks={world}").into());
        // Since Slurm 22.05, job steps do not inherit this option from the job.
        line.push(format!("--cpus-per-task={}", start.cpus_per_rank).into());
        line.extend(["--distribution=block", "--cpu-bind=none"].map(OsString::from));
        if let Placement::Allocation(Some(left_out)) = &start.attempt.placement {
            // These options override the number of nodes of the job.
            line.extend(
                [format!("--nodes={}", left_out.used), format!("--exclude={}", left_out.nodes.join(","))]
                    .map(OsString::from),
            );
        }
        // With this option, the step starts even while processes of the previous step remain.
        line.push("--overlap".into());
        // When a rank dies, the coordinator terminates the step. srun would send SIGTERM to the other ranks, and these
        // ranks would report it as a signal from Slurm.
        line.extend(["--kill-on-bad-exit=0", "--label", "--unbuffered"].map(OsString::from));
        // The step gets the full environment. Otherwise the --export option of the job would also apply to its steps.
        // Open MPI 4 and 5 have different names for the shared-memory directory.
        let mut export = OsString::from("--export=ALL");
        for name in ["vader", "sm"] {
            export.push(format!(",OMPI_MCA_btl_{name}_backing_directory="));
            export.push(&start.scratch.memory);
        }
        line.push(export);
        line.extend(start.cluster.srun_arguments.iter().map(OsString::from));
        line.extend(start.worker_line());
        line.extend(["--session".into(), start.scratch.memory.clone().into()]);
        line
    }

    fn parser(&self) -> Box<dyn OutputParser> {
        Box::new(SrunParser::default())
    }
}

/// Separates the labelled lines of ranks from the lines of srun itself.
#[derive(Debug, Default)]
struct SrunParser {
    /// Rank of the last line. `None` if srun itself printed it.
    rank: Option<usize>,
}

impl OutputParser for SrunParser {
    fn line(&mut self, text: &str) -> Vec<WorkerEvent> {
        let labelled = labelled(text);
        self.rank = labelled.map(|(rank, _)| rank);
        if let Some((rank, printed)) = labelled {
            return vec![WorkerEvent::Line(rank, printed.to_owned())];
        }
        match death(text) {
            // srun names several nodes as `n[1-2]`.
            Some((_, nodes, death)) if nodes.contains(['[', ',']) => vec![WorkerEvent::Died(death)],
            Some((rank, node, death)) => vec![WorkerEvent::Node(rank, node.to_owned()), WorkerEvent::Died(death)],
            None if text.trim().is_empty() || is_banner(text) => Vec::new(),
            None => vec![WorkerEvent::Remark(text.trim().to_owned())],
        }
    }

    fn continuation(&mut self, text: &str) -> Vec<WorkerEvent> {
        // Nothing is expected of srun itself in a line of this length.
        self.rank.map(|rank| WorkerEvent::Line(rank, text.to_owned())).into_iter().collect()
    }

    fn end(&mut self) -> Vec<WorkerEvent> {
        Vec::new()
    }
}

/// Parses a line of a rank. `--label` formats it as `RANK: text` and pads the number to the width of the largest rank.
fn labelled(text: &str) -> Option<(usize, &str)> {
    let (rank, printed) = text.split_once(':')?;
    Some((rank.trim_start().parse().ok()?, printed.strip_prefix(' ').unwrap_or(printed)))
}

/// Parses the report of dead tasks. Returns the rank, the node and the death of the first task. Examples: `srun: error:
/// NODE: task 1: Killed`, `tasks 0-1: Exited with exit code 3`.
fn death(text: &str) -> Option<(usize, &str, RankDeath)> {
    let rest = text.strip_prefix("srun: error: ")?;
    let (node, rest) = rest.split_once(": task")?;
    let (tasks, how) = rest.trim_start_matches('s').trim_start().split_once(": ")?;
    let rank = tasks[..tasks.find(|c: char| !c.is_ascii_digit()).unwrap_or(tasks.len())].parse().ok()?;
    if let Some(code) = how.strip_prefix("Exited with exit code ") {
        return Some((rank, node, RankDeath::Exit { rank, code: code.trim().parse().ok()? }));
    }
    let name = how.trim().trim_end_matches(" (core dumped)");
    // The kernel kills the task with signal 9. Slurm reports the reason.
    if name == "Out Of Memory" {
        return Some((rank, node, RankDeath::OutOfMemory { rank }));
    }
    let (_, signal) = SIGNALS.iter().find(|(known, _)| *known == name)?;
    Some((rank, node, RankDeath::Signal { rank, signal: *signal }))
}

/// Names of signals in the C library.
const SIGNALS: [(&str, i32); 9] = [
    ("Hangup", 1),
    ("Interrupt", 2),
    ("Illegal instruction", 4),
    ("Aborted", 6),
    ("Bus error", 7),
    ("Floating point exception", 8),
    ("Killed", 9),
    ("Segmentation fault", 11),
    ("Terminated", 15),
];

/// True if a line only announces another message or a requested termination.
fn is_banner(text: &str) -> bool {
    const BANNERS: [&str; 4] = [
        "srun: launch/slurm: _step_signal: Terminating StepId=",
        "srun: Job step aborted: Waiting up to ",
        "srun: forcing job termination",
        "srun: Terminating StepId=",
    ];
    BANNERS.iter().any(|banner| text.starts_with(banner)) || text.contains(": error: *** STEP ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decide::{Attempt, ExcludedNodes};
    use crate::run::launch::scratch::ScratchDirs;
    use lambert_config::run::Cluster;
    use std::path::Path;

    fn line(placement: Placement) -> String {
        let cluster = Cluster { srun_arguments: vec!["--gpu-bind=none".into()], ..Cluster::default() };
        let start = LaunchParams {
            attempt: &Attempt { number: 3, world: 2, placement },
            cluster: &cluster,
            cpus_per_rank: 3,
            worker: Path::new("/bin/lambert-worker"),
            run: "/runs/a",
            variables: &["AWS_SECRET_ACCESS_KEY".to_owned()],
            scratch: &ScratchDirs { files: "/tmp/s".into(), memory: "/dev/shm/s".into() },
            logs: None,
            traced: None,
        };
        let line = Srun { version: "22.05.8".into() }.command(&start);
        line.into_iter().map(|word| word.into_string().unwrap()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn srun_command_line() {
        assert_eq!(
            line(Placement::Allocation(None)),
            "srun --mpi=pmix --ntasks=2 --cpus-per-task=3 --distribution=block --cpu-bind=none --overlap \
             --kill-on-bad-exit=0 --label --unbuffered \
             --export=ALL,OMPI_MCA_btl_vader_backing_directory=/dev/shm/s,OMPI_MCA_btl_sm_backing_directory=/dev/shm/s \
             --gpu-bind=none /bin/lambert-worker train --run /runs/a --attempt 3 --world 2 --session /dev/shm/s"
        );
    }

    #[test]
    fn failed_nodes_are_excluded() {
        let left_out = ExcludedNodes { nodes: vec!["n1".into(), "n3".into()], used: 2 };
        let line = line(Placement::Allocation(Some(left_out)));
        let expected = "--distribution=block --cpu-bind=none --nodes=2 --exclude=n1,n3 --overlap";
        assert!(line.contains(expected), "{line}");
    }

    // Output of Slurm 22.05.8.

    #[test]
    fn lines_exits_and_remarks_are_distinguished() {
        let line = |text: &str| SrunParser::default().line(text);
        assert_eq!(line("0: a: b"), [WorkerEvent::Line(0, "a: b".into())]);
        assert_eq!(line(" 7:"), [WorkerEvent::Line(7, String::new())]);
        assert_eq!(line("12: x"), [WorkerEvent::Line(12, "x".into())]);
        let died = |rank, node: &str, death| [WorkerEvent::Node(rank, node.into()), WorkerEvent::Died(death)];
        let signal = |rank, node, signal| died(rank, node, RankDeath::Signal { rank, signal });
        assert_eq!(line("srun: error: vm: task 1: Killed"), signal(1, "vm", 9));
        assert_eq!(line("srun: error: n2: tasks 4-7: Segmentation fault (core dumped)"), signal(4, "n2", 11));
        let several = [WorkerEvent::Died(RankDeath::Signal { rank: 0, signal: 15 })];
        assert_eq!(line("srun: error: n[1-2]: tasks 0-1: Terminated"), several);
        let memory = died(0, "vm", RankDeath::OutOfMemory { rank: 0 });
        assert_eq!(line("srun: error: vm: task 0: Out Of Memory"), memory);
        let exit = died(3, "n2", RankDeath::Exit { rank: 3, code: 74 });
        assert_eq!(line("srun: error: n2: tasks 3,5: Exited with exit code 74"), exit);
        assert_eq!(line("slurmstepd: error: *** STEP 1.0 ON n1 CANCELLED AT 2026-11-22T23:44:50 ***"), []);
        assert_eq!(line("srun: Job step aborted: Waiting up to 7 seconds for job step to finish."), []);
        let reported = "srun: error: Unable to create step for job 3: More processors requested than permitted";
        assert_eq!(line(reported), [WorkerEvent::Remark(reported.into())]);
        let mut parser = SrunParser::default();
        parser.line("3: aaa");
        assert_eq!(parser.continuation("7: b"), [WorkerEvent::Line(3, "7: b".into())]);
        parser.line(reported);
        assert_eq!(parser.continuation("a"), []);
    }
}
