//! A save in progress, from the snapshot to the decision of rank 0.

use std::thread::JoinHandle;
use std::time::Duration;

use lambert_store::checkpoint::{CheckpointWriter, Manifest, PendingObject, Slice};
use tch::Tensor;

use super::commit::SaveOutcome;
use super::records::RecordBatch;
use super::retry_state::RetryState;
use super::snapshot::PendingCopies;
use super::time_limit::SaveTiming;
use crate::worker::agreement::{Decision, SaveVote};

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
    pub progress: Progress,
}

/// Progress of a save.
pub(super) enum Progress {
    Copying(PendingCopies, RecordBatch),
    Writing(Vec<(PendingObject, Vec<Slice>)>, RecordBatch),
    /// The commit thread on rank 0, `None` on the other ranks.
    Committing(Option<JoinHandle<(SaveOutcome, RecordBatch)>>),
    /// Outcome of the save, which only rank 0 knows.
    Decided(SaveOutcome, RecordBatch),
}

impl Save {
    /// Collects the outcome of the commit thread of rank 0 if the thread has ended. A failure becomes permanent if
    /// saves have failed for `limit` minutes at `now`, or if `exceeded_stop_limit` names an exceeded limit.
    pub fn decide(&mut self, retry_state: &RetryState, now: Duration, limit: f64, exceeded_stop_limit: Option<String>) {
        let Progress::Committing(thread) = &mut self.progress else { return };
        let Some(thread) = thread.take_if(|thread| thread.is_finished()) else { return };
        let (outcome, records) = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        let lasts = retry_state.failing_for(self.began, now).as_secs_f64() / 60.0;
        let outcome = match (outcome, exceeded_stop_limit) {
            (SaveOutcome::Failed(why), _) if lasts >= limit => SaveOutcome::Permanent(format!(
                "all saves have failed for {lasts:.1} minutes (checkpoint.give_up_minutes = {limit}): {why}"
            )),
            (SaveOutcome::Failed(why), Some(over)) => SaveOutcome::Permanent(format!("not saved {over}: {why}")),
            (outcome, _) => outcome,
        };
        self.progress = Progress::Decided(outcome, records);
    }

    /// Returns this rank's vote. On rank 0, `timing` is the current timing of the save relative to its time limits. A
    /// save counts as slow or stuck only at the second consecutive late vote. After a long step, the first vote may be
    /// late although all ranks have already written.
    pub fn vote(&mut self, timing: Option<SaveTiming>) -> SaveVote {
        if let Progress::Decided(outcome, _) = &self.progress {
            return SaveVote::Decided(outcome.decision());
        }
        let before = match timing {
            Some(timing) => std::mem::replace(&mut self.timing, timing),
            None => SaveTiming::InTime,
        };
        match (&before, &self.timing) {
            (SaveTiming::Over(_), SaveTiming::Over(_)) => return SaveVote::Decided(Decision::Stuck),
            (SaveTiming::InTime, _) | (_, SaveTiming::InTime) => {}
            _ if std::mem::replace(&mut self.has_reported_slow, true) => {}
            _ => return SaveVote::Slow,
        }
        match &mut self.progress {
            Progress::Writing(objects, _) => match objects.iter_mut().all(|(object, _)| object.is_done()) {
                true => SaveVote::Written,
                false => SaveVote::Nothing,
            },
            _ => SaveVote::Nothing,
        }
    }

    /// URLs of the objects that this rank has not written yet. During the commit, rank
    /// 0 returns the URL of the manifest.
    pub fn waits_for(&mut self) -> Vec<String> {
        match &mut self.progress {
            Progress::Writing(objects, _) => {
                let unwritten = objects.iter_mut().filter_map(|(object, _)| {
                    let url = object.url().to_owned();
                    (!object.is_done()).then_some(url)
                });
                unwritten.collect()
            }
            Progress::Committing(Some(_)) => vec![self.writer.manifest_url()],
            Progress::Copying(..) | Progress::Committing(None) | Progress::Decided(..) => Vec::new(),
        }
    }
}
