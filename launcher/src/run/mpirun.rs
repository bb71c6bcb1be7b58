//! How workers are started: mpirun's command line, and what mpirun says, read back.

use std::borrow::Cow;
use std::ffi::OsString;
use std::path::Path;

use lambert_config::control::{TOKEN_VARIABLE, URL_VARIABLE};
use lambert_config::run::{Backend, Cluster};

/// Where the workers of a run are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hosts {
    /// All on this host.
    This,
    /// On several.
    Several,
}

/// What is started.
#[derive(Debug, Clone, Copy)]
pub struct Start<'a> {
    /// The machines, as configured.
    pub cluster: &'a Cluster,
    /// The lambert-worker program.
    pub worker: &'a Path,
    /// The run's URL.
    pub run: &'a str,
    /// The attempt that the lease was taken for.
    pub attempt: u32,
    /// Whether this process is root, which Open MPI refuses unless told otherwise.
    pub root: bool,
    /// A folder of this attempt for Open MPI's session files, so that a killed one leaves nothing behind.
    pub session: Option<&'a Path>,
}

/// A command line: the program, then its arguments. It holds no secret.
pub type CommandLine = Vec<OsString>;

/// The command that starts the workers: mpirun, or for one rank the worker itself.
pub fn command(start: &Start<'_>) -> CommandLine {
    let mut line = if is_direct(start.cluster) { CommandLine::new() } else { mpirun(start) };
    let attempt = start.attempt.to_string();
    line.push(start.worker.into());
    line.extend(["train", "--run", start.run, "--attempt", &attempt].map(OsString::from));
    line
}

/// Whether one process is all there is, and mpirun is not needed.
pub fn is_direct(cluster: &Cluster) -> bool {
    cluster.ranks == 1 && matches!(cluster.backend, Backend::Auto | Backend::Local)
}

fn mpirun(start: &Start<'_>) -> CommandLine {
    let mut line: CommandLine = ["mpirun", "-n", &start.cluster.ranks.to_string()].map(OsString::from).into();
    line.extend(["--oversubscribe", "--bind-to", "none", "--tag-output"].map(OsString::from));
    if start.root {
        line.push("--allow-run-as-root".into());
    }
    if let Some(session) = start.session {
        line.extend(["--mca".into(), "orte_tmpdir_base".into(), session.into()]);
    }
    for variable in [URL_VARIABLE, TOKEN_VARIABLE] {
        line.extend(["-x", variable].map(OsString::from));
    }
    line.extend(start.cluster.mpirun_arguments.iter().map(OsString::from));
    line
}

/// Whether mpirun will reach beyond this host: by its arguments, or because a Slurm job has several nodes.
pub fn hosts(arguments: &[String], slurm_nodes: Option<&str>) -> Hosts {
    const NAMING: [&str; 8] =
        ["-H", "-host", "--host", "-hostfile", "--hostfile", "-machinefile", "--machinefile", "--default-hostfile"];
    let named = arguments.iter().any(|argument| NAMING.contains(&argument.as_str()));
    let nodes = slurm_nodes.and_then(|nodes| nodes.trim().parse::<u32>().ok()).unwrap_or(1);
    if named || nodes > 1 { Hosts::Several } else { Hosts::This }
}

/// A line that came from mpirun.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Line<'a> {
    /// A rank wrote it.
    Rank(usize, Cow<'a, str>),
    /// mpirun itself wrote it.
    Own(&'a str),
}

/// Tells a rank's line, which `--tag-output` marks as `[job,rank]<stream>:text`, from mpirun's own.
pub fn line(text: &str) -> Line<'_> {
    tagged(text).unwrap_or(Line::Own(text))
}

