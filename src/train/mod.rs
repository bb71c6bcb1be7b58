//! Training loop, from the resumed state to the final checkpoint.
//!
//! - `stage`: steps and evaluations of one stage
//! - `gradient_pass`: gradient of a step over all ranks
//! - [`phases`]: times of the phases of a step
//! - [`step`]: forward and backward passes of one rank
//! - [`gradients`]: bucketed all-reduce, overlapped with the backward pass
//! - [`exact`]: order-independent gradient summation
//! - [`outcome`]: result of a step, and the verdict of the divergence guard
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
use stage::{StageRun, StepResult};

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
    let datasets = Datasets::open(&session.config, &session.store)?;
    let budgets = micro_batch_size::settle(session, group, &datasets)?;
    if let Some(gpu) = session.gpu.as_ref().filter(|_| session.is_first()) {
        let capability = gpu.properties.compute_capability;
        for warning in gpu_advice::slow_settings(&session.config, session.world, capability, &budgets) {
            session.warn(warning);
        }
    }
    let teacher = checkpoint::read_teacher(session, &datasets)?;
    let (state, origin) = checkpoint::resume(session, group, &datasets, teacher.as_ref())?;
    let loaded = origin.checkpoint.clone();
    let saver = Saver::new(session, &datasets, &state, origin)?;
    let (datasets, teacher) = (&datasets, teacher.as_ref());
    let mut attempt = Attempt { session, group, reducer, datasets, teacher, budgets, saver, state, loaded };
    // Failures are reported before anything is dropped, which can block or abort after the failure of a GPU.
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
    loaded: Option<String>,
}

impl<'a> Attempt<'a> {
    /// Trains to the end of the run, a stop or a rollback.
    fn train(&mut self) -> Result<TrainOutcome, Error> {
        if self.state.evaluation_pending {
            self.run_missed_evaluation()?;
            if self.state.evaluation_pending {
                return Ok(self.finish(TrainOutcome::Stopped));
            }
        }
        let mut evaluates_start = self.state.step == 0 && self.session.config.evaluation.at_start;
        while let Some(place) = self.position() {
            if let Some(outcome) = self.train_stage(place, &mut evaluates_start)? {
                return Ok(outcome);
            }
        }
        if self.state.step > 0 {
            self.saver.complete(self.group, &self.state)?;
        }
        Ok(self.finish(TrainOutcome::Done))
    }

