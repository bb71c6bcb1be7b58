//! Detection of the rank of this process from the environment variables of its launcher, before MPI is initialized.

use std::fmt;

use crate::launchers::{LAUNCHERS, Launcher, LocalSize, Supported, UNSUPPORTED, Unsupported};

/// Rank of this process and number of ranks, as its launcher has set them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct World {
    /// The launcher.
    pub launcher: &'static Launcher,
    /// Rank of this process, from 0.
    pub rank: usize,
    /// The number of ranks.
    pub size: usize,
    /// Rank of this process within its node, from 0. It determines the GPU of the rank.
    pub local_rank: usize,
    /// Number of ranks on the node.
    pub local_size: usize,
}

/// Detects from the environment whether a launcher started this process as a rank. Returns `None` outside a job.
pub fn detect() -> Option<World> {
    detect_in(|name| std::env::var(name).ok())
}

fn detect_in(variable: impl Fn(&str) -> Option<String>) -> Option<World> {
    LAUNCHERS.iter().find_map(|launcher| world_of(launcher, &variable))
}

/// Returns the world of this process if `launcher` started it as a rank, otherwise `None`.
fn world_of(launcher: &'static Launcher, variable: impl Fn(&str) -> Option<String>) -> Option<World> {
    let number = |name: &str| variable(name)?.parse::<usize>().ok();
    let first = |names: &[&str]| names.iter().find_map(|name| number(name));
    let names = &launcher.variables;
    if !names.required.iter().all(|group| first(group).is_some()) {
        return None;
    }
    let (rank, size) = (number(names.rank)?, first(names.size)?);
    let local_size = match names.local_size {
        LocalSize::Number(name) => number(name),
        LocalSize::OfNodes { list, node } => variable(list).and_then(|list| tasks_on(&list, number(node)?)),
    };
    let local_rank = number(names.local_rank).unwrap_or(rank);
    Some(World { launcher, rank, size, local_rank, local_size: local_size.unwrap_or(size) })
}

/// Unsupported launcher that has started several processes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnsupportedLauncher {
    /// Name of the launcher.
    pub name: &'static str,
    /// Environment variable with the number of processes.
    pub variable: &'static str,
    /// Number of processes that the launcher started.
    pub size: usize,
}

impl fmt::Display for UnsupportedLauncher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, variable, size } = self;
        write!(f, "{name} started {size} processes ({variable}), but workers can only be started by {Supported}")
    }
}

/// Returns the launcher of this process if it is unsupported and has started several processes. Without this check,
/// each process would take itself for the only rank.
pub fn unsupported_launcher() -> Option<UnsupportedLauncher> {
    unsupported_in(|name| std::env::var(name).ok())
}

fn unsupported_in(variable: impl Fn(&str) -> Option<String>) -> Option<UnsupportedLauncher> {
    if detect_in(&variable).is_some() {
        return None;
    }
    UNSUPPORTED.iter().find_map(|Unsupported { description: name, size, marker }| {
        let count = variable(size)?.parse::<usize>().ok().filter(|count| *count > 1)?;
        let is_marked = marker.is_none_or(|marker| variable(marker).is_some());
        is_marked.then_some(UnsupportedLauncher { name, variable: size, size: count })
    })
}

/// Returns the number of tasks on node `node` from a list in Slurm's short form. In this form, `2(x3),1` means two
/// tasks on each of three nodes and one on the fourth.
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
    use crate::launchers::{MPIRUN, SRUN};

    fn detect_from(variables: &[(&str, &str)]) -> Option<World> {
        detect_in(|name| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.to_string()))
    }

    #[test]
    fn mpirun_variables_give_the_rank() {
        let world = detect_from(&[
            ("OMPI_COMM_WORLD_RANK", "5"),
            ("OMPI_COMM_WORLD_SIZE", "8"),
            ("OMPI_COMM_WORLD_LOCAL_RANK", "1"),
            ("OMPI_COMM_WORLD_LOCAL_SIZE", "4"),
        ]);
        assert_eq!(world, Some(World { launcher: &MPIRUN, rank: 5, size: 8, local_rank: 1, local_size: 4 }));
    }

    #[test]
    fn srun_variables_give_the_rank() {
        let task = [
            ("SLURM_STEP_ID", "0"),
            ("SLURM_PROCID", "4"),
            ("SLURM_LOCALID", "0"),
            ("SLURM_NODEID", "2"),
            ("SLURM_STEP_NUM_TASKS", "5"),
            ("SLURM_STEP_TASKS_PER_NODE", "2(x2),1"),
            ("PMIX_RANK", "4"),
        ];
        let expected = World { launcher: &SRUN, rank: 4, size: 5, local_rank: 0, local_size: 1 };
        assert_eq!(detect_from(&task), Some(expected));
        assert_eq!(detect_from(&task[..6]), None, "srun without --mpi makes no MPI ranks");
    }

    #[test]
    fn unsupported_launchers_of_several_processes_are_known_by_name() {
        let of = |variables: &[(&str, &str)]| {
            unsupported_in(|name| {
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
        let two = |name: &str| (name == "PMI_SIZE").then(|| "2".to_owned());
        let expected = "MPICH's or Intel MPI's mpirun started 2 processes (PMI_SIZE), but workers can only be started by Open MPI's \
                        mpirun or `srun --mpi=pmix`";
        assert_eq!(unsupported_in(two).unwrap().to_string(), expected);
    }

    #[test]
    fn a_shell_or_batch_script_is_not_a_rank() {
        assert_eq!(detect_from(&[]), None);
        assert_eq!(detect_from(&[("SLURM_PROCID", "0"), ("SLURM_NTASKS", "8"), ("SLURM_JOB_ID", "1")]), None);
    }
}
