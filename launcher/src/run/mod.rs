//! `lambert run`: the coordinator, which starts, monitors and restarts the workers of a run.
//!
//! - [`spec`]: validated configuration, compared with the stored run ([`config_diff`]) and with the checkpoint that a
//!   new run starts from ([`base_checkpoint`]), which it may import (`imported_base`); `phrase_list`: phrases of the run;
//!   [`teacher`]: teacher of the run
//! - [`initial`]: state read from the store at the start
//! - [`coordinator`]: passes events to [`crate::decide`] and executes the resulting actions; [`clock`]: clock of the
//!   coordinator
//! - [`sources`]: events from signals, the run's store and the lease; [`own_lease`]: lease of this coordinator;
//!   [`job_view`]: state of the Slurm job; [`control`]: HTTP server for the ranks' reports
//! - [`launch`]: the processes of an attempt, started directly, by mpirun or by srun
//! - [`run_changes`]: checks of a changed configuration; [`check`]: checks of a start that change nothing
//! - [`unstarted`]: folders with a configuration that are not a run
//! - [`open_datasets`]: datasets that the checks share; [`run_plan`]: summary printed before the start; [`data_warnings`]: warnings about the data; [`cpu_warning`]: warning about
//!   more threads than processors
//!
//! [`crate::observe`] reports on the run: status in the store, log and progress display, `--json` lines.

pub mod base_checkpoint;
pub mod check;
pub mod clock;
pub mod config_diff;
pub mod control;
pub mod coordinator;
pub mod cpu_warning;
pub mod data_warnings;
mod imported_base;
pub mod initial;
pub mod job_view;
pub mod launch;
pub mod open_datasets;
pub mod own_lease;
mod phrase_list;
pub mod run_changes;
pub mod run_plan;
pub mod sources;
pub mod spec;
pub mod teacher;
pub mod unstarted;

use lambert_progress::Progress;

use crate::cli;
use crate::console;
use crate::failure::{Failure, Outcome};
use crate::observe::RecordOutput;
use launch::workers::WorkersError;
use open_datasets::OpenDatasets;
use spec::RunSpec;

/// Starts or resumes a run. Returns when the run is done, stopped or given up.
pub fn run(arguments: &cli::Run) -> Outcome {
    if arguments.check {
        return check::check(arguments);
    }
    console::detach().map_err(Failure::failed)?;
    std::env::current_dir().map_err(|error| Failure::usage(WorkersError::WorkingDirectoryDeleted(error)))?;
    let progress = Progress::start("checking the run");
    let datasets = OpenDatasets::default();
    let validated = RunSpec::validate(arguments, coordinator::host_pool, &datasets)?;
    drop(progress);
    let launcher = launch::choose(&validated.config().cluster).map_err(Failure::failed)?;
    tracing::debug!("starting workers with {}", launcher.name());
    check::machine::worker_warning(&validated)?.iter().for_each(|warning| tracing::warn!("{warning}"));
    let summary = run_plan::summarize(validated.config(), &datasets)?;
    summary.lines.iter().for_each(|line| console::line(line));
    let warnings = data_warnings::find(validated.config(), &datasets)?.into_iter();
    let warnings = warnings.chain(cpu_warning::find(validated.config(), validated.host_pool()));
    warnings.for_each(|warning| tracing::warn!("{warning}"));
    // The configuration is stored as late as possible. If another coordinator is still running, its ranks read the
    // stored configuration on every restart.
    let spec = validated.commit()?;
    let records = if arguments.json { RecordOutput::Printed } else { RecordOutput::Shown };
    coordinator::run(&spec, &*launcher, records, &summary.sample_flops)
}
