//! Rollback records, and the checkpoints that they invalidate.
//!
//! A run resumes from an invalidated checkpoint only if it has no valid one.

use std::ops::Range;

use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::{AttemptStep, Manifest};
use crate::error::{Error, Result};
use crate::object::Object;
use crate::run::{self, ROLLBACKS};
use crate::store::Store;

/// Size limit of a rollback record, bytes.
const MAX_RECORD_BYTES: u64 = 1 << 20;

/// Rollback record, for example `rollbacks/attempt-0003.json`. The attempt writes its record before it ends. If the
/// attempt is killed before that, the next attempt reaches the same step and makes the same decision.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RollbackRecord {
    /// Attempt that rolled back.
    pub attempt: u32,
    /// Last step that is kept. Checkpoints that this attempt or earlier attempts saved after this step are invalid.
    #[serde(rename = "steps")]
    pub last_kept: u64,
    /// Id of the mixture; with one dataset, the SHA-256 of its manifest.
    #[serde(rename = "dataset")]
    pub mixture_id: String,
    /// Samples to skip, as sample numbers of the mixture, which continue across epochs.
    pub samples: Range<u64>,
    /// Reason, for messages.
    #[serde(alias = "why")]
    pub reason: String,
}

impl RollbackRecord {
    /// Writes the record to the store of the run.
    ///
    /// # Errors
    /// A store error.
    pub fn write(&self, run: &Store) -> Result<()> {
        let path = run::rollback(self.attempt);
        let failed = |error: serde_json::Error| damaged(run, &path, &error);
        run.put(&path, serde_json::to_vec_pretty(self).map_err(failed)?.into())
    }

    /// Reads the records of attempt `oldest` and of later attempts. Earlier records are not needed, because the
    /// checkpoints of attempt `oldest` already include their skipped samples.
    ///
    /// # Errors
    /// A store error, or [`Error::Damaged`] for a record that is unreadable or has unknown fields.
    pub fn read_from(run: &Store, oldest: u32) -> Result<Vec<Self>> {
        read_from(run, oldest)
    }

    /// Returns the fields that decide which checkpoints are invalid.
    #[must_use]
    pub fn point(&self) -> RollbackPoint {
        RollbackPoint { attempt: self.attempt, last_kept: self.last_kept }
    }
}

/// The fields of a [`RollbackRecord`] that decide which checkpoints are invalid. Parsing ignores unknown fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub struct RollbackPoint {
    /// See [`RollbackRecord::attempt`].
    pub attempt: u32,
    /// See [`RollbackRecord::last_kept`].
    #[serde(rename = "steps")]
    pub last_kept: u64,
}

impl RollbackPoint {
    /// True if the checkpoint of this attempt and step is invalid.
    #[must_use]
    pub fn invalidates(&self, position: AttemptStep) -> bool {
        position.attempt <= self.attempt && position.step > self.last_kept
    }
}

/// Rollbacks of a run that can affect some of its checkpoints.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rollbacks(Vec<RollbackPoint>);

impl Rollbacks {
    /// Reads the rollbacks that can affect `checkpoints`: those of the oldest of their attempts and of later attempts.
    ///
    /// # Errors
    /// A store error, or [`Error::Damaged`] for an unreadable record.
    pub fn of(run: &Store, checkpoints: &[AttemptStep]) -> Result<Self> {
        let oldest = checkpoints.iter().map(|position| position.attempt).min().unwrap_or(0);
        read_from(run, oldest).map(Self)
    }

    /// Reads the listed records.
    ///
    /// # Errors
    /// As [`Self::of`].
    pub(crate) fn read(run: &Store, listed: &[Object]) -> Result<Self> {
        let names: Vec<String> = listed.iter().map(|object| object.path.clone()).collect();
        read(run, &names).map(Self)
    }

    /// The rollbacks, by attempt.
    #[must_use]
    pub fn points(&self) -> &[RollbackPoint] {
        &self.0
    }

    /// Returns these rollbacks and `point`.
    #[must_use]
    pub fn with(&self, point: RollbackPoint) -> Self {
        Self([&self.0[..], &[point]].concat())
    }

    /// True if a rollback makes the checkpoint of this attempt and step invalid.
    #[must_use]
    pub fn invalidate(&self, position: AttemptStep) -> bool {
        self.0.iter().any(|rollback| rollback.invalidates(position))
    }

    /// Returns the reason, for messages, if a rollback makes the checkpoint invalid.
    #[must_use]
    pub fn invalid_reason(&self, manifest: &Manifest) -> Option<String> {
        let position = AttemptStep { attempt: manifest.attempt, step: manifest.step };
        let RollbackPoint { attempt, last_kept } = self.0.iter().find(|rollback| rollback.invalidates(position))?;
        Some(format!("attempt {attempt} rolled back to step {last_kept}"))
    }

