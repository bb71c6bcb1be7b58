//! Counters of the training state: skipped updates and samples, and the progress through the stages.

use std::collections::BTreeMap;

use lambert_plan::timeline::EarlyStops;

use super::plateau::Watched;
use crate::recovery::guard::History;
use crate::recovery::skipped_samples::SkippedSamples;

/// Updates and samples skipped since the run's first start.
#[derive(Debug, Clone, Default)]
pub struct Skipped {
    /// Steps whose loss or gradient was not finite; they changed nothing.
    pub updates: u64,
    /// Samples that were passed over or taught nothing.
    pub samples: u64,
    /// Samples and shards that are not drawn again, by the sha256 of their dataset's manifest.
    pub by_dataset: BTreeMap<String, SkippedSamples>,
}

/// Progress through the stages of a run.
#[derive(Debug, Clone, Default)]
pub struct StageProgress {
    /// The stage that was entered last: its growth and whatever else happens once is done.
    pub entered: Option<usize>,
    /// Layers before the stage's growth, if its model has grown.
    pub grown_from: Option<usize>,
    /// Losses of the stage's steps, for the divergence guard.
    pub history: History,
    /// Held-out losses of the stage, where it may end at a plateau.
    pub watched: Watched,
    /// Stages that have ended at a plateau.
    pub ended: EarlyStops,
}
