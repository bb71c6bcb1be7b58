//! `lambert logs`: prints the logs of a run's ranks on this host.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use lambert_config::exit;
use lambert_store::Store;
use lambert_store::host_paths::{self, LogFolders};

use super::follow::Follower;
use super::stored_run::require_run;
use crate::cli;
use crate::console;
use crate::failure::{Failure, Outcome};
use crate::host;
use crate::logs::reader::AttemptLogs;
use crate::status::{Status, stored};

/// Pause between two reads of a run that is followed.
const PAUSE: Duration = Duration::from_millis(500);
/// Maximum number of ranks on other hosts named.
const PLACES: usize = 4;

#[derive(Debug, thiserror::Error)]
enum LogsError {
    #[error("{url} has no logs: it has not started yet")]
    NotStarted { url: String },
    #[error("{url} has no log files: cluster.log_folder is \"none\"")]
    Disabled { url: String },
    #[error("logs not on this host ({here}): {places}; run `lambert logs` on those hosts (folder {})", folder.display())]
    Elsewhere { places: String, folder: PathBuf, here: String },
    #[error("{} not found on this host ({here}); each host has the logs of its own ranks", path.display())]
    NotFound { path: PathBuf, here: String },
    #[error("--rank {rank}: {url} has {ranks}")]
    NoRank { url: String, rank: usize, ranks: String },
    #[error("cannot read {}", path.display())]
    Unreadable { path: PathBuf, source: std::io::Error },
}

/// Prints the logs; with `--follow`, until the run is over.
pub fn logs(arguments: &cli::Logs) -> Outcome {
    let store = Store::open(&arguments.run).map_err(Failure::usage)?;
    require_run(&store)?;
    if arguments.follow {
        follow(&store, arguments.rank)?;
        return Ok(exit::DONE);
    }
    let status = stored::read(&store)?;
    let mut logs = logs_of(&store, status.as_ref(), arguments.attempt, arguments.rank)?;
    print(&mut logs, true)?;
    warn_of_other_hosts(&logs, status.as_ref(), arguments.rank)?;
    require_logs(&logs, (&store, status.as_ref()), arguments.rank)?;
    Ok(exit::DONE)
}

/// Prints the logs of the newest attempt and of later ones, until the run is over.
fn follow(store: &Store, rank: Option<usize>) -> Result<(), Failure> {
    let mut follower = Follower::new(store);
    let (mut logs, mut warned): (Option<AttemptLogs>, bool) = (None, false);
    let mut read = Some(follower.try_read()?);
    loop {
        // The status first: logs are complete when a run is over.
        let is_over = read.as_ref().is_some_and(|read| read.is_over);
        let status = read.and_then(|read| read.status).filter(|status| status.attempt > 0);
        if status.is_some() {
            let newest = logs_of(store, status.as_ref(), None, rank)?;
            if logs.as_ref().is_none_or(|logs| logs.folder() != newest.folder()) {
                logs.as_mut().map_or(Ok(true), |before| print(before, true))?;
                (logs, warned) = (Some(newest), false);
            }
        }
        if let Some(logs) = &mut logs {
            let has_reader = print(logs, is_over)?;
            warned = warned || warn_of_other_hosts(logs, status.as_ref(), rank)?;
            if is_over {
                require_logs(logs, (store, status.as_ref()), rank)?;
            }
            if !has_reader {
                return Ok(());
            }
        }
        if is_over {
            return Ok(());
        }
        std::thread::sleep(PAUSE);
        read = follower.read();
    }
}

/// Returns the logs of an attempt, by default the newest.
fn logs_of(
    store: &Store,
    status: Option<&Status>,
    attempt: Option<u32>,
    rank: Option<usize>,
) -> Result<AttemptLogs, Failure> {
    let url = || store.url().to_owned();
    let Some(status) = status.filter(|status| status.attempt > 0) else {
        return Err(Failure::failed(LogsError::NotStarted { url: url() }));
    };
    let newest = status.workers.logs.as_ref().map(PathBuf::from);
    let newest = newest.ok_or_else(|| Failure::failed(LogsError::Disabled { url: url() }))?;
    let folder = match (attempt, LogFolders::from_attempt(&newest)) {
        (Some(attempt), Some(folders)) => host_paths::in_logs_of_run(folders.run, attempt),
        _ => newest,
    };
    Ok(AttemptLogs::new(folder, rank))
}

