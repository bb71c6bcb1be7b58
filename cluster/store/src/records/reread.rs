//! Reads step records again, for callers that do not keep them in memory.

use std::collections::{BTreeMap, VecDeque};

use serde::de::DeserializeOwned;

use super::{BYTES, Line, OBJECTS, StepRecords, parse};
use crate::error::{Error, Result};
use crate::run::{self, AttemptStep};
use crate::store::Store;

impl<T> StepRecords<T> {
    /// Reads records again, which are in the objects of the last refresh. Calls `take` with the record of each position,
    /// in the order of `positions`. The type of the records may differ from that of the last refresh. Reads a part of the
    /// objects at a time, and each object once if the positions are in the order of the objects.
    ///
    /// # Errors
    /// A store error, an object without a record of one of the positions, or an error of `take`.
    pub fn reread<U: DeserializeOwned, E: From<Error>>(
        &self,
        run: &Store,
        positions: impl Iterator<Item = AttemptStep> + Clone,
        mut take: impl FnMut(U) -> Result<(), E>,
    ) -> Result<(), E> {
        run.report_expected(self.bytes_of(positions.clone()));
        let mut positions = positions.peekable();
        loop {
            let (mut part, mut bytes): (Vec<(AttemptStep, Vec<u64>)>, u64) = (Vec::new(), 0);
            while let Some(position) = positions.peek() {
                let (from, size) = self.object_of(*position).ok_or_else(|| missing(run, *position, *position))?;
                if part.last().is_none_or(|(last, _)| *last != from) {
                    bytes += size;
                    if !part.is_empty() && (part.len() == OBJECTS || bytes > BYTES) {
                        break;
                    }
                    part.push((from, Vec::new()));
                }
                if let Some((_, steps)) = part.last_mut() {
                    steps.push(position.step);
                }
                positions.next();
            }
            if part.is_empty() {
                return Ok(());
            }
            let paths: Vec<String> = part.iter().map(|(from, _)| run::records(from.attempt, from.step)).collect();
            for ((from, steps), object) in part.iter().zip(run.get_all(&paths, u64::MAX)?) {
                let mut found = by_step::<U>(&object);
                for step in steps {
                    let record = found.get_mut(step).and_then(VecDeque::pop_front);
                    let position = AttemptStep { attempt: from.attempt, step: *step };
                    take(record.ok_or_else(|| missing(run, *from, position))?)?;
                }
            }
        }
    }

    /// Total size of the objects of these positions, bytes.
    fn bytes_of(&self, positions: impl Iterator<Item = AttemptStep>) -> u64 {
        let (mut bytes, mut last) = (0, None);
        for (from, size) in positions.filter_map(|position| self.object_of(position)) {
            if last.replace(from) != Some(from) {
                bytes += size;
            }
        }
        bytes
    }

    /// Returns the position and the size of the object that has the record of a position.
    fn object_of(&self, position: AttemptStep) -> Option<(AttemptStep, u64)> {
        let before = self.listed.partition_point(|(from, _)| *from < position).checked_sub(1)?;
        Some(self.listed[before]).filter(|(from, _)| from.attempt == position.attempt)
    }
}

/// Parses the step records of an object. Omits events and damaged lines. A step has several records if the object
/// repeats it.
fn by_step<U: DeserializeOwned>(object: &[u8]) -> BTreeMap<u64, VecDeque<U>> {
    let mut records: BTreeMap<u64, VecDeque<U>> = BTreeMap::new();
    for line in object.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        if let Ok(Line::Step(step, record)) = parse(line) {
            records.entry(step).or_default().push_back(record);
        }
    }
    records
}

/// Error: the object at `from` has no record of this position.
fn missing(run: &Store, from: AttemptStep, position: AttemptStep) -> Error {
    Error::Damaged {
        url: run.url_of(&run::records(from.attempt, from.step)),
        what: "step records",
        expected: format!("a record of step {}", position.step),
        found: "none".to_owned(),
    }
}
