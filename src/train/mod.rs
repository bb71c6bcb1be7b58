//! The training loop, from a run's URL to its last checkpoint.
//!
//! - `stage`: one stage under way: its steps and its evaluations
//! - `gradient_pass`: the gradient of a step over all ranks; [`step`]: a rank's part of it
//! - [`gradients`]: buckets, summed beside the backward pass; [`exact`]: a sum that no order of its terms changes
//! - [`outcome`]: what a step computed, and what follows from it; [`step_record`]: its record; `noise`: how noisy its gradient is
//! - [`evaluate`]: held-out losses
//! - `rollback`: back to an earlier checkpoint, and around samples

pub mod evaluate;
pub mod exact;
mod gradient_pass;
pub mod gradients;
#[cfg(test)]
mod loss_curve;
mod noise;
pub mod outcome;
mod rollback;
mod stage;
pub mod step;
pub mod step_record;

use lambert_collective::{Endpoints, Group};
use lambert_control::{Directive, EventKind, StepRecord};
use lambert_plan::timeline::{self, StagePosition};

use crate::checkpoint::{self, Saver};
use crate::error::Error;
use crate::recovery::guard::Verdict;
use crate::stages;
use crate::state::TrainState;
use crate::worker::control::WorkerPhase;
use crate::worker::micro_batch_size;
use crate::worker::output;
use crate::worker::session::{Datasets, Session};
use crate::worker::trace::{self, span};
use stage::{Stage, Step};

/// How training ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// All stages are done.
    Done,
    /// It was told to stop, and saved a checkpoint.
    Stopped,
    /// It is to go on from an earlier checkpoint, as a new attempt.
    RolledBack,
}