/// Prints new lines, with their ranks unless one was selected. Returns false if the reader is gone.
fn print(logs: &mut AttemptLogs, is_over: bool) -> Result<bool, Failure> {
    let path = logs.folder().to_owned();
    let content = |output: &mut (dyn Write + Send)| {
        let shows_all = logs.shows_all();
        logs.read(is_over, |rank, line| {
            if shows_all {
                write!(output, "rank {rank}: ")?;
            }
            output.write_all(line)?;
            output.write_all(b"\n")
        })
    };
    let printed = console::results_to_reader(content);
    printed.map_err(|source| Failure::failed(LogsError::Unreadable { path, source }))
}

/// Returns an error if no log was found.
fn require_logs(
    logs: &AttemptLogs,
    (store, status): (&Store, Option<&Status>),
    rank: Option<usize>,
) -> Result<(), Failure> {
    if logs.ranks().next().is_some() {
        return Ok(());
    }
    let known: Vec<usize> =
        status.map_or(&[][..], |status| &status.workers.ranks).iter().map(|rank| rank.rank).collect();
    if let Some((rank, ranks)) = rank.filter(|rank| !known.contains(rank)).zip(rank_names(&known)) {
        return Err(Failure::usage(LogsError::NoRank { url: store.url().to_owned(), rank, ranks }));
    }
    let folder = logs.folder();
    let path = rank.map_or(folder.to_owned(), |rank| folder.join(host_paths::rank_log(rank)));
    Err(Failure::failed(LogsError::NotFound { path, here: host::name() }))
}

/// Names ranks: `ranks 0 to 7`. `None` without any.
fn rank_names(ranks: &[usize]) -> Option<String> {
    let (first, last) = (ranks.iter().min()?, ranks.iter().max()?);
    Some(match last - first {
        0 => format!("only rank {first}"),
        1 => format!("ranks {first} and {last}"),
        _ => format!("ranks {first} to {last}"),
    })
}

/// Names the hosts of ranks whose logs are not on this host; an error if they are all on other hosts. Returns true if
/// it logged a warning. A log folder may be shared by hosts.
fn warn_of_other_hosts(logs: &AttemptLogs, status: Option<&Status>, rank: Option<usize>) -> Result<bool, Failure> {
    let (here, folder) = (host::name(), logs.folder());
    let is_shown = |status: &&Status| status.workers.logs.as_deref().map(Path::new) == Some(folder);
    let ranks = status.filter(is_shown).map_or(&[][..], |status| &status.workers.ranks);
    let wanted = ranks.iter().filter(|other| rank.is_none_or(|rank| rank == other.rank));
    let elsewhere = wanted.filter(|rank| rank.host != here && logs.ranks().all(|shown| shown != rank.rank));
    let mut places: Vec<String> = elsewhere.map(|rank| format!("rank {} on host {}", rank.rank, rank.host)).collect();
    if places.is_empty() {
        return Ok(false);
    }
    if places.len() > PLACES {
        let more = places.split_off(PLACES).len();
        places.push(format!("{more} more"));
    }
    let error = LogsError::Elsewhere { places: places.join(", "), folder: folder.to_owned(), here };
    match logs.ranks().next() {
        Some(_) => tracing::warn!("{error}"),
        None => return Err(Failure::failed(error)),
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::status::RankStatus;

    #[test]
    fn an_unknown_rank_is_refused_with_the_ranks_of_the_run() {
        let store = Store::open("memory://logs/run").unwrap();
        let logs = AttemptLogs::new(PathBuf::from("/none"), Some(7));
        let mut status = Status::default();
        let of_rank = |rank: usize| -> RankStatus {
            let value = json!({ "rank": rank, "host": "node1", "pid": 42, "step": 70, "phase": "computing a step",
                                "seconds_since_heartbeat": 0.5 });
            serde_json::from_value(value).unwrap()
        };
        let mut refused = |ranks: usize| {
            status.workers.ranks = (0..ranks).map(of_rank).collect();
            let failure = require_logs(&logs, (&store, Some(&status)), Some(7)).unwrap_err();
            (failure.code, failure.to_string())
        };
        for (ranks, named) in [(1, "has only rank 0"), (2, "has ranks 0 and 1"), (4, "has ranks 0 to 3")] {
            let (code, message) = refused(ranks);
            assert!(code == exit::USAGE && message.contains("--rank 7: ") && message.ends_with(named), "{message}");
        }
        for ranks in [0, 8] {
            let (code, message) = refused(ranks);
            assert!(code == exit::FAILED && message.contains("not found on this host"), "{message}");
        }
    }
}
