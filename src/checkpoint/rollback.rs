//! Checkpoint that the attempt after a rollback starts from, and the samples that this attempt skips.
//!
//! The store crate defines the record: [`RollbackRecord`].

use lambert_store::Store;
use lambert_store::checkpoint::{self as stored, AttemptStep, RollbackPoint, RollbackRecord};

use crate::error::Error;
use crate::state::TrainState;

/// Checkpoint that the attempt after a rollback starts from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NextStart {
    /// Newest checkpoint that is still valid after the rollback.
    AsRecorded,
    /// An earlier checkpoint.
    Earlier(AttemptStep),
    /// An earlier checkpoint is needed, but none is left.
    NoEarlier,
}

/// Moves the rollback one checkpoint further back if an earlier attempt, too, diverged after the checkpoint `loaded`.
/// The current attempt resumed from `loaded`, so the state in `loaded` may be the cause of the divergences. Returns a
/// message if an earlier attempt diverged after `loaded`. `keep` is `checkpoint.keep`.
///
/// The decision is encoded only in `record.steps`, which resume and pruning read. An earlier attempt that wrote
/// `loaded` itself counts like an attempt that resumed from `loaded`. The decision is therefore the same if a rank is
/// killed after `loaded` is written, so that the attempt that diverges is a later one.
pub fn go_further_back(
    record: &mut RollbackRecord,
    run: &Store,
    loaded: Option<&str>,
    keep: usize,
) -> Result<Option<String>, Error> {
    let Some(loaded) = loaded.and_then(AttemptStep::parse) else { return Ok(None) };
    let listed: Vec<AttemptStep> = stored::list(run)?.iter().map(|listed| listed.position).collect();
    let before = RollbackPoint::read_from(run, listed.iter().map(|place| place.attempt).min().unwrap_or(0))?;
    let name = loaded.name();
    Ok(match next_start(record.point(), loaded, &before, &listed) {
        NextStart::AsRecorded => None,
        NextStart::Earlier(place) => {
            record.steps = loaded.step - 1;
            Some(format!(
                "the run diverged from {name} before; the next attempt starts one checkpoint further back, from {}",
                place.name()
            ))
        }
        NextStart::NoEarlier => Some(format!(
            "the run diverged from {name} before and no earlier checkpoint is left (checkpoint.keep = {keep}); the next \
             attempt starts from it again"
        )),
    })
}

/// Decides the start after the rollback `own` of an attempt that resumed from `loaded`. `before` are the earlier
/// rollbacks. `listed` are the checkpoints of the run, newest first.
fn next_start(own: RollbackPoint, loaded: AttemptStep, before: &[RollbackPoint], listed: &[AttemptStep]) -> NextStart {
    let newest = |own: RollbackPoint| {
        let is_left = |place: &&AttemptStep| {
            !own.invalidates(**place) && !before.iter().any(|rollback| rollback.invalidates(**place))
        };
        listed.iter().find(is_left).copied()
    };
    let came_back = before.iter().any(|rollback| rollback.attempt >= loaded.attempt);
    if !came_back || newest(own) != Some(loaded) {
        return NextStart::AsRecorded;
    }
    // A checkpoint comes after at least one step, so `loaded.step` is at least 1.
    let further = RollbackPoint { steps: loaded.step.saturating_sub(1), ..own };
    newest(further).map_or(NextStart::NoEarlier, NextStart::Earlier)
}

/// Adds the samples of a rollback to the skipped samples of `state`.
pub fn skip_samples(record: &RollbackRecord, state: &mut TrainState) {
    state.skipped.by_source.entry(record.dataset.clone()).or_default().add(record.samples.clone());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(attempt: u32, step: u64) -> AttemptStep {
        AttemptStep { attempt, step }
    }

    /// Decides for an attempt that resumed from `loaded` and rolls back to `steps`.
    fn next(attempt: u32, steps: u64, loaded: AttemptStep, before: &[(u32, u64)], listed: &[AttemptStep]) -> NextStart {
        let point = |(attempt, steps): &(u32, u64)| RollbackPoint { attempt: *attempt, steps: *steps };
        let before: Vec<RollbackPoint> = before.iter().map(point).collect();
        next_start(point(&(attempt, steps)), loaded, &before, listed)
    }

    #[test]
    fn a_second_rollback_to_a_checkpoint_goes_one_further_back() {
        let listed = [place(1, 48), place(1, 41), place(1, 34)];
        // The rollback is to two steps after the checkpoint, or directly to the checkpoint.
        for steps in [50, 48] {
            assert_eq!(next(2, steps, listed[0], &[], &listed), NextStart::AsRecorded);
            assert_eq!(next(2, steps, listed[0], &[(1, 49)], &listed), NextStart::Earlier(listed[1]));
        }
        assert_eq!(
            next(2, 47, listed[0], &[(1, 49)], &listed),
            NextStart::AsRecorded,
            "the record already goes further back"
        );
        // The second rollback returned to step 41, so the third rollback is the second one from that checkpoint.
        let before = [(1, 49), (2, 47)];
        let further = [place(1, 41), place(1, 34)];
        assert_eq!(next(3, 44, place(1, 41), &before, &listed), NextStart::Earlier(further[1]));
    }

    #[test]
    fn checkpoints_of_the_same_attempt_come_first() {
        let listed = [place(2, 55), place(2, 52), place(1, 48), place(1, 41)];
        assert_eq!(next(2, 53, place(1, 48), &[(1, 49)], &listed), NextStart::AsRecorded);
        assert_eq!(next(2, 51, place(1, 48), &[(1, 49)], &listed), NextStart::Earlier(place(1, 41)));
    }

    #[test]
    fn a_run_that_keeps_one_checkpoint_has_no_earlier_one() {
        let only = [place(1, 48)];
        assert_eq!(next(2, 50, only[0], &[(1, 49)], &only), NextStart::NoEarlier);
        let rolled_back = [place(2, 60), place(1, 48)];
        assert_eq!(next(2, 50, place(1, 48), &[(1, 49)], &rolled_back), NextStart::NoEarlier);
    }

    /// A rollback that happened before the checkpoint was written did not return to this checkpoint.
    #[test]
    fn earlier_rollbacks_of_other_checkpoints_do_not_count() {
        let listed = [place(3, 90), place(1, 48)];
        assert_eq!(next(4, 95, listed[0], &[(1, 49), (2, 60)], &listed), NextStart::AsRecorded);
    }

    #[test]
    fn a_run_without_rollbacks_starts_as_recorded() {
        let run = Store::open("memory://further-back/run").unwrap();
        let record = RollbackRecord { attempt: 2, steps: 50, dataset: "d".into(), samples: 3..5, reason: "w".into() };
        let mut further = record.clone();
        for loaded in [None, Some("step-000000048-a0001")] {
            assert_eq!(go_further_back(&mut further, &run, loaded, 3).unwrap(), None);
        }
        assert_eq!(further, record);
    }
}
