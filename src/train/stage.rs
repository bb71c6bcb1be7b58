//! Steps of one stage, and its evaluations (`evaluation`).

mod evaluation;

use std::collections::BTreeMap;

use lambert_collective::{Group, Reducer};
use lambert_control::{Directive, StepRecord, StepTimes};
use lambert_dataset::DatasetError;
use lambert_dataset::random::Key;
use lambert_plan::timeline::{self, StagePosition};
use lambert_plan::{objectives, schedule};

use super::gradient_pass::{GradientPass, GradientResult};
use super::outcome::StepOutcome;
use super::phases::{Phase, PhaseClock, PhaseSeconds};
use super::sample_position::{self, StepSamples};
use super::step;
use super::step_record::{self, StepMeasurements};
use super::update_ranks::UpdateRanks;
use crate::checkpoint::Saver;
use crate::data::{BatchRequest, GlobalBatch, Loader, LoaderOptions, Mixture, SampleSource};
use crate::error::Error;
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

pub use evaluation::EvaluationEnd;

/// Result of a step.
pub enum StepResult {
    Completed(Box<CompletedStep>),
    /// A rank could not read its samples, so no rank updated its weights. The error is `None` except on the rank that
    /// failed.
    Unreadable(Option<DatasetError>),
}

/// Step after which all ranks have the same counters. `agreement` and `verdict` are equal on all ranks.
pub struct CompletedStep {
    pub record: StepRecord,
    /// Merged votes of all ranks.
    pub agreement: Agreement,
    /// Verdict of the divergence guard.
    pub verdict: GuardVerdict,
}

