//! What starts the ranks of an attempt. Flags, prose and process trees live in here; the rest of the coordinator knows
//! attempts and events.
//!
//! - [`direct`]: one rank, started by the coordinator itself; [`mpirun`]: Open MPI 4 and 5, [`prose`] is what they print;
//!   [`srun`]: a step of a Slurm job
//! - [`environment`]: the variables that ranks on other hosts are given
//! - [`processes`]: a tree of processes that is ended to the last; [`session`]: where Open MPI keeps its files
//! - [`workers`]: an attempt's processes under way

pub mod direct;
pub mod environment;
pub mod mpirun;
pub mod processes;
pub mod prose;
pub mod session;
pub mod srun;
pub mod workers;

use std::ffi::OsString;
use std::fmt::Debug;
use std::ops::Range;
use std::path::{Path, PathBuf};

use lambert_config::run::{Backend, Cluster, LauncherKind};

use crate::decide::{Attempt, FromWorkers};
use crate::slurm::record::is_in_job;
use direct::Direct;
use mpirun::Mpirun;
use processes::EndBy;
use session::Session;
use srun::Srun;

/// A command line: the program, then its arguments. It holds no secret.
pub type CommandLine = Vec<OsString>;

/// What is started.
#[derive(Debug, Clone, Copy)]
pub struct Start<'a> {
    /// The attempt that the lease was taken for.
    pub attempt: &'a Attempt,
    /// The machines, as configured.
    pub cluster: &'a Cluster,
    /// CPU threads of a rank.
    pub threads: usize,
    /// The lambert-worker program.
    pub worker: &'a Path,
    /// The run's URL.
    pub run: &'a str,
    /// Names of the variables that all ranks are given.
    pub variables: &'a [String],
    /// Folders on each host for what the launcher and MPI keep there in this attempt.
    pub session: &'a Session,
    /// A folder on each host for files of what the ranks there print.
    pub logs: Option<&'a Path>,
    /// The steps that each rank writes a trace of, if there are any.
    pub traced: Option<&'a Range<u64>>,
}

impl Start<'_> {
    /// The worker's own command line.
    pub fn worker_line(&self) -> CommandLine {
        let (attempt, world) = (self.attempt.number.to_string(), self.attempt.world.to_string());
        let mut line = vec![self.worker.into()];
        line.extend(["train", "--run", self.run, "--attempt", &attempt, "--world", &world].map(OsString::from));
        line.extend(self.logs.into_iter().flat_map(|logs| ["--logs".into(), logs.into()]));
        let traced = self.traced.map(|steps| format!("{}..{}", steps.start, steps.end));
        line.extend(traced.into_iter().flat_map(|steps| ["--trace".into(), steps.into()]));
        line
    }
}

/// A way to start ranks.
pub trait Launcher: Debug {
    /// Its name and version, for people.
    fn name(&self) -> String;
    /// The command that starts an attempt.
    fn command(&self, start: &Start<'_>) -> CommandLine;
    /// Folders that must be there, on this host, before the command runs.
    fn folders<'a>(&self, _session: &'a Session) -> Vec<&'a Path> {
        Vec::new()
    }
    /// What understands a stream of its output.
    fn prose(&self) -> Box<dyn Prose>;
    /// How it is asked to end, so that it ends its ranks.
    fn end_by(&self) -> EndBy {
        EndBy::Terminate
    }
}

/// Understands a stream of a launcher's output, line by line.
pub trait Prose: Send {
    /// What a line tells.
    fn line(&mut self, text: &str) -> Vec<FromWorkers>;
    /// What the last lines told, at the end of the stream.
    fn end(&mut self) -> Vec<FromWorkers>;
}

/// Why there is no launcher.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// There is no mpirun.
    #[error("cannot start mpirun, which {ranks} ranks need (Open MPI 4 or 5)")]
    NoMpirun {
        /// Ranks.
        ranks: usize,
        /// Why not.
        source: std::io::Error,
    },
    /// mpirun is of another MPI.
    #[error("{} is not Open MPI 4 or 5, which is what lambert is started with; it says {says:?}", program.display())]
    OtherMpi {
        /// The program.
        program: PathBuf,
        /// The first line of what it says of its version.
        says: String,
    },
    /// srun is wanted outside a job.
    #[error("cluster.launcher is srun, and this is no Slurm job: `sbatch` and `salloc` begin one")]
    NoJob,
    /// There is no srun.
    #[error("cannot start srun")]
    NoSrun {
        /// Why not.
        source: std::io::Error,
    },
    /// Its tasks would not find each other.
    #[error("srun of Slurm {version} has no PMIx (`srun --mpi=list`); cluster.launcher = \"mpirun\" does without")]
    NoPmix {
        /// Slurm's version.
        version: String,
    },
}

/// The launcher that the configuration asks for.
pub fn choose(cluster: &Cluster) -> Result<Box<dyn Launcher>, LaunchError> {
    match cluster.launcher {
        LauncherKind::Direct => Ok(Box::new(Direct)),
        LauncherKind::Mpirun => Ok(Box::new(Mpirun::find(cluster.ranks)?)),
        LauncherKind::Srun => Ok(Box::new(Srun::find()?)),
        LauncherKind::Auto if is_alone(cluster) => Ok(Box::new(Direct)),
        LauncherKind::Auto if is_in_job() && cluster.hosts.is_empty() => match Srun::find() {
            Ok(srun) => Ok(Box::new(srun)),
            // In a container, say.
            Err(error) => {
                tracing::warn!("ranks are started by mpirun: {}", crate::failure::chain(&error));
                Ok(Box::new(Mpirun::find(cluster.ranks)?))
            }
        },
        LauncherKind::Auto => Ok(Box::new(Mpirun::find(cluster.ranks)?)),
    }
}

/// Whether one process on this host is all there is.
fn is_alone(cluster: &Cluster) -> bool {
    let local = matches!(cluster.all_reduce.backend, Backend::Auto | Backend::Local);
    cluster.ranks == 1 && cluster.hosts.is_empty() && local
}
