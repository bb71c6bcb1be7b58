//! Position in the data of a stage: the samples that a step drew, and the cursors in the training state.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use lambert_control::DatasetStats;
use lambert_dataset::Dataset;

use crate::data::{DatasetPart, GlobalBatch, Mixture, MixturePosition};
use crate::state::TrainState;

/// Samples of a step, including skipped samples.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct StepSamples {
    /// ID of the mixture: the SHA-256 of the manifest of a single dataset.
    pub mixture: String,
    /// Mixture numbers of the samples.
    pub samples: Range<u64>,
    /// Number of samples taken from each dataset after this step, by the SHA-256 of its manifest.
    pub positions: BTreeMap<String, u64>,
    /// Samples of each dataset, by name. Empty for a single dataset.
    pub datasets: BTreeMap<String, DatasetStats>,
    /// Number of these samples that were skipped.
    pub skipped: u64,
}

impl StepSamples {
    /// Samples of a global batch of `mixture`.
    pub fn of(mixture: &Mixture, batch: &GlobalBatch) -> Self {
        let parts = || mixture.datasets().iter().zip(&batch.datasets);
        let position =
            |(dataset, part): (&Arc<Dataset>, &DatasetPart)| (dataset.manifest_sha256().to_owned(), part.cursor_after);
        let samples = batch.lengths.len().max(1) as f64;
        let stats = |(dataset, part): (&Arc<Dataset>, &DatasetPart)| DatasetStats {
            share: part.samples as f64 / samples,
            epochs: part.cursor_after as f64 / dataset.rows().max(1) as f64,
        };
        let datasets = match mixture.is_single() {
            true => BTreeMap::new(),
            false => mixture.names().iter().cloned().zip(parts().map(stats)).collect(),
        };
        Self {
            mixture: mixture.id().to_owned(),
            samples: batch.sample_range.clone(),
            positions: parts().map(position).collect(),
            datasets,
            skipped: batch.skipped(),
        }
    }

    /// True if the mixture is a single dataset.
    fn is_single(&self) -> bool {
        self.positions.contains_key(&self.mixture)
    }
}

/// Returns the position of a mixture after the steps so far. A dataset continues where the stages before ended.
pub fn resume(state: &TrainState, mixture: &Mixture, seed: u64) -> MixturePosition {
    let drawn = |dataset: &Arc<Dataset>| state.dataset_cursors.get(dataset.manifest_sha256()).copied().unwrap_or(0);
    if mixture.is_single() {
        return MixturePosition { next: drawn(&mixture.datasets()[0]), drawn_by_others: Vec::new() };
    }
    let next = state.mixture_cursors.get(mixture.id()).copied().unwrap_or(0);
    let taken = mixture.order(seed).taken(next);
    let others = mixture.datasets().iter().zip(taken).map(|(dataset, taken)| drawn(dataset).saturating_sub(taken));
    MixturePosition { next, drawn_by_others: others.collect() }
}

/// Advances the cursors of `state` past the samples of a step.
pub fn advance(state: &mut TrainState, drawn: &StepSamples) {
    state.dataset_cursors.extend(drawn.positions.clone());
    if !drawn.is_single() {
        state.mixture_cursors.insert(drawn.mixture.clone(), drawn.samples.end);
    }
}
