//! What follows when a step cannot be made or must be undone: the run goes back and around the samples that derailed it,
//! or around a damaged shard, or stops with a checkpoint. All ranks act alike.

use lambert_collective::Group;
use lambert_config::run::DamagedShard;
use lambert_control::EventKind;
use lambert_dataset::{Dataset, DatasetError};
use lambert_store::checkpoint::RollbackRecord;
use serde::{Deserialize, Serialize};

use crate::checkpoint::{Saver, rollback};
use crate::error::{self, Error};
use crate::recovery::guard::Retreat;
use crate::state::TrainState;
use crate::worker::agreement;
use crate::worker::control::WorkerPhase;
use crate::worker::session::Session;

/// Ends the attempt that `retreat` undoes, which began with the checkpoint `loaded`: rank 0 leaves a record of it for the next
/// one.
pub fn go_back(
    session: &Session,
    collective: &mut dyn Group,
    saver: &mut Saver<'_>,
    dataset: &Dataset,
    loaded: Option<&str>,
    retreat: Retreat,
) -> Result<(), Error> {
    // Rank 0 waits for the store as long as a save may, and the others for rank 0.
    session.control.phase(WorkerPhase::Save);
    // A save under way is of a state from before: it may be what the next attempt begins with.
    saver.settle(collective)?;
    let written = match session.is_first() {
        true => leave(session, saver, dataset, loaded, retreat).map(Some),
        false => Ok(None),
    };
    // Ranks that leave take the others with them, so all wait until the record is there.
    let mut word = vec![u8::from(written.is_ok())];
    collective.broadcast_bytes(&mut word, 0)?;
    let event = written?;
    if word != [1] {
        return Err(Error::Peer("rank 0 could not record that the run goes back"));
    }
    event.into_iter().for_each(|event| session.control.event(event));
    Ok(())
}

/// Writes the record; gives what the coordinator is told.
fn leave(
    session: &Session,
    saver: &mut Saver<'_>,
    dataset: &Dataset,
    loaded: Option<&str>,
    retreat: Retreat,
) -> Result<EventKind, Error> {
    session.lease.check()?;
    saver.write_records()?;
    let Retreat { at, steps, samples, why } = retreat;
    let (attempt, identity) = (session.lease.attempt(), dataset.manifest_sha256().to_owned());
    let mut record = RollbackRecord { attempt, steps, dataset: identity, samples, why };
    let keep = session.config.checkpoint.keep;
    let repeated = rollback::go_further_back(&mut record, &session.store, loaded, keep)?;
    record.write(&session.store)?;
    let RollbackRecord { steps, samples, why, .. } = record;
    let (first, last, url) = (samples.start, samples.end - 1, dataset.url());
    let skipped = format!("rolled back to step {steps}, skipping samples {first} to {last} of {url}");
    let message = format!("{why}; {skipped}{}", repeated.map_or(String::new(), |repeated| format!("; {repeated}")));
    Ok(EventKind::RolledBack { message, step: at, to: steps })
}

/// What a rank tells of samples that it could not read.
#[derive(Clone, Serialize, Deserialize)]
struct Unread {
    /// The damaged shard's number, if that is what it is.
    shard: Option<usize>,
    message: String,
}

/// Some rank could not read its samples, `error` if it is this one. The damaged shards are left out from now on if the
/// configuration says so and there are others.
///
/// # Errors
/// Otherwise the fault itself, on the rank that met it, after a checkpoint was saved.
pub fn go_around(
    session: &Session,
    collective: &mut dyn Group,
    saver: &mut Saver<'_>,
    state: &mut TrainState,
    dataset: &Dataset,
    error: Option<DatasetError>,
) -> Result<(), Error> {
    let unread = gather(collective, dataset, error.as_ref())?;
    let shards: Option<Vec<usize>> = unread.iter().map(|unread| unread.shard).collect();
    let detours = state.skipped.by_dataset.entry(dataset.manifest_sha256().to_owned()).or_default();
    if let Some(shards) = shards.filter(|_| session.config.guard.damaged_shard == DamagedShard::Skip) {
        let before = detours.clone();
        let new = shards.iter().filter(|shard| detours.add_shard(**shard)).count();
        if new > 0 && detours.leaves_any_of(dataset.manifest().shards.len()) {
            if let (true, Some(first)) = (session.is_first(), unread.first()) {
                session.warn(format!("{}; its samples are left out from here on", first.message));
            }
            return Ok(());
        }
        *detours = before;
    }
    end_for(collective, saver, state, error)
}

/// Some rank could not read samples, `error` if it is this one: saves a checkpoint of the steps before.
///
/// # Errors
/// Always: the fault itself, on the rank that met it.
pub fn end_for(
    collective: &mut dyn Group,
    saver: &mut Saver<'_>,
    state: &TrainState,
    error: Option<DatasetError>,
) -> Result<(), Error> {
    if state.step > 0 {
        saver.complete(collective, state)?;
    }
    Err(error.map_or(Error::Peer("another rank could not read its samples"), Error::Dataset))
}

/// What all ranks could not read, told to all.
fn gather(collective: &mut dyn Group, dataset: &Dataset, error: Option<&DatasetError>) -> Result<Vec<Unread>, Error> {
    let own = error.map(|error| Unread { shard: dataset.damaged_shard(error), message: error::chain(error) });
    agreement::gather_and_decide(collective, &own, |all: &[Option<Unread>]| {
        all.iter().flatten().cloned().collect::<Vec<_>>()
    })
}
