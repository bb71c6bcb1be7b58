//! Training loop, from the resumed state to the final checkpoint.
//!
//! - `stage`: steps and evaluations of one stage
//! - `gradient_pass`: gradient of a step over all ranks
//! - [`phases`]: times of the phases of a step
//! - [`step`]: forward and backward passes of one rank
//! - [`gradients`]: bucketed all-reduce, overlapped with the backward pass
//! - [`exact`]: order-independent gradient summation
//! - [`outcome`]: result of a step, and the verdict of the divergence guard
//! - [`sample_position`]: position in the data, and the samples of a step
//! - [`step_record`]: step record
//! - `update_ranks`: ranks of a run, for updates that they compute together
//! - `noise`: gradient noise scale
//! - [`evaluate`]: held-out losses
//! - `rollback`: rollback after divergence; `damaged_shards`: samples that a rank cannot read

mod damaged_shards;
pub mod evaluate;
pub mod exact;
mod gradient_pass;
pub mod gradients;
#[cfg(test)]
mod loss_curve;
mod noise;
pub mod outcome;
pub mod phases;
mod rollback;
pub mod sample_position;
mod stage;
pub mod step;
pub mod step_record;
mod update_ranks;

use lambert_collective::{Endpoints, Group, Reducer};
use lambert_control::{Directive, EventKind, StepRecord};
use lambert_plan::timeline::{self, StagePosition};

use crate::checkpoint::{self, Saver};
use crate::error::Error;
use crate::objective::Teacher;
use crate::recovery::guard::GuardVerdict;
use crate::stages;
use crate::state::TrainState;
use crate::worker::control::WorkerPhase;
use crate::worker::datasets::Datasets;
use crate::worker::output;
use crate::worker::session::Session;
use crate::worker::trace::{self, span};
use crate::worker::{gpu_advice, micro_batch_size};
use stage::{CompletedStep, EvaluationEnd, StageRun, StepResult};

/// Outcome of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TrainOutcome {
    /// All stages are complete.
    Done,
    /// Stopped on request, after saving a checkpoint.
    Stopped,
    /// Ended by the divergence guard. The next attempt resumes from an earlier checkpoint.
    RolledBack,
}

/// Trains a run, from its newest valid checkpoint or from step 0.
pub fn run(session: &Session, ranks: &mut Endpoints) -> Result<TrainOutcome, Error> {
    let (group, reducer) = (&mut *ranks.group, &mut *ranks.reducer);
    let _attempt = span!("attempt", number = session.lease.attempt());
    session.control.set_phase(WorkerPhase::Load);
    let datasets = Datasets::open(&session.config, &session.store, session.size_checks())?;
    let budgets = micro_batch_size::choose_for_stages(session, group, &datasets)?;
    if let Some(gpu) = session.gpu.as_ref().filter(|_| session.is_first()) {
        let capability = gpu.properties.compute_capability;
        for warning in gpu_advice::slow_settings(&session.config, session.world, capability, &budgets) {
            session.warn(warning);
        }
    }
    let teacher = checkpoint::read_teacher(session, group, &datasets)?;
    let (state, origin) = checkpoint::resume(session, group, &datasets, teacher.as_ref())?;
    let loaded_checkpoint = origin.checkpoint.clone();
    let saver = Saver::new(session, &datasets, &state, origin)?;
    let (datasets, teacher) = (&datasets, teacher.as_ref());
    let evaluates_start = state.step == 0 && session.config.evaluation.at_start;
    let mut attempt = Attempt {
        session,
        group,
        reducer,
        datasets,
        teacher,
        budgets,
        saver,
        state,
        loaded_checkpoint,
        evaluates_start,
    };
    // Report the failure first. After a GPU failure, dropping these values can block forever or abort the process.
    attempt.train().map_err(|error| session.report_failure(error))
}

/// State of this rank after loading, and what the training loop needs.
struct Attempt<'a> {
    session: &'a Session,
    group: &'a mut dyn Group,
    reducer: &'a mut dyn Reducer,
    datasets: &'a Datasets,
    teacher: Option<&'a Teacher>,
    /// Maximum tokens per micro-batch of each stage, padding included.
    budgets: Vec<usize>,
    saver: Saver<'a>,
    state: TrainState,
    /// Name of the loaded checkpoint.
    loaded_checkpoint: Option<String>,
    /// True if the losses before the first step are not measured yet, but `evaluation.at_start` requests them.
    evaluates_start: bool,
}

