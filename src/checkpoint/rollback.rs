//! Going back: what an attempt that was derailed leaves in the run's store for the attempts after it.
//!
//! `rollbacks/attempt-0003.json` says which steps stay and which samples are gone around. It is written before the
//! attempt ends; an attempt that is killed before that comes to the same step and the same decision again.

use std::ops::Range;

use bytes::Bytes;
use lambert_store::checkpoint::{self as stored, Manifest, Undone};
use lambert_store::{Store, run};
use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::state::TrainState;

/// One way back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rollback {
    /// The attempt that was derailed.
    pub attempt: u32,
    /// The state after so many steps is good: checkpoints of this attempt and those before it that have more are passed
    /// over.
    pub steps: u64,
    /// sha256 of the manifest of the dataset that was learnt from.
    pub dataset: String,
    /// The samples of it that are gone around, counted over all epochs.
    pub samples: Range<u64>,
    /// What happened.
    pub why: String,
}

impl Rollback {
    /// Writes it into the run's store.
    pub fn write(&self, run: &Store) -> Result<(), Error> {
        let text = serde_json::to_vec_pretty(self).map_err(Error::Json)?;
        Ok(run.put(&run::rollback(self.attempt), text.into())?)
    }

    /// Those of attempt `oldest` and later. What an earlier one left out is in the state of every checkpoint of `oldest`.
    pub fn read_from(run: &Store, oldest: u32) -> Result<Vec<Self>, Error> {
        let read = |(path, bytes): (String, Bytes)| {
            let url = || format!("{}/{path}", run.url());
            serde_json::from_slice(&bytes).map_err(|source| Error::Rollback { url: url(), source })
        };
        stored::rollbacks(run, oldest)?.into_iter().map(read).collect()
    }

    /// What speaks against a checkpoint, if anything does.
    pub fn misfit(&self, manifest: &Manifest) -> Option<String> {
        Undone { attempt: self.attempt, steps: self.steps }.misfit(manifest)
    }

    /// Lets `state` go around the samples.
    pub fn apply(&self, state: &mut TrainState) {
        state.detours.entry(self.dataset.clone()).or_default().add(self.samples.clone());
    }
}
