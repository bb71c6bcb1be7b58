//! The training state, to and from the checkpoints of a run. It is weights, moments, counters and the data cursors, and
//! nothing else: order, masks and dropout are functions of these.
//!
//! - [`resume`]: the state to go on from, out of the newest checkpoint that verifies and fits
//! - [`saver`]: when to save, and saves beside the training; [`snapshot`] is the copy that is written, [`commit`] what
//!   rank 0 does when all ranks have written theirs, [`trouble`] what follows failures
//! - files and filler: the objects of a checkpoint, and how they are taken in as they are read

pub mod commit;
mod files;
mod filler;
mod resume;
pub mod saver;
pub mod snapshot;
pub mod trouble;

use std::collections::BTreeMap;

use lambert_data_prep::dataset::Dataset;
use lambert_store::checkpoint::Best;
use serde::{Deserialize, Serialize};

use crate::model::Parameters;
use crate::optim::{self, Optimizer};

pub use resume::{choose, read_model, read_state, resume};
pub use saver::Saver;

/// All that an update changes.
pub struct State {
    /// Steps finished since the run's first start.
    pub step: u64,
    /// Weights, and room for their gradients.
    pub parameters: Parameters,
    /// Moments.
    pub optimizer: Optimizer,
    /// Steps whose gradient was not finite; they changed nothing.
    pub skipped_updates: u64,
    /// Samples drawn from each dataset, by the sha256 of its manifest.
    pub cursors: BTreeMap<String, u64>,
}

/// The counters and facts of a manifest's `state`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Facts {
    /// Updates made.
    pub updates: u64,
    /// Steps whose gradient was not finite.
    pub skipped_updates: u64,
    /// Pieces of the vocabulary.
    pub vocabulary: usize,
    /// Whether text is lowercased before it is split into pieces.
    pub lowercase: bool,
}

/// Where a state comes from.
#[derive(Debug, Clone, Default)]
pub struct Origin {
    /// The run's checkpoint that holds it; `None` at the beginning of a run.
    pub checkpoint: Option<String>,
    /// The best checkpoint by held-out loss up to then.
    pub best: Option<Best>,
}

impl State {
    /// Step 0 with these weights and no moments.
    pub fn new(config: &lambert_config::RunConfig, parameters: Parameters) -> Self {
        let elements = parameters.values.numel();
        Self {
            step: 0,
            parameters,
            optimizer: Optimizer::new(config.optimizer.clone(), elements),
            skipped_updates: 0,
            cursors: BTreeMap::new(),
        }
    }

    /// Samples drawn from `dataset` so far.
    pub fn cursor(&self, dataset: &Dataset) -> u64 {
        self.cursors.get(dataset.manifest_sha256()).copied().unwrap_or(0)
    }

    /// Counts a finished step that drew `samples` from `dataset`.
    pub fn advance(&mut self, dataset: &Dataset, samples: usize) {
        self.step += 1;
        *self.cursors.entry(dataset.manifest_sha256().to_owned()).or_default() += samples as u64;
    }

    /// Updates the weights with the reduced gradients. Returns the gradient's norm, or `None` where it is not finite: then
    /// nothing was changed. All ranks see the same gradients, and so decide alike.
    pub fn update(&mut self, learning_rate: f64) -> Option<f64> {
        let (specs, weights, gradients) = self.parameters.buffers_mut();
        let norm = optim::norm(gradients);
        if !norm.is_finite() {
            self.skipped_updates += 1;
            return None;
        }
        self.optimizer.step(specs, weights, gradients, norm, learning_rate);
        Some(norm)
    }
}
