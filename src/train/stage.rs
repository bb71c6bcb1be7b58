//! Steps and evaluations of one stage.

use std::collections::BTreeMap;
use std::sync::Arc;

use lambert_collective::{Group, Reducer};
use lambert_control::{Directive, Evaluation, EventKind, StepRecord, StepTimes};
use lambert_dataset::random::Key;
use lambert_dataset::{Dataset, DatasetError};
use lambert_plan::timeline::{self, StagePosition};
use lambert_plan::{objectives, schedule};

use super::damaged_shards;
use super::evaluate::{self, EvalOutcome, EvalRequest};
use super::gradient_pass::{GradientPass, GradientResult};
use super::outcome::{StepOutcome, StepSamples};
use super::phases::{Phase, PhaseClock, PhaseSeconds};
use super::update_ranks::UpdateRanks;
use super::{step, step_record};
use crate::checkpoint::Saver;
use crate::data::{BatchRequest, GlobalBatch, Loader, LoaderOptions, Mixture, Position, SampleSource};
use crate::error::{self, Error};
use crate::model;
use crate::objective::totals::ObjectiveTotals;
use crate::objective::{Objective, Teacher};
use crate::optim;
use crate::recovery::guard::GuardVerdict;
use crate::stages::growth;
use crate::state::{ParamSpec, TrainState};
use crate::torch;
use crate::worker::agreement::{self, Agreement, RankStats, Vote};
use crate::worker::control::WorkerPhase;
use crate::worker::datasets::Datasets;
use crate::worker::peak_memory;
use crate::worker::session::Session;
use crate::worker::stopwatch::Stopwatch;
use crate::worker::trace::span;

/// Result of a step.
pub enum StepResult {
    /// Step record, and the state that all ranks agree on.
    Completed(Box<StepRecord>, Agreed),
    /// A rank could not read its samples, so no rank updated its weights. The error is `None` except on the rank that
    /// failed.
    Unreadable(Option<DatasetError>),
}

/// Values that are the same on all ranks after a step.
pub struct Agreed {
    /// Totals over all ranks.
    pub totals: ObjectiveTotals,
    /// Merged votes of all ranks.
    pub agreement: Agreement,
    /// Measurements of each rank.
    pub stats: Vec<RankStats>,
    /// Verdict of the divergence guard.
    pub verdict: GuardVerdict,
}

/// A running stage.
pub struct StageRun<'a> {
    session: &'a Session,
    datasets: &'a Datasets,
    place: StagePosition<'a>,
    /// Step of the run at which this stage was opened.
    first_step: u64,
    loader: Loader,
    objective: Objective,
    /// Maximum tokens per micro-batch, padding included.
    micro_batch_tokens: usize,
}

