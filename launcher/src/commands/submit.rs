//! `lambert submit`: queues a run with Slurm. What the configuration says is settled now, and what would never start is
//! refused now: nobody wants to learn either from a log in the morning.

use lambert_config::exit;
use serde_json::json;

use crate::cli;
use crate::console;
use crate::failure::{Failure, Outcome};
use crate::run::decide::Room;
use crate::run::order::Order;
use crate::slurm::{cluster, script};

#[derive(Debug, thiserror::Error)]
enum SubmitError {
    #[error("cannot find {what}")]
    Place { what: &'static str, source: std::io::Error },
}

/// Shows the batch script, or queues it.
pub fn submit(arguments: &cli::Submit) -> Outcome {
    let place = |what| move |source| Failure::failed(SubmitError::Place { what, source });
    let folder = std::env::current_dir().map_err(place("the folder that this is"))?;
    let lambert = std::env::current_exe().map_err(place("the path of this program"))?;
    let proposed = Order::propose(&arguments.run, |_| Room::Allocation)?;
    let (lambert, name) = (lambert.to_string_lossy(), folder.to_string_lossy());
    let job = script::Job { run: proposed.store().url(), lambert: &lambert, folder: &name };
    let script = script::render(proposed.config(), &job);
    if arguments.dry_run {
        console::result(script.trim_end()).map_err(Failure::failed)?;
        return Ok(exit::DONE);
    }
    cluster::check(&proposed.config().slurm, &folder).map_err(Failure::usage)?;
    let order = proposed.settle()?;
    let number = cluster::submit(&script).map_err(Failure::usage)?;
    tracing::debug!("queued {} as job {number}", order.store.url());
    let text = if arguments.run.json { json!({ "job": number }).to_string() } else { number };
    console::result(&text).map_err(Failure::failed)?;
    Ok(exit::DONE)
}
