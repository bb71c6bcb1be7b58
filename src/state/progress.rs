//! Counters of the training state: skipped updates and samples, and progress through the stages.

use std::collections::BTreeMap;

use lambert_plan::timeline::EarlyStops;

use super::plateau::PlateauTracker;
use crate::recovery::guard::LossHistory;
use crate::recovery::skipped_samples::SkippedSamples;
use crate::recovery::spikes::SpikeHistory;

/// Updates and samples skipped since the start of the run.
#[derive(Debug, Clone, Default)]
pub struct Skipped {
    /// Number of steps without an update, because loss or gradient was not finite.
    pub updates: u64,
    /// Number of samples that were not drawn, or whose update was skipped.
    pub samples: u64,
    /// Skipped samples by mixture id, and skipped shards by the SHA-256 of the dataset manifest.
    pub by_source: BTreeMap<String, SkippedSamples>,
}

/// Progress through the stages of a run.
#[derive(Debug, Clone, Default)]
pub struct StageProgress {
    /// Latest stage that was entered. Its growth and its optimizer restart are complete.
    pub entered: Option<usize>,
    /// Number of layers before the growth of the stage, if the model has grown.
    pub grown_from: Option<usize>,
    /// Loss history of the stage, for the divergence guard.
    pub losses: LossHistory,
    /// Latest losses and gradient norms of the stage, and the spikes of the run.
    pub spikes: SpikeHistory,
    /// Plateau detector of the stage.
    pub plateau: PlateauTracker,
    /// Stages that ended at a plateau.
    pub early_stops: EarlyStops,
    /// ID of the mixture that the stage reads; `None` if an earlier version saved the state.
    pub mixture_id: Option<String>,
}
