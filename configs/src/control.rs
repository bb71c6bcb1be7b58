//! What ranks tell of a run and what they are told: the records and events that logs, files and messages carry. How they
//! travel is cluster/control's.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::objectives::Scores;

/// What the coordinator wants of the ranks. Rank 0 passes it on, so that all act at the same step.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Directive {
    /// Go on.
    #[default]
    Continue,
    /// Save a checkpoint after this step, then go on.
    Checkpoint,
    /// Save a checkpoint after this step, then exit with [`crate::exit::STOPPED`].
    CheckpointAndStop,
}

/// Something that happened once, for people and for `status`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum EventKind {
    /// Training starts at `step`: from nothing, or from a checkpoint.
    Started {
        /// Steps finished so far.
        step: u64,
        /// Steps of all stages.
        steps: u64,
        /// The checkpoint that it goes on from.
        checkpoint: Option<String>,
        /// Newer checkpoints that did not verify, each with the reason.
        passed_over: Vec<String>,
    },
    /// A checkpoint was committed.
    Checkpoint {
        /// Its name, as `step-000012000-a0003`.
        name: String,
        /// Its step.
        step: u64,
        /// How long training paused for it.
        seconds: f64,
        /// From the copy of the state to the manifest, most of it beside the training.
        #[serde(default)]
        written: f64,
    },
    /// The held-out loss was measured.
    Evaluation(Evaluation),
    /// The held-out loss is flat: a stage ends before its last step.
    Plateau {
        /// Steps finished.
        step: u64,
        /// The stage that ends.
        stage: String,
        /// Steps of it.
        done: u64,
        /// Steps of all stages, now.
        steps: u64,
    },
    /// The model has more layers from here on.
    Grown {
        /// Steps finished.
        step: u64,
        /// Layers before.
        from: usize,
        /// Layers now.
        to: usize,
        /// The stage that begins.
        stage: String,
    },
    /// How large micro-batches are in this attempt, in a stage that leaves it open.
    MicroBatch {
        /// The stage.
        stage: String,
        /// Tokens of a micro-batch at most.
        tokens: usize,
    },
    /// Something a person should know; training goes on.
    Warning {
        /// One sentence.
        message: String,
    },
    /// The run goes back and around what derailed it: the workers leave in good order, for a new attempt.
    RolledBack {
        /// What happened and what follows.
        message: String,
        /// The step at which that was decided.
        #[serde(default)]
        step: u64,
        /// Steps that stay: checkpoints of more are undone.
        #[serde(default)]
        to: u64,
    },
    /// The worker is done with this attempt in good order and exits with 0.
    Finished {
        /// Steps finished.
        step: u64,
        /// It was told to stop; the run has more steps.
        stopped: bool,
    },
    /// This rank cannot go on and exits.
    Failed {
        /// The whole chain of causes.
        message: String,
        /// What a new attempt may hope for.
        fault: Fault,
    },
}

/// What kind of failure ended a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fault {
    /// A new attempt would meet it again: a damaged shard.
    Lasting,
    /// A new attempt would meet it again soon, and perhaps not hours later: a store that takes no checkpoint.
    Later,
    /// The command line or the configuration is wrong.
    Usage,
    /// A new attempt may be spared it: a store that was away.
    Passing,
    /// It is this host's, and may pass: a mount that is missing, a disk that fails to read.
    Host,
    /// A newer attempt, of another coordinator, holds the run.
    LeaseLost,
}

/// Loss and accuracy on held-out samples.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Evaluation {
    /// Steps finished.
    pub step: u64,
    /// Samples looked at.
    pub samples: u64,
    /// Masked tokens looked at.
    pub masked_tokens: u64,
    /// Loss and accuracy of each objective: `mlm_loss`, `mlm_accuracy`, `pair_loss`, ...
    #[serde(flatten)]
    pub scores: Scores,
    /// Entropy of the dataset's pieces, nats: the loss of the unigram baseline.
    pub unigram_entropy: f64,
}

/// Estimates of one step; single ones stray, and may be negative. The ratio of the averages of `variance` and `gradient` over
/// many steps is the gradient noise scale, in samples.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct GradientNoise {
    /// The squared L2 norm of the gradient of the expected loss.
    pub gradient: f64,
    /// The trace of the covariance of one sample's gradient.
    pub variance: f64,
}

