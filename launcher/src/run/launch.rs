//! Launchers for the ranks of an attempt. Only this module knows command-line flags, output formats and process trees.
//! The rest of the coordinator uses attempts and events.
//!
//! - [`descendants`]: descendants of this process that belong to an attempt
//! - [`direct`]: a single rank as a child process; [`mpirun`]: Open MPI 4 and 5; [`output`]: parser of the output of
//!   mpirun; [`srun`]: a Slurm job step
//! - [`environment`]: environment variables for ranks on other hosts; [`lines`]: lines of an output stream
//! - [`processes`]: process trees, and their complete termination; [`scratch`]: scratch directories of Open MPI
//! - [`workers`]: the running processes of an attempt

pub mod descendants;
pub mod direct;
pub mod environment;
pub mod lines;
pub mod mpirun;
pub mod output;
pub mod processes;
pub mod scratch;
pub mod srun;
pub mod workers;

use std::ffi::OsString;
use std::fmt::Debug;
use std::ops::Range;
use std::path::{Path, PathBuf};

use lambert_config::run::{Backend, Cluster, LauncherKind};

use crate::decide::{Attempt, WorkerEvent};
use crate::slurm::record::is_in_job;
use direct::Direct;
use mpirun::Mpirun;
use processes::ExitSignal;
use scratch::ScratchDirs;
use srun::Srun;

/// A command line: the program and its arguments. Contains no secrets.
pub type CommandLine = Vec<OsString>;

/// Parameters of a launch.
#[derive(Debug, Clone, Copy)]
pub struct LaunchParams<'a> {
    /// Attempt to start. Its lease is already taken.
    pub attempt: &'a Attempt,
    /// Cluster configuration.
    pub cluster: &'a Cluster,
    /// CPUs of each rank in a Slurm job.
    pub cpus_per_rank: usize,
    /// Path of lambert-worker.
    pub worker: &'a Path,
    /// URL of the run.
    pub run: &'a str,
    /// Names of the environment variables to pass to all ranks.
    pub variables: &'a [String],
    /// Directories on each host for temporary files of the launcher and of MPI.
    pub scratch: &'a ScratchDirs,
    /// Log directory on each host, if enabled.
    pub logs: Option<&'a Path>,
    /// Steps to trace on each rank, if any.
    pub traced: Option<&'a Range<u64>>,
}

impl LaunchParams<'_> {
    /// Command line of lambert-worker.
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

/// A program that starts ranks.
pub trait Launcher: Debug {
    /// Name and version.
    fn name(&self) -> String;
    /// Command line that starts an attempt.
    fn command(&self, start: &LaunchParams<'_>) -> CommandLine;
    /// Directories that must exist on this host before the command runs.
    fn folders<'a>(&self, _scratch: &'a ScratchDirs) -> Vec<&'a Path> {
        Vec::new()
    }
    /// Creates a parser for one output stream of the launcher.
    fn parser(&self) -> Box<dyn OutputParser>;
    /// Signal that makes the launcher terminate its ranks.
    fn exit_signal(&self) -> ExitSignal {
        ExitSignal::Terminate
    }
}

/// Parses an output stream of a launcher, line by line.
pub trait OutputParser: Send {
    /// Returns the events in a line, or in the start of a long line.
    fn line(&mut self, text: &str) -> Vec<WorkerEvent>;
    /// Returns the events in the next piece of a long line.
    fn continuation(&mut self, text: &str) -> Vec<WorkerEvent>;
    /// Returns the remaining events at the end of the stream.
    fn end(&mut self) -> Vec<WorkerEvent>;
}

/// No usable launcher.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// mpirun cannot be started.
    #[error("cannot start mpirun, required for {ranks} ranks; install Open MPI 4 or 5, or add its mpirun to PATH")]
    NoMpirun {
        /// Number of ranks.
        ranks: usize,
        /// System error.
        source: std::io::Error,
    },
    /// mpirun is not from Open MPI 4 or 5.
    #[error("{} is not Open MPI 4 or 5, its version is {version_line:?}; put Open MPI's mpirun first in PATH", program.display())]
    OtherMpi {
        /// Path of mpirun.
        program: PathBuf,
        /// First line of its version output.
        version_line: String,
    },
    /// srun is configured, but this process does not run in a Slurm job.
    #[error("cluster.launcher is srun, but this is not a Slurm job: start one with `sbatch` or `salloc`")]
    NoJob,
    /// srun cannot be started.
    #[error("cannot start srun")]
    NoSrun {
        /// System error.
        source: std::io::Error,
    },
    /// srun lacks PMIx, so the ranks cannot connect to each other.
    #[error("srun of Slurm {version} has no PMIx (see `srun --mpi=list`); set cluster.launcher = \"mpirun\"")]
    NoPmix {
        /// Slurm version.
        version: String,
    },
}

/// Selects the configured launcher.
pub fn choose(cluster: &Cluster) -> Result<Box<dyn Launcher>, LaunchError> {
    match cluster.launcher {
        LauncherKind::Direct => Ok(Box::new(Direct)),
        LauncherKind::Mpirun => Ok(Box::new(Mpirun::find(cluster.ranks)?)),
        LauncherKind::Srun => Ok(Box::new(Srun::find()?)),
        LauncherKind::Auto if is_alone(cluster) => Ok(Box::new(Direct)),
        LauncherKind::Auto if is_in_job() && cluster.hosts.is_empty() => match Srun::find() {
            Ok(srun) => Ok(Box::new(srun)),
            // srun may be missing, for example inside a container.
            Err(error) => {
                tracing::warn!("starting the workers with mpirun: {}", crate::failure::chain(&error));
                Ok(Box::new(Mpirun::find(cluster.ranks)?))
            }
        },
        LauncherKind::Auto => Ok(Box::new(Mpirun::find(cluster.ranks)?)),
    }
}

/// True if the run has a single rank, on this host, and does not need MPI for the all-reduce.
fn is_alone(cluster: &Cluster) -> bool {
    let local = matches!(cluster.all_reduce.backend, Backend::Auto | Backend::Local);
    cluster.ranks == 1 && cluster.hosts.is_empty() && local
}
