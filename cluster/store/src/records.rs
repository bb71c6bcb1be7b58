//! Reads the step records of a run. Each object has the records of the steps between two saves of one attempt, as JSON
//! lines.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use bytes::Bytes;
use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};

use crate::checkpoint::{AttemptStep, RollbackPoint};
use crate::error::Result;
use crate::listing::Object;
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
    rollbacks: Vec<RollbackPoint>,
    /// Listing of the rollback records that were read.
    rollback_objects: Vec<Object>,
    /// Positions of all listed objects.
    listed: Vec<AttemptStep>,
    /// Tag of each object that was read.
    tags: BTreeMap<AttemptStep, String>,
    /// Last step that was read, by attempt.
    last: BTreeMap<u32, u64>,
}

impl<T> Default for StepRecords<T> {
    fn default() -> Self {
        let (all, events, damaged) = (Vec::new(), Vec::new(), Vec::new());
        let (rollbacks, rollback_objects, listed) = (Vec::new(), Vec::new(), Vec::new());
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
    /// them in another form. Also calls `take` with [`Part::Reread`] before everything is read again.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn refresh_in_parts(&mut self, run: &Store, mut take: impl FnMut(&mut Self, Part)) -> Result<bool> {
        let rollback_objects = run.list(ROLLBACKS)?;
        let rollbacks = match rollback_objects == self.rollback_objects {
            true => self.rollbacks.clone(),
            false => RollbackPoint::read_all(run, &rollback_objects)?,
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
            take(self, Part::Reread);
        }
        let has_changed = read < objects.len() || rollbacks != self.rollbacks;
        (self.rollbacks, self.rollback_objects) = (rollbacks, rollback_objects);
        self.listed = objects.iter().map(|(from, _)| *from).collect();
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
            take(self, Part::New);
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

    /// Returns the rollbacks of the run, by attempt.
    pub fn rollbacks(&self) -> &[RollbackPoint] {
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
        let mut rollbacks = self.rollbacks.iter().rev().peekable();
        let (mut last_valid, mut before, mut steps) = (u64::MAX, u64::MAX, BTreeMap::new());
        for start in self.listed.iter().rev() {
            if let Entry::Vacant(entry) = steps.entry(start.attempt) {
                last_valid = last_valid.min(before);
                while let Some(rollback) = rollbacks.next_if(|rollback| rollback.attempt >= start.attempt) {
                    last_valid = last_valid.min(rollback.steps);
                }
                entry.insert(last_valid);
            }
            before = before.min(start.step);
        }
        steps
    }

    fn is_rolled_back(&self, position: AttemptStep) -> bool {
        self.rollbacks.iter().any(|rollback| rollback.invalidates(position))
    }
}

fn last_of_each_step<'a, T>(records: impl Iterator<Item = &'a RecordedStep<T>>) -> Vec<&'a RecordedStep<T>> {
    let last: BTreeMap<u64, &RecordedStep<T>> = records.map(|recorded| (recorded.position.step, recorded)).collect();
    last.into_values().collect()
}

/// Reason of a call in [`StepRecords::refresh_in_parts`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// Records were added.
    New,
    /// Everything is read again; there are no records.
    Reread,
}

