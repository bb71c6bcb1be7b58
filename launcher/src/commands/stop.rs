//! `lambert stop`: asks the coordinator of a run, on any host, to save a checkpoint and stop. If the Slurm job of the
//! run is suspended, its coordinator sees the request when the job resumes. A pending job is cancelled.

use lambert_config::exit;
use lambert_progress::Progress;
use lambert_store::Store;

use super::stored_run;
use crate::cli;
use crate::console;
use crate::failure::{Failure, Outcome};
use crate::run::sources::STOP_OBJECT;
use crate::slurm::cluster;
use crate::slurm::job::Job;
use crate::status::RunState;
use crate::status::stored::{self, Liveness};

#[derive(Debug, thiserror::Error)]
enum StopError {
    #[error("{url} is not running: it {state}")]
    NotRunning { url: String, state: String },
}

/// Recipient of a request.
#[derive(Debug, PartialEq, Eq)]
enum RequestTarget {
    /// A running coordinator.
    Coordinator,
    /// A suspended job. Its coordinator sees the request when the job resumes.
    Suspended(String),
    /// A pending job.
    Pending(String),
    /// No recipient. The text gives the reason.
    Nobody(String),
}

/// Requests a checkpoint and a stop.
pub fn stop(arguments: &cli::Stop) -> Outcome {
    let progress = Progress::start("requesting a stop");
    let store = Store::open(&arguments.run).map_err(Failure::usage)?;
    let text = match find_target(&store)? {
        RequestTarget::Nobody(state) => return Err(not_running(&store, state)),
        RequestTarget::Coordinator => {
            leave(&store, STOP_OBJECT)?;
            "stop requested: the run saves a checkpoint after the next step and stops".to_owned()
        }
        RequestTarget::Suspended(job) => {
            leave(&store, STOP_OBJECT)?;
            format!("stop requested: job {job} is suspended; it saves a checkpoint and stops when it resumes")
        }
        RequestTarget::Pending(job) => stop_pending(&store, &job)?,
    };
    drop(progress);
    // The exit code already reports success, so a failed print is not an error.
    let _ = console::result(&text);
    Ok(exit::DONE)
}

/// Writes the stop request, then cancels the pending job. If the job starts in the meantime or cannot be cancelled, its
/// coordinator still sees the request.
fn stop_pending(store: &Store, job: &str) -> Result<String, Failure> {
    leave(store, STOP_OBJECT)?;
    if let Err(error) = cluster::cancel_pending(job) {
        tracing::warn!("cannot cancel job {job}: {}", crate::failure::chain(&error));
        return Ok(format!("stop requested: job {job} is pending; it stops as soon as it starts"));
    }
    Ok(format!("cancelled pending job {job}"))
}

/// Writes a request to the store of a run. Fails unless the run has a running coordinator.
pub fn request(store: &Store, object: &str) -> Result<(), Failure> {
    match find_target(store)? {
        RequestTarget::Coordinator => leave(store, object),
        RequestTarget::Suspended(job) => Err(not_running(store, format!("is suspended with job {job}"))),
        RequestTarget::Pending(job) => Err(not_running(store, format!("is pending as job {job}"))),
        RequestTarget::Nobody(state) => Err(not_running(store, state)),
    }
}

fn leave(store: &Store, object: &str) -> Result<(), Failure> {
    store.put(object, "asked\n".into()).map_err(Failure::failed)
}

fn not_running(store: &Store, state: String) -> Failure {
    Failure::failed(StopError::NotRunning { url: store.url().to_owned(), state })
}

fn find_target(store: &Store) -> Result<RequestTarget, Failure> {
    stored_run::require_run(store)?;
    let status = stored::read(store)?;
    let job = stored_run::job_of(store)?.and_then(|(_, seen)| seen.ok().flatten());
    Ok(target(status.as_ref().map(|status| (status.state, stored::liveness(status))), job.as_ref()))
}

/// Returns the recipient of a request. The job state in Slurm takes precedence over the status of the coordinator. If
/// there is no job or the job is over, the status decides.
fn target(seen: Option<(RunState, Liveness)>, job: Option<&Job>) -> RequestTarget {
    match (job, seen) {
        (Some(job), _) if job.is_pending() => RequestTarget::Pending(job.id.clone()),
        (Some(job), _) if job.is_suspended() => RequestTarget::Suspended(job.id.clone()),
        // The status may be missing or out of date. The coordinator may not have written a status yet, or the job may
        // be about to be requeued.
        (Some(job), _) if job.is_alive() => RequestTarget::Coordinator,
        (_, None) => RequestTarget::Nobody("was never started".to_owned()),
        (_, Some((state, _))) if state.is_over() => RequestTarget::Nobody(format!("has {state}")),
        (_, Some((_, Liveness::Gone))) => {
            RequestTarget::Nobody("stopped when its coordinator died; `lambert run` resumes it".to_owned())
        }
        (_, Some(_)) => RequestTarget::Coordinator,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_recipient_of_a_request_depends_on_the_state() {
        let of = |state: &str| Job { id: "12".into(), state: state.into(), ..Job::default() };
        let target = |seen, job: Option<&str>| target(seen, job.map(of).as_ref());
        let id = || "12".to_owned();
        assert_eq!(target(None, Some("PENDING")), RequestTarget::Pending(id()));
        let stopped = Some((RunState::Stopped, Liveness::Over));
        assert_eq!(target(stopped, Some("PENDING")), RequestTarget::Pending(id()), "between two starts of a job");
        assert_eq!(target(stopped, Some("COMPLETING")), RequestTarget::Coordinator, "on its way into the queue");
        assert_eq!(
            target(Some((RunState::Training, Liveness::Unknown)), Some("SUSPENDED")),
            RequestTarget::Suspended(id())
        );
        assert_eq!(target(stopped, Some("CANCELLED")), RequestTarget::Nobody("has stopped".into()));
        assert_eq!(target(None, None), RequestTarget::Nobody("was never started".into()));
        assert_eq!(target(Some((RunState::Training, Liveness::Alive)), None), RequestTarget::Coordinator);
        assert!(matches!(target(Some((RunState::Training, Liveness::Gone)), Some("FAILED")), RequestTarget::Nobody(_)));
    }
}
