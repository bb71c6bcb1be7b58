//! Slurm: batch scripts, job submission and job state.
//!
//! - [`script`]: batch script of a run; [`prep_script`]: batch scripts for data preparation; [`directives`]: parts that
//!   all scripts share
//! - [`cluster`]: checks of partitions, accounts and nodes, and submission with sbatch
//! - [`job`]: job state; [`nodes`]: nodes of the current job; [`record`]: job ID of a run
//! - [`job_report`]: report of a coordinator for its batch script
//! - [`submission_lock`]: lock against concurrent submissions of a run
//! - [`programs`]: runs Slurm's programs

pub mod cluster;
pub mod directives;
pub mod job;
pub mod job_report;
pub mod nodes;
pub mod prep_script;
pub mod programs;
pub mod record;
pub mod script;
pub mod submission_lock;