/// Number of objects, of the first, that are in memory at a time.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, Deserialize)]
    struct Record {
        step: u64,
        loss: f64,
    }

    fn store(name: &str) -> Store {
        Store::open(&format!("memory://records/{name}")).unwrap()
    }

    fn put(store: &Store, attempt: u32, from: u64, text: &str) {
        store.put(&run::records(attempt, from), text.to_owned().into()).unwrap();
    }

    fn line(step: u64, loss: f64) -> String {
        format!("{{\"step\":{step},\"loss\":{loss}}}\n")
    }

    fn read(store: &Store) -> StepRecords<Record> {
        StepRecords::read(store).unwrap()
    }

    fn losses(records: &[&RecordedStep<Record>]) -> Vec<(u64, f64)> {
        records.iter().map(|recorded| (recorded.record.step, recorded.record.loss)).collect()
    }

    #[test]
    fn a_run_without_records_has_none() {
        let records = read(&store("none"));
        assert_eq!((records.all.len(), records.damaged.len(), records.effective().len()), (0, 0, 0));
    }

    #[test]
    fn the_last_attempt_takes_precedence() {
        let store = store("attempts");
        // In the order of names, attempt 10000 precedes attempt 9999.
        put(&store, 10_000, 2, &line(3, 0.5));
        put(&store, 2, 0, &(line(1, 5.0) + &line(2, 4.0) + &line(3, 3.0)));
        put(&store, 2, 3, "{\"event\":\"evaluation\",\"step\":3}\n");
        put(&store, 9999, 1, &(line(2, 1.0) + &line(3, 2.0)));
        store.put("metrics/notes.txt", "not ours".into()).unwrap();
        let records = read(&store);
        let attempts: Vec<u32> = records.all.iter().map(|recorded| recorded.position.attempt).collect();
        assert_eq!((attempts, records.damaged.len()), (vec![2, 2, 2, 9999, 9999, 10_000], 0));
        assert_eq!(losses(&records.latest()), [(1, 5.0), (2, 1.0), (3, 0.5)]);
        assert_eq!(records.latest(), records.effective());
        let events: Vec<_> = records.events.iter().map(|event| (event.position.step, event.records_before)).collect();
        assert_eq!((events, records.effective_events().len()), (vec![(3, 3)], 1));
    }

    #[test]
    fn a_refresh_reads_what_is_new() {
        let store = store("refresh");
        put(&store, 1, 0, &(line(1, 5.0) + &line(2, 4.0) + "{\"event\":\"evaluation\",\"step\":2}\n"));
        let mut records = read(&store);
        put(&store, 1, 2, &line(3, 3.0));
        store.put(&run::rollback(1), "{\"attempt\":1,\"steps\":1}".into()).unwrap();
        assert!(records.refresh(&store).unwrap() && !records.refresh(&store).unwrap());
        assert_eq!(records, read(&store));
        assert_eq!((records.all.len(), losses(&records.effective())), (3, vec![(1, 5.0)]));
        assert_eq!((records.events.len(), records.effective_events().len()), (1, 0));
        // A longer object replaces the object of a failed save.
        put(&store, 1, 2, &(line(3, 3.0) + &line(4, 2.0)));
        put(&store, 2, 1, &line(2, 1.0));
        records.refresh(&store).unwrap();
        assert_eq!(records, read(&store));
        assert_eq!((records.all.len(), losses(&records.effective())), (5, vec![(1, 5.0), (2, 1.0)]));
    }

    #[test]
    fn records_can_be_taken_out_part_by_part() {
        let store = store("parts");
        (0..40).for_each(|step| put(&store, 1, step, &line(step + 1, 5.0)));
        put(&store, 3, 20, &line(21, 4.0));
        put(&store, 4, 30, &(line(31, 3.0) + &line(32, 2.0)));
        store.put(&run::rollback(3), "{\"attempt\":3,\"steps\":25}".into()).unwrap();
        let (mut records, mut parts) = (StepRecords::<Record>::default(), Vec::new());
        let read = records.refresh_in_parts(&store, |records, part| parts.push((part, records.all.drain(..).count())));
        assert!(read.unwrap());
        assert_eq!((parts, records.all.len()), (vec![(Part::New, 32), (Part::New, 11)], 0));
        assert_eq!(records.last_valid_steps(), [(1, 20), (3, 25), (4, u64::MAX)].into());
        let saves = records.saves();
        let last = |attempt, step| AttemptStep { attempt, step };
        assert_eq!((saves.len(), &saves[39..]), (42, &[last(1, 40), last(3, 21), last(4, 32)][..]));
        // A replaced object.
        put(&store, 1, 39, &(line(40, 5.0) + &line(41, 5.0)));
        let mut first = None;
        records.refresh_in_parts(&store, |_, part| first = first.or(Some(part))).unwrap();
        assert_eq!((first, records.all.len()), (Some(Part::Reread), 44));
    }

    #[test]
    fn rolled_back_steps_are_not_effective() {
        let store = store("rollback");
        put(&store, 1, 0, &(line(1, 5.0) + &line(2, 900.0) + &line(3, 901.0)));
        store.put(&run::rollback(1), "{\"attempt\":1,\"steps\":1}".into()).unwrap();
        put(&store, 2, 1, &line(2, 4.0));
        let records = read(&store);
        assert_eq!(losses(&records.effective()), [(1, 5.0), (2, 4.0)]);
        assert_eq!(losses(&records.latest()), [(1, 5.0), (2, 4.0), (3, 901.0)]);
        store.put(&run::rollback(2), "{".into()).unwrap();
        let error = StepRecords::<Record>::read(&store).unwrap_err().to_string();
        assert!(error.contains("rollbacks/attempt-0002.json"), "{error}");
    }

    #[test]
    fn damaged_lines_are_reported_and_omitted() {
        let store = store("damaged");
        put(
            &store,
            1,
            0,
            &(line(1, 5.0) + "{\"step\":2,\"lo\n" + "{\"step\":2}\n" + "{\"loss\":2.0}\n" + &line(3, 3.0)),
        );
        let records = read(&store);
        assert_eq!(losses(&records.latest()), [(1, 5.0), (3, 3.0)]);
        let damaged: Vec<String> = records.damaged.iter().map(ToString::to_string).collect();
        let position = "memory://records/damaged/metrics/attempt-0001-from-000000000.jsonl, line";
        for (text, (line, cause)) in
            damaged.iter().zip([(2, "EOF"), (3, "missing field `loss`"), (4, "missing field `step`")])
        {
            assert!(
                text.starts_with(&format!("{position} {line}: not a step record: ")) && text.contains(cause),
                "{text}"
            );
        }
        assert_eq!(damaged.len(), 3);
    }
}
