//! Rollback after divergence: the run returns to an earlier checkpoint and skips the samples that caused the divergence.
//! All ranks take the same action.

use lambert_collective::Group;
use lambert_control::EventKind;
use lambert_store::checkpoint::{RollbackPoint, RollbackRecord};

use crate::checkpoint::Saver;
use crate::checkpoint::rollback::{self as checkpoint_rollback, RollbackTarget};
use crate::data::Mixture;
use crate::error::Error;
use crate::recovery::guard::RollbackPlan;
use crate::worker::agreement;
use crate::worker::control::WorkerPhase;
use crate::worker::session::Session;

/// Ends the attempt so that the next attempt rolls back. Rank 0 writes a rollback record, which the next attempt reads.
/// `loaded` is the checkpoint that this attempt resumed from.
pub fn end_attempt(
    session: &Session,
    collective: &mut dyn Group,
    saver: &mut Saver<'_>,
    mixture: &Mixture,
    loaded: Option<&str>,
    plan: RollbackPlan,
) -> Result<(), Error> {
    // Use the timeout of the save phase, because rank 0 writes to the store while the other ranks wait.
    session.control.set_phase(WorkerPhase::Save);
    // Finish the save in flight. This save has an earlier state, from which the next attempt may resume.
    saver.wait_for_save(collective)?;
    let written = match session.is_first() {
        true => write_record(session, saver, mixture, loaded, plan).map(Some),
        false => Ok(None),
    };
    // If one rank exits, the other ranks end too. All ranks therefore wait until the record is written.
    let is_written = agreement::broadcast(collective, &written.is_ok())?;
    let event = written?;
    if !is_written {
        return Err(Error::Peer("rank 0 could not write the rollback record"));
    }
    event.into_iter().for_each(|event| session.control.report_event(event));
    Ok(())
}

/// Writes the rollback record and returns the event for the coordinator.
fn write_record(
    session: &Session,
    saver: &mut Saver<'_>,
    mixture: &Mixture,
    loaded: Option<&str>,
    plan: RollbackPlan,
) -> Result<EventKind, Error> {
    session.lease.check()?;
    saver.write_records()?;
    let RollbackPlan { step, last_kept, samples, reason } = plan;
    let planned = RollbackPoint { attempt: session.lease.attempt(), last_kept };
    let keep = session.config.checkpoint.keep;
    let RollbackTarget { last_kept, note } = checkpoint_rollback::target(planned, &session.store, loaded, keep)?;
    let mixture_id = mixture.id().to_owned();
    let record = RollbackRecord { attempt: planned.attempt, last_kept, mixture_id, samples, reason };
    record.write(&session.store)?;
    let RollbackRecord { samples, reason, .. } = record;
    let (first, last, url) = (samples.start, samples.end - 1, mixture.url());
    let skipped = format!("rolled back to step {last_kept}, skipping samples {first}-{last} of {url}");
    let message = format!("{reason}; {skipped}{}", note.map_or(String::new(), |note| format!("; {note}")));
    Ok(EventKind::RolledBack { message, step, last_kept })
}
