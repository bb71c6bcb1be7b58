//! Saves that training does not wait for.
//!
//! 1. After the same step on all ranks the state is copied ([`Snapshot`]), out of a card's memory while training goes on; the
//!    store's tasks write and hash the copy.
//! 2. Every step's all-reduce carries how many ranks have written theirs. When all have, the entries of the objects are
//!    gathered, and a thread of rank 0 checks the lease and commits ([`Commit`]); then old checkpoints are removed (pruner).
//! 3. A later all-reduce carries what came of it, so that all ranks know after the same step.
//!
//! No thread but the training loop's uses the collective, and a save begins only when the one before has ended: none
//! overtakes another. One that does not end in time ends the attempt, by rank 0's clock ([`TimeLimit`]).
//!
//! - schedule: when a save is due, and how long it may take
//! - history: the newest and the best checkpoint
//! - upload: a save on its way from the copy to the commit
//! - outcome: the end of a save
//!
//! [`Commit`]: super::commit::Commit
//! [`TimeLimit`]: super::time_limit::TimeLimit

mod history;
mod outcome;
mod schedule;
mod upload;

use std::time::Duration;

use lambert_collective::Group;
use lambert_control::{Evaluation, EventKind, StepRecord};
use lambert_store::checkpoint::{self as stored, Manifest, Writer};

use super::pruner::Pruner;
use super::records::{self, Records};
use super::save::{Progress, Save};
use super::snapshot::Snapshot;
use super::time_limit::Standing;
use super::{Facts, Origin};
use crate::error::Error;
use crate::state::TrainState;
use crate::torch;
use crate::worker::agreement::{self, Agreement, Decision, SaveVote, Vote};
use crate::worker::control::Phase;
use crate::worker::session::{Datasets, Session};
use crate::worker::stopwatch::Stopwatch;
use crate::worker::trace::span;
use history::CheckpointHistory;
use schedule::SaveSchedule;

/// Pauses between two looks at a save that is waited for.
const SHORTEST_POLL: Duration = Duration::from_millis(1);
const LONGEST_POLL: Duration = Duration::from_millis(50);

/// Decides when to save, saves, and keeps the records that belong to each checkpoint.
pub struct Saver<'a> {
    session: &'a Session,
    /// Pieces of the vocabulary, and whether text is lowercased.
    vocabulary: (usize, bool),
    snapshot: Snapshot,
    records: Records,
    /// The save under way.
    save: Option<Save>,
    schedule: SaveSchedule,
    history: CheckpointHistory,
    /// Removes old checkpoints, on rank 0.
    pruner: Pruner,
    /// Seconds that training paused for checkpoints since the last record.
    stall: f64,
}

impl<'a> Saver<'a> {
    /// Creates the saver of an attempt that resumes with `state`, which came from `origin`.
    ///
    /// # Errors
    /// More weights than a file can hold.
    pub fn new(session: &'a Session, datasets: &Datasets, state: &TrainState, origin: Origin) -> Result<Self, Error> {
        let dataset = datasets.first().manifest();
        Ok(Self {
            session,
            vocabulary: (dataset.vocabulary.size, dataset.lowercase),
            snapshot: Snapshot::new(&state.parameters, session.rank, session.world)?,
            records: Records::new(session.lease.attempt(), state.step),
            save: None,
            schedule: SaveSchedule::new(&session.config),
            history: CheckpointHistory::new(origin, state.step),
            pruner: Pruner::default(),
            stall: 0.0,
        })
    }

    /// Takes a step's record in, and tells it what saving cost before it.
    pub fn push(&mut self, record: &mut StepRecord) -> Result<(), Error> {
        record.times.checkpoint = std::mem::take(&mut self.stall);
        records::add_pause(record, record.times.checkpoint);
        self.records.push(record)
    }

    /// Takes an evaluation in, as a line among the records of the steps. Returns whether its checkpoint is the best so
    /// far and is to be kept for that; all ranks are told rank 0's word.
    pub fn push_evaluation(&mut self, collective: &mut dyn Group, evaluation: &Evaluation) -> Result<bool, Error> {
        self.records.push(&EventKind::Evaluation(evaluation.clone()))?;
        let best = self.history.add_evaluation(evaluation.step, evaluation.scores.loss());
        if !self.session.config.checkpoint.keep_best {
            return Ok(false);
        }
        let mut word = vec![u8::from(best)];
        collective.broadcast_bytes(&mut word, 0)?;
        Ok(word == [1])
    }

    /// Returns whether a checkpoint is due after `step`: by the number of steps, because one was `wanted`, or because one that
    /// was due had to wait. The same on all ranks.
    pub fn is_due(&mut self, step: u64, wanted: bool) -> bool {
        self.schedule.is_due(step, wanted) && self.save.is_none()
    }

    /// Returns whether one is due by the clock: the interval, or the pause after a failure, is over. Ranks' clocks differ: only
    /// rank 0's word counts.
    pub fn is_overdue(&self) -> bool {
        self.save.is_none() && self.schedule.is_overdue()
    }

    /// A stop is requested: saves have `cluster.limits.stop_seconds` from the first call on.
    pub fn stop(&mut self) {
        self.schedule.stop();
    }