fn tagged(text: &str) -> Option<Line<'_>> {
    let (_job, rest) = text.strip_prefix('[')?.split_once(',')?;
    let (rank, rest) = rest.split_once("]<")?;
    let (stream, said) = rest.split_once(">:")?;
    if !["stdout", "stderr", "stddiag"].contains(&stream) {
        return None;
    }
    // A line that was written in pieces has a tag before each of them.
    let tag = &text[..text.len() - said.len()];
    let said = if said.contains(tag) { Cow::Owned(said.replace(tag, "")) } else { Cow::Borrowed(said) };
    Some(Line::Rank(rank.parse().ok()?, said))
}

/// How a rank died, as mpirun tells it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Abort {
    /// By this signal.
    Signal {
        /// The rank.
        rank: usize,
        /// The signal's number.
        signal: i32,
    },
    /// With this exit code.
    Exit {
        /// The rank.
        rank: usize,
        /// Its exit code.
        code: i32,
    },
}

/// Puts mpirun's own lines together: what they tell, without their banners.
#[derive(Debug, Default)]
pub struct Told {
    block: Option<Vec<String>>,
    /// How the first rank died, if mpirun says so.
    pub abort: Option<Abort>,
    /// What else it says, a paragraph each.
    pub remarks: Vec<String>,
}

impl Told {
    /// Takes in a line of mpirun's own. A rule of dashes opens and closes a paragraph.
    pub fn add(&mut self, text: &str) {
        let rule = text.len() >= 20 && text.bytes().all(|byte| byte == b'-');
        match (rule, self.block.as_mut()) {
            (true, None) => self.block = Some(Vec::new()),
            (true, Some(_)) => self.finish(),
            (false, Some(block)) => block.push(text.trim().to_owned()),
            (false, None) if text.trim().is_empty() => {}
            (false, None) => self.paragraph(text.trim().to_owned()),
        }
    }

    /// Takes the open paragraph for whole.
    pub fn finish(&mut self) {
        if let Some(block) = self.block.take() {
            let words: Vec<&str> = block.iter().flat_map(|line| line.split_whitespace()).collect();
            self.paragraph(words.join(" "));
        }
    }

    fn paragraph(&mut self, text: String) {
        if let Some(abort) = abort(&text) {
            self.abort.get_or_insert(abort);
        } else if !text.is_empty() && !is_banner(&text) {
            self.remarks.push(text);
        }
    }
}

/// Reads Open MPI 4's report of a rank's death, in one line.
fn abort(text: &str) -> Option<Abort> {
    if let Some(rest) = text.strip_prefix("mpirun noticed that process rank ") {
        let rank = number(rest)?;
        let signal = number(rest.split_once("exited on signal ")?.1)?;
        return Some(Abort::Signal { rank: usize::try_from(rank).ok()?, signal: i32::try_from(signal).ok()? });
    }
    // Process name: [[54471,1],1] Exit code: 3
    let rest = text.split_once("Process name: [[")?.1;
    let rank = number(rest.split_once("],")?.1)?;
    let code = number(rest.split_once("Exit code:")?.1)?;
    Some(Abort::Exit { rank: usize::try_from(rank).ok()?, code: i32::try_from(code).ok()? })
}

/// The number that `text` begins with.
fn number(text: &str) -> Option<u64> {
    let text = text.trim_start();
    text[..text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len())].parse().ok()
}

