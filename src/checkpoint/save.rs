//! One save under way, from the copy of the state to rank 0's word of what came of it.

use std::thread::JoinHandle;
use std::time::Instant;

use lambert_store::checkpoint::{Manifest, PendingObject, Slice, Writer};
use tch::Tensor;

use super::commit::Outcome;
use super::retry_state::RetryState;
use super::snapshot::Copying;
use crate::metrics::RecordBatch;

/// A save under way.
pub(super) struct Save {
    pub writer: Writer,
    pub manifest: Manifest,
    /// Of this rank's weights, if there are others to compare with.
    pub digest: Option<Tensor>,
    pub began: Instant,
    /// Seconds that training paused for it.
    pub stall: f64,
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
    /// Rank 0 takes up what its thread has done, if it has ended or if that is waited for. What has failed for longer
    /// than `limit` minutes is given up.
    pub fn decide(&mut self, wait: bool, retry_state: &RetryState, limit: f64) {
        let Progress::Committing(thread) = &mut self.progress else { return };
        let Some(thread) = thread.take_if(|thread| wait || thread.is_finished()) else { return };
        let (outcome, records) = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        let lasts = retry_state.lasts(self.began).as_secs_f64() / 60.0;
        let outcome = match outcome {
            Outcome::Failed(why) if lasts >= limit => Outcome::Lost(format!(
                "no checkpoint could be saved for {lasts:.1} minutes, and checkpoint.give_up_minutes is {limit}: {why}"
            )),
            outcome => outcome,
        };
        self.progress = Progress::Decided(outcome, records);
    }
}
