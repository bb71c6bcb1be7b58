//! Writes the effective history of a run as events. If a step is undone after its events were written, the writer makes
//! TensorBoard drop the points of the step.
//!
//! TensorBoard has two readers. When the Python reader reads a START event, it drops all earlier points whose step is
//! not before the step of the START. The data server (`--load_fast`) ignores START events. Instead, when it reads a
//! point of a tag, it drops all earlier points of this tag whose step is not before the step of the point. Therefore
//! the writer appends a START, and then writes all valid points from the step of the START on again. This step is early
//! enough that every tag with undone points gets a valid point again, if the tag has a valid point.

use std::collections::HashMap;
use std::io;

use lambert_store::run::AttemptStep;

use super::file::EventFile;
use super::proto::{Event, FILE_VERSION, START, SessionLog, Summary};
use super::scalars::{self, Scalar};
use crate::metrics::history::Entry;
use crate::status::NoiseScale;

/// Maximum number of events that are collected in memory before they are written.
const EVENTS: usize = 4096;

/// Error of [`HistoryWriter::write`].
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    #[error("cannot write the event file")]
    File(#[from] io::Error),
    #[error("cannot parse a record")]
    Record(#[from] serde_json::Error),
}

/// Writer of a run's history.
#[derive(Debug)]
pub struct HistoryWriter {
    file: EventFile,
    /// Entries that were written and are still valid.
    written: Vec<Written>,
    /// Last step of each tag.
    tags: HashMap<String, u64>,
    noise: NoiseScale,
    /// Wall time of the last event.
    wall_time: f64,
}

/// Identity of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Written {
    position: AttemptStep,
    is_event: bool,
}

impl HistoryWriter {
    /// Begins a file with a START at step 0 and `headers`, the texts and hyperparameters of the run.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn begin(mut file: EventFile, start: f64, headers: Vec<Event>) -> io::Result<Self> {
        let version = Event { wall_time: start, file_version: Some(FILE_VERSION.to_owned()), ..Event::default() };
        let mut events = vec![version, start_at(0, start)];
        events.extend(headers);
        file.append(&events)?;
        let (tags, noise) = (HashMap::new(), NoiseScale::default());
        Ok(Self { file, written: Vec::new(), tags, noise, wall_time: start })
    }

    /// Writes the effective entries that were not written yet. If written entries are no longer effective, first takes
    /// them back.
    ///
    /// # Errors
    /// A record is not JSON, or the file cannot be written.
    pub fn write(&mut self, entries: &[Entry<'_>]) -> Result<(), WriteError> {
        let mut effective: Vec<&Entry<'_>> = entries.iter().filter(|entry| !entry.is_undone).collect();
        effective.sort_by_key(|entry| (entry.position.step, entry.is_event));
        let same =
            self.written.iter().zip(&effective).take_while(|(written, entry)| **written == identity(entry)).count();
        if same < self.written.len() {
            self.remove_undone(&effective, same)?;
        }
        let mut events = Vec::new();
        for entry in &effective[self.written.len()..] {
            events.push(self.event(entry)?);
            self.written.push(identity(entry));
            if events.len() == EVENTS {
                self.file.append(&std::mem::take(&mut events))?;
            }
        }
        Ok(self.file.append(&events)?)
    }

    /// Removes the written entries from the first step at which they differ from `effective`. `same` is the number of
    /// entries before the first difference. Each tag with undone points needs a valid point after the START. Therefore
    /// the entries are removed from an earlier step if necessary: from the earliest of the last valid points of these
    /// tags.
    fn remove_undone(&mut self, effective: &[&Entry<'_>], same: usize) -> Result<(), WriteError> {
        let next = effective.get(same).map(|entry| entry.position.step);
        let step = next.map_or(self.written[same].position.step, |next| next.min(self.written[same].position.step));
        let undone = std::mem::take(&mut self.tags).into_iter().filter(|(_, last)| *last >= step);
        let undone: Vec<String> = undone.map(|(tag, _)| tag).collect();
        self.count_as_written(&effective[..self.entries_before(step)])?;
        let first = undone.iter().filter_map(|tag| self.tags.get(tag)).min().map_or(step, |first| step.min(*first));
        let kept = self.entries_before(first);
        self.count_as_written(&effective[..kept])?;
        self.written.truncate(kept);
        Ok(self.file.append(&[start_at(first, self.wall_time)])?)
    }

    /// Number of written entries before `step`.
    fn entries_before(&self, step: u64) -> usize {
        self.written.partition_point(|written| written.position.step < step)
    }

    /// Sets the last step of each tag and the noise scale to their values after `entries`.
    fn count_as_written(&mut self, entries: &[&Entry<'_>]) -> Result<(), WriteError> {
        (self.tags, self.noise) = (HashMap::new(), NoiseScale::default());
        for entry in entries {
            let scalars = self.scalars(entry)?;
            self.tags.extend(scalars.into_iter().map(|(tag, _)| (tag, entry.position.step)));
        }
        Ok(())
    }

    fn event(&mut self, entry: &Entry<'_>) -> Result<Event, WriteError> {
        let scalars = self.scalars(entry)?;
        // Wall times must not decrease, but the objects of a copied run have the times of the copy.
        self.wall_time = self.wall_time.max(entry.time);
        for (tag, _) in &scalars {
            match self.tags.get_mut(tag) {
                Some(last) => *last = entry.position.step,
                None => drop(self.tags.insert(tag.clone(), entry.position.step)),
            }
        }
        Ok(summary(entry.position.step, self.wall_time, scalars))
    }

    fn scalars(&mut self, entry: &Entry<'_>) -> serde_json::Result<Vec<Scalar>> {
        if entry.is_event { scalars::of_evaluation(entry.text) } else { scalars::of_step(entry.text, &mut self.noise) }
    }
}

fn identity(entry: &Entry<'_>) -> Written {
    Written { position: entry.position, is_event: entry.is_event }
}

/// Returns the START event that tells readers that `step` is the next step.
fn start_at(step: u64, wall_time: f64) -> Event {
    Event { wall_time, step: step as i64, session_log: Some(SessionLog { status: START }), ..Event::default() }
}

fn summary(step: u64, wall_time: f64, scalars: Vec<Scalar>) -> Event {
    let summary = Some(Summary { value: scalars::values(scalars) });
    Event { wall_time, step: step as i64, summary, ..Event::default() }
}

#[cfg(test)]
mod tests;
