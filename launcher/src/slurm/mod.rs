//! Jobs of Slurm: what `lambert submit` queues, and what becomes of it.
//!
//! - [`script`]: the batch script of a run, a pure function of its configuration
//! - [`cluster`]: what Slurm says of partitions, accounts and nodes, and sbatch itself
//! - [`job`]: what Slurm says of a job; [`record`]: which job a run has
//! - [`ask`]: Slurm's own programs

pub mod ask;
pub mod cluster;
pub mod job;
pub mod record;
pub mod script;
