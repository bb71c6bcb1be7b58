//! Going back: what an attempt that was derailed leaves in the run's store for the attempts after it.
//!
//! `rollbacks/attempt-0003.json` says which steps stay and which samples are gone around. It is written before the
//! attempt ends; an attempt that is killed before that comes to the same step and the same decision again.

use std::ops::Range;

use bytes::Bytes;
use lambert_store::checkpoint::{self as stored, Manifest, Place, Undone};
use lambert_store::{Store, run};
use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::state::TrainState;

/// One way back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rollback {
    /// The attempt that was derailed.
    pub attempt: u32,
    /// The state after so many steps is good: checkpoints of this attempt and those before it that have more are passed
    /// over.
    pub steps: u64,
    /// sha256 of the manifest of the dataset that was learnt from.
    pub dataset: String,
    /// The samples of it that are gone around, counted over all epochs.
    pub samples: Range<u64>,
    /// What happened.
    pub why: String,
}

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

impl Rollback {
    /// Writes it into the run's store.
    pub fn write(&self, run: &Store) -> Result<(), Error> {
        let text = serde_json::to_vec_pretty(self).map_err(Error::Json)?;
        Ok(run.put(&run::rollback(self.attempt), text.into())?)
    }

    /// Goes one checkpoint further back where the run would go on a second time from the checkpoint `loaded`, with which the
    /// attempt began: what derails it may be in that state already. Returns that in words, if it is so. `keep` is the number of
    /// checkpoints that the run keeps.
    ///
    /// Nothing but `steps` says so, which resume and pruning both go by. That an attempt which began before the checkpoint and
    /// passed through it counts like one which began with it, makes the decision the same whether a rank was killed meanwhile
    /// or not.
    pub fn go_further_back(&mut self, run: &Store, loaded: Option<&str>, keep: usize) -> Result<Option<String>, Error> {
        let Some(loaded) = loaded.and_then(Place::of) else { return Ok(None) };
        let listed: Vec<Place> = stored::list(run)?.iter().map(|listed| listed.place).collect();
        let before = Undone::read_from(run, listed.iter().map(|place| place.attempt).min().unwrap_or(0))?;
        let name = loaded.name();
        Ok(match self.next_start(loaded, &before, &listed) {
            NextStart::AsRecorded => None,
            NextStart::Earlier(place) => {
                self.steps = loaded.step - 1;
                Some(format!(
                    "it has diverged from {name} before, so the next attempt starts one checkpoint further back, \
                              from {}",
                    place.name()
                ))
            }
            NextStart::NoEarlier => Some(format!(
                "it has diverged from {name} before, and no earlier checkpoint is left (checkpoint.keep = {keep}), so the next \
                 attempt starts from it again"
            )),
        })
    }

    /// Where the attempt after this rollback starts, if this one began with `loaded`, the rollbacks before it are `before`, and
    /// the run's checkpoints `listed`, newest first.
    fn next_start(&self, loaded: Place, before: &[Undone], listed: &[Place]) -> NextStart {
        let newest = |own: Undone| {
            let is_left = |place: &&Place| !own.holds(**place) && !before.iter().any(|undone| undone.holds(**place));
            listed.iter().find(is_left).copied()
        };
        let came_back = before.iter().any(|undone| undone.attempt >= loaded.attempt);
        if !came_back || newest(self.undone()) != Some(loaded) {
            return NextStart::AsRecorded;
        }
        // A checkpoint is behind a step.
        let further = Undone { steps: loaded.step.saturating_sub(1), ..self.undone() };
        newest(further).map_or(NextStart::NoEarlier, NextStart::Earlier)
    }

    fn undone(&self) -> Undone {
        Undone { attempt: self.attempt, steps: self.steps }
    }

    /// Those of attempt `oldest` and later. What an earlier one left out is in the state of every checkpoint of `oldest`.
    pub fn read_from(run: &Store, oldest: u32) -> Result<Vec<Self>, Error> {
        let read = |(path, bytes): (String, Bytes)| {
            let url = || format!("{}/{path}", run.url());
            serde_json::from_slice(&bytes).map_err(|source| Error::Rollback { url: url(), source })
        };
        stored::rollbacks(run, oldest)?.into_iter().map(read).collect()
    }

    /// What speaks against a checkpoint, if anything does.
    pub fn misfit(&self, manifest: &Manifest) -> Option<String> {
        self.undone().misfit(manifest)
    }

    /// Lets `state` go around the samples.
    pub fn apply(&self, state: &mut TrainState) {
        state.skipped.by_dataset.entry(self.dataset.clone()).or_default().add(self.samples.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(attempt: u32, step: u64) -> Place {
        Place { attempt, step }
    }

    /// Of an attempt that began with `loaded` and is rolled back to `steps`.
    fn next(attempt: u32, steps: u64, loaded: Place, before: &[(u32, u64)], listed: &[Place]) -> NextStart {
        let rollback = Rollback { attempt, steps, dataset: String::new(), samples: 0..1, why: String::new() };
        let before: Vec<Undone> =
            before.iter().map(|(attempt, steps)| Undone { attempt: *attempt, steps: *steps }).collect();
        rollback.next_start(loaded, &before, listed)
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
    fn the_record_has_the_members_that_programs_of_before_read() {
        let run = Store::open("memory://further-back/run").unwrap();
        let mut rollback = Rollback { attempt: 2, steps: 50, dataset: "d".into(), samples: 3..5, why: "w".into() };
        assert_eq!(rollback.go_further_back(&run, None, 3).unwrap(), None);
        assert_eq!(rollback.go_further_back(&run, Some("step-000000048-a0001"), 3).unwrap(), None);
        rollback.write(&run).unwrap();
        let text = run.get(&run::rollback(2)).unwrap();
        let written: serde_json::Value = serde_json::from_slice(&text).unwrap();
        let expected = serde_json::json!({ "attempt": 2, "steps": 50, "dataset": "d", "samples": { "start": 3, "end": 5 },
                                           "why": "w" });
        assert_eq!(written, expected);
    }
}
