//! Recovery from samples that a rank cannot read. The run skips the damaged shards, or it saves a final checkpoint and fails.
//! All ranks take the same action.

use lambert_collective::Group;
use lambert_config::run::DamagedShard;
use lambert_dataset::DatasetError;
use serde::{Deserialize, Serialize};

use crate::checkpoint::Saver;
use crate::data::Mixture;
use crate::error::{self, Error};
use crate::state::TrainState;
use crate::worker::agreement;
use crate::worker::session::Session;

/// What to do after the end of a run with an unreadable shard.
const RESTORE: &str = "restore the file and rerun the command to resume";
/// The same if the run may skip the shard.
const RESTORE_OR_SKIP: &str = "restore the file and rerun the command to resume, or add \
                               --set guard.damaged_shard=skip to train without its samples";

/// Failure of a rank to read its samples.
#[derive(Clone, Serialize, Deserialize)]
struct ReadFailure {
    /// Index of the dataset in the mixture, and index of its damaged shard, if a damaged shard caused the failure.
    shard: Option<(usize, usize)>,
    message: String,
}

/// Handles a failed read on any rank. `error` is the read error on a rank that failed, `None` on the other ranks. If
/// `guard.damaged_shard` permits it and other shards of these datasets are left, skips the damaged shards from now on.
///
/// # Errors
/// If the shards cannot be skipped, saves a checkpoint. A rank that failed then returns `error`, and the other ranks
/// return [`Error::Peer`].
pub fn skip_damaged_shards(
    session: &Session,
    collective: &mut dyn Group,
    saver: &mut Saver<'_>,
    state: &mut TrainState,
    mixture: &Mixture,
    error: Option<DatasetError>,
) -> Result<(), Error> {
    let unread = gather(collective, mixture, error.as_ref())?;
    let shards: Option<Vec<(usize, usize)>> = unread.iter().map(|unread| unread.shard).collect();
    if let Some(shards) = shards.filter(|_| session.config.guard.damaged_shard == DamagedShard::Skip) {
        let before = state.skipped.by_source.clone();
        let (mut new, mut has_shards_left) = (0, true);
        for (dataset_index, shard) in shards {
            let dataset = &mixture.datasets()[dataset_index];
            let skipped = state.skipped.by_source.entry(dataset.manifest_sha256().to_owned()).or_default();
            new += usize::from(skipped.add_shard(shard));
            has_shards_left &= skipped.has_shards_left(dataset.manifest().shards.len());
        }
        if new > 0 && has_shards_left {
            if let (true, Some(first)) = (session.is_first(), unread.first()) {
                session.warn(format!("{}; skipping its samples from now on", first.message));
            }
            return Ok(());
        }
        state.skipped.by_source = before;
    }
    let may_skip = session.config.guard.damaged_shard != DamagedShard::Skip;
    Err(match save_after_failed_read(collective, saver, state, error) {
        Error::Unreadable { error, .. } if may_skip && mixture.damaged_shard(&error).is_some() => {
            Error::Unreadable { error, advice: RESTORE_OR_SKIP }
        }
        other => other,
    })
}

/// Saves a checkpoint of the completed steps after a failed read on any rank. `error` is the read error on a
/// rank that failed, `None` on the other ranks. Returns the error that ends the attempt: the read error on the rank that
/// failed, [`Error::Peer`] on the others, or the error of a failed save.
pub fn save_after_failed_read(
    collective: &mut dyn Group,
    saver: &mut Saver<'_>,
    state: &TrainState,
    error: Option<DatasetError>,
) -> Error {
    if state.step > 0
        && let Err(failed) = saver.save_and_wait(collective, state)
    {
        return failed;
    }
    match error {
        Some(error) if is_damage(&error) => Error::Unreadable { error: Box::new(error), advice: RESTORE },
        Some(error) => Error::Dataset(error),
        None => Error::Peer("another rank could not read its samples"),
    }
}

/// True if the content of a file is wrong.
fn is_damage(error: &DatasetError) -> bool {
    let is_file =
        matches!(error, DatasetError::Damaged { .. } | DatasetError::Content { .. } | DatasetError::Size { .. });
    is_file || matches!(error, DatasetError::Parquet { .. } | DatasetError::Sample { .. })
}

/// Gathers the read failures of all ranks.
fn gather(
    collective: &mut dyn Group,
    mixture: &Mixture,
    error: Option<&DatasetError>,
) -> Result<Vec<ReadFailure>, Error> {
    let own = error.map(|error| ReadFailure { shard: mixture.damaged_shard(error), message: error::chain(error) });
    agreement::gather_and_decide(collective, &own, |all: &[Option<ReadFailure>]| {
        all.iter().flatten().cloned().collect::<Vec<_>>()
    })
}
