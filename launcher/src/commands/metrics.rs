//! `lambert metrics`: step records as JSON lines, CSV, Parquet or TensorBoard event files.

use std::path::Path;
use std::time::Duration;

use lambert_config::exit;
use lambert_store::Store;
use lambert_store::run::CONFIG;

use super::files;
use super::follow::Follower;
use super::stored_run::require_run;
use crate::cli::{self, RecordFormat};
use crate::console;
use crate::failure::{Failure, Outcome};
use crate::host;
use crate::metrics::history::History;
use crate::metrics::table::Table;
use crate::metrics::{columns, csv, json_lines};
use crate::tensorboard::file::EventFile;
use crate::tensorboard::proto::Event;
use crate::tensorboard::writer::HistoryWriter;
use crate::tensorboard::{hyperparameters, text};

/// Pause between two reads of a run that is followed.
const PAUSE: Duration = Duration::from_secs(3);

#[derive(Debug, thiserror::Error)]
enum MetricsError {
    #[error("a Parquet file cannot be written to stdout: set --output FILE")]
    NoOutput,
    #[error("cannot write TensorBoard event files to {folder}")]
    EventFile { folder: String, source: std::io::Error },
}

/// Exports the step records.
pub fn metrics(arguments: &cli::Metrics) -> Outcome {
    if arguments.format == RecordFormat::Parquet && arguments.output.is_none() {
        return Err(Failure::usage(MetricsError::NoOutput));
    }
    let store = Store::open(&arguments.run).map_err(Failure::usage)?;
    require_run(&store)?;
    match &arguments.tensorboard {
        Some(folder) => tensorboard(&store, folder, arguments.follow)?,
        None => export(&store, arguments.format, arguments.output.as_deref())?,
    }
    Ok(exit::DONE)
}

fn export(store: &Store, format: RecordFormat, output: Option<&Path>) -> Result<(), Failure> {
    let mut history = History::default();
    history.refresh(store).map_err(Failure::failed)?;
    let entries = history.entries();
    let table = match format {
        RecordFormat::Jsonl => Table::default(),
        RecordFormat::Csv | RecordFormat::Parquet => Table::new(&entries).map_err(Failure::failed)?,
    };
    let content = |output: &mut (dyn std::io::Write + Send)| match format {
        RecordFormat::Jsonl => json_lines::write(&entries, output),
        RecordFormat::Csv => csv::write(&table, output),
        RecordFormat::Parquet => columns::write(&table, output).map_err(std::io::Error::other),
    };
    match output {
        Some(path) => files::write(path, |file| content(file)).map_err(Failure::failed),
        None => console::results(content).map_err(Failure::failed),
    }
}

/// Writes the event file. With `follow`, continues to append new records until the run is over.
fn tensorboard(store: &Store, folder: &Path, follow: bool) -> Result<(), Failure> {
    let failed = |source| Failure::failed(MetricsError::EventFile { folder: folder.display().to_string(), source });
    let mut history = History::default();
    let mut follower = Follower::new(store);
    let mut is_over = !follow || follower.try_read()?.is_over;
    history.refresh(store).map_err(Failure::failed)?;
    let start = history.entries().iter().map(|entry| entry.time).min_by(f64::total_cmp).unwrap_or_else(host::now);
    let file = EventFile::create(folder, host::now()).map_err(failed)?;
    let mut writer = HistoryWriter::begin(file, start, headers(store, start)?).map_err(failed)?;
    writer.write(&history.entries()).map_err(Failure::failed)?;
    while !is_over {
        std::thread::sleep(PAUSE);
        // The status is read before the records. If the status says that the run is over, all records are complete.
        let Some(read) = follower.read() else { continue };
        match history.refresh(store) {
            Ok(has_changed) => {
                is_over = read.is_over;
                if has_changed {
                    writer.write(&history.entries()).map_err(Failure::failed)?;
                }
            }
            Err(error) => tracing::warn!("cannot read {}: {error}; trying again", store.url()),
        }
    }
    Ok(())
}

/// Returns events with the configuration and the versions as texts, and with the configuration as hyperparameters.
fn headers(store: &Store, start: f64) -> Result<Vec<Event>, Failure> {
    let config = store.get(CONFIG).map_err(Failure::failed)?;
    let config = String::from_utf8_lossy(&config);
    let versions = format!("run: {}\nevent file written by lambert {}", store.url(), lambert_control::version_text());
    let mut events =
        vec![text::event(start, CONFIG, &text::code(&config)), text::event(start, "versions", &text::code(&versions))];
    match config.parse().map(toml::Value::Table) {
        Ok(values) => events.push(hyperparameters::event(start, &values)),
        Err(error) => tracing::warn!("{}/{CONFIG} is not TOML ({error}): no hyperparameters", store.url()),
    }
    Ok(events)
}
