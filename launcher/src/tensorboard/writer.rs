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

use lambert_store::Store;
use lambert_store::run::AttemptStep;

use super::file::EventFile;
use super::proto::{Event, FILE_VERSION, START, SessionLog, Summary};
use super::scalars::{self, Scalar};
use crate::metrics::history::{Entry, History};
use crate::status::NoiseScale;

/// Maximum number of events that are collected in memory before they are written.
const EVENTS: usize = 4096;

/// Error of a [`HistoryWriter`].
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    #[error("cannot write the event file")]
    File(#[from] io::Error),
    #[error("cannot parse a record")]
    Record(#[from] serde_json::Error),
    #[error(transparent)]
    Store(#[from] lambert_store::Error),
}

/// Writer of a run's history. It keeps only the positions of the entries in memory.
#[derive(Debug)]
pub struct HistoryWriter {
    file: EventFile,
    /// Entries that were written and are still valid, by step.
    written: Vec<Written>,
    totals: Totals,
    /// Wall time of the last event.
    wall_time: f64,
}

/// Identity of an entry, in the order of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Written {
    step: u64,
    is_event: bool,
    attempt: u32,
}

/// State after all entries so far.
#[derive(Debug, Default)]
struct Totals {
    /// Last step of each tag.
    tags: HashMap<String, u64>,
    noise: NoiseScale,
}

/// The lines of a history.
#[derive(Debug, Clone, Copy)]
pub struct Lines<'a> {
    pub history: &'a History,
    /// The store of the run.
    pub run: &'a Store,
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
        Ok(Self { file, written: Vec::new(), totals: Totals::default(), wall_time: start })
    }

    /// Writes the effective entries among `entries`, the newest of the history, if all of them follow the written ones.
    /// Otherwise returns false.
    ///
    /// # Errors
    /// A record is not JSON, or the file cannot be written, or the store cannot be read.
    pub fn append(&mut self, entries: &[Entry], lines: Lines<'_>) -> Result<bool, WriteError> {
        let effective = effective(entries);
        let (last, next) = (self.written.last().map(Written::place), effective.first());
        if next.is_some_and(|next| last >= Some(identity(next).place())) {
            return Ok(false);
        }
        self.write_events(&effective, lines).map(|()| true)
    }

    /// Writes the effective ones of all `entries` of a history that were not written yet. If written entries are no
    /// longer effective, first takes them back.
    ///
    /// # Errors
    /// As [`Self::append`].
    pub fn write(&mut self, entries: &[Entry], lines: Lines<'_>) -> Result<(), WriteError> {
        let effective = effective(entries);
        let same =
            self.written.iter().zip(&effective).take_while(|(written, entry)| **written == identity(entry)).count();
        if same < self.written.len() {
            self.remove_undone(&effective, same, lines)?;
        }
        self.write_events(&effective[self.written.len()..], lines)
    }

    /// Writes the events of entries. If the store fails, the entries that were read are written.
    fn write_events(&mut self, entries: &[&Entry], lines: Lines<'_>) -> Result<(), WriteError> {
        let mut events = Vec::new();
        let mut begun = Vec::new();
        let read = lines.history.read(lines.run, entries.iter().copied(), |entry, text| {
            let scalars = self.totals.add(entry, text)?;
            // Wall times must not decrease, but the objects of a copied run have the times of the copy.
            self.wall_time = self.wall_time.max(entry.time);
            events.push(summary(entry.position.step, self.wall_time, scalars));
            begun.push(identity(entry));
            if events.len() == EVENTS {
                self.file.append(&std::mem::take(&mut events))?;
                self.written.append(&mut begun);
            }
            Ok(())
        });
        self.file.append(&events)?;
        self.written.append(&mut begun);
        read
    }

    /// Removes the written entries from the first step at which they differ from `effective`. `same` is the number of
    /// entries before the first difference. Each tag with undone points needs a valid point after the START. Therefore
    /// the entries are removed from an earlier step if necessary: from the earliest of the last valid points of these
    /// tags.
    fn remove_undone(&mut self, effective: &[&Entry], same: usize, lines: Lines<'_>) -> Result<(), WriteError> {
        let next = effective.get(same).map(|entry| entry.position.step);
        let step = next.map_or(self.written[same].step, |next| next.min(self.written[same].step));
        let before = Totals::of(&effective[..self.entries_before(step)], lines)?;
        let undone = self.totals.tags.iter().filter(|(_, last)| **last >= step);
        let first = undone.filter_map(|(tag, _)| before.tags.get(tag)).min().map_or(step, |first| step.min(*first));
        let kept = self.entries_before(first);
        let totals = Totals::of(&effective[..kept], lines)?;
        self.file.append(&[start_at(first, self.wall_time)])?;
        self.totals = totals;
        self.written.truncate(kept);
        Ok(())
    }

    /// Number of written entries before `step`.
    fn entries_before(&self, step: u64) -> usize {
        self.written.partition_point(|written| written.step < step)
    }
}

impl Written {
    /// Place in the file. An entry replaces an earlier one at the same place.
    fn place(&self) -> (u64, bool) {
        (self.step, self.is_event)
    }
}

impl Totals {
    /// Reads `entries`.
    fn of(entries: &[&Entry], lines: Lines<'_>) -> Result<Self, WriteError> {
        let mut totals = Self::default();
        lines.history.read(lines.run, entries.iter().copied(), |entry, text| {
            totals.add(entry, text).map(drop).map_err(WriteError::from)
        })?;
        Ok(totals)
    }

    /// Adds an entry. Returns its scalars.
    fn add(&mut self, entry: &Entry, text: &str) -> serde_json::Result<Vec<Scalar>> {
        let scalars = match entry.is_event {
            true => scalars::of_evaluation(text)?,
            false => scalars::of_step(text, &mut self.noise)?,
        };
        for (tag, _) in &scalars {
            match self.tags.get_mut(tag) {
                Some(last) => *last = entry.position.step,
                None => drop(self.tags.insert(tag.clone(), entry.position.step)),
            }
        }
        Ok(scalars)
    }
}

/// Returns the effective entries in the order of the file.
fn effective(entries: &[Entry]) -> Vec<&Entry> {
    let mut effective: Vec<&Entry> = entries.iter().filter(|entry| !entry.is_undone).collect();
    effective.sort_by_key(|entry| identity(entry).place());
    effective
}

fn identity(entry: &Entry) -> Written {
    let AttemptStep { attempt, step } = entry.position;
    Written { step, is_event: entry.is_event, attempt }
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
