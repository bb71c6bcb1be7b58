//! Checkpoint that the attempt after a rollback starts from, and the samples that this attempt skips.
//!
//! The store crate defines the record: [`RollbackRecord`].

use lambert_store::Store;
use lambert_store::checkpoint::{self as stored, AttemptStep, RollbackPoint, RollbackRecord, Rollbacks};

use crate::error::Error;
use crate::state::TrainState;

/// Target of a rollback.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RollbackTarget {
    /// Last step that is kept, see [`RollbackRecord::last_kept`].
    pub last_kept: u64,
    /// Note for the message of the rollback, if an earlier attempt diverged after the same checkpoint.
    pub note: Option<String>,
}

/// Returns the target of the rollback `planned` of an attempt that resumed from the checkpoint `loaded`. If an earlier
/// attempt, too, diverged after `loaded`, its state may be the cause of the divergences: the target is then one checkpoint
/// further back. `keep` is `checkpoint.keep`.
///
/// An earlier attempt that wrote `loaded` itself counts like an attempt that resumed from `loaded`. The target is
/// therefore the same if a rank is killed after `loaded` is written, so that the attempt that diverges is a later one.
pub fn target(planned: RollbackPoint, run: &Store, loaded: Option<&str>, keep: usize) -> Result<RollbackTarget, Error> {
    let as_planned = |note| RollbackTarget { last_kept: planned.last_kept, note };
    let Some(loaded) = loaded.and_then(AttemptStep::parse) else { return Ok(as_planned(None)) };
    let listed = stored::positions(run)?;
    let earlier = Rollbacks::of(run, &listed)?;
    let name = loaded.name();
    Ok(match next_start(planned, loaded, &earlier, &listed) {
        NextStart::AsPlanned => as_planned(None),
        NextStart::FurtherBack { last_kept, start } => {
            let note = format!(
                "the run has already diverged after {name}; the next attempt starts one checkpoint earlier, from {}",
                start.name()
            );
            RollbackTarget { last_kept, note: Some(note) }
        }
        NextStart::NoEarlier => as_planned(Some(format!(
            "the run has already diverged after {name}, and no earlier checkpoint is left (checkpoint.keep = {keep}); the \
             next attempt starts from {name} again"
        ))),
    })
}

/// Start of the attempt after a rollback.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NextStart {
    /// From the newest checkpoint that is valid after the planned rollback.
    AsPlanned,
    /// From the earlier checkpoint `start`, if the last step that is kept is `last_kept`.
    FurtherBack { last_kept: u64, start: AttemptStep },
    /// An earlier checkpoint is needed, but none is left.
    NoEarlier,
}

/// Decides the start after the rollback `planned` of an attempt that resumed from `loaded`. `earlier` are the earlier
/// rollbacks. `listed` are the checkpoints of the run, newest first.
fn next_start(planned: RollbackPoint, loaded: AttemptStep, earlier: &Rollbacks, listed: &[AttemptStep]) -> NextStart {
    let has_diverged_before = earlier.points().iter().any(|rollback| rollback.attempt >= loaded.attempt);
    if !has_diverged_before || earlier.with(planned).newest_valid(listed) != Some(loaded) {
        return NextStart::AsPlanned;
    }
    // A checkpoint comes after at least one step, so `loaded.step` is at least 1.
    let further = RollbackPoint { last_kept: loaded.step.saturating_sub(1), ..planned };
    match earlier.with(further).newest_valid(listed) {
        Some(start) => NextStart::FurtherBack { last_kept: further.last_kept, start },
        None => NextStart::NoEarlier,
    }
}

/// Adds the samples of a rollback to the skipped samples of `state`.
pub fn skip_samples(record: &RollbackRecord, state: &mut TrainState) {
    state.skipped.by_source.entry(record.mixture_id.clone()).or_default().add(record.samples.clone());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(attempt: u32, step: u64) -> AttemptStep {
        AttemptStep { attempt, step }
    }

    /// Decides for an attempt that resumed from `loaded` and rolls back to `last_kept`.
    fn next(
        attempt: u32,
        last_kept: u64,
        loaded: AttemptStep,
        earlier: &[(u32, u64)],
        listed: &[AttemptStep],
    ) -> NextStart {
        let point = |(attempt, last_kept): &(u32, u64)| RollbackPoint { attempt: *attempt, last_kept: *last_kept };
        let earlier: Rollbacks = earlier.iter().map(point).collect();
        next_start(point(&(attempt, last_kept)), loaded, &earlier, listed)
    }

    /// Start from `start`, the first checkpoint before `loaded`.
    fn further_back(loaded: AttemptStep, start: AttemptStep) -> NextStart {
        NextStart::FurtherBack { last_kept: loaded.step - 1, start }
    }

    #[test]
    fn a_second_rollback_to_a_checkpoint_goes_one_further_back() {
        let listed = [place(1, 48), place(1, 41), place(1, 34)];
        // The rollback is to two steps after the checkpoint, or directly to the checkpoint.
        for last_kept in [50, 48] {
            assert_eq!(next(2, last_kept, listed[0], &[], &listed), NextStart::AsPlanned);
            assert_eq!(next(2, last_kept, listed[0], &[(1, 49)], &listed), further_back(listed[0], listed[1]));
        }
        assert_eq!(
            next(2, 47, listed[0], &[(1, 49)], &listed),
            NextStart::AsPlanned,
            "the plan already goes further back"
        );
        // The second rollback returned to step 41, so the third rollback is the second one from that checkpoint.
        let earlier = [(1, 49), (2, 47)];
        let further = [place(1, 41), place(1, 34)];
        assert_eq!(next(3, 44, place(1, 41), &earlier, &listed), further_back(further[0], further[1]));
    }

    #[test]
    fn checkpoints_of_the_same_attempt_come_first() {
        let listed = [place(2, 55), place(2, 52), place(1, 48), place(1, 41)];
        assert_eq!(next(2, 53, place(1, 48), &[(1, 49)], &listed), NextStart::AsPlanned);
        assert_eq!(next(2, 51, place(1, 48), &[(1, 49)], &listed), further_back(place(1, 48), place(1, 41)));
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
        assert_eq!(next(4, 95, listed[0], &[(1, 49), (2, 60)], &listed), NextStart::AsPlanned);
    }

    #[test]
    fn a_run_without_rollbacks_starts_as_planned() {
        let run = Store::open("memory://further-back/run").unwrap();
        let planned = RollbackPoint { attempt: 2, last_kept: 50 };
        for loaded in [None, Some("step-000000048-a0001")] {
            let found = target(planned, &run, loaded, 3).unwrap();
            assert_eq!(found, RollbackTarget { last_kept: 50, note: None });
        }
    }
}
