//! Held-out loss and accuracy. Samples are read in file order, and the masking seed is fixed. All models
//! therefore predict the same masked tokens.

use std::collections::BTreeMap;
use std::sync::Arc;

use lambert_collective::Group;
use lambert_config::RunConfig;
use lambert_config::run::{self, FaultInjection, MaskToken, MaskUnit};
use lambert_control::{Directive, Evaluation};
use lambert_dataset::random::Key;
use lambert_dataset::{Dataset, DatasetError};
use lambert_plan::batch_partition::Layout;
use lambert_plan::objectives;

use crate::data::{BatchRequest, Loader, LoaderOptions, Mixture, MixturePosition, SampleSource};
use crate::error::Error;
use crate::objective::Objective;
use crate::objective::totals::ObjectiveTotals;
use crate::recovery::skipped_samples::SkippedSamples;
use crate::train::step;
use crate::worker::agreement::{self, RankStats, Vote};

/// Number of samples per batch. Each batch is split into micro-batches.
const BATCH: usize = 256;

/// Dataset and settings of an evaluation.
pub struct EvalRequest {
    /// Held-out dataset.
    pub dataset: Arc<Dataset>,
    /// Masking settings.
    pub objective: run::Objective,
    /// Maximum number of samples; 0: all.
    pub samples: u64,
    /// Maximum tokens per micro-batch, padding included.
    pub micro_batch_tokens: usize,
    /// Layout of the micro-batches.
    pub layout: Layout,
    /// Number of canonical shards, which are a fixed partition of a batch for every
    /// world size. `None`: one shard per rank.
    pub parts: Option<usize>,
}

impl EvalRequest {
    /// Number of samples to evaluate.
    pub fn samples(&self) -> u64 {
        let rows = self.dataset.rows();
        if self.samples == 0 { rows } else { rows.min(self.samples) }
    }
}

/// Identifies what the held-out loss measures: dataset, samples, masks and loss weights. Losses are comparable only if
/// these texts are equal.
pub fn measured(config: &RunConfig, dataset: &Dataset) -> String {
    let objective = config.evaluation_objective();
    let losses = objectives::losses(&objective);
    let losses: Vec<String> = losses.iter().map(|loss| format!("{} x {}", loss.weight, loss.name)).collect();
    let run::Objective { mask_unit, mask_probability, mask_share, random_share, max_predictions, .. } = objective;
    let temperature = objective.teacher.map_or(String::new(), |it| format!(", temperature {}", it.temperature));
    let unit = format!("{mask_unit:?}").to_lowercase();
    format!(
        "dataset {}, {} samples, masks: unit {unit}, probability {mask_probability}, {mask_share} masked and {random_share} random, \
         at most {max_predictions}, losses: {}{temperature}",
        dataset.manifest_sha256(),
        config.evaluation.samples,
        losses.join(" + ")
    )
}

/// Outcome of an evaluation, which is equal on all ranks.
pub enum EvalOutcome {
    /// All samples were evaluated.
    Completed(Evaluation),
    /// A rank could not read its samples. The error is `None` except on the rank that failed.
    Unreadable(Option<DatasetError>),
    /// A stop was requested, so there is no result.
    Stopped,
}

/// Measures losses and accuracies over all ranks. `step` is the number of completed training steps. Before each batch,
/// the ranks exchange read failures, and rank 0 calls `is_stop_requested` with the number of evaluated samples, and shares
/// the result.
pub fn evaluate(
    objective: &Objective,
    collective: &mut dyn Group,
    request: &EvalRequest,
    step: u64,
    is_stop_requested: impl Fn(u64) -> bool,
) -> Result<EvalOutcome, Error> {
    let samples = request.samples();
    let source = SampleSource {
        mixture: Mixture::single(Arc::clone(&request.dataset)),
        // Replace single tokens (word pieces) by [MASK], even if the training uses another kind of masking.
        objective: run::Objective {
            mask_unit: MaskUnit::Piece,
            mask_token: MaskToken::Mask,
            ..request.objective.clone()
        },
        phrases: None,
        seed: 0,
        shuffle: false,
        fault_injection: FaultInjection::default(),
    };
    let options = LoaderOptions {
        position: MixturePosition::default(),
        skipped: SkippedSamples::default(),
        skipped_shards: Vec::new(),
        micro_batch_tokens: request.micro_batch_tokens,
        layout: request.layout,
        rank: collective.rank(),
        world_size: collective.world_size(),
        batch_shards: request.parts.unwrap_or(collective.world_size()),
        max_threads: 1,
        max_batch: BATCH,
    };
    let sizes =
        (0..samples).step_by(BATCH).map(move |first| BatchRequest::whole((samples - first).min(BATCH as u64) as usize));
    let own = options.own_shards();
    let mut loader = Loader::start(source, options, sizes).map_err(Error::Thread)?;
    let zero = objective.no_totals();
    let mut totals = vec![zero.clone(); own.len()];
    for first in (0..samples).step_by(BATCH) {
        let Some(batch) = loader.next_batch() else {
            // The loader ends early only if its thread has panicked.
            loader.finish()?;
            return Err(Error::NoMoreSamples(step));
        };
        let is_stopped = collective.rank() == 0 && is_stop_requested(first);
        let directive = if is_stopped { Directive::CheckpointAndStop } else { Directive::Continue };
        let vote = Vote { directive, unread: batch.is_err(), ..Vote::default() };
        let (agreed, _) = agreement::all_reduce_votes(collective, &mut [], vote, RankStats::default())?;
        let batch = match batch {
            Ok(batch) if agreed.unreadable_ranks == 0 => batch,
            unread => return Ok(EvalOutcome::Unreadable(unread.err())),
        };
        if agreed.directive == Directive::CheckpointAndStop {
            return Ok(EvalOutcome::Stopped);
        }
        for (sum, shard) in totals.iter_mut().zip(batch.whole().shards()) {
            // Samples are numbered within a batch.
            sum.add(&step::evaluate(objective, shard, Key::new(0).with(first))?);
        }
    }
    let mut sums = match request.parts {
        Some(parts) => ObjectiveTotals::scatter_shards(&zero, &totals, own.start, parts),
        None => ObjectiveTotals::scatter_shards(&zero, &totals, 0, 1),
    };
    collective.all_reduce_sum_f64(&mut sums)?;
    let totals = ObjectiveTotals::sum_shards(&zero, &sums);
    let scores = totals.scores();
    Ok(EvalOutcome::Completed(Evaluation {
        step,
        samples,
        masked_tokens: totals.masked_tokens(),
        loss: Some(totals.total_loss()).filter(|loss| loss.is_finite() && scores.iter().len() > 0),
        scores,
        unigram_entropy: request.dataset.manifest().unigram_entropy,
        extra: BTreeMap::new(),
    }))
}
