//! What keeps a run on its way, and the faults that tests put in its way.

use serde::{Deserialize, Serialize};

/// What is done about a shard that cannot be read in mid-run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DamagedShard {
    /// A checkpoint is saved and the run stops.
    #[default]
    Stop,
    /// Its samples are left out from then on, and counted.
    Skip,
}

/// What keeps the run on its way: when a step is undone and gone around.
///
/// A step whose loss or gradient is not finite changes nothing. Several in a row, or a loss above its band, send the run
/// back to the last checkpoint from before them, and around their samples.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Guard {
    /// So many steps in a row without a finite loss and gradient go back; 0: they are skipped for ever.
    pub nonfinite_steps: u64,
    /// The band of the loss ends so many standard deviations above its running mean, and a tenth of the mean at least;
    /// 0: there is no band.
    pub loss_band: f64,
    /// Steps that mean and deviation are taken over, each stage's anew; there is no band before as many.
    pub loss_window: u64,
    /// Global batches before the first bad one that are gone around, too: the update that derails a run shows in the loss
    /// of the batch after it.
    pub batches_before: u64,
    /// Going back so often in a row without getting anywhere gives the run up.
    pub rollbacks: usize,
    /// What is done about a shard that cannot be read.
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

/// Faults on purpose: samples, by their rows in the stages' datasets, whose losses are falsified, and weights that change by
/// themselves. For tests.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Test {
    /// Their loss is not a number.
    pub nan_samples: Vec<u64>,
    /// Their loss is multiplied by 1,000,000.
    pub million_samples: Vec<u64>,
    /// In the first attempt a bit of this rank's weights flips after this step: \[rank, step\] of each.
    pub flipped_weights: Vec<[u64; 2]>,
    /// In the first attempt the last second moment becomes infinite after these steps.
    pub infinite_moments: Vec<u64>,
}

impl Test {
    /// Whether nothing is falsified.
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }

    /// Whether a bit of the weights of `rank` flips after `step` of `attempt`.
    pub fn flips(&self, attempt: u32, rank: usize, step: u64) -> bool {
        attempt == 1 && self.flipped_weights.contains(&[rank as u64, step])
    }

    /// Whether a moment becomes infinite after `step` of `attempt`.
    pub fn spoils_moments(&self, attempt: u32, step: u64) -> bool {
        attempt == 1 && self.infinite_moments.contains(&step)
    }

    /// What the loss of the sample in `row` is multiplied with.
    pub fn factor(&self, row: u64) -> f32 {
        match row {
            row if self.nan_samples.contains(&row) => f32::NAN,
            row if self.million_samples.contains(&row) => 1e6,
            _ => 1.0,
        }
    }
}
