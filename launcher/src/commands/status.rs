//! `lambert status`: where a run is, as its coordinator wrote it last, its checkpoints, and its job of Slurm.

use lambert_config::exit;
use lambert_store::Store;
use lambert_store::checkpoint;
use lambert_store::run::{CONFIG, COORDINATOR};
use serde_json::json;

use super::status_lines as lines;
use crate::cli;
use crate::console;
use crate::failure::{Failure, Outcome};
use crate::host;
use crate::run::decide::Memory;
use crate::slurm::ask::AskError;
use crate::slurm::job::{self, Job};
use crate::slurm::record::Record;
use crate::status::{self as file, Status};

/// A coordinator writes every few seconds; one that has not for this long is likely gone.
const OLD: f64 = 60.0;
/// So many ends of jobs are shown.
const ENDS: usize = 10;
/// No status is longer than this, bytes.
const LONGEST: u64 = file::LONGEST;

#[derive(Debug, thiserror::Error)]
enum StatusError {
    #[error("{url} is not a run: it has no {CONFIG}")]
    NoRun { url: String },
    #[error("{url}/{} is not a status: {message}", file::OBJECT)]
    Unreadable { url: String, message: String },
}

/// Whether somebody works on a run, as far as one can tell from here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Life {
    /// Its coordinator lives on this host, or wrote a moment ago.
    Alive,
    /// Its coordinator was on this host and is no more.
    Gone,
    /// Its coordinator is on another host and has not written for a while.
    Unknown,
    /// There is nobody, and need not be: the run is over.
    Over,
}

/// Shows the run.
pub fn status(arguments: &cli::Status) -> Outcome {
    let store = Store::open(&arguments.run).map_err(Failure::usage)?;
    require_run(&store)?;
    let status = read(&store)?;
    let checkpoints = checkpoint::list(&store).map_err(Failure::failed)?;
    let job = job_of(&store)?;
    let memory = memory(&store)?;
    let text = if arguments.json {
        json!({
            "run": store.url(),
            "age": status.as_ref().map(|status| host::now() - status.updated),
            "coordinator": status.as_ref().map(|status| format!("{:?}", life(status)).to_lowercase()),
            "status": status,
            "job": job.as_ref().and_then(|(_, seen)| seen.as_ref().ok()),
            "job_ends": memory.job_ends,
            "checkpoints": checkpoints.iter().map(|listed| &listed.name).collect::<Vec<_>>(),
        })
        .to_string()
    } else {
        let mut lines = described(store.url(), status.as_ref(), job.as_ref());
        lines.extend(memory.job_ends.iter().rev().take(ENDS).rev().map(|end| lines::job_end(end, host::now())));
        lines.extend(lines::checkpoints(&checkpoints));
        lines.join("\n")
    };
    console::result(&text).map_err(Failure::failed)?;
    Ok(exit::DONE)
}

/// Refuses a place that holds no run.
pub fn require_run(store: &Store) -> Result<(), Failure> {
    match store.head(CONFIG).map_err(Failure::failed)? {
        Some(_) => Ok(()),
        None => Err(Failure::usage(StatusError::NoRun { url: store.url().to_owned() })),
    }
}

/// The status in the run's store, if there is one.
pub fn read(store: &Store) -> Result<Option<Status>, Failure> {
    match store.get_at_most(file::OBJECT, LONGEST) {
        Ok(bytes) => serde_json::from_slice(&bytes).map(Some).map_err(|error| {
            let (url, message) = (store.url().to_owned(), error.to_string());
            Failure::failed(StatusError::Unreadable { url, message })
        }),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(Failure::failed(error)),
    }
}

/// Whether the writer of `status` still works on the run.
pub fn life(status: &Status) -> Life {
    let coordinator = &status.coordinator;
    if status.state.is_over() {
        Life::Over
    } else if coordinator.host == host::name() {
        let there = host::since(coordinator.pid).filter(|_| host::lives(coordinator.pid));
        let is_it = |since: String| coordinator.since.is_empty() || since == coordinator.since;
        if there.is_some_and(is_it) { Life::Alive } else { Life::Gone }
    } else if host::now() - status.updated < OLD {
        Life::Alive
    } else {
        Life::Unknown
    }
}

/// A run's job, and what Slurm says of it: `None` where it was never in a queue, or Slurm has forgotten it.
pub type SeenJob = (Record, Result<Option<Job>, AskError>);

/// The job of a run, if it was ever in a queue.
pub fn job_of(store: &Store) -> Result<Option<SeenJob>, Failure> {
    let record = Record::read(store).map_err(Failure::failed)?;
    Ok(record.map(|record| {
        let seen = job::look(&record.job);
        (record, seen)
    }))
}

/// What coordinators of the run remember; nothing, where it cannot be read.
pub fn memory(store: &Store) -> Result<Memory, Failure> {
    match store.get_at_most(COORDINATOR, LONGEST) {
        Ok(bytes) => Ok(serde_json::from_slice(&bytes).unwrap_or_default()),
        Err(error) if error.is_not_found() => Ok(Memory::default()),
        Err(error) => Err(Failure::failed(error)),
    }
}

fn described(url: &str, status: Option<&Status>, job: Option<&SeenJob>) -> Vec<String> {
    let seen = job.and_then(|(_, seen)| seen.as_ref().ok()?.as_ref());
    let mut lines = match status {
        Some(status) => lines::run(url, status, life(status), seen),
        None => vec![format!("{url}: no coordinator has written a status yet")],
    };
    lines.extend(job.map(|(record, seen)| match seen {
        Ok(Some(job)) => lines::job(job),
        Ok(None) => format!("job          {}: Slurm does not know it any more", record.job),
        Err(error) => {
            format!("job          {}: its state is unknown here: {}", record.job, crate::failure::chain(error))
        }
    }));
    lines
}
