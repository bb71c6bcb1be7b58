//! Parts of the store of a run that several commands read.

use lambert_store::Store;
use lambert_store::run::{CONFIG, COORDINATOR};

use crate::decide::RestartHistory;
use crate::failure::Failure;
use crate::slurm::job::{self, Job};
use crate::slurm::programs::SlurmError;
use crate::slurm::record::JobRecord;
use crate::status::stored::MAX_STATUS_BYTES;
use crate::stored_config;

#[derive(Debug, thiserror::Error)]
enum NoRun {
    #[error("{url} is not a run: {CONFIG} not found")]
    NoConfig { url: String },
    #[error("{url} has checkpoints, but {CONFIG} is missing; restore it, or start `lambert run` with --config FILE")]
    ConfigGone { url: String },
}

/// Returns an error unless the store contains a run.
pub fn require_run(store: &Store) -> Result<(), Failure> {
    match store.head(CONFIG).map_err(Failure::failed)? {
        Some(_) => Ok(()),
        None => Err(not_a_run(store)),
    }
}

/// The error for a store without a run.
pub fn not_a_run(store: &Store) -> Failure {
    let url = store.url().to_owned();
    Failure::usage(match stored_config::has_checkpoints(store) {
        true => NoRun::ConfigGone { url },
        false => NoRun::NoConfig { url },
    })
}

/// The failure for a checkpoint that cannot be read. A name that no checkpoint has is a usage error.
pub fn checkpoint_failure(error: lambert_store::Error) -> Failure {
    if error.is_no_checkpoint() { Failure::usage(error) } else { Failure::failed(error) }
}

/// Slurm job of a run, and the state of the job in Slurm. The state is `None` if Slurm no longer knows the job.
pub type SeenJob = (JobRecord, Result<Option<Job>, SlurmError>);

/// Returns the Slurm job of a run, if the run has one.
pub fn job_of(store: &Store) -> Result<Option<SeenJob>, Failure> {
    let record = JobRecord::read(store).map_err(Failure::failed)?;
    Ok(record.map(|record| {
        let seen = job::look(&record.job);
        (record, seen)
    }))
}

/// Reads the restart history of the run. Returns the default if the history is missing or cannot be parsed.
pub fn history(store: &Store) -> Result<RestartHistory, Failure> {
    match store.get_at_most(COORDINATOR, MAX_STATUS_BYTES) {
        Ok(bytes) => Ok(serde_json::from_slice(&bytes).unwrap_or_default()),
        Err(error) if error.is_not_found() => Ok(RestartHistory::default()),
        Err(error) => Err(Failure::failed(error)),
    }
}
