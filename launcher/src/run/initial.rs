//! Initial state of a coordinator, read from the store of the run, and the first writes of the coordinator to the
//! store.

use std::time::Duration;

use lambert_config::run::Slurm;
use lambert_store::checkpoint::{self, AttemptStep, Rollbacks};
use lambert_store::{Error, Store};

use super::sources::{SAVE_OBJECT, STOP_OBJECT, within};
use super::spec::RunSpec;
use crate::decide::{JobSettings, RestartHistory};
use crate::failure::{Failure, chain};
use crate::slurm::record::JobRecord;
use crate::slurm::{job_report, nodes};
use crate::status::{self, Status};

/// Time limit for reading the store. There are about ten requests, and each may be retried for three minutes.
const LIMIT: Duration = Duration::from_secs(45 * 60);
/// Maximum size of the history, bytes.
const MAX_HISTORY_BYTES: u64 = 16 << 20;

/// Initial state of a coordinator.
#[derive(Debug)]
pub struct InitialState {
    /// True if the coordinator runs in a Slurm job and the store already contains a stop request.
    pub stop_requested: bool,
    /// Last status of the run.
    pub status: Status,
    /// History written by earlier coordinators.
    pub history: RestartHistory,
    /// Slurm job of this process, if any. It is now recorded in the store of the run.
    pub job: Option<JobSettings>,
}

#[derive(Debug, thiserror::Error)]
#[error("no reply from {url} for {} minutes", LIMIT.as_secs() / 60)]
struct Silent {
    url: String,
}

impl InitialState {
    /// Reads the store on a separate thread with a time limit. Call this function before installing signal handlers, so
    /// that a signal still ends the process if the store does not respond.
    ///
    /// # Errors
    /// The store cannot be read or written, or does not respond.
    pub fn read(spec: &RunSpec) -> Result<Self, Failure> {
        let (store, slurm) = (spec.store.clone(), spec.config.slurm.clone());
        let read = within("beginning", LIMIT, move || Self::of(&store, &slurm)).map_err(Failure::failed)?;
        read.ok_or_else(|| Failure::failed(Silent { url: spec.store.url().to_owned() }))?.map_err(Failure::failed)
    }

    fn of(store: &Store, slurm: &Slurm) -> Result<Self, Error> {
        let record = JobRecord::of_process();
        let stop_requested = old_requests(store, record.as_ref())?;
        let job = record.map(|record| join_job(store, record, slurm));
        Ok(Self { stop_requested, status: before(store), history: remembered(store), job })
    }
}

/// Handles requests that are older than this coordinator. Returns true if a stop request remains. In the Slurm job that the run
/// has recorded, a stop request remains valid, because the job may have been pending at the time of the request. Otherwise the
/// request is deleted, because a user has now started the run.
fn old_requests(store: &Store, job: Option<&JobRecord>) -> Result<bool, Error> {
    store.delete(SAVE_OBJECT)?;
    let is_recorded =
        |job: &JobRecord| JobRecord::read(store).map(|known| known.is_some_and(|known| known.job == job.job));
    if !job.map_or(Ok(false), is_recorded)? {
        store.delete(STOP_OBJECT)?;
        return Ok(false);
    }
    Ok(store.head(STOP_OBJECT)?.is_some())
}

/// Records the Slurm job in the store.
fn join_job(store: &Store, record: JobRecord, slurm: &Slurm) -> JobSettings {
    let known = JobRecord::read(store).ok().flatten();
    if known.as_ref() != Some(&record)
        && let Err(error) = record.write(store)
    {
        tracing::warn!("`lambert status` will not show job {}: {}", record.job, chain(&error));
    }
    let exclude_seconds = if job_report::is_requested() { 3600.0 * slurm.exclude_hours } else { 0.0 };
    let lead = slurm.lead_seconds as f64;
    JobSettings { id: record.job, lead, exclude_seconds, node: nodes::own() }
}

/// Returns the last status. Its checkpoint is replaced by the one that the run starts from. The stored status is not
/// sufficient, because a copied run has checkpoints but no status.
fn before(store: &Store) -> Status {
    let mut before = status::stored::before(store);
    if let Ok(listed) = checkpoint::positions(store) {
        let start = Rollbacks::of(store, &listed).unwrap_or_default().start(&listed);
        before.checkpoint = start.map(AttemptStep::name);
        let step = &mut before.progress.step;
        *step = (*step).max(start.map_or(0, |start| start.step));
    }
    before
}

/// Reads the history of earlier coordinators. Returns the default if the history is unreadable.
fn remembered(store: &Store) -> RestartHistory {
    let bytes = match store.get_at_most(lambert_store::run::COORDINATOR, MAX_HISTORY_BYTES) {
        Ok(bytes) => bytes,
        Err(error) if error.is_not_found() => return RestartHistory::default(),
        Err(error) => {
            tracing::warn!(
                "cannot read the restart history of earlier coordinators; counting restarts from 0: {}",
                chain(&error)
            );
            return RestartHistory::default();
        }
    };
    serde_json::from_slice(&bytes).unwrap_or_else(|error| {
        let url = store.url();
        tracing::warn!(
            "{url}/{} is not a restart history; counting restarts from 0: {error}",
            lambert_store::run::COORDINATOR
        );
        RestartHistory::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stop_request_is_for_the_recorded_job() {
        let job = |id: &str| JobRecord { job: id.to_owned(), cluster: None };
        for (index, (recorded, own, stays)) in [
            (Some("7"), Some("7"), true),
            (Some("7"), Some("8"), false),
            (None, Some("7"), false),
            (Some("7"), None, false),
        ]
        .into_iter()
        .enumerate()
        {
            let store = Store::open(&format!("memory://initial/{index}")).unwrap();
            store.put(STOP_OBJECT, "asked".into()).unwrap();
            recorded.map_or(Ok(()), |id| job(id).write(&store)).unwrap();
            assert_eq!(old_requests(&store, own.map(job).as_ref()).unwrap(), stays, "{recorded:?}, {own:?}");
            assert_eq!(store.head(STOP_OBJECT).unwrap().is_some(), stays, "{recorded:?}, {own:?}");
        }
    }
}
