//! Asynchronous checkpoint saves.
//!
//! 1. All ranks copy the state after the same step ([`Snapshot`]). A copy from a GPU runs concurrently with training.
//!    The store hashes and uploads the copy in background tasks.
//! 2. The all-reduce of every step counts the ranks whose uploads are complete. When all uploads are complete, rank 0
//!    gathers the entries of the objects. Its commit thread checks the lease and commits ([`Commit`]). Then the pruner
//!    deletes old checkpoints (`pruner`).
//! 3. A later all-reduce broadcasts the outcome, so that all ranks learn it after the same step.
//!
//! Only the thread of the training loop uses the collective, and saves never overlap. A save that exceeds its time
//! limit, by the clock of rank 0, ends the attempt ([`SaveTimeLimit`]).
//!
//! - `schedule`: intervals, retries and time limits
//! - `known_checkpoints`: the newest and the best checkpoint
//! - `upload`: from the snapshot to the commit
//! - `outcome`: the end of a save
//!
//! [`Commit`]: super::commit::Commit
//! [`SaveTimeLimit`]: super::time_limit::SaveTimeLimit

mod known_checkpoints;
mod outcome;
mod schedule;
mod upload;

use std::collections::BTreeSet;
use std::time::Duration;

use lambert_collective::Group;
use lambert_control::{Evaluation, EventKind, StepRecord};
use lambert_store::checkpoint::{self as stored, CheckpointWriter, Manifest};

use super::pruner::Pruner;
use super::records::{self, Records};
use super::save::{Save, SaveState};
use super::snapshot::Snapshot;
use super::teacher_record::TeacherRecord;
use super::time_limit::SaveTiming;
use super::{EngineState, ResumeOrigin};
use crate::error::Error;
use crate::state::TrainState;
use crate::torch;
use crate::worker::agreement::{self, Agreement, RankStats, SaveDecision, SaveVote, Vote};
use crate::worker::control::WorkerPhase;
use crate::worker::datasets::Datasets;
use crate::worker::session::Session;
use crate::worker::stopwatch::Stopwatch;
use crate::worker::trace::span;
use known_checkpoints::KnownCheckpoints;
use schedule::SaveSchedule;

/// Polling intervals while waiting for a save.
const MIN_POLL: Duration = Duration::from_millis(1);
const MAX_POLL: Duration = Duration::from_millis(50);

/// Schedules and runs saves, and keeps the step records of each checkpoint.
pub struct Saver<'a> {
    session: &'a Session,
    /// Vocabulary size, and whether text is lowercased.
    vocabulary: (usize, bool),
    snapshot: Snapshot,
    records: Records,
    /// The save in progress.
    save: Option<Save>,
    schedule: SaveSchedule,
    /// True while training is blocked until a checkpoint is committed ([`Saver::save_and_wait`]).
    blocks: bool,
    known: KnownCheckpoints,
    /// Deletes old checkpoints, on rank 0.
    pruner: Pruner,
    /// Checkpoints that the attempt found damaged when it started.
    damaged: BTreeSet<String>,
    /// Time that training was blocked by saves since the last record, seconds.
    stall: f64,
}

impl<'a> Saver<'a> {
    /// Creates the saver of an attempt that resumes with `state` from `origin`.
    ///
    /// # Errors
    /// The model has more weights than a file can hold.
    pub fn new(
        session: &'a Session,
        datasets: &Datasets,
        state: &TrainState,
        origin: ResumeOrigin,
    ) -> Result<Self, Error> {
        let dataset = datasets.first().manifest();
        Ok(Self {
            session,
            vocabulary: (dataset.vocabulary.size, dataset.lowercase),
            snapshot: Snapshot::new(&state.parameters, session.rank, session.world)?,
            records: Records::new(session.lease.attempt(), state.step),
            save: None,
            schedule: SaveSchedule::new(&session.config),
            blocks: false,
            damaged: origin.damaged.clone(),
            known: KnownCheckpoints::new(origin, state.step),
            pruner: Pruner::default(),
            stall: 0.0,
        })
    }

