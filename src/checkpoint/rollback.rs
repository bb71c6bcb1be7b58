//! Where the attempt after a rollback starts, and the samples that it skips.
//!
//! The record of a rollback is the store's: [`RollbackRecord`].

use lambert_store::Store;
use lambert_store::checkpoint::{self as stored, Place, RollbackPoint, RollbackRecord};

use crate::error::Error;
use crate::state::TrainState;

/// Where the attempt after a rollback starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NextStart {
    /// From the newest checkpoint that the record leaves.
    AsRecorded,
    /// From this one, one further back.
    Earlier(Place),
    /// One further back, but there is none.
    NoEarlier,
}

/// Goes one checkpoint further back where the run would go on a second time from the checkpoint `loaded`, with which the attempt
/// began: its state may already hold what makes the run diverge. Returns that in words, if it is so. `keep` is the number of
/// checkpoints that the run keeps.
///
/// Only `steps` says so, which resume and pruning both go by. An attempt that began before the checkpoint and passed through it
/// counts like one that began with it, so that the decision does not depend on a rank that was killed meanwhile.
pub fn go_further_back(
    record: &mut RollbackRecord,
    run: &Store,
    loaded: Option<&str>,
    keep: usize,
) -> Result<Option<String>, Error> {
    let Some(loaded) = loaded.and_then(Place::of) else { return Ok(None) };
    let listed: Vec<Place> = stored::list(run)?.iter().map(|listed| listed.place).collect();
    let before = RollbackPoint::read_from(run, listed.iter().map(|place| place.attempt).min().unwrap_or(0))?;
    let name = loaded.name();
    Ok(match next_start(record.point(), loaded, &before, &listed) {
        NextStart::AsRecorded => None,
        NextStart::Earlier(place) => {
            record.steps = loaded.step - 1;
            Some(format!(
                "it has diverged from {name} before, so the next attempt starts one checkpoint further back, from {}",
                place.name()
            ))
        }
        NextStart::NoEarlier => Some(format!(
            "it has diverged from {name} before, and no earlier checkpoint is left (checkpoint.keep = {keep}), so the next \
             attempt starts from it again"
        )),
    })
}

/// Where the attempt after the rollback `own` starts, if the one that rolled back began with `loaded`, the rollbacks before it
/// are `before`, and the run's checkpoints `listed`, newest first.
fn next_start(own: RollbackPoint, loaded: Place, before: &[RollbackPoint], listed: &[Place]) -> NextStart {
    let newest = |own: RollbackPoint| {
        let is_left =
            |place: &&Place| !own.invalidates(**place) && !before.iter().any(|rollback| rollback.invalidates(**place));
        listed.iter().find(is_left).copied()
    };
    let came_back = before.iter().any(|rollback| rollback.attempt >= loaded.attempt);
    if !came_back || newest(own) != Some(loaded) {
        return NextStart::AsRecorded;
    }
    // A checkpoint is behind a step.
    let further = RollbackPoint { steps: loaded.step.saturating_sub(1), ..own };
    newest(further).map_or(NextStart::NoEarlier, NextStart::Earlier)
}

/// Lets `state` skip the samples of a rollback.
pub fn skip_samples(record: &RollbackRecord, state: &mut TrainState) {
    state.skipped.by_dataset.entry(record.dataset.clone()).or_default().add(record.samples.clone());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(attempt: u32, step: u64) -> Place {
        Place { attempt, step }
    }

    /// Of an attempt that began with `loaded` and is rolled back to `steps`.
    fn next(attempt: u32, steps: u64, loaded: Place, before: &[(u32, u64)], listed: &[Place]) -> NextStart {
        let point = |(attempt, steps): &(u32, u64)| RollbackPoint { attempt: *attempt, steps: *steps };
        let before: Vec<RollbackPoint> = before.iter().map(point).collect();
        next_start(point(&(attempt, steps)), loaded, &before, listed)
    }

    #[test]
    fn the_second_time_from_a_checkpoint_goes_one_further_back() {
        let listed = [place(1, 48), place(1, 41), place(1, 34)];
        // Two or more steps behind it; right behind it with no batches before, or where a stage begins.
        for steps in [50, 48] {
            assert_eq!(next(2, steps, listed[0], &[], &listed), NextStart::AsRecorded);
            assert_eq!(next(2, steps, listed[0], &[(1, 49)], &listed), NextStart::Earlier(listed[1]));
        }
        assert_eq!(
            next(2, 47, listed[0], &[(1, 49)], &listed),
            NextStart::AsRecorded,
            "the record goes back by itself"
        );
        // The second rollback led back to 41, so that the third is the second time from there.
        let before = [(1, 49), (2, 47)];
        let further = [place(1, 41), place(1, 34)];
        assert_eq!(next(3, 44, place(1, 41), &before, &listed), NextStart::Earlier(further[1]));
    }

    #[test]
    fn checkpoints_of_the_attempt_itself_are_gone_on_from_first() {
        let listed = [place(2, 55), place(2, 52), place(1, 48), place(1, 41)];
        assert_eq!(next(2, 53, place(1, 48), &[(1, 49)], &listed), NextStart::AsRecorded);
        assert_eq!(next(2, 51, place(1, 48), &[(1, 49)], &listed), NextStart::Earlier(place(1, 41)));
    }

    #[test]
    fn a_run_that_keeps_one_checkpoint_has_none_further_back() {
        let only = [place(1, 48)];
        assert_eq!(next(2, 50, only[0], &[(1, 49)], &only), NextStart::NoEarlier);
        let undone = [place(2, 60), place(1, 48)];
        assert_eq!(next(2, 50, place(1, 48), &[(1, 49)], &undone), NextStart::NoEarlier);
    }

    /// Rollbacks from before the checkpoint was written did not lead back to it.
    #[test]
    fn earlier_rollbacks_of_other_checkpoints_do_not_count() {
        let listed = [place(3, 90), place(1, 48)];
        assert_eq!(next(4, 95, listed[0], &[(1, 49), (2, 60)], &listed), NextStart::AsRecorded);
    }

    #[test]
    fn a_run_without_rollbacks_starts_as_recorded() {
        let run = Store::open("memory://further-back/run").unwrap();
        let record = RollbackRecord { attempt: 2, steps: 50, dataset: "d".into(), samples: 3..5, why: "w".into() };
        let mut further = record.clone();
        for loaded in [None, Some("step-000000048-a0001")] {
            assert_eq!(go_further_back(&mut further, &run, loaded, 3).unwrap(), None);
        }
        assert_eq!(further, record);
    }
}
