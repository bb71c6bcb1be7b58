//! `lambert submit`: queues a run with Slurm. What the configuration says is settled now, and what would never start is
//! refused now: nobody wants to learn either from a log in the morning.

use std::path::Path;

use lambert_config::exit;
use lambert_store::Store;
use serde_json::json;

use super::{status, submit_prep};
use crate::cli;
use crate::console;
use crate::failure::{Failure, Outcome};
use crate::run::decide::Room;
use crate::run::order::Order;
use crate::run::sources::STOP_OBJECT;
use crate::slurm::record::Record;
use crate::slurm::{cluster, script};

#[derive(Debug, thiserror::Error)]
enum SubmitError {
    #[error("cannot find {what}")]
    Place { what: &'static str, source: std::io::Error },
    #[error("{url} is in the queue already, as job {job} ({state}); `lambert stop` ends it")]
    Queued { url: String, job: String, state: String },
    #[error("job {job} is queued, but the run's store cannot be told, so that `lambert status` will not know of it")]
    Record { job: String, source: lambert_store::Error },
}

/// Shows the batch scripts, or queues them.
pub fn submit(arguments: &cli::Submit) -> Outcome {
    let place = |what| move |source| Failure::failed(SubmitError::Place { what, source });
    let folder = std::env::current_dir().map_err(place("the folder that this is"))?;
    let lambert = std::env::current_exe().map_err(place("the path of this program"))?;
    match &arguments.run {
        Some(run) => submit_run(arguments, run, &folder, &lambert.to_string_lossy()),
        None => submit_prep::submit(arguments, &folder, &lambert.to_string_lossy()),
    }
}

fn submit_run(arguments: &cli::Submit, run: &str, folder: &Path, lambert: &str) -> Outcome {
    let proposed = Order::propose(&arguments.to_run(run), |_| Room::Allocation)?;
    let job = script::Job { run: proposed.store().url(), lambert, folder: &folder.to_string_lossy() };
    let script = script::render(proposed.config(), &job);
    if arguments.dry_run {
        console::result(script.trim_end()).map_err(Failure::failed)?;
        return Ok(exit::DONE);
    }
    refuse_second(proposed.store())?;
    cluster::check(&proposed.config().slurm, folder).map_err(Failure::usage)?;
    let order = proposed.settle()?;
    // What was asked of an earlier job is not meant for this one.
    order.store.delete(STOP_OBJECT).map_err(Failure::failed)?;
    let number = cluster::submit(&script).map_err(Failure::usage)?;
    let record = Record { job: number.clone(), cluster: None };
    let untold = |source| Failure::failed(SubmitError::Record { job: number.clone(), source });
    record.write(&order.store).map_err(untold)?;
    let text = if arguments.json { json!({ "job": number }).to_string() } else { number };
    console::result(&text).map_err(Failure::failed)?;
    Ok(exit::DONE)
}

/// Two jobs of one run would take it from each other.
fn refuse_second(store: &Store) -> Result<(), Failure> {
    let Some((_, Ok(Some(job)))) = status::job_of(store)? else { return Ok(()) };
    match job.is_alive() {
        true => Err(Failure::usage(SubmitError::Queued { url: store.url().to_owned(), job: job.id, state: job.state })),
        false => Ok(()),
    }
}
