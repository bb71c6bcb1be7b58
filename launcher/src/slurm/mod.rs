//! Jobs of Slurm: what `lambert submit` queues.
//!
//! - [`script`]: the batch script of a run, a pure function of its configuration
//! - [`cluster`]: what Slurm says of partitions, accounts and nodes, and sbatch itself

pub mod cluster;
pub mod script;