impl<'a> StageRun<'a> {
    pub fn open(
        session: &'a Session,
        (datasets, teacher): (&'a Datasets, Option<&Teacher>),
        state: &mut TrainState,
        place: StagePosition<'a>,
        micro_batch_tokens: usize,
    ) -> Result<Self, Error> {
        let config = &session.config;
        let mixture = &datasets.stages[place.index];
        state.stages.mixture = Some(mixture.id().to_owned());
        let skipped = |id: &str| state.skipped.by_source.get(id).cloned().unwrap_or_default();
        let manifests = mixture.datasets().iter().map(|dataset| dataset.manifest_sha256());
        let source = SampleSource {
            mixture: mixture.clone(),
            objective: place.stage.objective.of(&config.objective),
            phrases: datasets.phrases.clone(),
            seed: config.run.seed,
            shuffle: true,
            fault_injection: config.test.clone(),
        };
        let options = LoaderOptions {
            position: position(state, mixture, config.run.seed),
            skipped: skipped(mixture.id()),
            skipped_shards: manifests.map(|sha256| skipped(sha256).shards().clone()).collect(),
            micro_batch_tokens,
            layout: model::layout(config, &*session.kernels),
            rank: session.rank,
            world_size: session.world,
            batch_shards: config.cluster.all_reduce.shards(session.world),
            max_threads: session.host.readers(),
            max_batch: place.stage.global_batch.max(place.stage.batch_ramp.map_or(0, |ramp| ramp.start)),
        };
        let (stage, steps, first_step) = (place.stage.clone(), place.done..place.stage.steps, state.step - place.done);
        let (metrics, seed) = (config.metrics.clone(), config.run.seed);
        let requests = steps.map(move |done| {
            let halves = metrics.measures_noise(first_step + done);
            let halves = halves.then(|| Key::new(seed).with_bytes(b"halves").with(first_step + done));
            BatchRequest { samples: timeline::global_batch(&stage, done), split_key: halves }
        });
        let loader = Loader::start(source, options, requests).map_err(Error::Thread)?;
        torch::guard(|| state.parameters.keep_bf16_copy(model::compute_dtype(&config.model)))?;
        let objective = Objective::new(&state.parameters, &config.model, &config.objective);
        let objective = objective.with_teacher(teacher, &config.objective).recomputing(place.stage.recompute);
        Ok(Self { session, datasets, place, first_step: state.step, loader, objective, micro_batch_tokens })
    }

    /// Freezes heads that no loss trains. Freezes or unfreezes the layers that existed before the growth, as the growth settings
    /// of the stage require after `done` steps.
    pub fn freeze(&self, state: &mut TrainState, done: u64) {
        let growth = &self.place.stage.growth;
        if done == self.place.done || done == growth.new_layers_only {
            let is_frozen = |spec: &ParamSpec| objectives::is_head_frozen(spec.head, &self.session.config.objective);
            growth::freeze(&mut state.parameters, growth, state.stages.grown_from, done, is_frozen);
        }
    }

    /// Runs one step. Reads a global batch, computes and all-reduces its gradient, and updates the weights
    /// if the loss and the gradient are finite.
    pub fn update(
        &mut self,
        state: &mut TrainState,
        collective: &mut dyn Group,
        reducer: &mut dyn Reducer,
        saver: &mut Saver<'_>,
    ) -> Result<StepResult, Error> {
        let session = self.session;
        let mut whole = Stopwatch::start();
        session.control.set_phase(WorkerPhase::Read);
        let reading = span!("wait for samples");
        let Some(read) = self.loader.next_batch() else {
            self.loader.finish()?;
            return Err(Error::NoMoreSamples(state.step));
        };
        // A rank that could not read its samples still joins the collectives, so that all ranks
        // learn of the failure after the same step.
        let (batch, unread) = read.map_or_else(|error| (GlobalBatch::default(), Some(error)), |batch| (batch, None));
        drop(reading);
        let data_wait = whole.lap();

        session.control.set_phase(WorkerPhase::Step);
        let dropout = Key::new(session.config.run.seed).with_bytes(b"dropout").with(state.step);
        let has_no_samples = unread.is_some();
        let pass = GradientPass { session, objective: &self.objective, batch: &batch, dropout, has_no_samples };
        let mut clock = PhaseClock::start(&*session.kernels)?;
        let stats = pass.gradient(state, collective, reducer, &mut clock).map_err(|error| self.explain(error))?;

        session.control.set_phase(WorkerPhase::Step);
        let updating = span!("update");
        let learning_rate = schedule::learning_rate(self.place.stage, self.done(state));
        let settings = session.config.optimizer.of_stage(self.place.stage.learning_rate);
        let mut ranks = UpdateRanks { session, reducer, clock: &mut clock };
        let updated =
            optim::update(state, &settings, learning_rate, &mut ranks).map_err(|error| self.explain(error))?;
        clock.end(Phase::Optimizer)?;
        // Reads the results of the step from the device, which waits for all its phases.
        let GradientResult { totals, norm, noise } = stats.fetch(state, batch.lengths.len() as u64, &updated.norm)?;
        // Skipped updates have no trust ratios.
        let trust_ratios = match norm.is_finite() && session.config.metrics.records_trust_ratios(state.step) {
            true => torch::guard(|| updated.trust_ratios(state))?,
            false => BTreeMap::new(),
        };
        drop(updating);
        let PhaseSeconds { forward_backward, mut communication, optimizer } = clock.seconds()?;

        session.control.set_phase(WorkerPhase::AllReduce);
        let agreeing = span!("agree");
        let mut watch = Stopwatch::start();
        let peak_memory = peak_memory::peak_memory(&*session.kernels).unwrap_or(0) as f64;
        let gpu = session.control.gpu_sample();
        let stats = RankStats { busy: data_wait + forward_backward, peak_memory, gpu };
        let mut agreed = self.agree(collective, &totals, saver, has_no_samples, stats)?;
        drop(agreeing);
        communication += watch.lap();
        if agreed.agreement.unread > 0 {
            if session.is_first() {
                session.control.put_back(agreed.agreement.directive);
            }
            return Ok(StepResult::Unreadable(unread));
        }
        let outcome = StepOutcome { learning_rate, totals: agreed.totals.clone(), norm, ..self.outcome(state, &batch) };
        agreed.verdict = outcome.conclude(state, &session.config.guard);

        let mut record = step_record::record(&outcome, state);
        (record.update.noise, record.update.trust_ratios) = (noise, trust_ratios);
        let seconds = data_wait + whole.lap();
        record.times =
            StepTimes { seconds, data_wait, forward_backward, communication, optimizer, ..StepTimes::default() };
        step_record::set_rank_stats(&mut record, &agreed.stats);
        step_record::set_throughput(&mut record, step::flops(&session.config, state, &batch), session.peak);
        Ok(StepResult::Completed(Box::new(record), agreed))
    }

    /// Index of the first canonical shard of this rank, and the total number of canonical shards.
    /// `None` unless `all_reduce.canonical` is set.
    fn canonical_shards(&self) -> Option<(usize, usize)> {
        let Session { config, rank, world, .. } = self.session;
        let parts = config.cluster.all_reduce.shards(*world);
        config.cluster.all_reduce.canonical.then_some((parts * rank / world, parts))
    }

    /// All-reduces the totals and the votes. The votes contain the directive of rank 0, the progress of the save in
    /// flight, and read failures.
    fn agree(
        &self,
        collective: &mut dyn Group,
        totals: &[Vec<ObjectiveTotals>],
        saver: &mut Saver<'_>,
        unread: bool,
        stats: RankStats,
    ) -> Result<Agreed, Error> {
        let directive = match self.session.is_first() {
            true => self.session.control.take_directive(),
            false => Directive::Continue,
        };
        let directive = match directive {
            Directive::Continue if self.session.is_first() && saver.is_overdue() => Directive::Checkpoint,
            directive => directive,
        };
        let (first, parts) = self.canonical_shards().unwrap_or((0, 1));
        let zero = self.objective.no_totals();
        let in_places = |share: &Vec<ObjectiveTotals>| ObjectiveTotals::scatter_shards(&zero, share, first, parts);
        let mut sums: Vec<f64> = totals.iter().flat_map(in_places).collect();
        let vote = Vote { directive, save: saver.vote(), unread };
        let (agreement, stats) = agreement::all_reduce_votes(collective, &mut sums, vote, stats)?;
        Ok(Agreed { totals: ObjectiveTotals::sum_shards(&zero, &sums), agreement, stats, verdict: GuardVerdict::Apply })
    }

    /// Returns an outcome with only the fields that do not depend on the gradient.
    fn outcome(&self, state: &TrainState, batch: &GlobalBatch) -> StepOutcome {
        let mixture = &self.datasets.stages[self.place.index];
        StepOutcome {
            stage: self.place.stage.name.clone(),
            before: state.step,
            epoch: batch.epoch(),
            samples: batch.lengths.len() as u64,
            tokens: batch.tokens(),
            padding: batch.padding,
            imbalance: batch.imbalance,
            drawn: StepSamples::of(mixture, batch),
            ..StepOutcome::default()
        }
    }

    /// Converts an out-of-memory error to [`Error::Memory`], which lists the settings that reduce memory use.
    fn explain(&self, error: Error) -> Error {
        let StagePosition { stage, index, .. } = self.place;
        let objective = stage.objective.of(&self.session.config.objective);
        let requested = if let Error::Torch(failed) = &error { failed.memory() } else { None };
        match requested {
            None => error,
            Some(requested) => Error::Memory {
                requested,
                stage: index,
                tokens: self.micro_batch_tokens,
                recompute: stage.recompute,
                predictions: objective.max_predictions,
            },
        }
    }

    /// Measures the held-out losses, if evaluation data is configured, and ends the stage at a plateau.
    /// Returns true if the loss is a new best and needs a checkpoint. A stop request cancels the
    /// evaluation and sets `state.evaluation_pending`.
    pub fn evaluate(
        &self,
        state: &mut TrainState,
        collective: &mut dyn Group,
        saver: &mut Saver<'_>,
    ) -> Result<bool, Error> {
        let Some(evaluation) = self.measure(state, collective, saver)? else { return Ok(false) };
        let config = &self.session.config;
        let measured = self.datasets.held_out.first().map_or(String::new(), |it| evaluate::measured(config, it));
        let best = saver.push_evaluation(collective, &evaluation, measured)?;
        let main = objectives::main(&config.objective);
        let loss = evaluation.scores.get(main.name).map_or(f64::NAN, |score| score.loss);
        if self.session.is_first() {
            self.session.control.report_event(EventKind::Evaluation(evaluation));
        }
        let StagePosition { stage, index, .. } = self.place;
        let done = self.done(state);
        if stage.plateau.is_some_and(|plateau| state.stages.plateau.is_flat(&plateau, loss)) && done < stage.steps {
            state.stages.early_stops.insert(index, done);
            if self.session.is_first() {
                let steps = timeline::total_steps(config, &state.stages.early_stops);
                let stage = stage.name.clone();
                self.session.control.report_event(EventKind::Plateau { step: state.step, stage, done, steps });
            }
        }
        Ok(best)
    }

    /// Measures the held-out losses before the first step. They decide about nothing: no checkpoint has these weights.
    /// A stop request cancels the evaluation.
    pub fn evaluate_start(
        &self,
        state: &mut TrainState,
        collective: &mut dyn Group,
        saver: &mut Saver<'_>,
    ) -> Result<(), Error> {
        if let Some(evaluation) = self.measure(state, collective, saver)? {
            saver.push_start(&evaluation)?;
            if self.session.is_first() {
                self.session.control.report_event(EventKind::Evaluation(evaluation));
            }
        }
        Ok(())
    }

    /// Measures the losses on all held-out datasets. Returns none without such a dataset, and if a stop was requested,
    /// which sets `state.evaluation_pending`.
    fn measure(
        &self,
        state: &mut TrainState,
        collective: &mut dyn Group,
        saver: &mut Saver<'_>,
    ) -> Result<Option<Evaluation>, Error> {
        state.evaluation_pending = false;
        if self.datasets.held_out.is_empty() {
            return Ok(None);
        }
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
                // An extra dataset decides about nothing, so training goes on without it.
                EvalOutcome::Unreadable(unread) if first.is_some() => {
                    if let Some(error) = unread {
                        let why = error::chain(&error);
                        self.session.warn(format!("step {}: no loss on {name}: {why}", state.step));
                    }
                }
                EvalOutcome::Unreadable(unread) => {
                    state.evaluation_pending = true;
                    return Err(damaged_shards::save_after_failed_read(collective, saver, state, unread));
                }
                EvalOutcome::Stopped => {
                    state.evaluation_pending = true;
                    return Ok(None);
                }
            }
        }
        Ok(first)
    }

    /// Completed steps of this stage.
    fn done(&self, state: &TrainState) -> u64 {
        self.place.done + state.step - self.first_step
    }
}

/// Returns the position of a mixture after the steps so far. A dataset continues where the stages before ended.
fn position(state: &TrainState, mixture: &Mixture, seed: u64) -> Position {
    let drawn = |dataset: &Arc<Dataset>| state.cursors.get(dataset.manifest_sha256()).copied().unwrap_or(0);
    if mixture.is_single() {
        return Position { number: drawn(&mixture.datasets()[0]), starts: Vec::new() };
    }
    let number = state.mixtures.get(mixture.id()).copied().unwrap_or(0);
    let taken = mixture.order(seed).taken(number);
    let starts = mixture.datasets().iter().zip(taken).map(|(dataset, taken)| drawn(dataset).saturating_sub(taken));
    Position { number, starts: starts.collect() }
}
