//! One stage of a run under way: its steps and its evaluations.

use std::collections::BTreeMap;

use lambert_collective::{Group, Reducer};
use lambert_control::{Directive, EventKind, RankTimes, StepRecord, StepTimes};
use lambert_dataset::DatasetError;
use lambert_dataset::random::Key;
use lambert_plan::timeline::{self, Place};
use lambert_plan::{objectives, schedule};

use super::evaluate::{self, Evaluated, Question};
use super::gradient_pass::{Fetched, GradientPass};
use super::outcome::{Drawn, StepOutcome};
use super::rollback;
use super::step_record;
use crate::checkpoint::Saver;
use crate::data::{BatchRequest, GlobalBatch, Loader, LoaderOptions, SampleSource};
use crate::error::Error;
use crate::model;
use crate::objective::Objective;
use crate::objective::totals::Totals;
use crate::optim;
use crate::recovery::guard::Verdict;
use crate::stages::growth;
use crate::state::{Spec, TrainState};
use crate::torch;
use crate::worker::agreement::{self, Agreement, Vote};
use crate::worker::control::WorkerPhase;
use crate::worker::session::{Datasets, Session};
use crate::worker::stopwatch::Stopwatch;
use crate::worker::trace::span;

/// What came of a step.
pub enum Step {
    /// Its record, and what all ranks know after it.
    Made(Box<StepRecord>, Agreed),
    /// It was not made, because a rank could not read its samples; why, if it was this one.
    Unread(Option<DatasetError>),
}

/// What all ranks know after a step.
pub struct Agreed {
    /// Sums over all ranks.
    pub totals: Totals,
    /// What they have told each other.
    pub agreement: Agreement,
    /// Seconds until each of them was done with its own samples.
    pub busy: Vec<f64>,
    /// What becomes of the step.
    pub verdict: Verdict,
}

/// One stage under way.
pub struct Stage<'a> {
    session: &'a Session,
    datasets: &'a Datasets,
    place: Place<'a>,
    /// Steps of the whole run that were done when this stage was opened.
    first_step: u64,
    loader: Loader,
    objective: Objective,
    /// Tokens of a micro-batch at most.
    micro_batch_tokens: usize,
}

impl<'a> Stage<'a> {
    pub fn open(
        session: &'a Session,
        datasets: &'a Datasets,
        state: &mut TrainState,
        place: Place<'a>,
        micro_batch_tokens: usize,
    ) -> Result<Self, Error> {
        let config = &session.config;
        let dataset = &datasets.stages[place.index];
        let source = SampleSource {
            dataset: dataset.clone(),
            objective: config.objective.clone(),
            seed: config.run.seed,
            shuffle: true,
            test: config.test.clone(),
        };
        let demand = LoaderOptions {
            cursor: state.cursor(dataset),
            skipped: state.skipped.by_dataset.get(dataset.manifest_sha256()).cloned().unwrap_or_default(),
            micro_batch_tokens,
            rank: session.rank,
            world_size: session.world,
            shards: config.cluster.all_reduce.parts(session.world),
            max_threads: session.host.readers(),
            max_batch: place.stage.global_batch.max(place.stage.batch_ramp.map_or(0, |ramp| ramp.start)),
        };
        let (stage, steps, begun) = (place.stage.clone(), place.done..place.stage.steps, state.step - place.done);
        let (metrics, seed) = (config.metrics.clone(), config.run.seed);
        let wanted = steps.map(move |done| {
            let halves = metrics.measures_noise(begun + done);
            let halves = halves.then(|| Key::new(seed).with_bytes(b"halves").with(begun + done));
            BatchRequest { samples: timeline::global_batch(&stage, done), split_key: halves }
        });
        let loader = Loader::start(source, demand, wanted).map_err(Error::Thread)?;
        torch::guard(|| state.parameters.keep_low(model::compute_dtype(&config.model)))?;
        let objective = Objective::new(&state.parameters, &config.model, &config.objective);
        let objective = objective.recomputing(place.stage.recompute);
        Ok(Self { session, datasets, place, first_step: state.step, loader, objective, micro_batch_tokens })
    }

    /// Freezes the heads that no loss reads, and freezes or frees the old layers, as the stage's growth says for the step after
    /// `done` of them.
    pub fn freeze(&self, state: &mut TrainState, done: u64) {
        let growth = &self.place.stage.growth;
        if done == self.place.done || done == growth.new_layers_only {
            let is_unused = |spec: &Spec| objectives::is_unused(spec.head, &self.session.config.objective);
            growth::freeze(&mut state.parameters, growth, state.stages.grown_from, done, is_unused);
        }
    }

