//! Open MPI's mpirun, versions 4 (ORTE) and 5 (PRRTE).

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::output::OpenMpiParser;
use super::processes::ExitSignal;
use super::scratch::ScratchDirs;
use super::{CommandLine, LaunchError, LaunchParams, Launcher, OutputParser};
use crate::decide::Placement;

/// The mpirun program in PATH.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mpirun {
    /// Open MPI version, e.g. `4.1.4`.
    pub version: String,
    /// True if this process runs as root, which Open MPI rejects without an extra flag.
    root: bool,
    /// True if PATH has no ssh and no rsh, and the environment names no other program for mpirun.
    without_ssh: bool,
}

/// Environment variables that choose how Open MPI 4 starts processes on other hosts.
const REMOTE_START_VARIABLES: [&str; 2] = ["OMPI_MCA_plm", "OMPI_MCA_plm_rsh_agent"];

impl Mpirun {
    /// Determines the version of the mpirun in PATH.
    pub fn find(ranks: usize) -> Result<Self, LaunchError> {
        let asked = Command::new("mpirun").arg("--version").output();
        let output = asked.map_err(|source| LaunchError::NoMpirun { ranks, source })?;
        let text = String::from_utf8_lossy(if output.stdout.is_empty() { &output.stderr } else { &output.stdout });
        let root = rustix::process::geteuid().is_root();
        let is_missing = |name: &&str| !in_path(name).is_absolute();
        let without_ssh = ["ssh", "rsh"].iter().all(is_missing)
            && REMOTE_START_VARIABLES.iter().all(|name| std::env::var_os(name).is_none());
        match version(&text) {
            Some(version) => Ok(Self { version: version.to_owned(), root, without_ssh }),
            None => {
                let version_line = text.lines().next().unwrap_or_default().trim().to_owned();
                Err(LaunchError::OtherMpi { program: in_path("mpirun"), version_line })
            }
        }
    }

    /// True for Open MPI 5, which starts ranks through PRRTE. The parameters of PRRTE have other names.
    fn is_five(&self) -> bool {
        self.version.starts_with("5.")
    }
}

/// Parses the version output. Returns `None` if the version is not supported.
fn version(text: &str) -> Option<&str> {
    let version = text.lines().next()?.trim().strip_prefix("mpirun (Open MPI) ")?;
    ["4.", "5."].iter().any(|known| version.starts_with(known)).then_some(version)
}

/// Returns the path of a program in PATH, or its name if PATH does not contain it.
fn in_path(name: &str) -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).map(|folder| folder.join(name)).find(|program| program.is_file());
    found.unwrap_or_else(|| name.into())
}

impl Launcher for Mpirun {
    fn name(&self) -> String {
        format!("mpirun (Open MPI {})", self.version)
    }

    fn command(&self, start: &LaunchParams<'_>) -> CommandLine {
        let mut line: CommandLine = ["mpirun", "-n", &start.attempt.world.to_string()].map(OsString::from).into();
        line.extend(["--oversubscribe", "--bind-to", "none", "--tag-output"].map(OsString::from));
        if self.root {
            line.push("--allow-run-as-root".into());
        }
        line.extend(self.scratch(start.scratch));
        let names_component = |argument: &String| argument.starts_with("plm");
        if self.without_ssh
            && !self.is_five()
            && start.attempt.placement == Placement::Here
            && !start.cluster.mpirun_arguments.iter().any(names_component)
        {
            // Open MPI 4 fails without ssh even if all ranks are on this host. Version 5 does not.
            line.extend(["--mca", "plm", "^rsh"].map(OsString::from));
        }
        if let Placement::Hosts(hosts) = &start.attempt.placement {
            let hosts: Vec<String> = hosts.iter().map(|host| format!("{}:{}", host.name, host.ranks)).collect();
            // Mapping by slot fills the hosts in order, so that the host of each rank is known.
            line.extend(["--host".into(), OsString::from(hosts.join(",")), "--map-by".into(), "slot".into()]);
        }
        for variable in start.variables {
            line.extend(["-x", variable].map(OsString::from));
        }
        line.extend(start.cluster.mpirun_arguments.iter().map(OsString::from));
        line.extend(start.worker_line());
        line.extend(start.scratch.folders().into_iter().flat_map(|folder| ["--session".into(), folder.into()]));
        line
    }

