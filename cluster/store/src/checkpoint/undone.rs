//! Checkpoints that a rollback has undone: the run went back behind them, and they are only of use where no other is left.

use bytes::Bytes;
use serde::Deserialize;

use super::{Manifest, Place};
use crate::error::{Error, Result};
use crate::run::{ROLLBACKS, attempt_of_rollback};
use crate::store::Store;

/// No record of a rollback is longer than this, bytes.
const LONGEST: u64 = 1 << 20;

/// What a record of a rollback undoes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub struct Undone {
    /// The attempt that was derailed.
    pub attempt: u32,
    /// Steps that stay.
    pub steps: u64,
}

impl Undone {
    /// Whether the checkpoint at `place` is of a step that was undone.
    #[must_use]
    pub fn holds(&self, place: Place) -> bool {
        place.attempt <= self.attempt && place.step > self.steps
    }

    /// What speaks against a checkpoint, if it was undone.
    #[must_use]
    pub fn misfit(&self, manifest: &Manifest) -> Option<String> {
        let place = Place { attempt: manifest.attempt, step: manifest.step };
        self.holds(place).then(|| format!("attempt {} rolled back to step {}", self.attempt, self.steps))
    }

    /// What the rollbacks of attempt `oldest` and later have undone: those before it undo no checkpoint of its.
    ///
    /// # Errors
    /// What the store says, or a record that cannot be read.
    pub fn read_from(run: &Store, oldest: u32) -> Result<Vec<Self>> {
        let read = |(path, bytes): (String, Bytes)| {
            serde_json::from_slice(&bytes).map_err(|error| Error::Damaged {
                url: format!("{}/{path}", run.url()),
                what: "contents",
                expected: "a record of a rollback".to_owned(),
                found: error.to_string(),
            })
        };
        rollbacks(run, oldest)?.into_iter().map(read).collect()
    }
}

/// The records of the rollbacks of attempt `oldest` and later, with their names. No other is read.
///
/// # Errors
/// What the store says.
pub fn rollbacks(run: &Store, oldest: u32) -> Result<Vec<(String, Bytes)>> {
    let names = run.list(ROLLBACKS)?.into_iter().map(|object| object.path);
    let names: Vec<String> =
        names.filter(|name| attempt_of_rollback(name).is_none_or(|attempt| attempt >= oldest)).collect();
    let records = run.get_all(&names, LONGEST)?;
    Ok(names.into_iter().zip(records).collect())
}
