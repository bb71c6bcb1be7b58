//! Event file of a run in a store, from its step records.

use std::path::Path;

use lambert_store::Store;
use lambert_store::run::CONFIG;

use super::file::EventFile;
use super::proto::Event;
use super::writer::{HistoryWriter, WriteError};
use super::{hyperparameters, text};
use crate::host;
use crate::metrics::history::History;

/// Error of a [`RunExport`].
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    #[error(transparent)]
    Store(#[from] lambert_store::Error),
    #[error("cannot write TensorBoard event files to {folder}")]
    Folder { folder: String, source: std::io::Error },
    #[error(transparent)]
    Write(#[from] WriteError),
}

/// Event file of a run. All step records stay in memory.
#[derive(Debug)]
pub struct RunExport {
    history: History,
    writer: HistoryWriter,
}

impl RunExport {
    /// Creates an event file in `folder` in place of earlier ones, and writes the steps so far. Calls `writing` before it
    /// writes.
    ///
    /// # Errors
    /// The store or the folder fails, or a record is not JSON.
    pub fn begin(store: &Store, folder: &Path, writing: impl FnOnce()) -> Result<Self, ExportError> {
        let failed = |source| ExportError::Folder { folder: folder.display().to_string(), source };
        let mut history = History::default();
        history.refresh(store)?;
        writing();
        let start = history.entries().iter().map(|entry| entry.time).min_by(f64::total_cmp).unwrap_or_else(host::now);
        let headers = headers(store, start)?;
        let file = EventFile::create(folder, host::now()).map_err(failed)?;
        let mut writer = HistoryWriter::begin(file, start, headers).map_err(failed)?;
        writer.write(&history.entries())?;
        Ok(Self { history, writer })
    }

    /// Appends the steps that the run has written since the last call.
    ///
    /// # Errors
    /// As [`Self::begin`].
    pub fn refresh(&mut self, store: &Store) -> Result<(), ExportError> {
        if self.history.refresh(store)? {
            self.writer.write(&self.history.entries())?;
        }
        Ok(())
    }
}

/// Returns events with the configuration and the versions as texts, and with the configuration as hyperparameters.
fn headers(store: &Store, start: f64) -> Result<Vec<Event>, lambert_store::Error> {
    let config = store.get(CONFIG)?;
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
