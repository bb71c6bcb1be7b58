//! Held-out loss and accuracy. Samples are read in the order of the files, with masks that are the same for every run,
//! so that two models are asked the same questions.

use std::sync::Arc;

use lambert_collective::Group;
use lambert_config::run::{self, MaskToken, MaskUnit, Test};
use lambert_control::{Directive, Evaluation};
use lambert_dataset::{Dataset, DatasetError};

use crate::data::{BatchRequest, Loader, LoaderOptions, SampleSource};
use crate::error::Error;
use crate::objective::Objective;
use crate::objective::totals::Totals;
use crate::recovery::skipped_samples::SkippedSamples;
use crate::train::step;
use crate::worker::agreement::{self, Vote};

/// Samples that are cut into micro-batches together.
const BATCH: usize = 256;

/// What to look at.
pub struct Question {
    /// The dataset.
    pub dataset: Arc<Dataset>,
    /// How tokens are hidden.
    pub objective: run::Objective,
    /// Samples at most; 0 for all.
    pub samples: u64,
    /// Tokens of a micro-batch at most.
    pub micro_batch_tokens: usize,
    /// Parts that the samples are cut into; `None`: one a rank.
    pub parts: Option<usize>,
}

/// Outcome of an evaluation, the same on all ranks.
pub enum Evaluated {
    /// All samples were looked at.
    Whole(Evaluation),
    /// A rank could not read its samples; the error, on the rank that met it.
    Unread(Option<DatasetError>),
    /// A stop was requested, and nothing was measured.
    Stopped,
}

/// Losses and accuracies of a run's passes after `step` steps, over all ranks. Between its batches they tell each other whether one could not
/// read its samples and whether rank 0 knows of a stop, by `is_stop_requested`.
pub fn evaluate(
    objective: &Objective,
    collective: &mut dyn Group,
    question: &Question,
    step: u64,
    is_stop_requested: impl Fn() -> bool,
) -> Result<Evaluated, Error> {
    let rows = question.dataset.rows();
    let samples = if question.samples == 0 { rows } else { rows.min(question.samples) };
    let source = SampleSource {
        dataset: Arc::clone(&question.dataset),
        // Single pieces behind [MASK], whatever the model is trained on.
        objective: run::Objective {
            mask_unit: MaskUnit::Piece,
            mask_token: MaskToken::Mask,
            ..question.objective.clone()
        },
        seed: 0,
        shuffle: false,
        test: Test::default(),
    };
    let demand = LoaderOptions {
        cursor: 0,
        skipped: SkippedSamples::default(),
        micro_batch_tokens: question.micro_batch_tokens,
        rank: collective.rank(),
        world_size: collective.world_size(),
        shards: question.parts.unwrap_or(collective.world_size()),
        max_threads: 1,
        max_batch: BATCH,
    };
    let sizes =
        (0..samples).step_by(BATCH).map(move |first| BatchRequest::whole((samples - first).min(BATCH as u64) as usize));
    let own = demand.own_shards();
    let mut loader = Loader::start(source, demand, sizes).map_err(Error::Thread)?;
    let zero = objective.no_totals();
    let mut totals = vec![zero.clone(); own.len()];
    for _ in 0..samples.div_ceil(BATCH as u64) {
        let Some(batch) = loader.next_batch() else {
            // A reader that has panicked has given fewer samples than were asked for.
            loader.finish()?;
            return Err(Error::NoMoreSamples(step));
        };
        let is_stopped = collective.rank() == 0 && is_stop_requested();
        let directive = if is_stopped { Directive::CheckpointAndStop } else { Directive::Continue };
        let vote = Vote { directive, unread: batch.is_err(), ..Vote::default() };
        let (agreed, _) = agreement::all_reduce_votes(collective, &mut [], vote, 0.0)?;
        let batch = match batch {
            Ok(batch) if agreed.unread == 0 => batch,
            unread => return Ok(Evaluated::Unread(unread.err())),
        };
        if agreed.directive == Directive::CheckpointAndStop {
            return Ok(Evaluated::Stopped);
        }
        for (sum, leaf) in totals.iter_mut().zip(batch.whole().shards()) {
            sum.add(&step::evaluate(objective, leaf)?);
        }
    }
    let mut sums = match question.parts {
        Some(parts) => Totals::in_places(&zero, &totals, own.start, parts),
        None => Totals::in_places(&zero, &totals, 0, 1),
    };
    collective.all_reduce_sum_f64(&mut sums)?;
    let totals = Totals::of_places(&zero, &sums);
    Ok(Evaluated::Whole(Evaluation {
        step,
        samples,
        masked_tokens: totals.masked_tokens(),
        scores: totals.scores(),
        unigram_entropy: question.dataset.manifest().unigram_entropy,
    }))
}
