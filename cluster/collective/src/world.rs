//! Who started this process, as which rank: read from the environment before MPI is touched.

/// What a launcher says about this process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct World {
    /// `mpirun` or `srun`.
    pub launcher: &'static str,
    /// This rank's number, from 0.
    pub rank: usize,
    /// The number of ranks.
    pub size: usize,
    /// This rank's number among those of its node, from 0: which GPU is its own.
    pub local_rank: usize,
    /// The number of ranks on its node.
    pub local_size: usize,
}

/// Whether this process was started as a rank of an MPI job, and as which; `None` if it stands alone.
pub fn detect() -> Option<World> {
    detect_in(|name| std::env::var(name).ok())
}

fn detect_in(variable: impl Fn(&str) -> Option<String>) -> Option<World> {
    let number = |name: &str| variable(name)?.parse::<usize>().ok();
    let open_mpi = || {
        let (rank, size) = (number("OMPI_COMM_WORLD_RANK")?, number("OMPI_COMM_WORLD_SIZE")?);
        let local_rank = number("OMPI_COMM_WORLD_LOCAL_RANK").unwrap_or(rank);
        let local_size = number("OMPI_COMM_WORLD_LOCAL_SIZE").unwrap_or(size);
        Some(World { launcher: "mpirun", rank, size, local_rank, local_size })
    };
    // A batch script has SLURM_PROCID too, but only srun --mpi=pmix or pmi2 gives its tasks a PMI rank.
    let srun = || {
        number("PMIX_RANK").or_else(|| number("PMI_RANK"))?;
        number("SLURM_STEP_ID")?;
        let (rank, size) =
            (number("SLURM_PROCID")?, number("SLURM_STEP_NUM_TASKS").or_else(|| number("SLURM_NTASKS"))?);
        let local_rank = number("SLURM_LOCALID").unwrap_or(rank);
        let on_node = variable("SLURM_STEP_TASKS_PER_NODE").and_then(|list| tasks_on(&list, number("SLURM_NODEID")?));
        Some(World { launcher: "srun", rank, size, local_rank, local_size: on_node.unwrap_or(size) })
    };
    open_mpi().or_else(srun)
}

/// A starter of several processes that is not supported, and the variable by which it is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OtherStarter {
    /// Its name.
    pub name: &'static str,
    /// The variable that holds the number of processes.
    pub variable: &'static str,
    /// How many it has started.
    pub size: usize,
}

/// By which variable starters other than Open MPI's mpirun and `srun --mpi=pmix` tell the number of processes.
const OTHERS: [(&str, &str); 7] = [
    ("WORLD_SIZE", "torchrun"),
    ("MV2_COMM_WORLD_SIZE", "MVAPICH's mpirun"),
    ("PMI_SIZE", "MPICH's or Intel MPI's mpirun"),
    ("JSM_NAMESPACE_SIZE", "jsrun"),
    ("PALS_NRANKS", "PALS (aprun, mpiexec)"),
    ("FLUX_JOB_SIZE", "flux run"),
    ("SLURM_STEP_NUM_TASKS", "srun without --mpi=pmix"),
];

/// Whether this process is one of several that were started by something that makes no ranks of them: each would take itself
/// for the only one.
pub fn other_starter() -> Option<OtherStarter> {
    other_starter_in(|name| std::env::var(name).ok())
}

fn other_starter_in(variable: impl Fn(&str) -> Option<String>) -> Option<OtherStarter> {
    if detect_in(&variable).is_some() {
        return None;
    }
    // Others set WORLD_SIZE, too, for whatever a container may run.
    let is_torchrun = || variable("TORCHELASTIC_RUN_ID").is_some();
    let size = |name: &str| variable(name)?.parse::<usize>().ok().filter(|size| *size > 1);
    let size = |name: &str| if name == "WORLD_SIZE" && !is_torchrun() { None } else { size(name) };
    OTHERS
        .into_iter()
        .find_map(|(name, starter)| Some(OtherStarter { name: starter, variable: name, size: size(name)? }))
}

/// Tasks on node number `node` from Slurm's shorthand, such as `2(x3),1`: two on each of three nodes, then one.
fn tasks_on(list: &str, node: usize) -> Option<usize> {
    let mut first = 0;
    for part in list.split(',') {
        let (tasks, nodes) = match part.split_once("(x") {
            Some((tasks, rest)) => (tasks, rest.strip_suffix(')')?.parse().ok()?),
            None => (part, 1usize),
        };
        if (first..first + nodes).contains(&node) {
            return tasks.parse().ok();
        }
        first += nodes;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn detect_from(variables: &[(&str, &str)]) -> Option<World> {
        detect_in(|name| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.to_string()))
    }

    #[test]
    fn a_rank_of_mpirun() {
        let world = detect_from(&[
            ("OMPI_COMM_WORLD_RANK", "5"),
            ("OMPI_COMM_WORLD_SIZE", "8"),
            ("OMPI_COMM_WORLD_LOCAL_RANK", "1"),
            ("OMPI_COMM_WORLD_LOCAL_SIZE", "4"),
        ]);
        assert_eq!(world, Some(World { launcher: "mpirun", rank: 5, size: 8, local_rank: 1, local_size: 4 }));
    }

    #[test]
    fn a_task_of_srun() {
        let task = [
            ("SLURM_STEP_ID", "0"),
            ("SLURM_PROCID", "4"),
            ("SLURM_LOCALID", "0"),
            ("SLURM_NODEID", "2"),
            ("SLURM_STEP_NUM_TASKS", "5"),
            ("SLURM_STEP_TASKS_PER_NODE", "2(x2),1"),
            ("PMIX_RANK", "4"),
        ];
        let expected = World { launcher: "srun", rank: 4, size: 5, local_rank: 0, local_size: 1 };
        assert_eq!(detect_from(&task), Some(expected));
        assert_eq!(detect_from(&task[..6]), None, "srun without --mpi makes no MPI ranks");
    }

    #[test]
    fn other_starters_of_several_processes_are_known_by_name() {
        let of = |variables: &[(&str, &str)]| {
            other_starter_in(|name| {
                variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.to_string())
            })
            .map(|other| other.name)
        };
        assert_eq!(of(&[("PMI_RANK", "0"), ("PMI_SIZE", "2")]), Some("MPICH's or Intel MPI's mpirun"));
        assert_eq!(of(&[("TORCHELASTIC_RUN_ID", "none"), ("WORLD_SIZE", "2")]), Some("torchrun"));
        assert_eq!(of(&[("RANK", "0"), ("WORLD_SIZE", "2")]), None, "what a container was given");
        let task = [("SLURM_STEP_ID", "0"), ("SLURM_PROCID", "0"), ("SLURM_STEP_NUM_TASKS", "2")];
        assert_eq!(of(&task), Some("srun without --mpi=pmix"));
        assert_eq!(of(&[("PMI_SIZE", "1")]), None, "alone it does no harm");
        let inside = [("OMPI_COMM_WORLD_RANK", "0"), ("OMPI_COMM_WORLD_SIZE", "2"), ("SLURM_STEP_NUM_TASKS", "4")];
        assert_eq!(of(&inside), None, "mpirun in a step of a job");
        assert_eq!(of(&[]), None);
    }

    #[test]
    fn a_shell_or_a_batch_script_is_no_rank() {
        assert_eq!(detect_from(&[]), None);
        assert_eq!(detect_from(&[("SLURM_PROCID", "0"), ("SLURM_NTASKS", "8"), ("SLURM_JOB_ID", "1")]), None);
    }
}
