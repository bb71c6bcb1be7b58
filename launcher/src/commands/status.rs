//! `lambert status`: last status, checkpoints and Slurm job of a run.

use lambert_config::exit;
use lambert_store::Store;
use lambert_store::checkpoint;
use lambert_store::run::{CONFIG, COORDINATOR};
use serde_json::json;

use super::status_lines as lines;
use crate::cli;
use crate::console;
use crate::decide::RestartHistory;
use crate::failure::{Failure, Outcome};
use crate::host;
use crate::slurm::job::{self, Job};
use crate::slurm::programs::SlurmError;
use crate::slurm::record::JobRecord;
use crate::status::Status;
use crate::status::stored::{self, LONGEST, liveness};

/// Maximum number of entries of `job_ends` that are shown.
const ENDS: usize = 10;
#[derive(Debug, thiserror::Error)]
enum StatusError {
    #[error("{url} is not a run: {CONFIG} not found")]
    NoRun { url: String },
}

/// Prints the status.
pub fn status(arguments: &cli::Status) -> Outcome {
    let store = Store::open(&arguments.run).map_err(Failure::usage)?;
    require_run(&store)?;
    let status = stored::read(&store)?;
    let checkpoints = checkpoint::list(&store).map_err(Failure::failed)?;
    let names: Vec<&str> = checkpoints.iter().map(|listed| listed.name.as_str()).collect();
    let job = job_of(&store)?;
    let history = history(&store)?;
    let text = if arguments.json {
        json!({
            "run": store.url(),
            "age": status.as_ref().map(|status| host::now() - status.updated),
            "coordinator": status.as_ref().map(|status| format!("{:?}", liveness(status)).to_lowercase()),
            "status": status,
            "job": job.as_ref().and_then(|(_, seen)| seen.as_ref().ok()),
            "job_ends": history.job_ends,
            "checkpoints": names,
        })
        .to_string()
    } else {
        let mut lines = described(store.url(), status.as_ref(), job.as_ref());
        lines.extend(history.job_ends.iter().rev().take(ENDS).rev().map(|end| lines::job_end(end, host::now())));
        lines.push(lines::checkpoints(&names));
        lines.join("\n")
    };
    console::result(&text).map_err(Failure::failed)?;
    Ok(exit::DONE)
}

/// Returns an error unless the store contains a run.
pub fn require_run(store: &Store) -> Result<(), Failure> {
    match store.head(CONFIG).map_err(Failure::failed)? {
        Some(_) => Ok(()),
        None => Err(Failure::usage(StatusError::NoRun { url: store.url().to_owned() })),
    }
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
    match store.get_at_most(COORDINATOR, LONGEST) {
        Ok(bytes) => Ok(serde_json::from_slice(&bytes).unwrap_or_default()),
        Err(error) if error.is_not_found() => Ok(RestartHistory::default()),
        Err(error) => Err(Failure::failed(error)),
    }
}

fn described(url: &str, status: Option<&Status>, job: Option<&SeenJob>) -> Vec<String> {
    let seen = job.and_then(|(_, seen)| seen.as_ref().ok()?.as_ref());
    let mut lines = match status {
        Some(status) => lines::run(url, status, liveness(status), seen),
        None => vec![format!("run          {url}: not started yet")],
    };
    lines.extend(job.map(|(record, seen)| match seen {
        Ok(Some(job)) => lines::job(job),
        Ok(None) => format!("job          {}: no longer known to Slurm", record.job),
        Err(error) => {
            format!("job          {}: state unknown ({})", record.job, crate::failure::chain(error))
        }
    }));
    lines
}