impl<'a> Attempt<'a> {
    /// Trains to the end of the run, a stop or a rollback.
    fn train(&mut self) -> Result<TrainOutcome, Error> {
        if self.state.evaluation_pending && self.run_missed_evaluation()? == EvaluationEnd::StopRequested {
            // The loaded checkpoint already has this state.
            return Ok(self.finish(TrainOutcome::Stopped));
        }
        while let Some(position) = self.position() {
            if let Some(outcome) = self.train_stage(position)? {
                return Ok(outcome);
            }
        }
        if self.state.step > 0 {
            self.saver.save_and_wait(self.group, &self.state)?;
        }
        Ok(self.finish(TrainOutcome::Done))
    }

    /// Returns the position of the next step, or `None` after the last step.
    fn position(&self) -> Option<StagePosition<'a>> {
        timeline::position(&self.session.config, &self.state.stages.early_stops, self.state.step)
    }

    /// Runs a stage from `position`. Returns `None` if training continues: with the next stage, or with this stage
    /// without its damaged shards. Returns the outcome if the attempt ends.
    fn train_stage(&mut self, position: StagePosition<'a>) -> Result<Option<TrainOutcome>, Error> {
        // At step 0 no checkpoint is needed. The weights are newly initialized, or they are from a checkpoint of
        // another run.
        if self.must_grow(&position) && self.state.step > 0 {
            self.saver.save_and_wait(self.group, &self.state)?;
            // Growing the model is slow.
            if self.session.agree_on_stop(self.group)? {
                return self.stop().map(Some);
            }
        }
        self.enter(&position)?;
        self.session.control.set_phase(WorkerPhase::Load);
        // The first step of a grown model is slow.
        if self.session.agree_on_stop(self.group)? {
            return self.stop().map(Some);
        }
        let mut stage = self.open(position)?;
        self.run_stage(&mut stage).map_err(|error| self.session.report_failure(error))
    }

    /// Runs the steps of an open stage. Returns as [`Self::train_stage`] does.
    fn run_stage(&mut self, stage: &mut StageRun<'a>) -> Result<Option<TrainOutcome>, Error> {
        let _stage = span!("stage", name = %stage.position.stage.name);
        if std::mem::take(&mut self.evaluates_start) {
            let end = stage.evaluate_start(&self.state, self.group, &mut self.saver)?;
            if end == EvaluationEnd::StopRequested {
                return self.stop().map(Some);
            }
        }
        while !stage.is_complete(&self.state) {
            match self.step(stage)? {
                StepEnd::NextStep => {}
                StepEnd::NextStage => break,
                StepEnd::Attempt(outcome) => return Ok(Some(outcome)),
            }
        }
        Ok(None)
    }

    /// Runs one step, then the evaluation and the save that are due after it.
    fn step(&mut self, stage: &mut StageRun<'a>) -> Result<StepEnd, Error> {
        let session = self.session;
        trace::begin_step(self.state.step + 1);
        let _step = span!("step", number = self.state.step + 1);
        stage.freeze(&mut self.state);
        let updated = stage.update(&mut self.state, self.group, self.reducer, &mut self.saver);
        let mixture = stage.mixture();
        let CompletedStep { mut record, agreement, verdict } = match updated? {
            StepResult::Completed(completed) => *completed,
            StepResult::Unreadable(error) => {
                let (saver, state) = (&mut self.saver, &mut self.state);
                damaged_shards::skip_damaged_shards(session, self.group, saver, state, mixture, error)?;
                return Ok(StepEnd::NextStage);
            }
        };
        session.control.set_phase(WorkerPhase::Step);
        self.saver.push(&mut record)?;
        report(session, &self.state, record);
        if let GuardVerdict::Rollback(plan) = verdict {
            rollback::end_attempt(
                session,
                self.group,
                &mut self.saver,
                mixture,
                self.loaded_checkpoint.as_deref(),
                plan,
            )?;
            return Ok(StepEnd::Attempt(TrainOutcome::RolledBack));
        }
        inject_faults(session, &mut self.state);
        self.saver.poll_save(self.group, &agreement)?;
        let directive = agreement.directive;
        let stops = directive == Directive::CheckpointAndStop;
        let mut ends = stage.is_complete(&self.state);
        let mut has_best_loss = false;
        if ends || self.state.step.is_multiple_of(session.config.evaluation.every_steps) {
            if stops && !self.datasets.held_out.is_empty() {
                self.state.evaluation_pending = true;
                return self.stop().map(StepEnd::Attempt);
            }
            let end = stage.evaluate(&mut self.state, self.group, &mut self.saver)?;
            let EvaluationEnd::Done { is_best } = end else { return self.stop().map(StepEnd::Attempt) };
            has_best_loss = is_best;
            ends |= self.state.stages.early_stops.contains_key(&stage.position.index);
        }
        if stops && self.position().is_some() {
            return self.stop().map(StepEnd::Attempt);
        }
        if self.saver.update_due(self.state.step, directive != Directive::Continue) || ends || has_best_loss {
            self.saver.save(self.group, &self.state)?;
        }
        Ok(if ends { StepEnd::NextStage } else { StepEnd::NextStep })
    }

    /// Opens the stage at `position`.
    fn open(&mut self, position: StagePosition<'a>) -> Result<StageRun<'a>, Error> {
        let sources = (self.datasets, self.teacher);
        StageRun::open(self.session, sources, &mut self.state, position, self.budgets[position.index])
    }

    /// Saves a checkpoint and ends the attempt after a stop request.
    fn stop(&mut self) -> Result<TrainOutcome, Error> {
        self.saver.start_stop_limit();
        if self.state.step > 0 {
            self.saver.save_and_wait(self.group, &self.state)?;
        }
        Ok(self.finish(TrainOutcome::Stopped))
    }

    /// Runs the evaluation that the previous attempt skipped after its last step, and saves the result. If a stop is
    /// requested during the evaluation, the next attempt runs it, because the checkpoint still has the
    /// `evaluation_pending` flag.
    fn run_missed_evaluation(&mut self) -> Result<EvaluationEnd, Error> {
        let (config, stages) = (&self.session.config, &self.state.stages);
        let last_step = self.state.step.checked_sub(1);
        let last = last_step.and_then(|step| timeline::position(config, &stages.early_stops, step));
        let Some(last) = last.filter(|position| Some(position.index) == stages.entered) else {
            // The configuration has changed since, and the stage now ends before this step.
            self.state.evaluation_pending = false;
            return Ok(EvaluationEnd::Done { is_best: false });
        };
        self.session.control.set_phase(WorkerPhase::Load);
        let stage = self.open(StagePosition { done: last.done + 1, ..last })?;
        let end = stage.evaluate(&mut self.state, self.group, &mut self.saver)?;
        if end != EvaluationEnd::StopRequested {
            self.saver.resave_and_wait(self.group, &self.state)?;
        }
        Ok(end)
    }

    /// True if the model must grow for the stage of `position`.
    fn must_grow(&self, position: &StagePosition<'_>) -> bool {
        self.state.parameters.layers() != position.stage.depth(&self.session.config.model)
    }

    /// Enters or resumes a stage, and grows the model if the stage is deeper.
    fn enter(&mut self, position: &StagePosition<'_>) -> Result<(), Error> {
        let (session, state) = (self.session, &mut self.state);
        let (from, to) = (state.parameters.layers(), position.stage.depth(&session.config.model));
        stages::enter(state, &session.config, position)?;
        if from != to {
            self.saver.resize(state)?;
            if session.is_first() {
                let (step, stage) = (state.step, position.stage.name.clone());
                session.control.report_event(EventKind::Grown { step, from, to, stage });
            }
        }
        Ok(())
    }

    fn finish(&self, outcome: TrainOutcome) -> TrainOutcome {
        if self.session.is_first() {
            let stopped = outcome == TrainOutcome::Stopped;
            self.session.control.report_event(EventKind::Finished { step: self.state.step, stopped });
        }
        self.saver.wait_for_pruning();
        outcome
    }
}

/// Next part of the training loop after a step.
enum StepEnd {
    NextStep,
    /// The stage ends, or it is opened again without its damaged shards.
    NextStage,
    Attempt(TrainOutcome),
}

/// Injects the faults that the `[test]` section of the configuration requests after a step.
fn inject_faults(session: &Session, state: &mut TrainState) {
    let (test, attempt) = (&session.config.test, session.lease.attempt());
    if test.flips(attempt, session.rank, state.step) {
        state.flip_bit();
    }
    if test.corrupts_moments(attempt, state.step) {
        state.corrupt_moment();
    }
}

fn report(session: &Session, state: &TrainState, record: StepRecord) {
    let by_hand = session.is_first() && !session.control.is_connected();
    if by_hand && let Ok(line) = serde_json::to_string(&record) {
        // A closed standard output must not end the run.
        let _ = output::line(&line);
    }
    session.control.report_step(state.step, session.is_first().then_some(record));
}
