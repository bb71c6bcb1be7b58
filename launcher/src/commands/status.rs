//! `lambert status`: last status, checkpoints and Slurm job of a run, or a list of the runs of a folder.

use std::time::{Duration, Instant};

use lambert_config::exit;
use lambert_progress::{Progress, Unit};
use lambert_store::Store;
use lambert_store::checkpoint;
use lambert_store::run::CONFIG;
use serde_json::{Value, json};

use super::follow::Follower;
use super::stored_run::{self, SeenJob, history, job_of};
use super::{status_lines as lines, status_list};
use crate::cli;
use crate::console;
use crate::decide::RestartHistory;
use crate::failure::{Failure, Outcome};
use crate::host;
use crate::status::stored::{self, liveness};
use crate::status::{OBJECT, Status};

/// Maximum number of entries of `job_ends` that are shown.
const ENDS: usize = 10;
/// Pause between two reads of a run that is followed.
const PAUSE: Duration = Duration::from_secs(1);
/// Maximum age of the checkpoints, the Slurm job and the history of a run that is followed.
const SUMMARY: Duration = Duration::from_secs(30);

#[derive(Debug, thiserror::Error)]
enum StatusError {
    #[error("{url} is a folder of runs: --follow needs a run")]
    Directory { url: String },
}

/// Status of a run with its checkpoints, job and history.
#[derive(Debug)]
struct RunSummary {
    url: String,
    status: Option<Status>,
    /// Why the status cannot be read, if it is damaged.
    damage: Option<String>,
    checkpoints: Vec<String>,
    job: Option<SeenJob>,
    history: RestartHistory,
}

/// Prints the status.
pub fn status(arguments: &cli::Status) -> Outcome {
    let progress = Progress::start("reading the run");
    let store = Store::open(&arguments.run).map_err(Failure::usage)?;
    if store.head(CONFIG).map_err(Failure::failed)?.is_none() {
        list(&store, arguments, progress)?;
    } else if arguments.follow {
        drop(progress);
        follow(&store, arguments.json)?;
    } else {
        let (status, damage) = match stored::read_if_intact(&store)? {
            Ok(status) => (status, None),
            Err(damage) => (None, Some(damage.to_string())),
        };
        let summary = RunSummary { damage, ..RunSummary::read(&store, status)? };
        drop(progress);
        summary.damage.iter().for_each(|damage| tracing::warn!("{damage}"));
        let text = if arguments.json { summary.json().to_string() } else { summary.text() };
        console::result(&text).map_err(Failure::failed)?;
    }
    Ok(exit::DONE)
}

/// Prints the runs of a folder.
fn list(store: &Store, arguments: &cli::Status, progress: Progress) -> Result<(), Failure> {
    progress.phase("reading runs", Unit::Count("folders"));
    let update = |done: usize, total: usize| {
        progress.set_total(total as u64);
        progress.set_done(done as u64);
    };
    let runs = status_list::read(store, update)?;
    drop(progress);
    let url = || store.url().to_owned();
    match runs.as_slice() {
        [] => Err(stored_run::not_a_run(store)),
        _ if arguments.follow => Err(Failure::usage(StatusError::Directory { url: url() })),
        runs if arguments.json => console::result(&status_list::json_lines(runs)).map_err(Failure::failed),
        runs => console::result(&status_list::table(runs)).map_err(Failure::failed),
    }
}

