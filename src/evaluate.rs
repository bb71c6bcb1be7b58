//! Held-out loss and accuracy. Samples are read in the order of the files, with masks that are the same for every run,
//! so that two models are asked the same questions.

use std::sync::Arc;

use lambert_collective::Group;
use lambert_config::control::Evaluation;
use lambert_config::run::{MaskToken, MaskUnit, Objective, Test};
use lambert_data_prep::dataset::{Dataset, DatasetError};

use crate::data::detours::Detours;
use crate::data::loader::Demand;
use crate::data::{Loader, Source, Wanted};
use crate::error::Error;
use crate::model::Bert;
use crate::step;
use crate::totals::Totals;

/// Samples that are cut into micro-batches together.
const BATCH: usize = 256;

/// What to look at.
pub struct Question {
    /// The dataset.
    pub dataset: Arc<Dataset>,
    /// How tokens are hidden.
    pub objective: Objective,
    /// Samples at most; 0 for all.
    pub samples: u64,
    /// Tokens of a micro-batch at most.
    pub micro_batch_tokens: usize,
    /// Parts that the samples are cut into; `None`: one a rank.
    pub parts: Option<usize>,
}

/// Loss and accuracy of `bert` after `step` steps, over all ranks. Where a rank could not read its samples, all ranks learn of it: then the
/// error, on the rank that met it.
pub fn evaluate(
    bert: &Bert,
    collective: &mut dyn Group,
    question: &Question,
    step: u64,
) -> Result<Result<Evaluation, Option<DatasetError>>, Error> {
    let rows = question.dataset.rows();
    let samples = if question.samples == 0 { rows } else { rows.min(question.samples) };
    let source = Source {
        dataset: Arc::clone(&question.dataset),
        // Single pieces behind [MASK], whatever the model is trained on.
        objective: Objective { mask_unit: MaskUnit::Piece, mask_token: MaskToken::Mask, ..question.objective.clone() },
        seed: 0,
        shuffle: false,
        test: Test::default(),
    };
    let demand = Demand {
        cursor: 0,
        detours: Detours::default(),
        micro_batch_tokens: question.micro_batch_tokens,
        rank: collective.rank(),
        world: collective.world(),
        parts: question.parts.unwrap_or(collective.world()),
        threads: 1,
        largest: BATCH,
    };
    let sizes =
        (0..samples).step_by(BATCH).map(move |first| Wanted::whole((samples - first).min(BATCH as u64) as usize));
    let own = demand.own();
    let mut loader = Loader::start(source, demand, sizes).map_err(Error::Thread)?;
    let mut totals = vec![Totals::default(); own.len()];
    let mut unread = None;
    while let Some(batch) = loader.next_batch() {
        let batch = match batch {
            Ok(batch) => batch,
            Err(error) => {
                unread = Some(error);
                break;
            }
        };
        for (sum, leaf) in totals.iter_mut().zip(batch.whole().leaves()) {
            *sum = sum.and(&step::evaluate(bert, leaf)?);
        }
    }
    // A reader that has panicked has given fewer samples than were asked for.
    if unread.is_none() {
        loader.finish()?;
    }
    let mut sums = match question.parts {
        Some(parts) => Totals::in_places(&totals, own.start, parts),
        None => Totals::in_places(&totals, 0, 1),
    };
    sums.push(f64::from(u8::from(unread.is_some())));
    collective.all_reduce_sum_f64(&mut sums)?;
    if sums.pop() != Some(0.0) {
        return Ok(Err(unread));
    }
    let totals = Totals::of_places(&sums);
    Ok(Ok(Evaluation {
        step,
        samples,
        masked_tokens: totals.hidden_tokens(),
        scores: totals.scores(),
        unigram_entropy: question.dataset.manifest().unigram_entropy,
    }))
}
