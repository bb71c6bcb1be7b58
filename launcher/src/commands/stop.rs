//! `lambert stop`: asks a run's coordinator, on any host, to save a checkpoint and stop. The coordinator of a pending
//! or suspended job sees the request when the job runs.

use lambert_config::exit;
use lambert_store::Store;

use super::status;
use crate::cli;
use crate::console;
use crate::failure::{Failure, Outcome};
use crate::run::sources::STOP_OBJECT;
use crate::slurm::cluster;
use crate::slurm::job::Job;
use crate::status::State;
use crate::status::stored::{self, Life};

#[derive(Debug, thiserror::Error)]
enum StopError {
    #[error("{url} is not being trained: it {state}")]
    NotRunning { url: String, state: String },
}

/// Recipient of a request.
#[derive(Debug, PartialEq, Eq)]
enum Met {
    /// A running coordinator.
    Coordinator,
    /// A suspended job, whose coordinator sees the request when it resumes.
    Suspended(String),
    /// A pending job.
    Pending(String),
    /// No recipient, with the reason.
    Nobody(String),
}

/// Requests a checkpoint and a stop.
pub fn stop(arguments: &cli::Stop) -> Outcome {
    let store = Store::open(&arguments.run).map_err(Failure::usage)?;
    let text = match meet(&store)? {
        Met::Nobody(state) => return Err(not_running(&store, state)),
        Met::Coordinator => {
            leave(&store, STOP_OBJECT)?;
            "asked to stop: a checkpoint is saved after the next step, then the workers leave".to_owned()
        }
        Met::Suspended(job) => {
            leave(&store, STOP_OBJECT)?;
            format!("asked to stop: job {job} is suspended; when it is resumed, it saves a checkpoint and ends")
        }
        Met::Pending(job) => stop_pending(&store, &job)?,
    };
    // The exit code already tells the caller; a failed print is no error.
    let _ = console::result(&text);
    Ok(exit::DONE)
}

/// Leaves the request before cancelling: if the job starts meanwhile or cannot be cancelled, its coordinator still sees it.
fn stop_pending(store: &Store, job: &str) -> Result<String, Failure> {
    leave(store, STOP_OBJECT)?;
    if let Err(error) = cluster::cancel_pending(job) {
        tracing::warn!("job {job} stays in the queue: {}", crate::failure::chain(&error));
        return Ok(format!("asked to stop: job {job} is pending; when it starts, it ends at once"));
    }
    Ok(format!("job {job} was pending and is cancelled"))
}

/// Leaves a request in the store of a run with a running coordinator.
pub fn request(store: &Store, object: &str) -> Result<(), Failure> {
    match meet(store)? {
        Met::Coordinator => leave(store, object),
        Met::Suspended(job) => Err(not_running(store, format!("is suspended with job {job}"))),
        Met::Pending(job) => Err(not_running(store, format!("waits in the queue as job {job}"))),
        Met::Nobody(state) => Err(not_running(store, state)),
    }
}

fn leave(store: &Store, object: &str) -> Result<(), Failure> {
    store.put(object, "asked\n".into()).map_err(Failure::failed)
}

fn not_running(store: &Store, state: String) -> Failure {
    Failure::failed(StopError::NotRunning { url: store.url().to_owned(), state })
}

fn meet(store: &Store) -> Result<Met, Failure> {
    status::require_run(store)?;
    let status = stored::read(store)?;
    let job = status::job_of(store)?.and_then(|(_, seen)| seen.ok().flatten());
    Ok(met(status.as_ref().map(|status| (status.state, stored::life(status))), job.as_ref()))
}

/// Slurm's job state takes precedence; without a job, or when it is over, the coordinator's status counts.
fn met(seen: Option<(State, Life)>, job: Option<&Job>) -> Met {
    match (job, seen) {
        (Some(job), _) if job.is_pending() => Met::Pending(job.id.clone()),
        (Some(job), _) if job.is_suspended() => Met::Suspended(job.id.clone()),
        // It may not have written a status yet, or may be about to be requeued.
        (Some(job), _) if job.is_alive() => Met::Coordinator,
        (_, None) => Met::Nobody("was never started".to_owned()),
        (_, Some((state, _))) if state.is_over() => Met::Nobody(format!("has {state}")),
        (_, Some((_, Life::Gone))) => {
            Met::Nobody("was, but its coordinator is gone; `lambert run` goes on with it".to_owned())
        }
        (_, Some(_)) => Met::Coordinator,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whom_a_request_meets() {
        let of = |state: &str| Job { id: "12".into(), state: state.into(), ..Job::default() };
        let met = |seen, job: Option<&str>| met(seen, job.map(of).as_ref());
        let id = || "12".to_owned();
        assert_eq!(met(None, Some("PENDING")), Met::Pending(id()));
        let stopped = Some((State::Stopped, Life::Over));
        assert_eq!(met(stopped, Some("PENDING")), Met::Pending(id()), "between two starts of a job");
        assert_eq!(met(stopped, Some("COMPLETING")), Met::Coordinator, "on its way into the queue");
        assert_eq!(met(Some((State::Training, Life::Unknown)), Some("SUSPENDED")), Met::Suspended(id()));
        assert_eq!(met(stopped, Some("CANCELLED")), Met::Nobody("has stopped".into()));
        assert_eq!(met(None, None), Met::Nobody("was never started".into()));
        assert_eq!(met(Some((State::Training, Life::Alive)), None), Met::Coordinator);
        assert!(matches!(met(Some((State::Training, Life::Gone)), Some("FAILED")), Met::Nobody(_)));
    }
}