/// Prints the status at each change until the run is over: a screen on a terminal, otherwise one line per change.
fn follow(store: &Store, json: bool) -> Result<(), Failure> {
    let mut follower = Follower::new(store);
    let mut read = Some(follower.try_read()?);
    let mut summary = RunSummary::read(store, None)?;
    let mut before: Option<Status> = None;
    // Time of the last summary. `None`: it could not be read, and is read again.
    let mut summarized = Some(Instant::now());
    loop {
        let is_over = read.as_ref().is_some_and(|read| read.is_over);
        if let Some(status) = read.and_then(|read| read.status) {
            let is_old = summarized.is_none_or(|at| at.elapsed() >= SUMMARY);
            if is_old || before.as_ref().is_none_or(|before| needs_summary(before, &status)) {
                summary = match RunSummary::read(store, Some(status.clone())) {
                    Ok(new) => {
                        summarized = Some(Instant::now());
                        new
                    }
                    Err(failure) => {
                        if summarized.take().is_some() {
                            tracing::warn!("cannot read {}: {failure}; trying again", store.url());
                        }
                        summary.with(status)
                    }
                };
            } else {
                summary = summary.with(status);
            }
        }
        let is_screen = console::is_output_terminal() && !json;
        let has_changed = before.as_ref().map(lines::comparable) != summary.status.as_ref().map(lines::comparable);
        if has_changed || is_screen {
            let text = match (&summary.status, json) {
                (_, true) => summary.json().to_string() + "\n",
                (Some(status), _) => lines::one_line(status) + "\n",
                (None, _) => String::new(),
            };
            let print = |output: &mut (dyn std::io::Write + Send)| output.write_all(text.as_bytes());
            let has_reader =
                if is_screen { console::screen(&summary.text()) } else { console::results_to_reader(print) };
            if !has_reader.map_err(Failure::failed)? {
                return Ok(());
            }
            before.clone_from(&summary.status);
        }
        if is_over {
            return Ok(());
        }
        std::thread::sleep(PAUSE);
        read = follower.read();
    }
}

/// True if more than the status may have changed.
fn needs_summary(before: &Status, now: &Status) -> bool {
    (before.state, before.attempt, &before.checkpoint) != (now.state, now.attempt, &now.checkpoint)
}

impl RunSummary {
    fn read(store: &Store, status: Option<Status>) -> Result<Self, Failure> {
        let checkpoints = checkpoint::list(store).map_err(Failure::failed)?;
        Ok(Self {
            url: store.url().to_owned(),
            status,
            damage: None,
            checkpoints: checkpoints.into_iter().map(|listed| listed.name).collect(),
            job: job_of(store)?,
            history: history(store)?,
        })
    }

    fn with(self, status: Status) -> Self {
        Self { status: Some(status), ..self }
    }

    fn json(&self) -> Value {
        let status = self.status.as_ref();
        let mut summary = json!({
            "run": self.url,
            "age": status.map(|status| host::now() - status.updated),
            "coordinator": status.map(|status| liveness(status).name()),
            "status": status,
            "job": self.job.as_ref().and_then(|(_, seen)| seen.as_ref().ok()),
            "job_ends": self.history.job_ends,
            "checkpoints": self.checkpoints,
        });
        if let Some(damage) = &self.damage {
            summary["error"] = damage.as_str().into();
        }
        summary
    }

    fn text(&self) -> String {
        let mut text = self.described();
        let ends = self.history.job_ends.iter().rev().take(ENDS).rev();
        text.extend(ends.map(|end| lines::job_end(end, host::now())));
        text.push(lines::checkpoints(&self.checkpoints));
        text.join("\n")
    }

    fn described(&self) -> Vec<String> {
        let (url, job) = (&self.url, self.job.as_ref());
        let seen = job.and_then(|(_, seen)| seen.as_ref().ok()?.as_ref());
        let mut lines = match (&self.status, &self.damage) {
            (Some(status), _) => lines::run(url, status, liveness(status), seen),
            (None, Some(_)) => vec![format!("run          {url}: state unknown ({OBJECT} is damaged)")],
            (None, None) => vec![format!("run          {url}: not started yet")],
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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_damaged_status_is_named_beside_the_rest() {
        let store = Store::open("memory://status/run").unwrap();
        let intact = RunSummary::read(&store, stored::read_if_intact(&store).unwrap().unwrap()).unwrap();
        assert!(intact.text().contains("not started yet") && intact.json().get("error").is_none());
        store.put(OBJECT, "{".into()).unwrap();
        assert!(stored::read(&store).is_err());
        let damage = stored::read_if_intact(&store).unwrap().unwrap_err().to_string();
        let damaged = RunSummary { damage: Some(damage), ..intact };
        let text = damaged.text();
        assert!(text.contains("state unknown (status.json is damaged)") && text.contains("checkpoints"), "{text}");
        assert!(damaged.json()["error"].as_str().unwrap().contains("is not a run status"));
    }
}