/// Trains a run: from the newest checkpoint that verifies, or from the beginning.
pub fn run(session: &Session, ranks: &mut Endpoints) -> Result<Outcome, Error> {
    let (collective, reducer) = (&mut *ranks.group, &mut *ranks.reducer);
    let _attempt = span!("attempt", number = session.lease.attempt());
    session.control.phase(WorkerPhase::Load);
    let datasets = Datasets::open(&session.config)?;
    let budgets = micro_batch_size::settle(session, collective, &datasets)?;
    let (mut state, origin) = checkpoint::resume(session, collective, &datasets)?;
    let loaded = origin.checkpoint.clone();
    let mut saver = Saver::new(session, &datasets, &state, origin)?;
    if state.unevaluated {
        make_up(session, collective, &datasets, &budgets, &mut saver, &mut state)?;
        if state.unevaluated {
            return Ok(finish(session, &saver, &state, Outcome::Stopped));
        }
    }
    'stages: while let Some(place) = timeline::position(&session.config, &state.stages.ended, state.step) {
        let dataset = &*datasets.stages[place.index];
        let stops = enter(session, collective, &mut saver, &mut state, &place)?;
        session.control.phase(WorkerPhase::Load);
        // Growing takes its time, and the first step of a deeper model more.
        if stops || session.agree_on_stop(collective)? {
            return stop(session, collective, &mut saver, &state);
        }
        let mut stage = Stage::open(session, &datasets, &mut state, place, budgets[place.index])?;
        let _stage = span!("stage", name = %place.stage.name);
        for done in place.done + 1..=place.stage.steps {
            trace::begin_step(state.step + 1);
            let _step = span!("step", number = state.step + 1);
            stage.freeze(&mut state, done - 1);
            let (mut record, agreed) = match stage.update(&mut state, collective, reducer, &mut saver)? {
                Step::Made(record, agreed) => (*record, agreed),
                Step::Unread(error) => {
                    rollback::go_around(session, collective, &mut saver, &mut state, dataset, error)?;
                    continue 'stages;
                }
            };
            session.control.phase(WorkerPhase::Step);
            saver.push(&mut record)?;
            report(session, &state, record);
            if let Verdict::GoBack(retreat) = agreed.verdict {
                rollback::go_back(session, collective, &mut saver, dataset, loaded.as_deref(), retreat)?;
                return Ok(Outcome::RolledBack);
            }
            inject_faults(session, &mut state);
            saver.poll_save(collective, &agreed.agreement)?;
            let mut ends = done == place.stage.steps;
            let mut best = false;
            let stops = agreed.agreement.directive == Directive::CheckpointAndStop;
            if ends || state.step.is_multiple_of(session.config.evaluation.every_steps) {
                match stops && datasets.evaluation.is_some() {
                    true => state.unevaluated = true,
                    false => best = stage.evaluate(&mut state, collective, &mut saver)?,
                }
                ends |= state.stages.ended.contains_key(&place.index);
            }
            let is_last = timeline::position(&session.config, &state.stages.ended, state.step).is_none();
            if state.unevaluated || stops && !is_last {
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
    Ok(finish(session, &saver, &state, Outcome::Done))
}

/// Ends the attempt with a checkpoint, because a stop is requested.
fn stop(
    session: &Session,
    collective: &mut dyn Group,
    saver: &mut Saver<'_>,
    state: &TrainState,
) -> Result<Outcome, Error> {
    saver.stop();
    if state.step > 0 {
        saver.complete(collective, state)?;
    }
    Ok(finish(session, saver, state, Outcome::Stopped))
}

/// The faults of `[test]` that come after a step.
fn inject_faults(session: &Session, state: &mut TrainState) {
    let (test, attempt) = (&session.config.test, session.lease.attempt());
    if test.flips(attempt, session.rank, state.step) {
        state.flip_a_bit();
    }
    if test.corrupts_moments(attempt, state.step) {
        state.spoil_a_moment();
    }
}

/// Makes the evaluation that the attempt before did not make after its last step, and saves what follows from it. A stop that is
/// requested meanwhile leaves it to the next attempt: the checkpoint says that it is missing.
fn make_up(
    session: &Session,
    collective: &mut dyn Group,
    datasets: &Datasets,
    budgets: &[usize],
    saver: &mut Saver<'_>,
    state: &mut TrainState,
) -> Result<(), Error> {
    let last =
        state.step.checked_sub(1).and_then(|step| timeline::position(&session.config, &state.stages.ended, step));
    let Some(last) = last.filter(|place| Some(place.index) == state.stages.entered) else {
        // Its stage was cut short since, behind the step.
        state.unevaluated = false;
        return Ok(());
    };
    session.control.phase(WorkerPhase::Load);
    let place = StagePosition { done: last.done + 1, ..last };
    Stage::open(session, datasets, state, place, budgets[place.index])?.evaluate(state, collective, saver)?;
    if state.unevaluated { Ok(()) } else { saver.renew(collective, state) }
}

/// Begins a stage, or goes on with it. Before a model grows, what it grows from is a checkpoint. Returns whether all ranks stop
/// there instead, because that is requested.
fn enter(
    session: &Session,
    collective: &mut dyn Group,
    saver: &mut Saver<'_>,
    state: &mut TrainState,
    place: &StagePosition<'_>,
) -> Result<bool, Error> {
    let (from, to) = (state.parameters.layers(), place.stage.depth(&session.config.model));
    // A run that begins from another's checkpoint has it there.
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
            session.control.event(EventKind::Grown { step, from, to, stage: place.stage.name.clone() });
        }
    }
    Ok(false)
}

fn finish(session: &Session, saver: &Saver<'_>, state: &TrainState, outcome: Outcome) -> Outcome {
    if session.is_first() {
        session.control.event(EventKind::Finished { step: state.step, stopped: outcome == Outcome::Stopped });
    }
    saver.finish();
    outcome
}

fn report(session: &Session, state: &TrainState, record: StepRecord) {
    let by_hand = session.is_first() && !session.control.is_connected();
    if by_hand && let Ok(line) = serde_json::to_string(&record) {
        // A run does not end because nobody reads its records.
        let _ = output::line(&line);
    }
    session.control.step(state.step, session.is_first().then_some(record));
}
