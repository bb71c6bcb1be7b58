//! `lambert status`: where a run is, as its coordinator wrote it last, and its checkpoints.

use lambert_config::control::RankTimes;
use lambert_config::exit;
use lambert_config::objectives::Score;
use lambert_store::Store;
use lambert_store::checkpoint::{self, Listed};
use lambert_store::run::CONFIG;
use serde_json::json;

use crate::cli;
use crate::console;
use crate::failure::{Failure, Outcome};
use crate::run::launch::processes;
use crate::run::progress::duration;
use crate::status::{self as file, RankStatus, State, Status};

/// A coordinator writes every few seconds; one that has not for this long is likely gone.
const OLD: f64 = 60.0;
/// No status is longer than this, bytes.
const LONGEST: u64 = 16 << 20;

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
    let text = if arguments.json {
        json!({
            "run": store.url(),
            "age": status.as_ref().map(|status| file::now() - status.updated),
            "coordinator": status.as_ref().map(|status| format!("{:?}", life(status)).to_lowercase()),
            "status": status,
            "checkpoints": checkpoints.iter().map(|listed| &listed.name).collect::<Vec<_>>(),
        })
        .to_string()
    } else {
        described(store.url(), status.as_ref(), &checkpoints)
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
    } else if coordinator.host == processes::host() {
        if processes::lives(coordinator.pid) { Life::Alive } else { Life::Gone }
    } else if file::now() - status.updated < OLD {
        Life::Alive
    } else {
        Life::Unknown
    }
}

fn described(url: &str, status: Option<&Status>, checkpoints: &[Listed]) -> String {
    let mut lines = match status {
        Some(status) => lines(url, status),
        None => vec![format!("{url}: no coordinator has written a status yet")],
    };
    match checkpoints {
        [] => lines.push("checkpoints  none".to_owned()),
        _ => lines.extend(checkpoints.iter().map(|listed| format!("checkpoint   {}", listed.name))),
    }
    lines.join("\n")
}

/// How long the ranks took for their own samples, and which one the others wait for.
fn rank_times(times: RankTimes, ranks: &[RankStatus]) -> String {
    let RankTimes { min, median, max, slowest } = times;
    let host = ranks.iter().find(|rank| rank.rank == slowest).map_or("?", |rank| rank.host.as_str());
    format!(
        "ranks        {min:.3} to {max:.3} s a step, median {median:.3}; the slowest is rank {slowest} on host {host}"
    )
}

fn lines(url: &str, status: &Status) -> Vec<String> {
    let age = duration(file::now() - status.updated);
    let who = format!("pid {} on host {}", status.coordinator.pid, status.coordinator.host);
    let life = match life(status) {
        Life::Alive => format!("its coordinator ({who}) wrote this {age} ago"),
        Life::Over => format!("since {age}"),
        Life::Gone => format!("but its coordinator ({who}) is gone; this was written {age} ago. `lambert run` goes on"),
        Life::Unknown => format!("but its coordinator ({who}) wrote last {age} ago: it may be gone"),
    };
    let mut lines = vec![format!("{url} ({}): {}, {life}", status.name, status.state)];
    let share = 100.0 * status.step as f64 / status.steps.max(1) as f64;
    let mut step = format!("step         {} of {} ({share:.1} %)", status.step, status.steps);
    if status.state == State::Training {
        let left = status.seconds_left.map_or(String::new(), |left| format!(", {} left", duration(left)));
        step += &format!(", {:.1} samples/s{left}", status.samples_per_second);
    }
    lines.push(step);
    if let Some(record) = &status.record {
        let Score { objective, loss, accuracy } = record.scores.main();
        lines.push(format!(
            "loss         {:.4} ({objective} {loss:.4}, accuracy {accuracy:.4}), learning rate {:.3e}",
            record.loss, record.learning_rate
        ));
    }
    if let Some(times) = status.record.as_ref().and_then(|record| record.ranks).filter(|_| status.ranks.len() > 1) {
        lines.push(rank_times(times, &status.ranks));
    }
    if let Some(held_out) = &status.evaluation {
        let (Score { objective, loss, accuracy }, step) = (held_out.scores.main(), held_out.step);
        lines.push(format!("held out     {objective} {loss:.4}, accuracy {accuracy:.4}, after step {step}"));
    }
    lines.push(format!("attempt      {}, {} restart(s)", status.attempt, status.restarts));
    lines.extend(status.lost.iter().map(|lost| {
        let cost = lost.seconds.map_or("not made up for yet".to_owned(), |seconds| format!("cost {seconds:.1} s"));
        format!("lost         at step {} of attempt {}: {} ({cost})", lost.step, lost.attempt, lost.cause)
    }));
    lines.extend(status.logs.iter().map(|folder| format!("logs         {folder}, on each rank's host")));
    if status.state == State::Failed
        && let Some(error) = &status.error
    {
        lines.push(format!("failed       {error}"));
    }
    if !status.state.is_over() {
        lines.extend(status.ranks.iter().map(rank));
    }
    lines
}

fn rank(rank: &RankStatus) -> String {
    let (number, pid, host, step, silent) = (rank.rank, rank.pid, &rank.host, rank.step, rank.silent);
    let phase = &rank.phase;
    format!("rank {number:<7} pid {pid} on host {host}, step {step}, {phase}, last heartbeat {silent:.1} s ago")
}