    /// This rank's vote on the save under way.
    pub fn vote(&mut self) -> SaveVote {
        let Some(save) = &mut self.save else { return SaveVote::Nothing };
        self.schedule.vote(save, self.session.is_first())
    }

    /// Moves the save under way along, by what the ranks have agreed on. Call it after each step.
    pub fn poll_save(&mut self, collective: &mut dyn Group, agreement: &Agreement) -> Result<(), Error> {
        self.write_what_is_copied(false)?;
        self.advance(collective, agreement)
    }

    fn advance(&mut self, collective: &mut dyn Group, agreement: &Agreement) -> Result<(), Error> {
        let Some(save) = &self.save else { return Ok(()) };
        if agreement.slow {
            self.tell_slow(collective)?;
            return Ok(());
        }
        match (&save.progress, agreement.decided) {
            (_, Some(Decision::Stuck)) => Err(self.stuck(collective)?),
            (Progress::Writing(..), _) if agreement.written >= self.session.world => self.hand_in(collective),
            (Progress::Copying(..) | Progress::Writing(..), _) | (_, None) => Ok(()),
            (_, Some(decision)) => self.conclude(collective, decision),
        }
    }

    /// Begins to save the state as a checkpoint, once the save before has ended.
    pub fn save(&mut self, collective: &mut dyn Group, state: &TrainState) -> Result<(), Error> {
        self.settle(collective)?;
        if self.history.has(state.step) {
            return Ok(());
        }
        self.session.control.phase(Phase::Save);
        let _save = span!("save", step = state.step);
        let mut watch = Stopwatch::start();
        let began = self.schedule.begin();
        let writer = Writer::new(&self.session.store, state.step, self.session.lease.attempt());
        let copying = torch::guard(|| self.snapshot.begin(state))?;
        let compares = self.session.world > 1;
        let digest = compares.then(|| torch::guard(|| state.digest())).transpose()?;
        let manifest = self.manifest(state, writer.name())?;
        let progress = Progress::Copying(copying, self.records.cut(state.step));
        let stall = watch.lap();
        self.save = Some(Save {
            writer,
            manifest,
            digest,
            began,
            stall,
            standing: Standing::InTime,
            told_slow: false,
            progress,
        });
        self.stall += stall;
        self.write_what_is_copied(false)
    }

    /// Makes room for the copy of a state that has grown. No save may be under way.
    ///
    /// # Errors
    /// More weights than a file can hold.
    pub fn resize(&mut self, state: &TrainState) -> Result<(), Error> {
        self.snapshot = Snapshot::new(&state.parameters, self.session.rank, self.session.world)?;
        Ok(())
    }

    /// Returns when the state is saved as a checkpoint, however often that has to be tried.
    pub fn complete(&mut self, collective: &mut dyn Group, state: &TrainState) -> Result<(), Error> {
        self.session.control.phase(Phase::Save);
        loop {
            self.save(collective, state)?;
            self.settle(collective)?;
            if self.history.has(state.step) {
                return Ok(());
            }
            std::thread::sleep(self.schedule.retry_pause());
        }
    }

    /// Saves the state of the newest checkpoint's step anew, because it has changed without a step: this attempt's checkpoint of the step
    /// goes before that of an earlier one.
    pub fn renew(&mut self, collective: &mut dyn Group, state: &TrainState) -> Result<(), Error> {
        self.history.set_stale();
        self.complete(collective, state)
    }

    /// Writes the records since the last checkpoint, for an attempt that ends without another.
    pub fn write_records(&mut self) -> Result<(), Error> {
        Ok(self.records.cut(self.history.step()).write(&self.session.store)?)
    }

    /// Waits a little for the removal of old checkpoints, before an attempt ends.
    pub fn finish(&self) {
        self.pruner.finish();
    }

    /// Waits for the end of the save under way, if one is: as long as its time limit says.
    pub fn settle(&mut self, collective: &mut dyn Group) -> Result<(), Error> {
        let (mut watch, before) = (Stopwatch::start(), self.stall);
        self.write_what_is_copied(true)?;
        let mut pause = SHORTEST_POLL;
        while self.save.is_some() {
            self.session.control.phase(Phase::Save);
            if self.session.control.stop_is_requested() {
                self.stop();
            }
            let vote = Vote { save: self.vote(), ..Vote::default() };
            let (agreement, _) = agreement::exchange(collective, &mut [], vote, 0.0)?;
            self.advance(collective, &agreement)?;
            if self.save.is_some() {
                std::thread::sleep(pause);
                pause = (2 * pause).min(LONGEST_POLL);
            }
        }
        self.stall = before + watch.lap();
        Ok(())
    }

    fn manifest(&self, state: &TrainState, name: &str) -> Result<Manifest, Error> {
        let session = self.session;
        let loss = self.history.loss(state.step);
        let facts = Facts::of(state, self.vocabulary);
        Ok(Manifest {
            format: stored::FORMAT,
            step: state.step,
            attempt: session.lease.attempt(),
            parent: self.history.newest(),
            stage: state.stages.entered.unwrap_or(0),
            cursor: state.cursors.clone(),
            config_sha256: session.config_sha256.clone(),
            world: session.world,
            held_out_loss: loss,
            best: self.history.best_with(name, loss),
            state: serde_json::to_value(facts).map_err(Error::Json)?,
            objects: Vec::new(),
        })
    }
}