    /// Sets the checkpoint time of a step record, and adds the record to the records of the next checkpoint.
    pub fn push(&mut self, record: &mut StepRecord) -> Result<(), Error> {
        record.times.checkpoint = std::mem::take(&mut self.stall);
        records::add_pause(record, record.times.checkpoint);
        self.records.push(record)
    }

    /// Adds an evaluation to the records. Returns true if the loss is the best so far, so that a checkpoint of this
    /// step must be saved and kept. `measured` describes what the loss measures. Collective, because rank 0 decides.
    pub fn push_evaluation(
        &mut self,
        collective: &mut dyn Group,
        evaluation: &Evaluation,
        measured: String,
    ) -> Result<bool, Error> {
        self.records.push(&EventKind::Evaluation(evaluation.clone()))?;
        let is_best = self.known.add_evaluation(evaluation.step, evaluation.total_loss(), measured);
        if !self.session.config.checkpoint.keep_best {
            return Ok(false);
        }
        agreement::broadcast(collective, &is_best)
    }

    /// Adds the evaluation before the first step to the records.
    pub fn push_initial_evaluation(&mut self, evaluation: &Evaluation) -> Result<(), Error> {
        self.records.push(&EventKind::Evaluation(evaluation.clone()))
    }

    /// Returns true if a checkpoint is due after `step` and no save is in progress. A checkpoint is due at the step
    /// interval, if `is_requested`, or if it was due before and had to wait. The result is equal on all ranks.
    pub fn update_due(&mut self, step: u64, is_requested: bool) -> bool {
        self.schedule.update_due(step, is_requested) && self.save.is_none()
    }

    /// Returns true if a checkpoint is due by time, because the interval or the backoff has elapsed. Clocks differ
    /// between ranks, so only the result of rank 0 counts.
    pub fn is_due_by_time(&self) -> bool {
        self.save.is_none() && self.schedule.is_due_by_time()
    }

    /// Starts the time limit of saves before a stop (`cluster.limits.stop_seconds`). Later calls have no effect.
    pub fn start_stop_limit(&mut self) {
        self.schedule.start_stop_limit();
    }

    /// Returns this rank's vote on the save in progress. On rank 0, first collects the outcome of a commit that has
    /// ended.
    pub fn vote(&mut self) -> SaveVote {
        let Some(save) = &mut self.save else { return SaveVote::Nothing };
        let (schedule, began) = (&self.schedule, save.began);
        save.state = std::mem::take(&mut save.state).collect(|outcome| schedule.final_outcome(outcome, began));
        save.vote(self.session.is_first().then(|| schedule.timing(began)))
    }

    /// Advances the save in progress according to the agreement of the ranks. Call it after each step.
    pub fn poll_save(&mut self, collective: &mut dyn Group, agreement: &Agreement) -> Result<(), Error> {
        self.start_uploads(false)?;
        self.advance(collective, agreement)
    }

    fn advance(&mut self, collective: &mut dyn Group, agreement: &Agreement) -> Result<(), Error> {
        let Some(save) = &self.save else { return Ok(()) };
        if agreement.is_save_slow {
            self.report_slow(collective)?;
            return Ok(());
        }
        match (&save.state, agreement.save_decision) {
            (_, Some(SaveDecision::Stuck)) => Err(self.stuck_error(collective)?),
            (SaveState::Writing { .. }, _) if agreement.written_ranks >= self.session.world => {
                self.send_entries(collective)
            }
            (SaveState::Copying { .. } | SaveState::Writing { .. }, _) | (_, None) => Ok(()),
            (_, Some(decision)) => self.conclude(collective, decision),
        }
    }