/// Whether a paragraph tells only that something else was told.
fn is_banner(text: &str) -> bool {
    const BANNERS: [&str; 4] = [
        "Primary job terminated normally, but ",
        "mpirun has exited due to process rank ",
        "MPI_ABORT was invoked on rank ",
        "Per user-direction, the job has been aborted",
    ];
    BANNERS.iter().any(|banner| text.starts_with(banner))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start(cluster: &Cluster, root: bool) -> Vec<String> {
        let start = Start {
            cluster,
            worker: Path::new("/bin/lambert-worker"),
            run: "/runs/a",
            attempt: 3,
            root,
            session: Some(Path::new("/tmp/s")),
        };
        command(&start).into_iter().map(|argument| argument.into_string().unwrap()).collect()
    }

    #[test]
    fn one_rank_needs_no_mpirun() {
        let worker = ["/bin/lambert-worker", "train", "--run", "/runs/a", "--attempt", "3"];
        assert_eq!(start(&Cluster::default(), true), worker);
        let mpi = Cluster { backend: Backend::Mpi, ..Cluster::default() };
        assert_eq!(start(&mpi, true)[0], "mpirun");
    }

    #[test]
    fn ranks_go_through_mpirun() {
        let cluster = Cluster { ranks: 2, mpirun_arguments: vec!["--host".into(), "a,b".into()], ..Cluster::default() };
        let line = start(&cluster, false).join(" ");
        assert_eq!(
            line,
            "mpirun -n 2 --oversubscribe --bind-to none --tag-output --mca orte_tmpdir_base /tmp/s \
             -x LAMBERT_CONTROL_URL -x LAMBERT_CONTROL_TOKEN --host a,b \
             /bin/lambert-worker train --run /runs/a --attempt 3"
        );
        assert!(start(&cluster, true).contains(&"--allow-run-as-root".to_owned()));
    }

    #[test]
    fn hosts_are_known_by_arguments_and_slurm() {
        let arguments = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(hosts(&arguments("--mca btl self"), None), Hosts::This);
        assert_eq!(hosts(&arguments("--host a,b"), None), Hosts::Several);
        assert_eq!(hosts(&[], Some("1")), Hosts::This);
        assert_eq!(hosts(&[], Some("2")), Hosts::Several);
    }

    #[test]
    fn lines_of_ranks_are_told_apart() {
        assert_eq!(line("[1,0]<stderr>:a: b"), Line::Rank(0, "a: b".into()));
        assert_eq!(line("[1,0]<stderr>:a[1,0]<stderr>:: b"), Line::Rank(0, "a: b".into()));
        assert_eq!(line("[1,12]<stdout>:"), Line::Rank(12, "".into()));
        assert_eq!(line("[vm:123] something"), Line::Own("[vm:123] something"));
        assert_eq!(line("[1,0] text"), Line::Own("[1,0] text"));
    }

    fn told(text: &str) -> Told {
        let mut told = Told::default();
        text.lines().for_each(|line| told.add(line));
        told.finish();
        told
    }

    const RULE: &str = "--------------------------------------------------------------------------";

    // The following texts are Open MPI 4.1.4's, as it printed them.

    #[test]
    fn death_by_signal() {
        let text = format!(
            "{RULE}\nPrimary job  terminated normally, but 1 process returned\na non-zero exit code. Per user-direction, \
             the job has been aborted.\n{RULE}\n{RULE}\nmpirun noticed that process rank 1 with PID 0 on node vm exited \
             on signal 9 (Killed).\n{RULE}\n"
        );
        let told = told(&text);
        assert_eq!(told.abort, Some(Abort::Signal { rank: 1, signal: 9 }));
        assert!(told.remarks.is_empty(), "{:?}", told.remarks);
    }

    #[test]
    fn death_with_an_exit_code() {
        let text = format!(
            "{RULE}\nmpirun detected that one or more processes exited with non-zero status, thus causing\nthe job to be \
             terminated. The first process to do so was:\n\n  Process name: [[54471,1],1]\n  Exit code:    3\n{RULE}"
        );
        assert_eq!(told(&text).abort, Some(Abort::Exit { rank: 1, code: 3 }));
    }

    #[test]
    fn anything_else_is_passed_on_whole() {
        let text = format!(
            "{RULE}\nmpirun was unable to launch the specified application as it could not access\nor execute an \
             executable:\n\nExecutable: /tmp/nope\nNode: vm\n\nwhile attempting to start process rank 0.\n{RULE}\n\
             2 total processes failed to start\n"
        );
        let told = told(&text);
        assert_eq!(told.abort, None);
        assert_eq!(told.remarks.len(), 2);
        assert!(told.remarks[0].ends_with("Executable: /tmp/nope Node: vm while attempting to start process rank 0."));
    }
}