/// What one step did; a line of the run's metrics.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct StepRecord {
    /// Steps finished, this one included, since the run's first start.
    pub step: u64,
    /// Name of the stage.
    pub stage: String,
    /// Passes through the stage's dataset finished before this step's first sample.
    pub epoch: u64,
    /// Samples of the global batch.
    pub samples: u64,
    /// Tokens of the global batch, without padding.
    pub tokens: u64,
    /// Tokens of padding that all ranks computed with, over `tokens`.
    #[serde(default)]
    pub padding: f64,
    /// Tokens of the rank with the most over the mean of all ranks, padding included: how much longer than need be a step
    /// takes. 0 in records of before.
    #[serde(default)]
    pub balance: f64,
    /// Masked tokens of the global batch.
    pub masked_tokens: u64,
    /// Sum of a 32-bit hash of each sample as it was fed, masks included: equal digests mean the same samples under the
    /// same masks, whatever the world and the micro-batches.
    pub batch_digest: u64,
    /// The sum of the objectives' losses.
    #[serde(with = "finite")]
    pub loss: f64,
    /// Loss and accuracy of each objective: `mlm_loss`, `mlm_accuracy`, `pair_loss`, ...
    #[serde(flatten)]
    pub scores: Scores,
    /// Learning rate of this step.
    pub learning_rate: f64,
    /// L2 norm of the whole gradient, before clipping; absent where it was not finite and the step changed nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grad_norm: Option<f64>,
    /// How noisy the gradient is, in steps that measured it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub noise: Option<GradientNoise>,
    /// LAMB's trust ratio of each tensor that has one, in steps that recorded them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub trust_ratios: BTreeMap<String, f64>,
    /// Updates of the run up to here that changed nothing, because loss or gradient were not finite.
    #[serde(default)]
    pub skipped_updates: u64,
    /// Samples up to here that were passed over or taught nothing: those of such updates, those that the run went back
    /// around, and those of damaged shards.
    #[serde(default)]
    pub skipped_samples: u64,
    /// Wall-clock seconds of the step, the following parts included.
    pub seconds: f64,
    /// Seconds spent waiting for samples.
    pub data_wait: f64,
    /// Seconds of forward and backward passes.
    pub forward_backward: f64,
    /// Seconds of communication that nothing else hid.
    pub communicate: f64,
    /// Seconds until each rank was done with its own samples, and with waiting for them; absent in records of before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ranks: Option<RankTimes>,
    /// Seconds of the weight update.
    pub optimizer: f64,
    /// Seconds that saving a checkpoint held up training.
    pub checkpoint: f64,
    /// Samples of the global batch over `seconds`.
    pub samples_per_second: f64,
    /// Tokens of the global batch over `seconds`.
    pub tokens_per_second: f64,
    /// Useful floating-point operations (no padding, no logits at unmasked positions) over `seconds` and over the peak
    /// that the workers measured at their start; 0 if it was not measured.
    pub flops_utilization: f64,
}

/// How a time is spread over the ranks, seconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct RankTimes {
    /// Of the fastest rank.
    pub min: f64,
    /// Of the one in the middle; the slower one of two.
    pub median: f64,
    /// Of the slowest.
    pub max: f64,
    /// Which one that is; the first of several.
    pub slowest: usize,
}

impl RankTimes {
    /// From each rank's time, in the order of the ranks; `None` for no ranks.
    pub fn of(times: &[f64]) -> Option<Self> {
        let mut sorted = times.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (min, max) = (*sorted.first()?, *sorted.last()?);
        let slowest = times.iter().position(|time| *time == max)?;
        Some(Self { min, median: sorted[sorted.len() / 2], max, slowest })
    }
}

/// JSON has no NaN: a loss that is not finite is written as null and read back as NaN.
mod finite {
    use serde::{Deserialize, Deserializer, Serializer};

    pub fn serialize<S: Serializer>(value: &f64, serializer: S) -> Result<S::Ok, S::Error> {
        if value.is_finite() { serializer.serialize_f64(*value) } else { serializer.serialize_none() }
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
        Ok(Option::deserialize(deserializer)?.unwrap_or(f64::NAN))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_ranks_are_told_by_their_spread_and_the_slowest() {
        assert_eq!(RankTimes::of(&[]), None);
        let one = RankTimes::of(&[2.0]).unwrap();
        assert_eq!((one.min, one.median, one.max, one.slowest), (2.0, 2.0, 2.0, 0));
        let four = RankTimes::of(&[3.0, 1.0, 5.0, 2.0]).unwrap();
        assert_eq!((four.min, four.median, four.max, four.slowest), (1.0, 3.0, 5.0, 2));
    }
}
