//! Supported and unsupported launchers. Everything that a rank knows about its launcher is in this module. (The
//! coordinator does not use MPI. It needs to know the command lines and the output of launchers. That knowledge is in
//! the package `lambert`.)

use std::fmt;

/// Supported launcher, with the properties that its ranks need.
#[derive(Debug, PartialEq, Eq)]
pub struct Launcher {
    /// Name of the launcher, as in the setting `cluster.launcher`.
    pub name: &'static str,
    /// Name of the launcher in messages.
    pub description: &'static str,
    /// Environment variables that identify a rank.
    pub variables: Variables,
    /// Names of the launcher processes that may send SIGTERM to a rank. The parent process of the rank may send it,
    /// too.
    pub processes: &'static [&'static str],
    /// True if the launcher forwards SIGTERM from the batch system to the ranks. Then a SIGTERM from the launcher is
    /// not always a request to end the ranks.
    pub passes_on_sigterm: bool,
}

/// Environment variables of a rank. Their values are numbers, except for [`LocalSize::OfNodes`].
#[derive(Debug, PartialEq, Eq)]
pub struct Variables {
    /// Groups of variables. A process is a rank only if at least one variable of each group is set.
    pub required: &'static [&'static [&'static str]],
    /// Variable with the rank, from 0.
    pub rank: &'static str,
    /// Variables with the number of ranks. The first one that is set is used.
    pub size: &'static [&'static str],
    /// Variable with the rank within the node, from 0.
    pub local_rank: &'static str,
    /// Source of the number of ranks on the node.
    pub local_size: LocalSize,
}

/// Environment variables from which the number of ranks on a node is read.
#[derive(Debug, PartialEq, Eq)]
pub enum LocalSize {
    /// Variable with the number.
    Number(&'static str),
    /// Two variables. One contains the numbers for all nodes in Slurm's short form, such as `2(x3),1`. The other
    /// contains the index of this node.
    OfNodes {
        /// Variable with the numbers for all nodes.
        list: &'static str,
        /// Variable with the index of this node.
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
    // A wrapper program may run between the daemon and the rank. The daemon is then not the parent of the rank.
    processes: &["mpirun", "orterun", "orted", "prterun", "prted"],
    passes_on_sigterm: false,
};

/// Slurm's srun with PMIx.
pub static SRUN: Launcher = Launcher {
    name: "srun",
    description: "`srun --mpi=pmix`",
    variables: Variables {
        // SLURM_PROCID is also set in a batch script. But only `srun --mpi=pmix` and `srun --mpi=pmi2` give their tasks
        // a PMI rank.
        required: &[&["PMIX_RANK", "PMI_RANK"], &["SLURM_STEP_ID"]],
        rank: "SLURM_PROCID",
        size: &["SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"],
        local_rank: "SLURM_LOCALID",
        local_size: LocalSize::OfNodes { list: "SLURM_STEP_TASKS_PER_NODE", node: "SLURM_NODEID" },
    },
    processes: &[],
    passes_on_sigterm: true,
};

/// All supported launchers, in the order of detection. mpirun comes first, because it may run in a step of a Slurm job.
pub static LAUNCHERS: [&Launcher; 2] = [&MPIRUN, &SRUN];

/// A launcher whose processes cannot be ranks.
#[derive(Debug, PartialEq, Eq)]
pub struct Unsupported {
    /// Name of the launcher in messages.
    pub description: &'static str,
    /// Environment variable with the number of processes.
    pub size: &'static str,
    /// Second variable that the launcher sets, if other programs may also set the variable `size`. The launcher is then
    /// detected only if this variable is set, too.
    pub marker: Option<&'static str>,
}

/// Launchers that are not supported.
pub static UNSUPPORTED: [Unsupported; 7] = [
    // In a container, WORLD_SIZE may be set for another purpose.
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

/// Names of the supported launchers, for messages.
#[derive(Debug)]
pub struct Supported;

impl fmt::Display for Supported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = LAUNCHERS.iter().map(|launcher| launcher.description).collect();
        f.write_str(&names.join(" or "))
    }
}
