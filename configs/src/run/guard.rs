//! Divergence guard, and fault injection for tests.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Handling of shards that become unreadable during a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum DamagedShard {
    /// Save a checkpoint and stop.
    #[default]
    Stop,
    /// Skip the samples of the shard from then on, and count them.
    Skip,
}

/// Divergence guard.
///
/// A step with a non-finite loss or gradient does not update the weights. After several such steps in a row, or after a
/// loss above the loss band, the run rolls back to the last checkpoint before these steps and skips their samples.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Guard {
    /// Number of consecutive steps with non-finite loss or gradient that triggers a rollback. 0: no rollback.
    ///
    /// The weight update of each such step is skipped in any case.
    pub nonfinite_steps: u64,
    /// Width of the loss band above the running mean, in standard deviations. 0: no band.
    ///
    /// The width is at least a tenth of the mean. A loss above the band triggers a rollback.
    pub loss_band: f64,
    /// Window for the running mean and the standard deviation of the loss, in steps.
    ///
    /// The window restarts with each stage. The loss band applies once the window is full.
    pub loss_window: u64,
    /// Number of additional global batches to skip before the first bad batch.
    ///
    /// A harmful update becomes visible only in the loss of the next batch.
    pub batches_before: u64,
    /// Maximum number of consecutive rollbacks without progress. With one more, the run fails (exit code 65).
    pub rollbacks: usize,
    /// Handling of unreadable shards.
    pub damaged_shard: DamagedShard,
}

impl Default for Guard {
    fn default() -> Self {
        Self {
            nonfinite_steps: 3,
            loss_band: 10.0,
            loss_window: 100,
            batches_before: 1,
            rollbacks: 10,
            damaged_shard: DamagedShard::Stop,
        }
    }
}

/// Fault injection for tests: wrong losses of samples, corrupted weights or moments, and an emulated GPU. Samples are given by their
/// row in the dataset of a stage.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct FaultInjection {
    /// Samples whose loss becomes NaN.
    pub nan_samples: Vec<u64>,
    /// Samples whose loss is multiplied by 1,000,000.
    pub million_samples: Vec<u64>,
    /// \[rank, step\] pairs. In the first attempt, a bit in the weights of this rank flips after this step.
    pub flipped_weights: Vec<[u64; 2]>,
    /// Steps of the first attempt after which the last second moment becomes infinite.
    pub infinite_moments: Vec<u64>,
    /// Library in place of NVML, for ranks without a GPU. Empty: none.
    pub gpu: String,
}

impl FaultInjection {
    /// True if no fault is injected.
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }

    /// True if a bit of the weights of `rank` flips after `step` of `attempt`.
    pub fn flips(&self, attempt: u32, rank: usize, step: u64) -> bool {
        attempt == 1 && self.flipped_weights.contains(&[rank as u64, step])
    }

    /// True if a moment becomes infinite after `step` of `attempt`.
    pub fn corrupts_moments(&self, attempt: u32, step: u64) -> bool {
        attempt == 1 && self.infinite_moments.contains(&step)
    }

    /// Returns the factor by which the loss of the sample in `row` is multiplied.
    pub fn factor(&self, row: u64) -> f32 {
        match row {
            row if self.nan_samples.contains(&row) => f32::NAN,
            row if self.million_samples.contains(&row) => 1e6,
            _ => 1.0,
        }
    }
}
