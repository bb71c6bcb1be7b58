//! `lambert metrics`: step records as JSON lines, CSV, Parquet or TensorBoard event files.

use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;

use lambert_config::exit;
use lambert_progress::{Progress, Unit};
use lambert_store::Store;

use super::files;
use super::follow::Follower;
use super::stored_run::require_run;
use crate::cli::{self, RecordFormat};
use crate::console;
use crate::failure::{Failure, Outcome, chain};
use crate::metrics::follow::LineFollower;
use crate::metrics::history::History;
use crate::metrics::table::Table;
use crate::metrics::{WriteError, columns, csv, json_lines};
use crate::tensorboard::export::{ExportError, RunExport};

/// Pause between two reads of a run that is followed.
const PAUSE: Duration = Duration::from_secs(3);

#[derive(Debug, thiserror::Error)]
enum MetricsError {
    #[error("a Parquet file cannot be written to stdout: set --output FILE")]
    NoOutput,
    #[error("--follow writes JSON lines or --tensorboard: remove --format")]
    FollowedTable,
}

/// Exports the step records.
pub fn metrics(arguments: &cli::Metrics) -> Outcome {
    if arguments.follow && arguments.format != RecordFormat::Jsonl {
        return Err(Failure::usage(MetricsError::FollowedTable));
    }
    if arguments.format == RecordFormat::Parquet && arguments.output.is_none() {
        return Err(Failure::usage(MetricsError::NoOutput));
    }
    let progress = Progress::start("reading records");
    let store = progress.observe(&Store::open(&arguments.run).map_err(Failure::usage)?);
    require_run(&store)?;
    match &arguments.tensorboard {
        Some(folder) => tensorboard(&store, folder, arguments.follow, progress)?,
        None if arguments.follow => follow(&store, progress)?,
        None => export(&store, arguments.format, arguments.output.as_deref(), progress)?,
    }
    Ok(exit::DONE)
}

fn export(store: &Store, format: RecordFormat, output: Option<&Path>, progress: Progress) -> Result<(), Failure> {
    let mut history = History::default();
    history.refresh(store).map_err(Failure::failed)?;
    progress.phase("converting", Unit::Bytes);
    let table = match format {
        RecordFormat::Jsonl => None,
        RecordFormat::Csv | RecordFormat::Parquet => Some(Table::new(&history, store).map_err(Failure::failed)?),
    };
    let write = |output: &mut (dyn Write + Send)| match (&table, format) {
        (Some(table), RecordFormat::Parquet) => columns::write(table, output),
        (Some(table), _) => csv::write(table, output),
        (None, _) => json_lines::write(&history, store, output),
    };
    progress.phase("writing", Unit::Bytes);
    // Records on a terminal would mix with the bar.
    let _progress = Some(progress).filter(|_| output.is_some() || !console::is_output_terminal());
    let mut unread = None;
    let mut content = |output: &mut (dyn Write + Send)| {
        write(output).map_err(|error| match error {
            WriteError::Output(error) => error,
            other => {
                unread = Some(Failure::failed(other));
                io::Error::other("the records cannot be read")
            }
        })
    };
    let written = match output {
        Some(path) => files::write(path, |file| content(file)).map_err(Failure::failed),
        None => console::results(content).map_err(Failure::failed),
    };
    unread.map_or(written, Err)
}

/// Writes JSON lines to stdout until the run is over.
fn follow(store: &Store, progress: Progress) -> Result<(), Failure> {
    drop(progress);
    let (mut follower, mut lines) = (Follower::new(store), LineFollower::default());
    let mut read = Some(follower.try_read()?);
    loop {
        // The status is read before the records. If the status says that the run is over, all records are complete.
        if let Some(read) = read {
            match write_lines(&mut lines, store) {
                Ok(has_reader) if read.is_over || !has_reader => return Ok(()),
                Ok(_) => {}
                Err(WriteError::Store(error)) => {
                    tracing::warn!("cannot read {}; trying again: {}", store.url(), chain(&error));
                }
                Err(error) => return Err(Failure::failed(error)),
            }
        }
        std::thread::sleep(PAUSE);
        read = follower.read();
    }
}

/// Writes the new lines. Returns false if the reader closed the pipe.
fn write_lines(lines: &mut LineFollower, store: &Store) -> Result<bool, WriteError> {
    if !lines.refresh(store)? {
        return Ok(true);
    }
    let mut unread = None;
    let has_reader = console::results_to_reader(|output| {
        lines.write(store, output).or_else(|error| match error {
            WriteError::Output(error) => Err(error),
            other => {
                unread = Some(other);
                Ok(())
            }
        })
    })?;
    unread.map_or(Ok(has_reader), Err)
}

/// Writes the event file. With `follow`, continues to append new records until the run is over.
fn tensorboard(store: &Store, folder: &Path, follow: bool, progress: Progress) -> Result<(), Failure> {
    let mut follower = Follower::new(store);
    let mut is_over = !follow || follower.try_read()?.is_over;
    let writing = || progress.phase("writing", Unit::Bytes);
    let mut export = RunExport::begin(store, folder, writing).map_err(Failure::failed)?;
    drop(progress);
    while !is_over {
        std::thread::sleep(PAUSE);
        // The status is read before the records. If the status says that the run is over, all records are complete.
        let Some(read) = follower.read() else { continue };
        match export.refresh(store) {
            Ok(()) => is_over = read.is_over,
            Err(ExportError::Store(error)) => {
                tracing::warn!("cannot read {}; trying again: {}", store.url(), chain(&error));
            }
            Err(error) => return Err(Failure::failed(error)),
        }
    }
    Ok(())
}
