//! Reads the step records of a run. Each object has the records of the steps between two saves of one attempt, as JSON
//! lines.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use bytes::Bytes;
use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};

use crate::checkpoint::{AttemptStep, Rollbacks};
use crate::error::Result;
use crate::object::Object;
use crate::run::{self, RECORDS, ROLLBACKS};
use crate::store::Store;

/// Maximum number of objects in memory at a time.
const OBJECTS: usize = 32;
/// Maximum total size of these objects, bytes. A larger object is read alone.
const BYTES: u64 = 8 << 20;

/// A step record with its attempt.
#[derive(Debug, Clone, PartialEq)]
pub struct RecordedStep<T> {
    /// Attempt and step.
    pub position: AttemptStep,
    /// Modification time of its object, milliseconds since the Unix epoch.
    pub saved: i64,
    /// The record.
    pub record: T,
}

/// An event among the step records, such as an evaluation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordedEvent {
    /// Attempt and step.
    pub position: AttemptStep,
    /// Modification time of its object, milliseconds since the Unix epoch.
    pub saved: i64,
    /// Number of step records before it, over all attempts.
    pub records_before: usize,
    /// The line.
    pub text: String,
}

/// A line that is neither a step record nor an event.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{url}, line {line}: not a step record: {cause}")]
pub struct DamagedLine {
    /// URL of the object.
    pub url: String,
    /// Line number, from 1.
    pub line: usize,
    /// Message of the parser.
    pub cause: String,
}

/// Step records of all attempts of a run. `T` is the record type. Each record needs a field `step`.
///
/// A killed attempt leaves no records of the steps after its last save.
#[derive(Debug, Clone, PartialEq)]
pub struct StepRecords<T> {
    /// All records, sorted by attempt. Records of the same attempt are in the order of execution.
    pub all: Vec<RecordedStep<T>>,
    /// Events that have a step, sorted like `all`.
    pub events: Vec<RecordedEvent>,
    /// Lines that could not be parsed. `all` and `events` omit them.
    pub damaged: Vec<DamagedLine>,
    rollbacks: Rollbacks,
    /// Listing of the rollback records that were read.
    rollback_objects: Vec<Object>,
    /// Positions and sizes (bytes) of all listed objects.
    listed: Vec<(AttemptStep, u64)>,
    /// Tag of each object that was read.
    tags: BTreeMap<AttemptStep, String>,
    /// Last step that was read, by attempt.
    last: BTreeMap<u32, u64>,
}

impl<T> Default for StepRecords<T> {
    fn default() -> Self {
        let (all, events, damaged) = (Vec::new(), Vec::new(), Vec::new());
        let (rollbacks, rollback_objects, listed) = (Rollbacks::default(), Vec::new(), Vec::new());
        let (tags, last) = (BTreeMap::new(), BTreeMap::new());
        Self { all, events, damaged, rollbacks, rollback_objects, listed, tags, last }
    }
}

impl<T: DeserializeOwned> StepRecords<T> {
    /// Reads the step records and the rollback records of a run. A run may have none.
    ///
    /// # Errors
    /// A store error, or an unreadable rollback record.
    pub fn read(run: &Store) -> Result<Self> {
        let mut records = Self::default();
        records.refresh(run)?;
        Ok(records)
    }

    /// Reads the rollbacks and the objects that were written since the last read. Returns false if there are none, which
    /// takes two requests. Rereads everything if an object that was already read was replaced, or if a new object sorts
    /// before such an object. (After a failed save, a longer object replaces the object of that save.)
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn refresh(&mut self, run: &Store) -> Result<bool> {
        self.refresh_in_parts(run, |_, _| {})
    }

    /// Like [`Self::refresh`], and calls `take` after each group of objects. `take` may move records out of `all` to keep
    /// them in another form. Also calls `take` with [`RefreshReason::Reread`] before everything is read again.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn refresh_in_parts(&mut self, run: &Store, mut take: impl FnMut(&mut Self, RefreshReason)) -> Result<bool> {
        let rollback_objects = run.list(ROLLBACKS)?;
        let rollbacks = match rollback_objects == self.rollback_objects {
            true => self.rollbacks.clone(),
            false => Rollbacks::read(run, &rollback_objects)?,
        };
        let listed = run.list(RECORDS)?.into_iter();
        // The order of names is not the order of attempts if an attempt number exceeds 9999.
        let mut objects: Vec<(AttemptStep, Object)> =
            listed.filter_map(|object| Some((run::position_of_records(&object.path)?, object))).collect();
        objects.sort_by_key(|(from, _)| *from);
        let is_read = |(from, object): &&(AttemptStep, Object)| self.tags.get(from) == Some(&object.tag);
        let mut read = objects.iter().take_while(is_read).count();
        if read < self.tags.len() {
            *self = Self::default();
            read = 0;
            take(self, RefreshReason::Reread);
        }
        let has_changed = read < objects.len() || rollbacks != self.rollbacks;
        (self.rollbacks, self.rollback_objects) = (rollbacks, rollback_objects);
        self.listed = objects.iter().map(|(from, object)| (*from, object.bytes)).collect();
        let mut unread = &objects[read..];
        run.report_expected(unread.iter().map(|(_, object)| object.bytes).sum());
        while !unread.is_empty() {
            let (some, later) = unread.split_at(part(unread));
            unread = later;
            let paths: Vec<String> = some.iter().map(|(_, object)| object.path.clone()).collect();
            for ((from, object), bytes) in some.iter().zip(run.get_all(&paths, u64::MAX)?) {
                self.add(from.attempt, &run.url_of(&object.path), object.modified, &bytes);
                self.tags.insert(*from, object.tag.clone());
            }
            take(self, RefreshReason::New);
        }
        Ok(has_changed)
    }

    fn add(&mut self, attempt: u32, url: &str, saved: i64, object: &Bytes) {
        for (index, line) in object.split(|byte| *byte == b'\n').enumerate().filter(|(_, line)| !line.is_empty()) {
            match parse(line) {
                Ok(Line::Step(step, record)) => {
                    self.last.insert(attempt, step);
                    self.all.push(RecordedStep { position: AttemptStep { attempt, step }, saved, record });
                }
                Ok(Line::Event(step, text)) => {
                    let (position, records_before) = (AttemptStep { attempt, step }, self.all.len());
                    self.events.push(RecordedEvent { position, saved, records_before, text });
                }
                Ok(Line::Other) => {}
                Err(error) => {
                    let (url, line, cause) = (url.to_owned(), index + 1, error.to_string());
                    self.damaged.push(DamagedLine { url, line, cause });
                }
            }
        }
    }
}