    /// One step: a global batch, its gradient over all ranks, one update if it is sound.
    pub fn update(
        &mut self,
        state: &mut TrainState,
        collective: &mut dyn Group,
        reducer: &mut dyn Reducer,
        saver: &mut Saver<'_>,
    ) -> Result<Step, Error> {
        let session = self.session;
        let mut whole = Stopwatch::start();
        let mut watch = Stopwatch::start();
        session.control.phase(WorkerPhase::Read);
        let reading = span!("wait for samples");
        let Some(read) = self.loader.next_batch() else {
            self.loader.finish()?;
            return Err(Error::NoMoreSamples(state.step));
        };
        // A rank without samples takes part without gradients, so that all learn of it together.
        let (batch, unread) = read.map_or_else(|error| (GlobalBatch::default(), Some(error)), |batch| (batch, None));
        drop(reading);
        let data_wait = watch.lap();

        session.control.phase(WorkerPhase::Step);
        let dropout = Key::new(session.config.run.seed).with_bytes(b"dropout").with(state.step);
        let spoils = unread.is_some();
        let passes = GradientPass { session, objective: &self.objective, batch: &batch, dropout, spoils };
        let passed = passes.gradient(state, collective, reducer, &mut watch).map_err(|error| self.explain(error))?;
        let (forward_backward, mut communicate) = (passed.seconds, passed.communicate);

        session.control.phase(WorkerPhase::Step);
        let updating = span!("update");
        let learning_rate = schedule::learning_rate(self.place.stage, self.done(state));
        let updated = torch::guard(|| optim::update(state, &session.config.optimizer, learning_rate))?;
        let Fetched { totals, norm, noise } = passed.fetch(state, batch.lengths.len() as u64, &updated.norm)?;
        // An update that changes nothing has none.
        let trust_ratios = match norm.is_finite() && session.config.metrics.records_trust_ratios(state.step) {
            true => torch::guard(|| updated.trust_ratios(state))?,
            false => BTreeMap::new(),
        };
        drop(updating);
        let optimizer = watch.lap();

        session.control.phase(WorkerPhase::Exchange);
        let agreeing = span!("agree");
        let mut agreed = self.agree(collective, &totals, saver, spoils, data_wait + forward_backward)?;
        drop(agreeing);
        communicate += watch.lap();
        if agreed.agreement.unread > 0 {
            if session.is_first() {
                session.control.put_back(agreed.agreement.directive);
            }
            return Ok(Step::Unread(unread));
        }
        let outcome = StepOutcome { learning_rate, totals: agreed.totals.clone(), norm, ..self.outcome(state, &batch) };
        agreed.verdict = outcome.conclude(state, &session.config.guard);

        let mut record = step_record::record(&outcome, state);
        (record.update.noise, record.update.trust_ratios) = (noise, trust_ratios);
        let ranks = RankTimes::of(&agreed.busy);
        let seconds = whole.lap();
        record.times =
            StepTimes { seconds, data_wait, forward_backward, communicate, ranks, optimizer, ..StepTimes::default() };
        step_record::put_rates(&mut record, flops(state, &batch), session.peak);
        Ok(Step::Made(Box::new(record), agreed))
    }

    /// Where every world computes alike: the first of this rank's parts of a global batch, and how many there are.
    fn leaves(&self) -> Option<(usize, usize)> {
        let Session { config, rank, world, .. } = self.session;
        let parts = config.cluster.all_reduce.parts(*world);
        config.cluster.all_reduce.canonical.then_some((parts * rank / world, parts))
    }

    /// The totals over all ranks, what rank 0 wants to happen after this step, and how the save under way stands.
    fn agree(
        &self,
        collective: &mut dyn Group,
        totals: &[Vec<Totals>],
        saver: &mut Saver<'_>,
        unread: bool,
        busy: f64,
    ) -> Result<Agreed, Error> {
        let wanted = match self.session.is_first() {
            true => self.session.control.take_directive(),
            false => Directive::Continue,
        };
        let wanted = match wanted {
            Directive::Continue if self.session.is_first() && saver.is_overdue() => Directive::Checkpoint,
            directive => directive,
        };
        let (first, parts) = self.leaves().unwrap_or((0, 1));
        let zero = self.objective.no_totals();
        let in_places = |share: &Vec<Totals>| Totals::in_places(&zero, share, first, parts);
        let mut sums: Vec<f64> = totals.iter().flat_map(in_places).collect();
        let vote = Vote { directive: wanted, save: saver.vote(), unread };
        let (agreement, busy) = agreement::all_reduce_votes(collective, &mut sums, vote, busy)?;
        Ok(Agreed { totals: Totals::of_places(&zero, &sums), agreement, busy, verdict: Verdict::Sound })
    }

