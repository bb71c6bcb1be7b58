//! Event file of a run in a store, from its step records.

use std::path::Path;

use lambert_store::Store;
use lambert_store::run::CONFIG;

use super::file::EventFile;
use super::proto::Event;
use super::writer::{HistoryWriter, Lines, WriteError};
use super::{hyperparameters, text};
use crate::host;
use crate::metrics::history::{History, HistoryEnd};

/// Error of a [`RunExport`].
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// A later call of [`RunExport::refresh`] may succeed.
    #[error(transparent)]
    Store(#[from] lambert_store::Error),
    #[error("cannot write TensorBoard event files to {folder}")]
    Folder { folder: String, source: std::io::Error },
    #[error(transparent)]
    Write(WriteError),
}

impl From<WriteError> for ExportError {
    fn from(error: WriteError) -> Self {
        match error {
            WriteError::Store(error) => Self::Store(error),
            other => Self::Write(other),
        }
    }
}

/// Event file of a run. Only the positions and times of the step records stay in memory.
#[derive(Debug)]
pub struct RunExport {
    history: History,
    writer: HistoryWriter,
    /// End of the history that was written. `None` if the last write has failed.
    written: Option<HistoryEnd>,
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
        let entries = history.entries();
        let start = entries.iter().map(|entry| entry.time).min_by(f64::total_cmp).unwrap_or_else(host::now);
        let headers = headers(store, start)?;
        let file = EventFile::create(folder, host::now()).map_err(failed)?;
        let mut writer = HistoryWriter::begin(file, start, headers).map_err(failed)?;
        writer.write(&entries, Lines { history: &history, run: store })?;
        let written = Some(history.end());
        Ok(Self { history, writer, written })
    }

    /// Appends the steps that the run has written since the last call.
    ///
    /// # Errors
    /// As [`Self::begin`].
    pub fn refresh(&mut self, store: &Store) -> Result<(), ExportError> {
        if !self.history.refresh(store)? && self.written.is_some() {
            return Ok(());
        }
        let lines = Lines { history: &self.history, run: store };
        let continued = self.written.take().filter(|written| self.history.continues(written));
        let is_appended = match continued {
            Some(written) => self.writer.append(&self.history.entries_after(&written), lines)?,
            None => false,
        };
        if !is_appended {
            self.writer.write(&self.history.entries(), lines)?;
        }
        self.written = Some(self.history.end());
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::history::tests::{Numbers, evaluation, line, put, read, store};
    use lambert_store::run;

    /// Bytes of the only file in `folder`.
    fn bytes(folder: &Path) -> Vec<u8> {
        let file = std::fs::read_dir(folder).unwrap().next().unwrap().unwrap().path();
        std::fs::read(file).unwrap()
    }

    /// Compares the file of a run that is followed with that of a writer that compares all entries each time. The run has
    /// attempts that repeat steps, rollbacks, repeated evaluations, and objects that longer ones replace.
    #[test]
    fn a_followed_run_has_the_events_of_a_whole_comparison() {
        for seed in 1..=20 {
            let (store, mut numbers) = (store(&format!("followed-{seed}")), Numbers(seed));
            store.put(CONFIG, "x = 1\n".into()).unwrap();
            put(&store, 1, 0, line(1, 5.0));
            let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
            let mut followed = RunExport::begin(&store, folders[0].path(), || {}).unwrap();
            let start = read(&store).entries()[0].time;
            let file = EventFile::create(folders[1].path(), 1.0).unwrap();
            let mut whole = HistoryWriter::begin(file, start, headers(&store, start).unwrap()).unwrap();
            let compare = |whole: &mut HistoryWriter| {
                let history = read(&store);
                whole.write(&history.entries(), Lines { history: &history, run: &store }).unwrap();
            };
            compare(&mut whole);
            let (mut attempt, mut step) = (1, 1);
            for _ in 0..30 {
                match numbers.below(6) {
                    0 => (attempt, step) = (attempt + 1, numbers.below(step + 1)),
                    1 => {
                        step = numbers.below(step + 1);
                        let text = format!("{{\"attempt\":{attempt},\"steps\":{step}}}");
                        store.put(&run::rollback(attempt), text.into()).unwrap();
                        attempt += 1;
                    }
                    _ => {}
                }
                let mut text = if numbers.below(3) == 0 { evaluation(step, 1.0) } else { String::new() };
                let from = step;
                for _ in 0..=numbers.below(4) {
                    step += 1;
                    text += &line(step, step as f64);
                    text += &if numbers.below(3) == 0 { evaluation(step, 2.0) } else { String::new() };
                }
                put(&store, attempt, from, text.clone());
                if numbers.below(4) > 0 {
                    followed.refresh(&store).unwrap();
                    compare(&mut whole);
                }
                if numbers.below(4) == 0 {
                    step += 1;
                    put(&store, attempt, from, text + &line(step, 1.0));
                }
            }
            followed.refresh(&store).unwrap();
            compare(&mut whole);
            assert!(bytes(folders[0].path()) == bytes(folders[1].path()), "seed {seed}");
        }
    }
}