impl<T> StepRecords<T> {
    /// Returns the record of each step, sorted by step. If several attempts executed a step, returns the record of the
    /// last one. If a step was rolled back, its record is included until a later attempt repeats the step.
    pub fn latest(&self) -> Vec<&RecordedStep<T>> {
        last_of_each_step(self.all.iter())
    }

    /// Returns the effective history, sorted by step. Like [`Self::latest`], but without records that a rollback
    /// invalidated.
    pub fn effective(&self) -> Vec<&RecordedStep<T>> {
        last_of_each_step(self.all.iter().filter(|recorded| !self.is_rolled_back(recorded.position)))
    }

    /// Returns the events of the effective history, sorted by step. Of several events at the same step, returns only
    /// the last one. Omits events of steps that were rolled back.
    pub fn effective_events(&self) -> Vec<&RecordedEvent> {
        let kept = self.events.iter().filter(|event| !self.is_rolled_back(event.position));
        let last: BTreeMap<u64, &RecordedEvent> = kept.map(|event| (event.position.step, event)).collect();
        last.into_values().collect()
    }

    /// Returns the rollbacks of the run.
    pub fn rollbacks(&self) -> &Rollbacks {
        &self.rollbacks
    }

    /// Returns the attempt and the last step of each object. Records are written with a checkpoint of that name.
    pub fn saves(&self) -> Vec<AttemptStep> {
        let starts: Vec<AttemptStep> = self.tags.keys().copied().collect();
        let next = |index: usize| starts.get(index + 1).filter(|next| next.attempt == starts[index].attempt).copied();
        let last = |attempt: u32| Some(AttemptStep { attempt, step: *self.last.get(&attempt)? });
        let ends = starts.iter().enumerate().filter_map(|(index, start)| next(index).or_else(|| last(start.attempt)));
        ends.collect()
    }

    /// Returns the last valid step of each attempt that has listed objects: later attempts repeat the steps after it, or
    /// they were rolled back. `u64::MAX` if all are valid.
    pub fn last_valid_steps(&self) -> BTreeMap<u32, u64> {
        let mut rollbacks = self.rollbacks.points().iter().rev().peekable();
        let (mut last_valid, mut before, mut steps) = (u64::MAX, u64::MAX, BTreeMap::new());
        for (start, _) in self.listed.iter().rev() {
            if let Entry::Vacant(entry) = steps.entry(start.attempt) {
                last_valid = last_valid.min(before);
                while let Some(rollback) = rollbacks.next_if(|rollback| rollback.attempt >= start.attempt) {
                    last_valid = last_valid.min(rollback.last_kept);
                }
                entry.insert(last_valid);
            }
            before = before.min(start.step);
        }
        steps
    }

    fn is_rolled_back(&self, position: AttemptStep) -> bool {
        self.rollbacks.invalidate(position)
    }
}

fn last_of_each_step<'a, T>(records: impl Iterator<Item = &'a RecordedStep<T>>) -> Vec<&'a RecordedStep<T>> {
    let last: BTreeMap<u64, &RecordedStep<T>> = records.map(|recorded| (recorded.position.step, recorded)).collect();
    last.into_values().collect()
}

/// Reason of a call in [`StepRecords::refresh_in_parts`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RefreshReason {
    /// Records were added.
    New,
    /// Everything is read again; there are no records.
    Reread,
}

/// Returns the number of leading `objects` that fit into memory together (at least one).
fn part(objects: &[(AttemptStep, Object)]) -> usize {
    let mut bytes = 0;
    let fits = |(_, object): &&(AttemptStep, Object)| {
        bytes += object.bytes;
        bytes <= BYTES
    };
    objects.iter().take(OBJECTS).take_while(fits).count().max(1)
}

/// Fields that distinguish step records from events.
#[derive(Deserialize)]
struct RecordKind {
    #[serde(default)]
    event: Option<IgnoredAny>,
    #[serde(default)]
    step: Option<u64>,
}

/// A line of step records.
enum Line<T> {
    Step(u64, T),
    Event(u64, String),
    /// An event without a step.
    Other,
}

/// Parses a line.
fn parse<T: DeserializeOwned>(line: &[u8]) -> serde_json::Result<Line<T>> {
    let kind: RecordKind = serde_json::from_slice(line)?;
    match (kind.event, kind.step) {
        (Some(_), Some(step)) => Ok(Line::Event(step, String::from_utf8_lossy(line).into_owned())),
        (Some(_), None) => Ok(Line::Other),
        (None, Some(step)) => Ok(Line::Step(step, serde_json::from_slice(line)?)),
        (None, None) => Err(serde::de::Error::missing_field("step")),
    }
}

mod reread;

#[cfg(test)]
mod tests;