    /// What is known of a step before it is computed.
    fn outcome(&self, state: &TrainState, batch: &GlobalBatch) -> StepOutcome {
        let dataset = self.datasets.stages[self.place.index].manifest_sha256().to_owned();
        StepOutcome {
            stage: self.place.stage.name.clone(),
            before: state.step,
            epoch: batch.epoch,
            samples: batch.lengths.len() as u64,
            tokens: batch.tokens(),
            padding: batch.padding,
            balance: batch.balance,
            drawn: Drawn { dataset, samples: batch.sample_range.clone(), passed: batch.skipped() },
            ..StepOutcome::default()
        }
    }

    /// Where memory ran out, what the user can do about it.
    fn explain(&self, error: Error) -> Error {
        let (objective, Place { stage, index, .. }) = (&self.session.config.objective, self.place);
        let asked = if let Error::Torch(failed) = &error { failed.memory() } else { None };
        match asked {
            None => error,
            Some(asked) => Error::Memory {
                asked,
                stage: index,
                tokens: self.micro_batch_tokens,
                recompute: stage.recompute,
                predictions: objective.max_predictions,
            },
        }
    }

    /// Measures the held-out loss, if there are samples for it, and ends the stage where it is flat. Returns whether a
    /// checkpoint is to be saved for the loss. Where a stop is requested, the state says that the evaluation is missing.
    pub fn evaluate(
        &self,
        state: &mut TrainState,
        collective: &mut dyn Group,
        saver: &mut Saver<'_>,
    ) -> Result<bool, Error> {
        state.unevaluated = false;
        let Some(dataset) = &self.datasets.evaluation else { return Ok(false) };
        self.session.control.phase(WorkerPhase::Evaluate);
        let _evaluation = span!("evaluate");
        let config = &self.session.config;
        let question = Question {
            dataset: dataset.clone(),
            objective: config.objective.clone(),
            samples: config.evaluation.samples,
            micro_batch_tokens: self.micro_batch_tokens,
            parts: self.leaves().map(|(_, parts)| parts),
        };
        let control = &self.session.control;
        let stop = || control.stop_is_requested();
        let evaluation = match evaluate::evaluate(&self.objective, collective, &question, state.step, stop)? {
            Evaluated::Whole(evaluation) => evaluation,
            Evaluated::Unread(unread) => {
                state.unevaluated = true;
                return rollback::end_for(collective, saver, state, unread).map(|_| false);
            }
            Evaluated::Stopped => {
                state.unevaluated = true;
                return Ok(false);
            }
        };
        let best = saver.push_evaluation(collective, &evaluation)?;
        let main = objectives::main(&config.objective);
        let loss = evaluation.scores.get(main.name).map_or(f64::NAN, |score| score.loss);
        if self.session.is_first() {
            self.session.control.event(EventKind::Evaluation(evaluation));
        }
        let Place { stage, index, .. } = self.place;
        let done = self.done(state);
        if stage.plateau.is_some_and(|plateau| state.stages.watched.is_flat(&plateau, loss)) && done < stage.steps {
            state.stages.ended.insert(index, done);
            if self.session.is_first() {
                let steps = timeline::total_steps(config, &state.stages.ended);
                let stage = stage.name.clone();
                self.session.control.event(EventKind::Plateau { step: state.step, stage, done, steps });
            }
        }
        Ok(best)
    }

    /// Steps of this stage that are done.
    fn done(&self, state: &TrainState) -> u64 {
        self.place.done + state.step - self.first_step
    }
}

/// Useful operations of a step.
fn flops(state: &TrainState, batch: &GlobalBatch) -> f64 {
    let lengths = batch.lengths.iter().map(|length| u64::from(*length));
    lambert_plan::flops::training(state.parameters.architecture(), lengths, batch.masked_tokens)
}
