//! The end of a save: committed, failed or stuck.

use lambert_collective::Group;
use lambert_control::EventKind;

use super::Saver;
use crate::checkpoint::commit::Outcome;
use crate::checkpoint::save::{Progress, Save};
use crate::checkpoint::time_limit::{self, Standing};
use crate::error::Error;
use crate::recovery::replicas::ReplicaMismatch;
use crate::worker::agreement::Decision;

impl Saver<'_> {
    /// Tells people which ranks have not written what, long before that ends the run.
    pub(super) fn tell_slow(&mut self, collective: &mut dyn Group) -> Result<(), Error> {
        let Some(save) = &mut self.save else { return Ok(()) };
        let (name, seconds) = (save.writer.name(), save.began.elapsed().as_secs_f64());
        let beginning = format!("checkpoint {name} is not saved after {seconds:.1} s");
        let waits = time_limit::gather(collective, &save.waits_for(), beginning)?;
        if self.session.is_first() {
            self.session.warn(format!("{waits}; {}", self.schedule.warning()));
        }
        Ok(())
    }

    /// The error that ends all ranks, because a write has not ended within the limit. Nothing is tried again in this process:
    /// the write still reads the copy of the state.
    pub(super) fn stuck(&mut self, collective: &mut dyn Group) -> Result<Error, Error> {
        let Some(save) = &mut self.save else { return Ok(Error::Peer("rank 0 waits for a save that is not there")) };
        let limit = if let Standing::Over(limit) = &save.standing { limit.clone() } else { String::new() };
        let message = time_limit::gather(collective, &save.waits_for(), format!("not saved {limit}"))?;
        Ok(Error::Save { name: save.writer.name().to_owned(), message })
    }

    /// All ranks act on what came of the save.
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
        if decision == Decision::Apart {
            let apart: ReplicaMismatch = serde_json::from_slice(&message).map_err(Error::Json)?;
            let blamed = apart.blames(self.session.rank);
            return Err(Error::Replicas { step: manifest.step, mismatch: apart, blamed });
        }
        let message = String::from_utf8_lossy(&message).into_owned();
        match decision {
            Decision::NotFinite => Err(Error::NotFinite { step: manifest.step, what: message }),
            _ => Err(Error::Save { name, message }),
        }
    }

    /// Takes in a committed save, and reports it on rank 0.
    fn take_commit(&mut self, save: Save) {
        let Save { writer, manifest, began, stall, progress, .. } = save;
        let name = writer.name().to_owned();
        self.schedule.clear_failures();
        if let Progress::Decided(..) = progress {
            let (step, written) = (manifest.step, began.elapsed().as_secs_f64());
            let event = EventKind::Checkpoint { name: name.clone(), step, seconds: stall, written };
            self.session.control.event(event);
        }
        self.history.commit(name, manifest);
    }

    /// Takes the records of a failed save back. Returns the error in the form that ranks exchange; empty on the ranks that do
    /// not know it.
    fn take_failure(&mut self, progress: Progress) -> Result<Vec<u8>, Error> {
        let Progress::Decided(outcome, records) = progress else { return Ok(Vec::new()) };
        self.records.restore(records);
        Ok(match outcome {
            Outcome::Committed => Vec::new(),
            Outcome::Failed(why) | Outcome::Lost(why) | Outcome::NotFinite(why) => why.into_bytes(),
            Outcome::Apart(apart) => serde_json::to_vec(&apart).map_err(Error::Json)?,
        })
    }

    fn warn(&self, name: &str, why: &str) {
        let seconds = self.schedule.retry_pause().as_secs();
        self.session.warn(format!(
            "checkpoint {name} was not saved, training goes on and another is tried in {seconds} s: {why}"
        ));
    }
}
