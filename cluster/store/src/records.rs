//! Reads the step records of a run. Each object has the records of the steps between two saves of one attempt, as JSON
//! lines.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};

use crate::checkpoint::{AttemptStep, RollbackPoint};
use crate::error::Result;
use crate::run::{self, RECORDS};
use crate::store::Store;

/// Number of objects in memory at a time.
const OBJECTS: usize = 32;

/// A step record with its attempt.
#[derive(Debug, Clone, PartialEq)]
pub struct RecordedStep<T> {
    /// Attempt and step.
    pub position: AttemptStep,
    /// The record.
    pub record: T,
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
    /// Lines that could not be parsed. `all` omits them.
    pub damaged: Vec<DamagedLine>,
    rollbacks: Vec<RollbackPoint>,
}

impl<T: DeserializeOwned> StepRecords<T> {
    /// Reads the step records and the rollback records of a run. A run may have none.
    ///
    /// # Errors
    /// A store error, or an unreadable rollback record.
    pub fn read(run: &Store) -> Result<Self> {
        let rollbacks = RollbackPoint::read_from(run, 0)?;
        let mut records = Self { all: Vec::new(), damaged: Vec::new(), rollbacks };
        let listed = run.list(RECORDS)?.into_iter();
        // Names with attempt numbers above 9999 do not sort in numerical order.
        let mut objects: Vec<(AttemptStep, String)> =
            listed.filter_map(|object| Some((run::position_of_records(&object.path)?, object.path))).collect();
        objects.sort();
        for some in objects.chunks(OBJECTS) {
            let paths: Vec<String> = some.iter().map(|(_, path)| path.clone()).collect();
            for ((from, path), bytes) in some.iter().zip(run.get_all(&paths, u64::MAX)?) {
                records.add(from.attempt, &run.url_of(path), &bytes);
            }
        }
        Ok(records)
    }

    fn add(&mut self, attempt: u32, url: &str, object: &Bytes) {
        for (index, line) in object.split(|byte| *byte == b'\n').enumerate().filter(|(_, line)| !line.is_empty()) {
            match parse(line) {
                Ok(Some((step, record))) => {
                    self.all.push(RecordedStep { position: AttemptStep { attempt, step }, record });
                }
                Ok(None) => {}
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
    /// last one. Includes the record of a step that was rolled back until a later attempt repeats the step.
    pub fn latest(&self) -> Vec<&RecordedStep<T>> {
        last_of_each_step(self.all.iter())
    }

    /// Returns the effective history, sorted by step. Like [`Self::latest`], but without records that a rollback
    /// invalidated.
    pub fn effective(&self) -> Vec<&RecordedStep<T>> {
        let stands = |recorded: &&RecordedStep<T>| {
            !self.rollbacks.iter().any(|rollback| rollback.invalidates(recorded.position))
        };
        last_of_each_step(self.all.iter().filter(stands))
    }
}

fn last_of_each_step<'a, T>(records: impl Iterator<Item = &'a RecordedStep<T>>) -> Vec<&'a RecordedStep<T>> {
    let last: BTreeMap<u64, &RecordedStep<T>> = records.map(|recorded| (recorded.position.step, recorded)).collect();
    last.into_values().collect()
}

/// Fields that distinguish step records from events.
#[derive(Deserialize)]
struct RecordKind {
    #[serde(default)]
    event: Option<IgnoredAny>,
    #[serde(default)]
    step: Option<u64>,
}

/// Parses a line into a step number and a record. Returns `None` for an event, such as an evaluation.
fn parse<T: DeserializeOwned>(line: &[u8]) -> serde_json::Result<Option<(u64, T)>> {
    let kind: RecordKind = serde_json::from_slice(line)?;
    if kind.event.is_some() {
        return Ok(None);
    }
    let step = kind.step.ok_or_else(|| serde::de::Error::missing_field("step"))?;
    Ok(Some((step, serde_json::from_slice(line)?)))
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
        // Sorted by name, attempt 10000 precedes attempt 9999.
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
