//! Held-out loss and accuracy. Samples are read in the order of the files, with masks that are the same for every run,
//! so that two models are asked the same questions.

use std::sync::Arc;

use lambert_collective::Group;
use lambert_config::control::Evaluation;
use lambert_config::run::{MaskToken, MaskUnit, Objective, Test};
use lambert_data_prep::dataset::Dataset;

use crate::data::detours::Detours;
use crate::data::loader::Demand;
use crate::data::{Loader, Source};
use crate::error::Error;
use crate::model::Bert;
use crate::step::{self, Totals};

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
}

/// Loss and accuracy of `bert` after `step` steps, over all ranks.
pub fn evaluate(bert: &Bert, collective: &mut dyn Group, question: &Question, step: u64) -> Result<Evaluation, Error> {
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
        threads: 1,
        largest: BATCH,
    };
    let sizes = (0..samples).step_by(BATCH).map(move |first| (samples - first).min(BATCH as u64) as usize);
    let mut loader = Loader::start(source, demand, sizes).map_err(Error::Thread)?;
    let mut sums = Totals::default().as_array();
    while let Some(batch) = loader.next_batch() {
        let totals = step::evaluate(bert, &batch?.micro_batches)?;
        sums.iter_mut().zip(totals.as_array()).for_each(|(sum, value)| *sum += value);
    }
    // A reader that has panicked has given fewer samples than were asked for.
    loader.finish()?;
    collective.all_reduce_sum_f64(&mut sums)?;
    let totals = Totals::from_array(sums);
    Ok(Evaluation {
        step,
        samples,
        masked_tokens: totals.hidden_tokens(),
        scores: totals.scores(),
        unigram_entropy: question.dataset.manifest().unigram_entropy,
    })
}
