//! The record that an attempt leaves when it rolls back, and the checkpoints that it invalidates.
//!
//! An invalidated checkpoint is used only where no other is left.

use std::ops::Range;

use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::{Manifest, Place};
use crate::error::{Error, Result};
use crate::run::{self, ROLLBACKS};
use crate::store::Store;

/// No record of a rollback is longer than this, bytes.
const LONGEST: u64 = 1 << 20;

/// `rollbacks/attempt-0003.json`. It is written before the attempt ends; an attempt that is killed before that comes to the
/// same step and the same decision again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RollbackRecord {
    /// The attempt that rolled back.
    pub attempt: u32,
    /// Steps that stay: checkpoints of this attempt and those before it that have more are invalid.
    pub steps: u64,
    /// The sha256 of the dataset's manifest.
    pub dataset: String,
    /// The samples of the dataset that are skipped from now on, counted over all epochs.
    pub samples: Range<u64>,
    /// The reason.
    pub why: String,
}

impl RollbackRecord {
    /// Writes it into the run's store.
    ///
    /// # Errors
    /// What the store says.
    pub fn write(&self, run: &Store) -> Result<()> {
        let path = run::rollback(self.attempt);
        let failed = |error: serde_json::Error| damaged(run, &path, &error);
        run.put(&path, serde_json::to_vec_pretty(self).map_err(failed)?.into())
    }

    /// Reads the records of attempt `oldest` and later. What an earlier one skips is in the state of every checkpoint of
    /// `oldest`.
    ///
    /// # Errors
    /// What the store says; [`Error::Damaged`] for a record that cannot be read, or has members that this program does not
    /// know.
    pub fn read_from(run: &Store, oldest: u32) -> Result<Vec<Self>> {
        read_from(run, oldest)
    }

    /// The checkpoints that it invalidates.
    #[must_use]
    pub fn point(&self) -> RollbackPoint {
        RollbackPoint { attempt: self.attempt, steps: self.steps }
    }
}

/// The members of a [`RollbackRecord`] that decide which checkpoints it invalidates. Readers that need no more accept
/// records with members that they do not know.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub struct RollbackPoint {
    /// See [`RollbackRecord::attempt`].
    pub attempt: u32,
    /// See [`RollbackRecord::steps`].
    pub steps: u64,
}

impl RollbackPoint {
    /// Reads those of attempt `oldest` and later: earlier ones invalidate no checkpoint of `oldest`.
    ///
    /// # Errors
    /// What the store says, or [`Error::Damaged`] for a record that cannot be read.
    pub fn read_from(run: &Store, oldest: u32) -> Result<Vec<Self>> {
        read_from(run, oldest)
    }

    /// Whether it invalidates the checkpoint at `place`.
    #[must_use]
    pub fn invalidates(&self, place: Place) -> bool {
        place.attempt <= self.attempt && place.step > self.steps
    }

    /// Says why a checkpoint is invalid, if it is.
    #[must_use]
    pub fn objection(&self, manifest: &Manifest) -> Option<String> {
        let place = Place { attempt: manifest.attempt, step: manifest.step };
        self.invalidates(place).then(|| format!("attempt {} rolled back to step {}", self.attempt, self.steps))
    }
}

/// Reads the records of attempt `oldest` and later, and no others.
fn read_from<T: DeserializeOwned>(run: &Store, oldest: u32) -> Result<Vec<T>> {
    let names = run.list(ROLLBACKS)?.into_iter().map(|object| object.path);
    let is_read = |name: &String| run::attempt_of_rollback(name).is_none_or(|attempt| attempt >= oldest);
    let names: Vec<String> = names.filter(is_read).collect();
    let records = run.get_all(&names, LONGEST)?;
    let parse =
        |(path, bytes): (&String, Bytes)| serde_json::from_slice(&bytes).map_err(|error| damaged(run, path, &error));
    names.iter().zip(records).map(parse).collect()
}

fn damaged(run: &Store, path: &str, error: &serde_json::Error) -> Error {
    Error::Damaged {
        url: run.url_of(path),
        what: "contents",
        expected: "a record of a rollback".to_owned(),
        found: error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> RollbackRecord {
        RollbackRecord { attempt: 2, steps: 50, dataset: "d".into(), samples: 3..5, why: "w".into() }
    }

    #[test]
    fn the_record_has_the_members_that_older_programs_read() {
        let run = Store::open("memory://rollbacks/members").unwrap();
        record().write(&run).unwrap();
        let text = run.get(&run::rollback(2)).unwrap();
        let written: serde_json::Value = serde_json::from_slice(&text).unwrap();
        let expected = serde_json::json!({ "attempt": 2, "steps": 50, "dataset": "d", "samples": { "start": 3, "end": 5 },
                                           "why": "w" });
        assert_eq!(written, expected);
    }

    #[test]
    fn both_readers_read_what_is_written() {
        let run = Store::open("memory://rollbacks/readers").unwrap();
        record().write(&run).unwrap();
        assert_eq!(RollbackRecord::read_from(&run, 2).unwrap(), [record()]);
        assert_eq!(RollbackPoint::read_from(&run, 0).unwrap(), [record().point()]);
        assert_eq!(RollbackPoint::read_from(&run, 3).unwrap(), []);
    }

    #[test]
    fn only_readers_of_the_whole_record_refuse_members_of_later_programs() {
        let run = Store::open("memory://rollbacks/later").unwrap();
        run.put(&run::rollback(1), r#"{"attempt":1,"steps":1,"new":0}"#.into()).unwrap();
        assert_eq!(RollbackPoint::read_from(&run, 0).unwrap(), [RollbackPoint { attempt: 1, steps: 1 }]);
        let error = RollbackRecord::read_from(&run, 0).unwrap_err();
        assert!(error.is_damaged() && error.to_string().contains("unknown field `new`"), "{error}");
    }
}
