//! Jobs of Slurm: what `lambert submit` queues, and what becomes of it.
//!
//! - [`script`]: the batch script of a run, a pure function of its configuration; [`prep_script`]: those of a preparation;
//!   [`directives`]: what they have in common
//! - [`cluster`]: what Slurm says of partitions, accounts and nodes, and sbatch itself
//! - [`job`]: what Slurm says of a job; [`nodes`]: those of the job that this process is in; [`record`]: which job a run has;
//!   [`claim`]: who queues one now
//! - [`ask`]: Slurm's own programs

pub mod ask;
pub mod claim;
pub mod cluster;
pub mod directives;
pub mod job;
pub mod nodes;
pub mod prep_script;
pub mod record;
pub mod script;