    /// Returns the position of the next step, or `None` after the last step.
    fn position(&self) -> Option<StagePosition<'a>> {
        timeline::position(&self.session.config, &self.state.stages.early_stops, self.state.step)
    }

    /// Runs the steps of a stage from `place`. Returns the outcome if the attempt ends, or `None` if training goes on at
    /// the next position: in the next stage, or in this one without its damaged shards. Clears `evaluates_start` when
    /// the evaluation before the first step has begun.
    fn train_stage(
        &mut self,
        place: StagePosition<'a>,
        evaluates_start: &mut bool,
    ) -> Result<Option<TrainOutcome>, Error> {
        let stops = self.enter(&place)?;
        self.session.control.set_phase(WorkerPhase::Load);
        // Check for a stop request first, because growing the model and the first step of a grown model are slow.
        if stops || self.session.agree_on_stop(self.group)? {
            return self.stop().map(Some);
        }
        let mut stage = self.open(place)?;
        self.run_stage(&mut stage, &place, evaluates_start).map_err(|error| self.session.report_failure(error))
    }

    /// Runs the steps of an open stage. Returns as [`Self::train_stage`] does.
    fn run_stage(
        &mut self,
        stage: &mut StageRun<'a>,
        place: &StagePosition<'a>,
        evaluates_start: &mut bool,
    ) -> Result<Option<TrainOutcome>, Error> {
        let _stage = span!("stage", name = %place.stage.name);
        if std::mem::take(evaluates_start) {
            stage.evaluate_start(&mut self.state, self.group, &mut self.saver)?;
            if std::mem::take(&mut self.state.evaluation_pending) {
                return self.stop().map(Some);
            }
        }
        for done in place.done + 1..=place.stage.steps {
            match self.step(stage, place, done)? {
                StepEnd::NextStep => {}
                StepEnd::NextStage => break,
                StepEnd::Attempt(outcome) => return Ok(Some(outcome)),
            }
        }
        Ok(None)
    }

    /// Runs the step after which `done` steps of the stage are complete, and what is due after it: evaluation and save.
    fn step(&mut self, stage: &mut StageRun<'a>, place: &StagePosition<'a>, done: u64) -> Result<StepEnd, Error> {
        let session = self.session;
        trace::begin_step(self.state.step + 1);
        let _step = span!("step", number = self.state.step + 1);
        stage.freeze(&mut self.state, done - 1);
        let updated = stage.update(&mut self.state, self.group, self.reducer, &mut self.saver);
        let mixture = &self.datasets.stages[place.index];
        let (mut record, agreed) = match updated? {
            StepResult::Completed(record, agreed) => (*record, agreed),
            StepResult::Unreadable(error) => {
                let (saver, state) = (&mut self.saver, &mut self.state);
                damaged_shards::skip_damaged_shards(session, self.group, saver, state, mixture, error)?;
                return Ok(StepEnd::NextStage);
            }
        };
        session.control.set_phase(WorkerPhase::Step);
        self.saver.push(&mut record)?;
        report(session, &self.state, record);
        if let GuardVerdict::Rollback(plan) = agreed.verdict {
            rollback::end_attempt(session, self.group, &mut self.saver, mixture, self.loaded.as_deref(), plan)?;
            return Ok(StepEnd::Attempt(TrainOutcome::RolledBack));
        }
        inject_faults(session, &mut self.state);
        self.saver.poll_save(self.group, &agreed.agreement)?;
        let directive = agreed.agreement.directive;
        let stops = directive == Directive::CheckpointAndStop;
        let mut ends = done == place.stage.steps;
        let mut best = false;
        if ends || self.state.step.is_multiple_of(session.config.evaluation.every_steps) {
            match stops && !self.datasets.held_out.is_empty() {
                true => self.state.evaluation_pending = true,
                false => best = stage.evaluate(&mut self.state, self.group, &mut self.saver)?,
            }
            ends |= self.state.stages.early_stops.contains_key(&place.index);
        }
        if self.state.evaluation_pending || stops && self.position().is_some() {
            return self.stop().map(StepEnd::Attempt);
        }
        if self.saver.is_due(self.state.step, directive != Directive::Continue) || ends || best {
            self.saver.save(self.group, &self.state)?;
        }
        Ok(if ends { StepEnd::NextStage } else { StepEnd::NextStep })
    }

    /// Opens the stage at `place`.
    fn open(&mut self, place: StagePosition<'a>) -> Result<StageRun<'a>, Error> {
        let sources = (self.datasets, self.teacher);
        StageRun::open(self.session, sources, &mut self.state, place, self.budgets[place.index])
    }

    /// Saves a checkpoint and ends the attempt after a stop request.
    fn stop(&mut self) -> Result<TrainOutcome, Error> {
        self.saver.stop();
        if self.state.step > 0 {
            self.saver.complete(self.group, &self.state)?;
        }
        Ok(self.finish(TrainOutcome::Stopped))
    }

    /// Runs the evaluation that the previous attempt skipped after its last step, and saves the result. If a stop is
    /// requested during the evaluation, the next attempt runs it, because the checkpoint still has the
    /// `evaluation_pending` flag.
    fn run_missed_evaluation(&mut self) -> Result<(), Error> {
        let (config, stages) = (&self.session.config, &self.state.stages);
        let last_step = self.state.step.checked_sub(1);
        let last = last_step.and_then(|step| timeline::position(config, &stages.early_stops, step));
        let Some(last) = last.filter(|place| Some(place.index) == stages.entered) else {
            // The configuration has changed since, and the stage now ends before this step.
            self.state.evaluation_pending = false;
            return Ok(());
        };
        self.session.control.set_phase(WorkerPhase::Load);
        let stage = self.open(StagePosition { done: last.done + 1, ..last })?;
        stage.evaluate(&mut self.state, self.group, &mut self.saver)?;
        if self.state.evaluation_pending { Ok(()) } else { self.saver.renew(self.group, &self.state) }
    }

    /// Enters or resumes a stage. Before the model grows, saves a checkpoint and checks for a stop request. Returns
    /// true, without entering the stage, if a stop was requested.
    fn enter(&mut self, place: &StagePosition<'_>) -> Result<bool, Error> {
        let (session, state) = (self.session, &mut self.state);
        let (from, to) = (state.parameters.layers(), place.stage.depth(&session.config.model));
        // At step 0 no checkpoint is needed. The weights are newly initialized, or they are from a checkpoint of
        // another run.
        if from != to && state.step > 0 {
            self.saver.complete(self.group, state)?;
            if session.agree_on_stop(self.group)? {
                return Ok(true);
            }
        }
        stages::enter(state, &session.config, place)?;
        if from != to {
            self.saver.resize(state)?;
            if session.is_first() {
                let (step, stage) = (state.step, place.stage.name.clone());
                session.control.report_event(EventKind::Grown { step, from, to, stage });
            }
        }
        Ok(false)
    }

    fn finish(&self, outcome: TrainOutcome) -> TrainOutcome {
        if self.session.is_first() {
            let stopped = outcome == TrainOutcome::Stopped;
            self.session.control.report_event(EventKind::Finished { step: self.state.step, stopped });
        }
        self.saver.finish();
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
