//! The training state, to and from the checkpoints of a run. It is weights, moments, counters and the data cursors, and
//! nothing else: order, masks and dropout are functions of these.
//!
//! - [`resume`]: the state to go on from, out of the newest checkpoint that verifies and fits
//! - [`saver`]: when to save, and saves beside the training; [`snapshot`] is the copy that is written, [`commit`] what
//!   rank 0 does when all ranks have written theirs, [`trouble`] what follows failures
//! - [`rollback`]: what an attempt that went back leaves for the next
//! - files and filler: the objects of a checkpoint, and how they are taken in as they are read

pub mod commit;
mod files;
mod filler;
mod resume;
pub mod rollback;
pub mod saver;
pub mod snapshot;
pub mod trouble;

use std::collections::BTreeMap;
use std::ops::Range;

use lambert_config::plan::{Ended, Place};
use lambert_config::run::{Guard, Model};
use lambert_data_prep::dataset::Dataset;
use lambert_store::checkpoint::Best;
use serde::{Deserialize, Serialize};

use crate::data::detours::Detours;
use crate::growth;
use crate::guard::{History, Verdict};
use crate::model::Parameters;
use crate::optim::{self, Optimizer};
use crate::plateau::Watched;
use crate::torch::TorchError;

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
    /// Steps whose loss or gradient was not finite; they changed nothing.
    pub skipped_updates: u64,
    /// Samples that were passed over or taught nothing.
    pub skipped_samples: u64,
    /// What of each dataset is not drawn, by the sha256 of its manifest.
    pub detours: BTreeMap<String, Detours>,
    /// What the steps of the stage have shown.
    pub history: History,
    /// What the evaluations of the stage have shown, where it may end at a plateau.
    pub watched: Watched,
    /// Stages that have ended at one.
    pub ended: Ended,
    /// Layers before the stage's growth, if its model has grown.
    pub grown_from: Option<usize>,
    /// Samples drawn from each dataset, by the sha256 of its manifest.
    pub cursors: BTreeMap<String, u64>,
}

/// The counters and facts of a manifest's `state`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Facts {
    /// Updates made.
    pub updates: u64,
    /// Of the encoder layers whose moments were zero after so many updates.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub born: BTreeMap<usize, u64>,
    /// Steps whose loss or gradient was not finite.
    pub skipped_updates: u64,
    /// Samples that were passed over or taught nothing.
    #[serde(default)]
    pub skipped_samples: u64,
    /// What of each dataset is not drawn, by the sha256 of its manifest.
    #[serde(default)]
    pub detours: BTreeMap<String, Detours>,
    /// What the steps of the stage have shown.
    #[serde(default)]
    pub history: History,
    /// What the evaluations of the stage have shown.
    #[serde(default, skip_serializing_if = "Watched::is_new")]
    pub watched: Watched,
    /// Stages that have ended at a plateau, and their steps.
    #[serde(default, skip_serializing_if = "Ended::is_empty")]
    pub ended: Ended,
    /// Layers before the stage's growth, if its model has grown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grown_from: Option<usize>,
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
            skipped_samples: 0,
            detours: BTreeMap::new(),
            history: History::default(),
            watched: Watched::default(),
            ended: Ended::new(),
            grown_from: None,
            cursors: BTreeMap::new(),
        }
    }

    /// Samples drawn from `dataset` so far.
    pub fn cursor(&self, dataset: &Dataset) -> u64 {
        self.cursors.get(dataset.manifest_sha256()).copied().unwrap_or(0)
    }

    /// Begins or goes on with a stage: the first step of each starts a new history, with the stage's depth, and with new
    /// moments if it says so. (Where a run is resumed before that step the same happens again.)
    ///
    /// # Errors
    /// No memory for a deeper model.
    pub fn enter(&mut self, model: &Model, place: &Place<'_>) -> Result<(), TorchError> {
        if place.done > 0 {
            return Ok(());
        }
        self.history = History::default();
        self.watched = Watched::default();
        growth::grow(self, model, &place.stage.growth, place.stage.depth(model))?;
        if place.stage.restart_optimizer {
            self.optimizer.restart();
        }
        Ok(())
    }

    /// Judges the next step by `loss` and the reduced gradients, and updates the weights if it is sound. The step drew
    /// `samples` of `dataset`, of which `passed` were passed over. All ranks see the same numbers, and so decide alike.
    /// Returns the gradient's norm where it is finite.
    pub fn update(&mut self, guard: &Guard, drawn: Drawn<'_>, loss: f64, learning_rate: f64) -> (Option<f64>, Verdict) {
        let Drawn { dataset, samples, passed } = drawn;
        let (specs, weights, gradients) = self.parameters.buffers_mut();
        let norm = optim::norm(gradients);
        let verdict = self.history.judge(guard, self.step, samples.clone(), loss, norm);
        match verdict {
            Verdict::GoBack(_) => return (Some(norm).filter(|norm| norm.is_finite()), verdict),
            Verdict::Sound => {
                self.optimizer.step(specs, weights, gradients, norm, learning_rate);
                self.skipped_samples += passed;
            }
            Verdict::Skip => {
                self.skipped_updates += 1;
                self.skipped_samples += samples.end - samples.start;
                self.detours.entry(dataset.to_owned()).or_default().add(samples.clone());
            }
        }
        let sound = verdict == Verdict::Sound;
        self.history.add(guard, self.step, samples.clone(), sound.then_some(loss));
        self.step += 1;
        self.cursors.insert(dataset.to_owned(), samples.end);
        (Some(norm).filter(|norm| norm.is_finite()), verdict)
    }
}

/// What a step drew.
pub struct Drawn<'a> {
    /// sha256 of the dataset's manifest.
    pub dataset: &'a str,
    /// Numbers of its samples, counted over all epochs.
    pub samples: Range<u64>,
    /// How many of them were passed over.
    pub passed: u64,
}
