//! One save under way, from the copy of the state to rank 0's word of what came of it.

use std::thread::JoinHandle;
use std::time::Instant;

use lambert_store::checkpoint::{Manifest, PendingObject, Slice, Writer};
use tch::Tensor;

use super::commit::Outcome;
use super::records::RecordBatch;
use super::retry_state::RetryState;
use super::snapshot::Copying;
use super::time_limit::Standing;
use crate::worker::agreement::{Decision, SaveVote};

/// A save under way.
pub(super) struct Save {
    pub writer: Writer,
    pub manifest: Manifest,
    /// Of this rank's weights, if there are others to compare with.
    pub digest: Option<Tensor>,
    pub began: Instant,
    /// Seconds that training paused for it.
    pub stall: f64,
    /// How it stood by rank 0's clock at the last vote.
    pub standing: Standing,
    /// Whether people were told that it is slow.
    pub told_slow: bool,
    pub progress: Progress,
}

/// How far it is.
pub(super) enum Progress {
    Copying(Copying, RecordBatch),
    Writing(Vec<(PendingObject, Vec<Slice>)>, RecordBatch),
    /// The thread is rank 0's.
    Committing(Option<JoinHandle<(Outcome, RecordBatch)>>),
    /// Rank 0 knows, and the others do not yet.
    Decided(Outcome, RecordBatch),
}

impl Save {
    /// Rank 0 takes up what its thread has done, if it has ended. What has failed for longer than `limit` minutes is given up,
    /// and so is every failure once `stop_is_over` names a limit.
    pub fn decide(&mut self, retry_state: &RetryState, limit: f64, stop_is_over: Option<String>) {
        let Progress::Committing(thread) = &mut self.progress else { return };
        let Some(thread) = thread.take_if(|thread| thread.is_finished()) else { return };
        let (outcome, records) = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        let lasts = retry_state.lasts(self.began).as_secs_f64() / 60.0;
        let outcome = match (outcome, stop_is_over) {
            (Outcome::Failed(why), _) if lasts >= limit => Outcome::Lost(format!(
                "no checkpoint could be saved for {lasts:.1} minutes, and checkpoint.give_up_minutes is {limit}: {why}"
            )),
            (Outcome::Failed(why), Some(over)) => Outcome::Lost(format!("not saved {over}: {why}")),
            (outcome, _) => outcome,
        };
        self.progress = Progress::Decided(outcome, records);
    }

    /// What this rank says, on rank 0 with its `standing` by the clock. That counts from the second vote on: steps may take so
    /// long that all ranks have written before the first.
    pub fn vote(&mut self, standing: Option<Standing>) -> SaveVote {
        if let Progress::Decided(outcome, _) = &self.progress {
            return SaveVote::Decided(outcome.decision());
        }
        let before = match standing {
            Some(standing) => std::mem::replace(&mut self.standing, standing),
            None => Standing::InTime,
        };
        match (&before, &self.standing) {
            (Standing::Over(_), Standing::Over(_)) => return SaveVote::Decided(Decision::Stuck),
            (Standing::InTime, _) | (_, Standing::InTime) => {}
            _ if std::mem::replace(&mut self.told_slow, true) => {}
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

    /// What this rank waits for: the URLs of the objects that it has not written, on rank 0 the manifest that it commits.
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