/// A running stage.
pub struct StageRun<'a> {
    session: &'a Session,
    datasets: &'a Datasets,
    /// Position at which this stage was opened.
    pub position: StagePosition<'a>,
    /// Steps of the run before this stage.
    steps_before: u64,
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
        position: StagePosition<'a>,
        micro_batch_tokens: usize,
    ) -> Result<Self, Error> {
        let config = &session.config;
        let mixture = &datasets.stages[position.index];
        state.stages.mixture_id = Some(mixture.id().to_owned());
        let skipped = |id: &str| state.skipped.by_source.get(id).cloned().unwrap_or_default();
        let manifests = mixture.datasets().iter().map(|dataset| dataset.manifest_sha256());
        let source = SampleSource {
            mixture: mixture.clone(),
            objective: position.stage.objective.of(&config.objective),
            phrases: datasets.phrases.clone(),
            seed: config.run.seed,
            shuffle: true,
            fault_injection: config.test.clone(),
        };
        let options = LoaderOptions {
            position: sample_position::resume(state, mixture, config.run.seed),
            skipped: skipped(mixture.id()),
            skipped_shards: manifests.map(|sha256| skipped(sha256).shards().clone()).collect(),
            micro_batch_tokens,
            layout: model::layout(config, &*session.kernels),
            rank: session.rank,
            world_size: session.world,
            batch_shards: config.cluster.all_reduce.shards(session.world),
            max_threads: session.host.readers(),
            max_batch: position.stage.global_batch.max(position.stage.batch_ramp.map_or(0, |ramp| ramp.start)),
        };
        let steps_before = state.step - position.done;
        let (stage, steps) = (position.stage.clone(), position.done..position.stage.steps);
        let (metrics, seed) = (config.metrics.clone(), config.run.seed);
        let requests = steps.map(move |done| {
            let halves = metrics.measures_noise(steps_before + done);
            let halves = halves.then(|| Key::new(seed).with_bytes(b"halves").with(steps_before + done));
            BatchRequest { samples: timeline::global_batch(&stage, done), split_key: halves }
        });
        let loader = Loader::start(source, options, requests).map_err(Error::Thread)?;
        torch::guard(|| state.parameters.keep_bf16_copy(model::compute_dtype(&config.model)))?;
        let objective = Objective::new(&state.parameters, &config.model, &config.objective);
        let objective = objective.with_teacher(teacher, &config.objective).recomputing(position.stage.recompute);
        Ok(Self { session, datasets, position, steps_before, loader, objective, micro_batch_tokens })
    }

    /// Mixture of the stage.
    pub fn mixture(&self) -> &'a Mixture {
        &self.datasets.stages[self.position.index]
    }

    /// Completed steps of this stage.
    pub fn done(&self, state: &TrainState) -> u64 {
        state.step - self.steps_before
    }

    /// True after the last step of this stage.
    pub fn is_complete(&self, state: &TrainState) -> bool {
        self.done(state) >= self.position.stage.steps
    }

    /// Updates the set of frozen parameters: heads that no loss trains and, during the first `growth.new_layers_only`
    /// steps, everything but the new layers. Does nothing in steps in which the set stays the same.
    pub fn freeze(&self, state: &mut TrainState) {
        let (growth, done) = (&self.position.stage.growth, self.done(state));
        if done == self.position.done || done == growth.new_layers_only {
            let is_unused = |spec: &ParamSpec| objectives::is_head_frozen(spec.head, &self.session.config.objective);
            growth::freeze(&mut state.parameters, growth, state.stages.grown_from, done, is_unused);
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
        let (batch, unread, data_wait) = self.next_batch(state.step)?;
        let mut rest_of_step = Stopwatch::start();
        session.control.set_phase(WorkerPhase::Step);
        let dropout = Key::new(session.config.run.seed).with_bytes(b"dropout").with(state.step);
        let has_no_samples = unread.is_some();
        let pass = GradientPass { session, objective: &self.objective, batch: &batch, dropout, has_no_samples };
        let mut clock = PhaseClock::start(&*session.kernels)?;
        let stats =
            pass.gradient(state, collective, reducer, &mut clock).map_err(|error| self.as_memory_error(error))?;

        session.control.set_phase(WorkerPhase::Step);
        let updating = span!("update");
        let learning_rate = schedule::learning_rate(self.position.stage, self.done(state));
        let settings = session.config.optimizer.of_stage(self.position.stage.learning_rate);
        let mut ranks = UpdateRanks { session, reducer, clock: &mut clock };
        let updated =
            optim::update(state, &settings, learning_rate, &mut ranks).map_err(|error| self.as_memory_error(error))?;
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
        let (agreement, totals, ranks) = self.agree(collective, &totals, saver, has_no_samples, stats)?;
        drop(agreeing);
        communication += watch.lap();
        if agreement.unreadable_ranks > 0 {
            if session.is_first() {
                session.control.put_back(agreement.directive);
            }
            return Ok(StepResult::Unreadable(unread));
        }
        let outcome = StepOutcome {
            stage: self.position.stage.name.clone(),
            steps_before: state.step,
            epoch: batch.epoch(),
            samples: batch.lengths.len() as u64,
            tokens: batch.tokens(),
            padding: batch.padding,
            imbalance: batch.imbalance,
            drawn: StepSamples::of(self.mixture(), &batch),
            learning_rate,
            totals,
            norm,
        };
        let verdict = outcome.judge_and_count(state, &session.config.guard);
        let seconds = data_wait + rest_of_step.lap();
        let times =
            StepTimes { seconds, data_wait, forward_backward, communication, optimizer, ..StepTimes::default() };
        let flops = step::flops(&session.config, state, &batch);
        let measurements = StepMeasurements { times, ranks: &ranks, flops, peak: session.peak, noise, trust_ratios };
        let record = step_record::record(&outcome, state, measurements);
        Ok(StepResult::Completed(Box::new(CompletedStep { record, agreement, verdict })))
    }

    /// Waits for the next global batch. Also returns the read error of this rank, if any, and the waiting time, seconds.
    /// A rank that could not read its samples gets an empty batch and still joins the collectives, so that all ranks
    /// learn of the failure after the same step. `step` is the number of completed steps.
    fn next_batch(&mut self, step: u64) -> Result<(GlobalBatch, Option<DatasetError>, f64), Error> {
        let mut watch = Stopwatch::start();
        self.session.control.set_phase(WorkerPhase::Read);
        let _reading = span!("wait for samples");
        let Some(read) = self.loader.next_batch() else {
            self.loader.finish()?;
            return Err(Error::NoMoreSamples(step));
        };
        let (batch, unread) = read.map_or_else(|error| (GlobalBatch::default(), Some(error)), |batch| (batch, None));
        Ok((batch, unread, watch.lap()))
    }

    /// Index of the first canonical shard of this rank, and the total number of canonical shards.
    /// `None` unless `all_reduce.canonical` is set.
    fn canonical_shards(&self) -> Option<(usize, usize)> {
        let Session { config, rank, world, .. } = self.session;
        let parts = config.cluster.all_reduce.shards(*world);
        config.cluster.all_reduce.canonical.then_some((parts * rank / world, parts))
    }

    /// All-reduces the totals and the votes. The votes contain the directive of rank 0, the progress of the save in
    /// flight, and read failures. Returns the merged votes, the totals over all ranks, and the measurements of each
    /// rank.
    fn agree(
        &self,
        collective: &mut dyn Group,
        totals: &[Vec<ObjectiveTotals>],
        saver: &mut Saver<'_>,
        unread: bool,
        stats: RankStats,
    ) -> Result<(Agreement, ObjectiveTotals, Vec<RankStats>), Error> {
        let directive = self.own_directive(saver);
        let (first, parts) = self.canonical_shards().unwrap_or((0, 1));
        let zero = self.objective.no_totals();
        let in_places = |share: &Vec<ObjectiveTotals>| ObjectiveTotals::scatter_shards(&zero, share, first, parts);
        let mut sums: Vec<f64> = totals.iter().flat_map(in_places).collect();
        let vote = Vote { directive, save: saver.vote(), unread };
        let (agreement, ranks) = agreement::all_reduce_votes(collective, &mut sums, vote, stats)?;
        Ok((agreement, ObjectiveTotals::sum_shards(&zero, &sums), ranks))
    }

    /// Takes the directive for all ranks on rank 0; `Continue` on the other ranks. A checkpoint that is due by time
    /// counts as requested.
    fn own_directive(&self, saver: &Saver<'_>) -> Directive {
        if !self.session.is_first() {
            return Directive::Continue;
        }
        match self.session.control.take_directive() {
            Directive::Continue if saver.is_due_by_time() => Directive::Checkpoint,
            directive => directive,
        }
    }

    /// Converts an out-of-memory error to [`Error::Memory`], which lists the settings that reduce memory use.
    fn as_memory_error(&self, error: Error) -> Error {
        let StagePosition { stage, index, .. } = self.position;
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
}
