//! A save in progress, from the snapshot to the decision of rank 0.
//!
//! ```text
//! rank 0:      Copying -> Writing -> Committing -> Decided
//! other ranks: Copying -> Writing -> Waiting
//! ```
//!
//! The ranks leave `Writing` together, after all of them have written their objects. Rank 0 broadcasts that it has
//! decided. Then all ranks end the save.

use std::thread::JoinHandle;
use std::time::Duration;

use lambert_store::checkpoint::{CheckpointWriter, Manifest, PendingObject, Slice};
use tch::Tensor;

use super::commit::SaveOutcome;
use super::records::RecordBatch;
use super::snapshot::{PendingCopies, Snapshot};
use super::time_limit::SaveTiming;
use crate::error::Error;
use crate::torch;
use crate::worker::agreement::{SaveDecision, SaveVote};
use crate::worker::trace::span;

/// A save in progress.
pub(super) struct Save {
    pub writer: CheckpointWriter,
    pub manifest: Manifest,
    /// Digest of the weights of this rank; `None` if there is only one rank.
    pub digest: Option<Tensor>,
    /// Start, by the clock of the schedule.
    pub began: Duration,
    /// Time that training was blocked, seconds.
    pub stall: f64,
    /// Timing of the save relative to its time limits at the last vote, by the clock of rank 0.
    pub timing: SaveTiming,
    /// True if a vote has already reported this save as slow.
    pub has_reported_slow: bool,
    pub state: SaveState,
}

/// State of a save on one rank.
#[derive(Default)]
pub(super) enum SaveState {
    Copying {
        copies: PendingCopies,
        records: RecordBatch,
    },
    Writing {
        objects: Vec<(PendingObject, Vec<Slice>)>,
        records: RecordBatch,
    },
    /// A rank other than 0 has sent its entries. Only rank 0 keeps the records.
    #[default]
    Waiting,
    /// The commit thread of rank 0 is running.
    Committing(JoinHandle<(SaveOutcome, RecordBatch)>),
    /// Rank 0 knows the outcome.
    Decided {
        outcome: SaveOutcome,
        records: RecordBatch,
    },
}

impl SaveState {
    /// `Copying` -> `Writing`: waits for the copies, and starts to write the objects. Other states stay as they are.
    pub fn start_writing(self, snapshot: &mut Snapshot, writer: &CheckpointWriter) -> Result<Self, Error> {
        let Self::Copying { copies, records } = self else { return Ok(self) };
        let objects = torch::guard(|| snapshot.finish(copies))?.into_iter().map(|object| {
            let _upload = span!("start upload", object = %object.name);
            let pending = writer.start_object(&object.name, object.bytes)?;
            Ok((pending, object.slices))
        });
        Ok(Self::Writing { objects: objects.collect::<Result<_, Error>>()?, records })
    }

    /// `Committing` -> `Decided` once the thread has ended. `final_outcome` converts the outcome of the thread to the
    /// outcome of the save. Other states stay as they are.
    pub fn collect(self, final_outcome: impl FnOnce(SaveOutcome) -> SaveOutcome) -> Self {
        match self {
            Self::Committing(thread) if thread.is_finished() => {
                let (outcome, records) = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
                Self::Decided { outcome: final_outcome(outcome), records }
            }
            other => other,
        }
    }
}

impl Save {
    /// Returns this rank's vote. On rank 0, `timing` is the current timing of the save relative to its time limits. A
    /// save counts as slow or stuck only at the second consecutive late vote. After a long step, the first vote may be
    /// late although all ranks have already written.
    pub fn vote(&mut self, timing: Option<SaveTiming>) -> SaveVote {
        if let SaveState::Decided { outcome, .. } = &self.state {
            return SaveVote::Decided(outcome.decision());
        }
        let before = match timing {
            Some(timing) => std::mem::replace(&mut self.timing, timing),
            None => SaveTiming::InTime,
        };
        match (&before, &self.timing) {
            (SaveTiming::Over(_), SaveTiming::Over(_)) => return SaveVote::Decided(SaveDecision::Stuck),
            (SaveTiming::InTime, _) | (_, SaveTiming::InTime) => {}
            _ if std::mem::replace(&mut self.has_reported_slow, true) => {}
            _ => return SaveVote::Slow,
        }
        match &mut self.state {
            SaveState::Writing { objects, .. } => match objects.iter_mut().all(|(object, _)| object.is_done()) {
                true => SaveVote::Written,
                false => SaveVote::Nothing,
            },
            _ => SaveVote::Nothing,
        }
    }

    /// URLs of the objects that this rank has not written yet. During the commit, rank
    /// 0 returns the URL of the manifest.
    pub fn waits_for(&mut self) -> Vec<String> {
        match &mut self.state {
            SaveState::Writing { objects, .. } => {
                let unwritten = objects.iter_mut().filter_map(|(object, _)| {
                    let url = object.url().to_owned();
                    (!object.is_done()).then_some(url)
                });
                unwritten.collect()
            }
            SaveState::Committing(_) => vec![self.writer.manifest_url()],
            SaveState::Copying { .. } | SaveState::Waiting | SaveState::Decided { .. } => Vec::new(),
        }
    }
}
