//! The launchers whose processes are ranks, a row each, and those whose processes are none. A rank takes from here all that it
//! knows of a launcher. (The coordinator's side has no MPI and is the package `lambert`: it knows command lines and output.)

use std::fmt;

/// A launcher, as the ranks that it starts know it.
#[derive(Debug, PartialEq, Eq)]
pub struct Launcher {
    /// Its name, as `cluster.launcher` has it.
    pub name: &'static str,
    /// Its name in messages.
    pub description: &'static str,
    /// Environment variables that identify a rank.
    pub variables: Variables,
    /// Names of its processes that may send SIGTERM to a rank, beside the rank's parent.
    pub processes: &'static [&'static str],
    /// True if it forwards the batch system's SIGTERM to ranks, so that its SIGTERM may not be a request to end them.
    pub passes_on_sigterm: bool,
}

/// The environment variables of a rank. All hold numbers but for a list of nodes.
#[derive(Debug, PartialEq, Eq)]
pub struct Variables {
    /// Without one variable of each group a process is no rank, whatever else is set.
    pub required: &'static [&'static [&'static str]],
    /// The rank's number, from 0.
    pub rank: &'static str,
    /// The number of ranks; the first that is set counts.
    pub size: &'static [&'static str],
    /// The rank's number among those of its node, from 0.
    pub local_rank: &'static str,
    /// The number of ranks on its node.
    pub local_size: LocalSize,
}

/// The way in which a launcher tells the number of ranks on a node.
#[derive(Debug, PartialEq, Eq)]
pub enum LocalSize {
    /// A variable has the number.
    Number(&'static str),
    /// A variable has the numbers of all nodes in Slurm's shorthand, such as `2(x3),1`, another the index of this node.
    OfNodes {
        /// The numbers.
        list: &'static str,
        /// The index.
        node: &'static str,
    },
}

/// Open MPI's mpirun, version 4 (ORTE) and 5 (PRRTE).
pub static MPIRUN: Launcher = Launcher {
    name: "mpirun",
    description: "Open MPI's mpirun",
    variables: Variables {
        required: &[],
        rank: "OMPI_COMM_WORLD_RANK",
        size: &["OMPI_COMM_WORLD_SIZE"],
        local_rank: "OMPI_COMM_WORLD_LOCAL_RANK",
        local_size: LocalSize::Number("OMPI_COMM_WORLD_LOCAL_SIZE"),
    },
    // A program may stand between the daemon and the rank.
    processes: &["mpirun", "orterun", "orted", "prterun", "prted"],
    passes_on_sigterm: false,
};

/// Slurm's srun with PMIx.
pub static SRUN: Launcher = Launcher {
    name: "srun",
    description: "`srun --mpi=pmix`",
    variables: Variables {
        // A batch script has SLURM_PROCID too, but only srun --mpi=pmix or pmi2 gives its tasks a PMI rank.
        required: &[&["PMIX_RANK", "PMI_RANK"], &["SLURM_STEP_ID"]],
        rank: "SLURM_PROCID",
        size: &["SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"],
        local_rank: "SLURM_LOCALID",
        local_size: LocalSize::OfNodes { list: "SLURM_STEP_TASKS_PER_NODE", node: "SLURM_NODEID" },
    },
    processes: &[],
    passes_on_sigterm: true,
};

/// All launchers, in the order in which a process looks for them: mpirun may run in a step of a Slurm job.
pub static LAUNCHERS: [&Launcher; 2] = [&MPIRUN, &SRUN];

/// A launcher whose processes cannot be ranks.
#[derive(Debug, PartialEq, Eq)]
pub struct Unsupported {
    /// Its name in messages.
    pub description: &'static str,
    /// The environment variable that has the number of processes.
    pub size: &'static str,
    /// A variable that it sets beside the number, where others set the number for purposes of their own.
    pub marker: Option<&'static str>,
}

/// Launchers that are not supported.
pub static UNSUPPORTED: [Unsupported; 7] = [
    // A container may have WORLD_SIZE for whatever it runs.
    Unsupported { description: "torchrun", size: "WORLD_SIZE", marker: Some("TORCHELASTIC_RUN_ID") },
    unsupported("MVAPICH's mpirun", "MV2_COMM_WORLD_SIZE"),
    unsupported("MPICH's or Intel MPI's mpirun", "PMI_SIZE"),
    unsupported("jsrun", "JSM_NAMESPACE_SIZE"),
    unsupported("PALS (aprun, mpiexec)", "PALS_NRANKS"),
    unsupported("flux run", "FLUX_JOB_SIZE"),
    unsupported("srun without --mpi=pmix", "SLURM_STEP_NUM_TASKS"),
];

const fn unsupported(description: &'static str, size: &'static str) -> Unsupported {
    Unsupported { description, size, marker: None }
}

/// The supported launchers in words.
#[derive(Debug)]
pub struct Supported;

impl fmt::Display for Supported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = LAUNCHERS.iter().map(|launcher| launcher.description).collect();
        f.write_str(&names.join(" or "))
    }
}
