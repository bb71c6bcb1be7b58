//! Rank 0's last act in a save, on a thread of its own: records and manifest.

use lambert_store::checkpoint::{Manifest, ObjectEntry, Retention, Writer};
use lambert_store::{Lease, Store};
use serde::{Deserialize, Serialize};

use super::pruner::Pruner;
use super::replicas::Apart;
use crate::agreement::Decision;
use crate::error::{self, Error};
use crate::metrics::RecordBatch;
use crate::session;

/// What is committed, once every rank has handed in its entries.
pub struct Commit {
    /// The checkpoint.
    pub writer: Writer,
    /// Its manifest, without objects.
    pub manifest: Manifest,
    /// What the ranks handed in, [`Part::encode`] of each.
    pub parts: Vec<Vec<u8>>,
    /// The records of the steps that it holds.
    pub records: RecordBatch,
    /// The run's store.
    pub store: Store,
    /// The attempt's right to write there.
    pub lease: Lease,
    /// What is kept beside it.
    pub retention: Retention,
    /// What removes the others.
    pub pruner: Pruner,
}

/// What came of a save.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The checkpoint exists.
    Committed,
    /// It does not, for a reason that may pass.
    Failed(String),
    /// It does not, because the ranks do not have the same weights.
    Apart(Apart),
    /// It does not, and this attempt will never save one.
    Lost(String),
}

impl Outcome {
    /// What the other ranks are told of it.
    pub fn decision(&self) -> Decision {
        match self {
            Self::Committed => Decision::Committed,
            Self::Failed(_) => Decision::Failed,
            Self::Apart(_) => Decision::Apart,
            Self::Lost(_) => Decision::Lost,
        }
    }
}

/// What a rank hands in.
#[derive(Serialize, Deserialize)]
pub struct Part {
    /// Of its weights, as they were when it began to save.
    digest: u64,
    /// The entries of what it has written, or why it could not.
    written: Result<Vec<ObjectEntry>, String>,
}

impl Part {
    /// As it is sent to rank 0.
    pub fn encode(digest: u64, written: Result<Vec<ObjectEntry>, lambert_store::Error>) -> Result<Vec<u8>, Error> {
        let written = written.map_err(|error| error::chain(&error));
        serde_json::to_vec(&Self { digest, written }).map_err(Error::Json)
    }
}

impl Commit {
    /// Commits, and hands the records back: they are needed again if it failed. Removing old checkpoints goes on behind it.
    pub fn run(mut self) -> (Outcome, RecordBatch) {
        // So that a disk holds no more than two checkpoints beside those that are kept; buckets have room.
        if self.store.is_local() {
            self.pruner.wait();
        }
        let outcome = self.outcome();
        if outcome == Outcome::Committed {
            self.retention.known_sound = Some(self.writer.name().to_owned());
            self.pruner.start(self.store, self.lease, self.retention);
        } else if let Err(error) = self.writer.abandon() {
            tracing::debug!("what was written of {} stays: {}", self.writer.name(), error::chain(&error));
        }
        (outcome, self.records)
    }

    /// What came of it. A lost lease explains any failure: the run was moved, or its store is another attempt's.
    fn outcome(&mut self) -> Outcome {
        match self.commit() {
            Outcome::Failed(why) => match session::loss(&self.lease) {
                Some(lost) => Outcome::Lost(error::chain(&lost)),
                None => Outcome::Failed(why),
            },
            outcome => outcome,
        }
    }

    fn commit(&mut self) -> Outcome {
        let parts: Result<Vec<Part>, _> = self.parts.iter().map(|part| serde_json::from_slice(part)).collect();
        let parts = match parts {
            Ok(parts) => parts,
            Err(error) => return Outcome::Failed(error.to_string()),
        };
        if let Some(apart) = Apart::among(&parts.iter().map(|part| part.digest).collect::<Vec<_>>()) {
            return Outcome::Apart(apart);
        }
        let written: Result<Vec<Vec<ObjectEntry>>, String> = parts.into_iter().map(|part| part.written).collect();
        written.map_or_else(Outcome::Failed, |objects| {
            self.manifest.objects = objects.concat();
            self.write().map_or_else(|error| outcome(&error), |()| Outcome::Committed)
        })
    }

    fn write(&self) -> Result<(), lambert_store::Error> {
        self.records.write(&self.store)?;
        self.writer.commit(&self.manifest, &self.lease)
    }
}

fn outcome(error: &lambert_store::Error) -> Outcome {
    use lambert_store::Error as E;
    let message = error::chain(error);
    match error {
        // Somebody else runs this run, or what was to be committed makes no sense: trying again changes nothing.
        E::LeaseLost { .. } | E::LeaseGone { .. } | E::Refused { .. } | E::Exists { .. } => Outcome::Lost(message),
        _ => Outcome::Failed(message),
    }
}
