//! Checkpoints that a rollback has undone: the run went back behind them, and they are only of use where no other is left.

use serde::Deserialize;

use super::{Manifest, Place};
use crate::error::{Error, Result};
use crate::run::ROLLBACKS;
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

    /// What all rollbacks of a run have undone.
    ///
    /// # Errors
    /// What the store says, or a record that cannot be read.
    pub fn read_all(run: &Store) -> Result<Vec<Self>> {
        let read = |path: &str| {
            let bytes = run.get_at_most(path, LONGEST)?;
            serde_json::from_slice(&bytes).map_err(|error| Error::Damaged {
                url: format!("{}/{path}", run.url()),
                what: "contents",
                expected: "a record of a rollback".to_owned(),
                found: error.to_string(),
            })
        };
        run.list(ROLLBACKS)?.iter().map(|object| read(&object.path)).collect()
    }
}