    /// Waits until the previous save has ended, and starts to save the state as a checkpoint.
    pub fn save(&mut self, collective: &mut dyn Group, state: &TrainState) -> Result<(), Error> {
        self.wait_for_save(collective)?;
        if self.known.has(state.step) {
            return Ok(());
        }
        self.session.control.set_phase(WorkerPhase::Save);
        let _save = span!("save", step = state.step);
        let mut watch = Stopwatch::start();
        let began = self.schedule.begin();
        let writer = CheckpointWriter::new(&self.session.store, state.step, self.session.lease.attempt());
        let copies = torch::guard(|| self.snapshot.begin(state))?;
        let compares = self.session.world > 1;
        let digest = compares.then(|| torch::guard(|| state.digest())).transpose()?;
        let manifest = self.manifest(state, writer.name())?;
        let save_state = SaveState::Copying { copies, records: self.records.cut(state.step) };
        let stall = watch.lap();
        self.save = Some(Save {
            writer,
            manifest,
            digest,
            began,
            stall,
            timing: SaveTiming::InTime,
            has_reported_slow: false,
            state: save_state,
        });
        self.stall += stall;
        self.start_uploads(false)
    }

    /// Reallocates the snapshot after the model has grown. No save may be in progress.
    ///
    /// # Errors
    /// The model has more weights than a file can hold.
    pub fn resize(&mut self, state: &TrainState) -> Result<(), Error> {
        self.snapshot = Snapshot::new(&state.parameters, self.session.rank, self.session.world)?;
        Ok(())
    }

    /// Blocks until the state is saved as a checkpoint, with retries.
    pub fn save_and_wait(&mut self, collective: &mut dyn Group, state: &TrainState) -> Result<(), Error> {
        self.session.control.set_phase(WorkerPhase::Save);
        self.blocks = true;
        loop {
            self.save(collective, state)?;
            self.wait_for_save(collective)?;
            if self.known.has(state.step) {
                self.blocks = false;
                return Ok(());
            }
            std::thread::sleep(self.schedule.retry_pause());
        }
    }

    /// Saves the current step again after a state change within the step. The checkpoint of this attempt counts as
    /// newer than a checkpoint of the same step from an earlier attempt.
    pub fn resave_and_wait(&mut self, collective: &mut dyn Group, state: &TrainState) -> Result<(), Error> {
        self.known.set_stale();
        self.save_and_wait(collective, state)
    }

    /// Writes the records since the last checkpoint, for an attempt that ends without another checkpoint.
    pub fn write_records(&mut self) -> Result<(), Error> {
        Ok(self.records.cut(self.known.step()).write(&self.session.store)?)
    }

    /// Waits a limited time for the deletion of old checkpoints, before an attempt ends.
    pub fn wait_for_pruning(&self) {
        self.pruner.finish();
    }

    /// Waits for the save in progress, if any, up to its time limit.
    pub fn wait_for_save(&mut self, collective: &mut dyn Group) -> Result<(), Error> {
        let (mut watch, before) = (Stopwatch::start(), self.stall);
        self.start_uploads(true)?;
        let mut pause = MIN_POLL;
        while self.save.is_some() {
            self.session.control.set_phase(WorkerPhase::Save);
            if self.session.control.stop_is_requested() {
                self.start_stop_limit();
            }
            let vote = Vote { save: self.vote(), ..Vote::default() };
            let (agreement, _) = agreement::all_reduce_votes(collective, &mut [], vote, RankStats::default())?;
            self.advance(collective, &agreement)?;
            if self.save.is_some() {
                std::thread::sleep(pause);
                pause = (2 * pause).min(MAX_POLL);
            }
        }
        self.stall = before + watch.lap();
        Ok(())
    }

    fn manifest(&self, state: &TrainState, name: &str) -> Result<Manifest, Error> {
        let session = self.session;
        let loss = self.known.loss(state.step);
        let mut engine_state = EngineState::capture(state, self.vocabulary);
        engine_state.teacher = TeacherRecord::of(&session.config);
        Ok(Manifest {
            format: stored::FORMAT,
            step: state.step,
            attempt: session.lease.attempt(),
            parent: self.known.newest(),
            stage: state.stages.entered.unwrap_or(0),
            cursor: state.dataset_cursors.clone(),
            config_sha256: session.config_sha256.clone(),
            world: session.world,
            held_out_loss: loss,
            best: self.known.best_with(name, loss),
            averaged: Vec::new(),
            state: serde_json::to_value(engine_state).map_err(Error::Json)?,
            objects: Vec::new(),
        })
    }
}
