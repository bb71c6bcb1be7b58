//! Evaluations of a stage, on all held-out datasets.

use lambert_collective::Group;
use lambert_control::{Evaluation, EventKind};
use lambert_plan::objectives;
use lambert_plan::timeline::{self, StagePosition};

use super::StageRun;
use crate::checkpoint::Saver;
use crate::error::{self, Error};
use crate::model;
use crate::state::TrainState;
use crate::train::damaged_shards;
use crate::train::evaluate::{self, EvalOutcome, EvalRequest};
use crate::worker::control::WorkerPhase;
use crate::worker::trace::span;

/// End of an evaluation during training.
#[must_use]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EvaluationEnd {
    /// All losses were measured, or there is no held-out data.
    Done {
        /// True if the loss is a new best and needs a checkpoint.
        is_best: bool,
    },
    /// A stop request cancelled the evaluation.
    StopRequested,
}

impl StageRun<'_> {
    /// Measures the held-out losses, if evaluation data is configured, and ends the stage at a plateau. Leaves
    /// `state.evaluation_pending` true if a stop was requested.
    pub fn evaluate(
        &self,
        state: &mut TrainState,
        collective: &mut dyn Group,
        saver: &mut Saver<'_>,
    ) -> Result<EvaluationEnd, Error> {
        state.evaluation_pending = !self.datasets.held_out.is_empty();
        if !state.evaluation_pending {
            return Ok(EvaluationEnd::Done { is_best: false });
        }
        let Some(evaluation) = self.measure(state, collective, saver)? else {
            return Ok(EvaluationEnd::StopRequested);
        };
        state.evaluation_pending = false;
        let config = &self.session.config;
        let measured = self.datasets.held_out.first().map_or(String::new(), |it| evaluate::measured(config, it));
        let is_best = saver.push_evaluation(collective, &evaluation, measured)?;
        let main = objectives::main(&config.objective);
        let loss = evaluation.scores.get(main.name).map_or(f64::NAN, |score| score.loss);
        if self.session.is_first() {
            self.session.control.report_event(EventKind::Evaluation(evaluation));
        }
        let StagePosition { stage, index, .. } = self.position;
        let done = self.done(state);
        let is_flat = stage.plateau.is_some_and(|plateau| state.stages.plateau.add_loss(&plateau, loss));
        if is_flat && !self.is_complete(state) {
            state.stages.early_stops.insert(index, done);
            if self.session.is_first() {
                let steps = timeline::total_steps(config, &state.stages.early_stops);
                let stage = stage.name.clone();
                self.session.control.report_event(EventKind::Plateau { step: state.step, stage, done, steps });
            }
        }
        Ok(EvaluationEnd::Done { is_best })
    }

    /// Measures the held-out losses before the first step. They affect neither plateaus nor the best checkpoint, because
    /// no checkpoint has these weights.
    pub fn evaluate_start(
        &self,
        state: &TrainState,
        collective: &mut dyn Group,
        saver: &mut Saver<'_>,
    ) -> Result<EvaluationEnd, Error> {
        if !self.datasets.held_out.is_empty() {
            let Some(evaluation) = self.measure(state, collective, saver)? else {
                return Ok(EvaluationEnd::StopRequested);
            };
            saver.push_initial_evaluation(&evaluation)?;
            if self.session.is_first() {
                self.session.control.report_event(EventKind::Evaluation(evaluation));
            }
        }
        Ok(EvaluationEnd::Done { is_best: false })
    }

    /// Measures the losses on all held-out datasets. Returns `None` if a stop was requested.
    fn measure(
        &self,
        state: &TrainState,
        collective: &mut dyn Group,
        saver: &mut Saver<'_>,
    ) -> Result<Option<Evaluation>, Error> {
        let _evaluation = span!("evaluate");
        let config = &self.session.config;
        let control = &self.session.control;
        let mut first: Option<Evaluation> = None;
        let names = config.evaluation.extra.iter().map(|extra| extra.name.as_str());
        for (dataset, name) in self.datasets.held_out.iter().zip(std::iter::once("").chain(names)) {
            // Each dataset has the whole time limit of the phase.
            control.set_phase(WorkerPhase::Load);
            control.set_phase(WorkerPhase::Evaluate);
            let request = EvalRequest {
                dataset: dataset.clone(),
                objective: config.evaluation_objective(),
                samples: config.evaluation.samples,
                micro_batch_tokens: self.micro_batch_tokens,
                layout: model::layout(config, &*self.session.kernels),
                parts: self.canonical_shards().map(|(_, parts)| parts),
            };
            let stop = |_| control.stop_is_requested();
            match evaluate::evaluate(&self.objective, collective, &request, state.step, stop)? {
                EvalOutcome::Completed(evaluation) => match &mut first {
                    None => first = Some(evaluation),
                    Some(first) => drop(first.extra.insert(name.to_owned(), evaluation.into())),
                },
                // Extra datasets affect no decision, so training continues without this loss.
                EvalOutcome::Unreadable(unread) if first.is_some() => {
                    if let Some(error) = unread {
                        let why = error::chain(&error);
                        self.session.warn(format!("step {}: no loss on {name}: {why}", state.step));
                    }
                }
                EvalOutcome::Unreadable(unread) => {
                    return Err(damaged_shards::save_after_failed_read(collective, saver, state, unread));
                }
                EvalOutcome::Stopped => return Ok(None),
            }
        }
        Ok(first)
    }
}
