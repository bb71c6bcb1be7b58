//! Following a run until it is over.

use std::time::{Duration, Instant};

use lambert_store::Store;

use super::stored_run::job_of;
use crate::failure::{self, Failure};
use crate::slurm::programs::SlurmError;
use crate::status::Status;
use crate::status::stored::{self, Liveness, liveness};

/// Pause between two queries of the Slurm job of a run without a coordinator.
const JOB: Duration = Duration::from_secs(30);
/// Time for which a job counts as alive while Slurm does not answer.
const UNKNOWN: Duration = Duration::from_secs(600);

/// Reads the status of a run repeatedly.
#[derive(Debug)]
pub struct Follower<'a> {
    store: &'a Store,
    /// Last query of the run's job: its time, and whether the job was alive.
    job: Option<(Instant, bool)>,
    /// Time of the first failed job query since the last successful one.
    unknown_since: Option<Instant>,
    /// True if the last read failed, which is logged once.
    failed: bool,
}

/// A status read by a [`Follower`].
#[derive(Debug)]
pub struct FollowedStatus {
    /// The status; `None` if the run has not started.
    pub status: Option<Status>,
    /// True if no coordinator works on the run and no job of it is alive.
    pub is_over: bool,
}

impl<'a> Follower<'a> {
    /// Follower of the run in `store`.
    pub fn new(store: &'a Store) -> Self {
        Self { store, job: None, unknown_since: None, failed: false }
    }

    /// Reads the status. `None` if the store could not be read; the caller tries again.
    pub fn read(&mut self) -> Option<FollowedStatus> {
        match self.try_read() {
            Ok(read) => {
                self.failed = false;
                Some(read)
            }
            Err(failure) => {
                if !self.failed {
                    tracing::warn!("cannot read {}: {failure}; trying again", self.store.url());
                }
                self.failed = true;
                None
            }
        }
    }

    /// Reads the status.
    ///
    /// # Errors
    /// A store error, or an unreadable status.
    pub fn try_read(&mut self) -> Result<FollowedStatus, Failure> {
        let status = stored::read(self.store)?;
        let liveness = status.as_ref().map(liveness);
        let is_over = matches!(liveness, Some(Liveness::Over | Liveness::Gone)) && !self.has_job()?;
        if is_over && liveness == Some(Liveness::Gone) {
            tracing::warn!("the coordinator of {} is gone: nothing more to follow", self.store.url());
        }
        Ok(FollowedStatus { status, is_over })
    }

    /// True if a Slurm job of the run is pending or running, which may start it again.
    fn has_job(&mut self) -> Result<bool, Failure> {
        if let Some((at, is_alive)) = self.job
            && is_alive
            && at.elapsed() < JOB
        {
            return Ok(is_alive);
        }
        let is_alive = match job_of(self.store)?.map(|(_, seen)| seen) {
            Some(Ok(Some(job))) => job.is_alive(),
            None | Some(Ok(None)) => false,
            Some(Err(SlurmError::Absent { .. })) => false,
            // Slurm does not answer at the moment.
            Some(Err(error)) => {
                let since = *self.unknown_since.get_or_insert_with(Instant::now);
                if since.elapsed() > UNKNOWN {
                    tracing::warn!("the state of the run's Slurm job is unknown: {}", failure::chain(&error));
                }
                self.job = Some((Instant::now(), true));
                return Ok(since.elapsed() <= UNKNOWN);
            }
        };
        self.unknown_since = None;
        self.job = Some((Instant::now(), is_alive));
        Ok(is_alive)
    }
}
