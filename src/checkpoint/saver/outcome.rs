//! Completion of a save: committed, failed or stuck.

use lambert_collective::Group;
use lambert_control::EventKind;

use super::Saver;
use crate::checkpoint::commit::SaveOutcome;
use crate::checkpoint::save::{Progress, Save};
use crate::checkpoint::time_limit::{self, SaveTiming};
use crate::error::Error;
use crate::recovery::replicas::ReplicaMismatch;
use crate::worker::agreement::Decision;

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
    pub(super) fn conclude(&mut self, collective: &mut dyn Group, decision: Decision) -> Result<(), Error> {
        let Some(save) = self.save.take() else { return Ok(()) };
        if decision == Decision::Committed {
            self.take_commit(save);
            return Ok(());
        }
        self.schedule.add_failure(save.began);
        let Save { writer, manifest, progress, .. } = save;
        let name = writer.name().to_owned();
        let mut message = self.take_failure(progress)?;
        if decision == Decision::Failed {
            if self.session.is_first() {
                self.warn(&name, &String::from_utf8_lossy(&message));
            }
            return Ok(());
        }
        collective.broadcast_bytes(&mut message, 0)?;
        if decision == Decision::ReplicasDiffer {
            let difference: ReplicaMismatch = serde_json::from_slice(&message).map_err(Error::Json)?;
            let blamed = difference.blames(self.session.rank);
            return Err(Error::Replicas { step: manifest.step, mismatch: difference, blamed });
        }
        let message = String::from_utf8_lossy(&message).into_owned();
        match decision {
            Decision::NotFinite => Err(Error::NotFinite { step: manifest.step, what: message }),
            _ => Err(Error::Save { name, message }),
        }
    }

    /// Records a committed save, and reports it on rank 0.
    fn take_commit(&mut self, save: Save) {
        let Save { writer, manifest, began, stall, progress, .. } = save;
        let name = writer.name().to_owned();
        self.schedule.clear_failures();
        if let Progress::Decided(..) = progress {
            let (step, written) = (manifest.step, self.schedule.time_since(began).as_secs_f64());
            let event = EventKind::Checkpoint { name: name.clone(), step, seconds: stall, written };
            self.session.control.report_event(event);
        }
        self.history.commit(name, manifest);
    }

    /// Restores the records of a failed save. Returns the error, serialized for the broadcast. The result is
    /// empty on ranks that do not know the error.
    fn take_failure(&mut self, progress: Progress) -> Result<Vec<u8>, Error> {
        let Progress::Decided(outcome, records) = progress else { return Ok(Vec::new()) };
        self.records.restore(records);
        Ok(match outcome {
            SaveOutcome::Committed => Vec::new(),
            SaveOutcome::Failed(why) | SaveOutcome::Permanent(why) | SaveOutcome::NotFinite(why) => why.into_bytes(),
            SaveOutcome::ReplicasDiffer(difference) => serde_json::to_vec(&difference).map_err(Error::Json)?,
        })
    }

    fn warn(&self, name: &str, why: &str) {
        let seconds = self.schedule.retry_pause().as_secs();
        let meanwhile = if self.blocks { "training waits until it is saved" } else { "training continues" };
        self.session.warn(format!("checkpoint {name} was not saved; {meanwhile}, retrying in {seconds} s: {why}"));
    }
}