    /// The coordinator creates these directories, because mpirun would also use an existing directory of another user.
    fn folders<'a>(&self, scratch: &'a ScratchDirs) -> Vec<&'a Path> {
        scratch.folders().into()
    }

    fn parser(&self) -> Box<dyn OutputParser> {
        Box::new(OpenMpiParser::default())
    }

    /// SIGINT, because mpirun kills all ranks at once on SIGTERM. A service manager may send SIGTERM to every process.
    fn exit_signal(&self) -> ExitSignal {
        ExitSignal::Interrupt
    }
}

impl Mpirun {
    fn scratch(&self, scratch: &ScratchDirs) -> [OsString; 6] {
        let (kind, files, memory) = match self.is_five() {
            true => ("--prtemca", "prte_tmpdir_base", "btl_sm_backing_directory"),
            false => ("--mca", "orte_tmpdir_base", "btl_vader_backing_directory"),
        };
        let ScratchDirs { files: tmp, memory: shm } = scratch;
        [kind.into(), files.into(), tmp.into(), "--mca".into(), memory.into(), shm.into()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decide::Attempt;
    use lambert_config::run::{Cluster, Host};

    fn line(version: &str, root: bool, placement: Placement) -> String {
        line_of(version, root, false, placement)
    }

    fn line_of(version: &str, root: bool, without_ssh: bool, placement: Placement) -> String {
        let cluster =
            Cluster { mpirun_arguments: vec!["--mca".into(), "btl".into(), "tcp,self".into()], ..Cluster::default() };
        let start = LaunchParams {
            attempt: &Attempt { number: 3, world: 2, placement },
            cluster: &cluster,
            cpus_per_rank: 1,
            worker: Path::new("/bin/lambert-worker"),
            run: "/runs/a",
            variables: &["LAMBERT_CONTROL_URL".to_owned(), "AWS_REGION".to_owned()],
            scratch: &ScratchDirs { files: "/tmp/s".into(), memory: "/dev/shm/s".into() },
            logs: Some(Path::new("/tmp/l")),
            traced: Some(&(10..15)),
        };
        let line = Mpirun { version: version.to_owned(), root, without_ssh }.command(&start);
        line.into_iter().map(|word| word.into_string().unwrap()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn mpirun_command_line() {
        let hosts = ["a", "b"].map(|name| Host { name: name.into(), ranks: 1 }).into();
        assert_eq!(
            line("4.1.4", false, Placement::Hosts(hosts)),
            "mpirun -n 2 --oversubscribe --bind-to none --tag-output --mca orte_tmpdir_base /tmp/s --mca btl_vader_backing_directory /dev/shm/s \
             --host a:1,b:1 --map-by slot -x LAMBERT_CONTROL_URL -x AWS_REGION --mca btl tcp,self \
             /bin/lambert-worker train --run /runs/a --attempt 3 --world 2 --logs /tmp/l --trace 10..15 \
             --session /tmp/s --session /dev/shm/s"
        );
        let five = line("5.0.11", true, Placement::Here);
        assert!(
            five.contains(" --prtemca prte_tmpdir_base /tmp/s --mca btl_sm_backing_directory /dev/shm/s -x "),
            "{five}"
        );
        assert!(
            five.contains(" --allow-run-as-root ") && !five.contains("orte_tmpdir_base") && !five.contains("--host"),
            "{five}"
        );
    }

    #[test]
    fn local_ranks_of_open_mpi_4_need_no_ssh() {
        let has_option = |version: &str, placement| line_of(version, false, true, placement).contains("--mca plm ^rsh");
        assert!(has_option("4.1.4", Placement::Here));
        assert!(!has_option("5.0.11", Placement::Here));
        assert!(!has_option("4.1.4", Placement::Hosts([Host { name: "a".into(), ranks: 2 }].into())));
        assert!(!line("4.1.4", false, Placement::Here).contains("plm"));
    }

    #[test]
    fn only_open_mpi_4_and_5_are_supported() {
        assert_eq!(version("mpirun (Open MPI) 4.1.4\n\nReport bugs to ..."), Some("4.1.4"));
        assert_eq!(version("mpirun (Open MPI) 5.0.11\n"), Some("5.0.11"));
        // Outputs of MPICH, Intel MPI and a later Open MPI, and an empty output.
        for other in ["HYDRA build details:\n", "Intel(R) MPI Library for Linux* OS", "mpirun (Open MPI) 6.0.0", ""] {
            assert_eq!(version(other), None, "{other}");
        }
    }
}
