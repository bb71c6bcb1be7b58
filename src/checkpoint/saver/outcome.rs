//! Completion of a save: committed, failed or stuck.

use lambert_collective::Group;
use lambert_control::EventKind;

use super::Saver;
use crate::checkpoint::commit::SaveOutcome;
use crate::checkpoint::save::{Save, SaveState};
use crate::checkpoint::time_limit::{self, SaveTiming};
use crate::error::Error;
use crate::worker::agreement::{self, SaveDecision};

impl Saver<'_> {
    /// Warns about a slow save, long before the time limit ends the run. Names the ranks
    /// and the objects that they have not written.
    pub(super) fn report_slow(&mut self, collective: &mut dyn Group) -> Result<(), Error> {
        let Some(save) = &mut self.save else { return Ok(()) };
        let (name, seconds) = (save.writer.name(), self.schedule.time_since(save.began).as_secs_f64());
        let beginning = format!("checkpoint {name} is not saved after {seconds:.1} s");
        let waits = time_limit::gather(collective, &save.waits_for(), beginning)?;
        if self.session.is_first() {
            self.session.warn(format!("{waits}; {}", self.schedule.warning()));
        }
        Ok(())
    }

    /// Returns the error that ends all ranks because a write exceeded its time limit. The save is not retried in this
    /// process, because the write still reads the snapshot.
    pub(super) fn stuck_error(&mut self, collective: &mut dyn Group) -> Result<Error, Error> {
        let Some(save) = &mut self.save else {
            return Ok(Error::Peer("rank 0 reports a stuck save, but none is in progress"));
        };
        let limit = if let SaveTiming::Over(limit) = &save.timing { limit.clone() } else { String::new() };
        let message = time_limit::gather(collective, &save.waits_for(), format!("not saved {limit}"))?;
        Ok(Error::Save { name: save.writer.name().to_owned(), message })
    }

    /// Ends the save with `decision`. All ranks call this function with the same decision.
    pub(super) fn conclude(&mut self, collective: &mut dyn Group, decision: SaveDecision) -> Result<(), Error> {
        let Some(save) = self.save.take() else { return Ok(()) };
        if decision == SaveDecision::Committed {
            self.take_commit(save);
            return Ok(());
        }
        self.schedule.add_failure(save.began);
        let Save { writer, manifest, state, .. } = save;
        let outcome = self.take_failure(state);
        if decision == SaveDecision::Failed {
            if let Some(SaveOutcome::Failed(why)) = outcome {
                self.report_failed(writer.name(), why);
            }
            return Ok(());
        }
        let outcome = agreement::broadcast(collective, &outcome)?;
        Err(save_error(outcome, writer.name().to_owned(), manifest.step, self.session.rank))
    }

    /// Records a committed save, and reports it on rank 0.
    fn take_commit(&mut self, save: Save) {
        let Save { writer, manifest, began, stall, .. } = save;
        let name = writer.name().to_owned();
        self.schedule.clear_failures();
        if self.session.is_first() {
            let (step, written) = (manifest.step, self.schedule.time_since(began).as_secs_f64());
            let event = EventKind::Checkpoint { name: name.clone(), step, seconds: stall, written };
            self.session.control.report_event(event);
        }
        self.known.commit(name, manifest);
    }

    /// Restores the records of a failed save, and returns its outcome; `None` on ranks that do not know it.
    fn take_failure(&mut self, state: SaveState) -> Option<SaveOutcome> {
        let SaveState::Decided { outcome, records } = state else { return None };
        self.records.restore(records);
        Some(outcome)
    }

    fn report_failed(&self, name: &str, error: String) {
        let seconds = self.schedule.retry_pause().as_secs();
        let meanwhile = if self.blocks { "training waits until it is saved" } else { "training continues" };
        let message = format!("checkpoint {name} was not saved; {meanwhile}, retrying in {seconds} s: {error}");
        match self.session.control.is_connected() {
            true => self.session.control.report_event(EventKind::SaveFailed { message, error }),
            false => tracing::warn!("{message}"),
        }
    }
}

/// Error on `rank` after the save of checkpoint `name`, of `step`, has failed for good. `outcome` is the outcome of
/// rank 0.
fn save_error(outcome: Option<SaveOutcome>, name: String, step: u64, rank: usize) -> Error {
    match outcome {
        Some(SaveOutcome::ReplicasDiffer(mismatch)) => {
            let blamed = mismatch.blames(rank);
            Error::Replicas { step, mismatch, blamed }
        }
        Some(SaveOutcome::NotFinite(what)) => Error::NotFinite { step, what },
        Some(SaveOutcome::Failed(message) | SaveOutcome::Permanent(message)) => Error::Save { name, message },
        Some(SaveOutcome::Committed) | None => Error::Peer("rank 0 reports a failed save, but has no failure"),
    }
}
