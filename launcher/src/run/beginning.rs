//! What the run's store holds when a coordinator begins, and what the coordinator leaves there first.

use std::time::Duration;

use lambert_store::checkpoint::{self, ListedCheckpoint, RollbackPoint};
use lambert_store::{Error, Store};

use super::order::Order;
use super::sources::{SAVE_OBJECT, STOP_OBJECT, within};
use crate::decide::{JobSettings, Memory};
use crate::failure::Failure;
use crate::slurm::record::Record;
use crate::status::{self, Status};

/// A store that has not answered for so long does not answer at all: each of some ten requests is tried for three minutes.
const LIMIT: Duration = Duration::from_secs(45 * 60);
/// No memory is longer than this, bytes.
const LONGEST: u64 = 16 << 20;

/// What a coordinator begins with.
#[derive(Debug)]
pub struct Beginning {
    /// In a job: a request to stop was there before.
    pub stop_requested: bool,
    /// Where the run is.
    pub status: Status,
    /// What earlier coordinators have left.
    pub memory: Memory,
    /// The Slurm job that this process is part of, which the run's store names from now on.
    pub job: Option<JobSettings>,
}

#[derive(Debug, thiserror::Error)]
#[error("{url} has not answered for {} minutes", LIMIT.as_secs() / 60)]
struct Silent {
    url: String,
}

impl Beginning {
    /// Reads the store of `order` on a thread of its own, for a limited time. Call this before signals are listened to: a store that
    /// does not answer is given up by any signal.
    ///
    /// # Errors
    /// The store cannot be read or written, or does not answer.
    pub fn read(order: &Order) -> Result<Self, Failure> {
        let (store, lead) = (order.store.clone(), order.config.slurm.lead_seconds as f64);
        let read = within("beginning", LIMIT, move || Self::of(&store, lead)).map_err(Failure::failed)?;
        read.ok_or_else(|| Failure::failed(Silent { url: order.store.url().to_owned() }))?.map_err(Failure::failed)
    }

    fn of(store: &Store, lead: f64) -> Result<Self, Error> {
        let record = Record::of_process();
        let stop_requested = old_requests(store, record.is_some())?;
        let job = record.map(|record| join_job(store, record, lead));
        Ok(Self { stop_requested, status: before(store), memory: remembered(store), job })
    }
}

/// What lies in the store from before this coordinator began. In a job a request to stop is for whoever comes next, because
/// Slurm may have started the job since; a person who starts the run by hand wants it to run.
fn old_requests(store: &Store, in_job: bool) -> Result<bool, Error> {
    store.delete(SAVE_OBJECT)?;
    if !in_job {
        store.delete(STOP_OBJECT)?;
        return Ok(false);
    }
    Ok(store.head(STOP_OBJECT)?.is_some())
}

/// Names the job in the store.
fn join_job(store: &Store, record: Record, lead: f64) -> JobSettings {
    let known = Record::read(store).ok().flatten();
    if known.as_ref() != Some(&record)
        && let Err(error) = record.write(store)
    {
        tracing::warn!("`lambert status` will not know of job {}: {error}", record.job);
    }
    JobSettings { id: record.job, lead }
}

/// What the last coordinator wrote, with the newest checkpoint that no rollback has undone: a run that was copied here has that, and no
/// status.
fn before(store: &Store) -> Status {
    let mut before = status::stored::before(store);
    if let Ok(listed) = checkpoint::list(store) {
        let oldest = listed.last().map_or(0, |oldest| oldest.position.attempt);
        let rollbacks = RollbackPoint::read_from(store, oldest).unwrap_or_default();
        let stays =
            |listed: &&ListedCheckpoint| !rollbacks.iter().any(|rollback| rollback.invalidates(listed.position));
        let newest = listed.iter().find(stays).or(listed.first());
        before.checkpoint = newest.map(|newest| newest.name.clone());
        let step = &mut before.progress.step;
        *step = (*step).max(newest.map_or(0, |newest| newest.position.step));
    }
    before
}

/// What earlier coordinators of the run have left; nothing, where it cannot be read.
fn remembered(store: &Store) -> Memory {
    let bytes = match store.get_at_most(lambert_store::run::COORDINATOR, LONGEST) {
        Ok(bytes) => bytes,
        Err(error) if error.is_not_found() => return Memory::default(),
        Err(error) => {
            tracing::warn!("what earlier coordinators left cannot be read; restarts are counted anew: {error}");
            return Memory::default();
        }
    };
    serde_json::from_slice(&bytes).unwrap_or_else(|error| {
        let url = store.url();
        tracing::warn!(
            "{url}/{} is not a coordinator's memory; restarts are counted anew: {error}",
            lambert_store::run::COORDINATOR
        );
        Memory::default()
    })
}
