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
//! - `rollback`: rollback after divergence, and skipping of damaged shards

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

use lambert_collective::{Endpoints, Group};
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
    let (collective, reducer) = (&mut *ranks.group, &mut *ranks.reducer);
    let _attempt = span!("attempt", number = session.lease.attempt());
    session.control.set_phase(WorkerPhase::Load);
    let datasets = Datasets::open(&session.config, &session.store)?;
    let budgets = micro_batch_size::settle(session, collective, &datasets)?;
    if session.is_first() && session.gpu.is_some() {
        for warning in gpu_advice::slow_settings(&session.config, session.world, &budgets) {
            session.warn(warning);
        }
    }
    let teacher = checkpoint::read_teacher(session, &datasets)?;
    let (mut state, origin) = checkpoint::resume(session, collective, &datasets, teacher.as_ref())?;
    let loaded = origin.checkpoint.clone();
    let mut saver = Saver::new(session, &datasets, &state, origin)?;
    if state.evaluation_pending {
        run_missed_evaluation(session, collective, (&datasets, teacher.as_ref()), &budgets, &mut saver, &mut state)?;
        if state.evaluation_pending {
            return Ok(finish(session, &saver, &state, TrainOutcome::Stopped));
        }
    }
    let mut starts = state.step == 0 && session.config.evaluation.at_start;
    'stages: while let Some(place) = timeline::position(&session.config, &state.stages.early_stops, state.step) {
        let mixture = &datasets.stages[place.index];
        let stops = enter(session, collective, &mut saver, &mut state, &place)?;
        session.control.set_phase(WorkerPhase::Load);
        // Check for a stop request first, because growing the model and the first step of a grown model are slow.
        if stops || session.agree_on_stop(collective)? {
            return stop(session, collective, &mut saver, &state);
        }
        let mut stage =
            StageRun::open(session, (&datasets, teacher.as_ref()), &mut state, place, budgets[place.index])?;
        let _stage = span!("stage", name = %place.stage.name);
        if std::mem::take(&mut starts) {
            stage.evaluate_start(&mut state, collective, &mut saver)?;
            if std::mem::take(&mut state.evaluation_pending) {
                return stop(session, collective, &mut saver, &state);
            }
        }
        for done in place.done + 1..=place.stage.steps {
            trace::begin_step(state.step + 1);
            let _step = span!("step", number = state.step + 1);
            stage.freeze(&mut state, done - 1);
            let updated = stage.update(&mut state, collective, reducer, &mut saver);
            let (mut record, agreed) = match updated.map_err(|error| session.report_failure(error))? {
                StepResult::Completed(record, agreed) => (*record, agreed),
                StepResult::Unreadable(error) => {
                    rollback::skip_damaged_shards(session, collective, &mut saver, &mut state, mixture, error)?;
                    continue 'stages;
                }
            };
            session.control.set_phase(WorkerPhase::Step);
            saver.push(&mut record)?;
            report(session, &state, record);
            if let GuardVerdict::Rollback(plan) = agreed.verdict {
                rollback::end_attempt(session, collective, &mut saver, mixture, loaded.as_deref(), plan)?;
                return Ok(TrainOutcome::RolledBack);
            }
            inject_faults(session, &mut state);
            saver.poll_save(collective, &agreed.agreement)?;
            let mut ends = done == place.stage.steps;
            let mut best = false;
            let stops = agreed.agreement.directive == Directive::CheckpointAndStop;
            if ends || state.step.is_multiple_of(session.config.evaluation.every_steps) {
                match stops && !datasets.held_out.is_empty() {
                    true => state.evaluation_pending = true,
                    false => best = stage.evaluate(&mut state, collective, &mut saver)?,
                }
                ends |= state.stages.early_stops.contains_key(&place.index);
            }
            let is_last = timeline::position(&session.config, &state.stages.early_stops, state.step).is_none();
            if state.evaluation_pending || stops && !is_last {
                return stop(session, collective, &mut saver, &state);
            }
            if saver.is_due(state.step, agreed.agreement.directive != Directive::Continue) || ends || best {
                saver.save(collective, &state)?;
            }
            if ends {
                continue 'stages;
            }
        }
    }
    if state.step > 0 {
        saver.complete(collective, &state)?;
    }
    Ok(finish(session, &saver, &state, TrainOutcome::Done))
}

/// Saves a checkpoint and ends the attempt after a stop request.
fn stop(
    session: &Session,
    collective: &mut dyn Group,
    saver: &mut Saver<'_>,
    state: &TrainState,
) -> Result<TrainOutcome, Error> {
    saver.stop();
    if state.step > 0 {
        saver.complete(collective, state)?;
    }
    Ok(finish(session, saver, state, TrainOutcome::Stopped))
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

/// Runs the evaluation that the previous attempt skipped after its last step, and saves the result.
/// If a stop is requested during the evaluation, the next attempt runs it, because the checkpoint
/// still has the `evaluation_pending` flag. `sources` are the datasets and the teacher.
fn run_missed_evaluation(
    session: &Session,
    collective: &mut dyn Group,
    sources: (&Datasets, Option<&Teacher>),
    budgets: &[usize],
    saver: &mut Saver<'_>,
    state: &mut TrainState,
) -> Result<(), Error> {
    let last =
        state.step.checked_sub(1).and_then(|step| timeline::position(&session.config, &state.stages.early_stops, step));
    let Some(last) = last.filter(|place| Some(place.index) == state.stages.entered) else {
        // The configuration has changed since, and the stage now ends before this step.
        state.evaluation_pending = false;
        return Ok(());
    };
    session.control.set_phase(WorkerPhase::Load);
    let place = StagePosition { done: last.done + 1, ..last };
    StageRun::open(session, sources, state, place, budgets[place.index])?.evaluate(state, collective, saver)?;
    if state.evaluation_pending { Ok(()) } else { saver.renew(collective, state) }
}

/// Enters or resumes a stage. Before the model grows, saves a checkpoint and checks for a stop request. Returns true,
/// without entering the stage, if a stop was requested.
fn enter(
    session: &Session,
    collective: &mut dyn Group,
    saver: &mut Saver<'_>,
    state: &mut TrainState,
    place: &StagePosition<'_>,
) -> Result<bool, Error> {
    let (from, to) = (state.parameters.layers(), place.stage.depth(&session.config.model));
    // At step 0 no checkpoint is needed. The weights are newly initialized, or they are from a checkpoint of another
    // run.
    if from != to && state.step > 0 {
        saver.complete(collective, state)?;
        if session.agree_on_stop(collective)? {
            return Ok(true);
        }
    }
    stages::enter(state, &session.config, place)?;
    if from != to {
        saver.resize(state)?;
        if session.is_first() {
            let step = state.step;
            session.control.report_event(EventKind::Grown { step, from, to, stage: place.stage.name.clone() });
        }
    }
    Ok(false)
}

fn finish(session: &Session, saver: &Saver<'_>, state: &TrainState, outcome: TrainOutcome) -> TrainOutcome {
    if session.is_first() {
        session
            .control
            .report_event(EventKind::Finished { step: state.step, stopped: outcome == TrainOutcome::Stopped });
    }
    saver.finish();
    outcome
}

fn report(session: &Session, state: &TrainState, record: StepRecord) {
    let by_hand = session.is_first() && !session.control.is_connected();
    if by_hand && let Ok(line) = serde_json::to_string(&record) {
        // A closed standard output must not end the run.
        let _ = output::line(&line);
    }
    session.control.report_step(state.step, session.is_first().then_some(record));
}