    /// Returns the newest valid checkpoint of `newest_first`.
    #[must_use]
    pub fn newest_valid(&self, newest_first: &[AttemptStep]) -> Option<AttemptStep> {
        newest_first.iter().copied().find(|position| !self.invalidate(*position))
    }

    /// Returns the checkpoint of `newest_first` that the next attempt starts from if it is intact: the newest valid one, else
    /// the newest.
    #[must_use]
    pub fn start(&self, newest_first: &[AttemptStep]) -> Option<AttemptStep> {
        self.newest_valid(newest_first).or(newest_first.first().copied())
    }
}

impl FromIterator<RollbackPoint> for Rollbacks {
    fn from_iter<I: IntoIterator<Item = RollbackPoint>>(points: I) -> Self {
        Self(points.into_iter().collect())
    }
}

/// Reads the records of attempt `oldest` and of later attempts.
fn read_from<T: DeserializeOwned>(run: &Store, oldest: u32) -> Result<Vec<T>> {
    let names = run.list(ROLLBACKS)?.into_iter().map(|object| object.path);
    let is_read = |name: &String| run::attempt_of_rollback(name).is_none_or(|attempt| attempt >= oldest);
    read(run, &names.filter(is_read).collect::<Vec<_>>())
}

fn read<T: DeserializeOwned>(run: &Store, names: &[String]) -> Result<Vec<T>> {
    let records = run.get_all(names, MAX_RECORD_BYTES)?;
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
        RollbackRecord { attempt: 2, last_kept: 50, mixture_id: "d".into(), samples: 3..5, reason: "w".into() }
    }

    #[test]
    fn the_record_keeps_the_fields_of_older_versions() {
        let run = Store::open("memory://rollbacks/members").unwrap();
        record().write(&run).unwrap();
        let text = run.get(&run::rollback(2)).unwrap();
        let written: serde_json::Value = serde_json::from_slice(&text).unwrap();
        let expected = serde_json::json!({ "attempt": 2, "steps": 50, "dataset": "d", "samples": { "start": 3, "end": 5 },
                                           "reason": "w" });
        assert_eq!(written, expected);
    }

    /// Versions up to 0.1 wrote the reason under the key `why`.
    #[test]
    fn the_old_key_of_the_reason_is_read() {
        let run = Store::open("memory://rollbacks/old-key").unwrap();
        let text = r#"{"attempt":2,"steps":50,"dataset":"d","samples":{"start":3,"end":5},"why":"w"}"#;
        run.put(&run::rollback(2), text.into()).unwrap();
        assert_eq!(RollbackRecord::read_from(&run, 2).unwrap(), [record()]);
    }

    #[test]
    fn both_readers_read_a_written_record() {
        let run = Store::open("memory://rollbacks/readers").unwrap();
        record().write(&run).unwrap();
        assert_eq!(RollbackRecord::read_from(&run, 2).unwrap(), [record()]);
        assert_eq!(Rollbacks::of(&run, &[]).unwrap().points(), [record().point()]);
        let later = AttemptStep { attempt: 3, step: 1 };
        assert_eq!(Rollbacks::of(&run, &[later]).unwrap().points(), []);
        let both = [later, AttemptStep { attempt: 2, step: 1 }];
        assert_eq!(Rollbacks::of(&run, &both).unwrap().points(), [record().point()]);
    }

    #[test]
    fn unknown_fields_are_rejected_only_by_the_full_reader() {
        let run = Store::open("memory://rollbacks/later").unwrap();
        run.put(&run::rollback(1), r#"{"attempt":1,"steps":1,"new":0}"#.into()).unwrap();
        let read = Rollbacks::of(&run, &[]).unwrap();
        assert_eq!(read.points(), [RollbackPoint { attempt: 1, last_kept: 1 }]);
        let error = RollbackRecord::read_from(&run, 0).unwrap_err();
        assert!(error.is_damaged() && error.to_string().contains("unknown field `new`"), "{error}");
    }

    #[test]
    fn a_run_starts_from_its_newest_valid_checkpoint_else_from_the_newest() {
        let rollbacks: Rollbacks = [RollbackPoint { attempt: 2, last_kept: 50 }].into_iter().collect();
        let [new, undone, valid] = [(3, 55), (2, 55), (1, 50)].map(|(attempt, step)| AttemptStep { attempt, step });
        assert_eq!(rollbacks.start(&[new, undone, valid]), Some(new));
        assert_eq!(rollbacks.start(&[undone, valid]), Some(valid));
        assert_eq!((rollbacks.newest_valid(&[undone]), rollbacks.start(&[undone])), (None, Some(undone)));
        assert_eq!(rollbacks.start(&[]), None);
        let further = rollbacks.with(RollbackPoint { attempt: 3, last_kept: 40 });
        assert_eq!(further.newest_valid(&[new, undone, valid]), None);
    }
}
