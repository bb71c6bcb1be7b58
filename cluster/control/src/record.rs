//! Records of steps. They are written to logs and files and sent in messages.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::gpu::GpuRanges;
use super::scores::Scores;

/// Estimates of the gradient noise in one step. A single estimate varies strongly and can be negative. The gradient
/// noise scale, in samples, is the average of `variance` over many steps divided by the average of `gradient`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct GradientNoise {
    /// Squared L2 norm of the gradient of the expected loss.
    pub gradient: f64,
    /// Trace of the covariance matrix of the gradient of one sample.
    pub variance: f64,
}

/// Record of a step: one line of the metrics of the run. The parts are flattened: their fields become keys of one JSON
/// object.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct StepRecord {
    /// Completed steps of the run over all attempts, including this step.
    pub step: u64,
    /// Name of the stage.
    pub stage: String,
    /// Number of passes through the dataset of the stage that were complete before the first sample of this step. In a
    /// mixture, the largest such number.
    pub epoch: u64,
    /// Samples of each dataset of a mixture, by the name of the dataset. Empty without a mixture.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub mixture: BTreeMap<String, DatasetStats>,
    /// The global batch.
    #[serde(flatten)]
    pub batch: BatchStats,
    /// The total loss.
    #[serde(with = "finite")]
    pub loss: f64,
    /// Value and accuracy of each loss: `mlm_loss`, `mlm_accuracy`, `pair_loss`, ...
    #[serde(flatten)]
    pub scores: Scores,
    /// The weight update.
    #[serde(flatten)]
    pub update: UpdateStats,
    /// Updates and samples skipped so far.
    #[serde(flatten)]
    pub skipped: SkipCounts,
    /// Wall-clock times.
    #[serde(flatten)]
    pub times: StepTimes,
    /// Throughput.
    #[serde(flatten)]
    pub throughput: Throughput,
    /// Peak memory of the rank with the highest peak since the start of its process, bytes: memory of the libtorch
    /// allocator on a GPU, resident memory on a CPU. Absent in records of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peak_memory: Option<u64>,
    /// Ranges of the last values of the ranks' GPUs. Absent without GPUs or without NVML.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<GpuRanges>,
}

/// Samples of one dataset of a mixture.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct DatasetStats {
    /// Fraction of the samples of the step.
    pub share: f64,
    /// Number of passes over the dataset so far. Not an integer within a pass.
    pub epochs: f64,
}

/// The size and the digest of a global batch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct BatchStats {
    /// Samples.
    pub samples: u64,
    /// Tokens, without padding.
    pub tokens: u64,
    /// Padding tokens in the micro-batches of all ranks, divided by `tokens`.
    #[serde(default)]
    pub padding: f64,
    /// Number of tokens, with padding, of the rank that has the most tokens, divided by the mean over all ranks.
    /// Imbalance lengthens the step by this factor. 0 in records of earlier versions.
    #[serde(default, alias = "balance")]
    pub imbalance: f64,
    /// Masked tokens.
    pub masked_tokens: u64,
    /// Sum over the samples of a 32-bit hash of the masked sample. Equal digests mean the same samples with the same
    /// masks. The digest does not depend on the world size or the micro-batch size.
    #[serde(rename = "batch_digest")]
    pub digest: u64,
    /// Sum over the masked tokens of a 24-bit hash of the token that the generator drew. Absent without a generator. A draw may
    /// differ between world sizes where two tokens are almost equally good.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drawn_digest: Option<u64>,
}

/// The learning rate and the gradient of a weight update.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct UpdateStats {
    /// Learning rate of this step.
    pub learning_rate: f64,
    /// L2 norm of the whole gradient, before clipping. Absent if the norm was not finite, in which case the update was
    /// skipped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grad_norm: Option<f64>,
    /// Fraction of the steps so far in which the loss or the gradient norm was a spike. Absent in the first steps of a run,
    /// and in records of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spike_score: Option<f64>,
    /// Gradient noise. Present only in steps that measured it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub noise: Option<GradientNoise>,
    /// Factor of the learning rate of each tensor that has one, such as LAMB's trust ratio. Empty in steps that did not record trust ratios.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub trust_ratios: BTreeMap<String, f64>,
}

/// Updates and samples that a run has skipped up to a step.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SkipCounts {
    /// Updates that were skipped because the loss or the gradient was not finite.
    #[serde(default, rename = "skipped_updates")]
    pub updates: u64,
    /// Samples of skipped updates, samples skipped after a rollback, and samples of damaged shards.
    #[serde(default, rename = "skipped_samples")]
    pub samples: u64,
}

/// The wall-clock times of a step, seconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct StepTimes {
    /// The whole step, including the parts below.
    pub seconds: f64,
    /// Waiting for samples.
    pub data_wait: f64,
    /// Forward and backward passes.
    pub forward_backward: f64,
    /// Communication that did not overlap with computation.
    #[serde(alias = "communicate")]
    pub communication: f64,
    /// Distribution over the ranks of `data_wait` plus `forward_backward`. Absent in records of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ranks: Option<RankTimes>,
    /// The weight update.
    pub optimizer: f64,
    /// Pause of training for a checkpoint.
    pub checkpoint: f64,
}

/// Work of a step, divided by the whole time of the step.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Throughput {
    /// Samples of the global batch per second.
    pub samples_per_second: f64,
    /// Tokens of the global batch per second.
    pub tokens_per_second: f64,
    /// Useful floating-point operations per second, divided by the peak that the workers measured at startup. Padding,
    /// and logits at unmasked positions, do not count as useful. 0 if the peak was not measured.
    pub flops_utilization: f64,
}

impl Throughput {
    /// Multiplies all rates by `factor`.
    pub fn scale(&mut self, factor: f64) {
        for rate in [&mut self.samples_per_second, &mut self.tokens_per_second, &mut self.flops_utilization] {
            *rate *= factor;
        }
    }
}

/// Distribution of a time over the ranks, seconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct RankTimes {
    /// Time of the fastest rank.
    pub min: f64,
    /// Median over the ranks. For an even number of ranks, the larger of the two middle times.
    pub median: f64,
    /// Time of the slowest rank.
    pub max: f64,
    /// The slowest rank, or the lowest of several equally slow ranks.
    pub slowest: usize,
}

impl RankTimes {
    /// Summarizes the time of each rank, given in the order of the ranks. Returns `None` if there are no ranks.
    pub fn of(times: &[f64]) -> Option<Self> {
        let mut sorted = times.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (min, max) = (*sorted.first()?, *sorted.last()?);
        let slowest = times.iter().position(|time| *time == max)?;
        Some(Self { min, median: sorted[sorted.len() / 2], max, slowest })
    }
}

/// JSON has no NaN. A loss that is not finite is therefore written as null and read back as NaN.
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
    use crate::{Message, Score, SequencedMessage, ValueRange};

    /// JSON text of a record with every field.
    const FULL: &str = concat!(
        r#"{"step":7,"stage":"short","epoch":1,"mixture":{"books":{"share":0.25,"epochs":1.5}},"samples":256,"tokens":30000,"padding":0.03125,"imbalance":1.05,"#,
        r#""masked_tokens":4500,"batch_digest":18446744073709551615,"loss":7.25,"mlm_loss":6.5,"mlm_accuracy":0.25,"#,
        r#""pair_loss":null,"learning_rate":0.0001,"grad_norm":2.5,"spike_score":0.0625,"#,
        r#""noise":{"gradient":-0.5,"variance":30.0},"trust_ratios":{"bert.pooler.dense.weight":0.125},"skipped_updates":2,"skipped_samples":512,"#,
        r#""seconds":4.0,"data_wait":0.5,"forward_backward":2.0,"communication":0.25,"ranks":{"min":1.0,"median":1.5,"#,
        r#""max":2.0,"slowest":3},"optimizer":0.75,"checkpoint":0.5,"samples_per_second":64.0,"#,
        r#""tokens_per_second":7500.0,"flops_utilization":0.375,"peak_memory":1234567890,"#,
        r#""gpu":{"utilization":{"min":0.5,"max":0.75}}}"#,
    );

    /// JSON text of a record without the optional fields, and with a loss that is not finite.
    const EMPTY: &str = concat!(
        r#"{"step":0,"stage":"","epoch":0,"samples":0,"tokens":0,"padding":0.0,"imbalance":0.0,"masked_tokens":0,"#,
        r#""batch_digest":0,"loss":null,"learning_rate":0.0,"skipped_updates":0,"skipped_samples":0,"seconds":0.0,"#,
        r#""data_wait":0.0,"forward_backward":0.0,"communication":0.0,"optimizer":0.0,"checkpoint":0.0,"#,
        r#""samples_per_second":0.0,"tokens_per_second":0.0,"flops_utilization":0.0}"#,
    );

    fn read(text: &str) -> serde_json::Result<StepRecord> {
        serde_json::from_str(text)
    }

    /// The record whose JSON text is [`FULL`].
    fn full() -> StepRecord {
        let score = Score::new;
        let scores = [score("mlm", 6.5, Some(0.25)), score("pair", f64::NAN, None)];
        StepRecord {
            step: 7,
            stage: "short".to_owned(),
            epoch: 1,
            mixture: [("books".to_owned(), DatasetStats { share: 0.25, epochs: 1.5 })].into(),
            batch: BatchStats {
                samples: 256,
                tokens: 30_000,
                padding: 0.03125,
                imbalance: 1.05,
                masked_tokens: 4500,
                digest: u64::MAX,
                drawn_digest: None,
            },
            loss: 7.25,
            scores: scores.into_iter().collect(),
            update: UpdateStats {
                learning_rate: 1e-4,
                grad_norm: Some(2.5),
                spike_score: Some(0.0625),
                noise: Some(GradientNoise { gradient: -0.5, variance: 30.0 }),
                trust_ratios: [("bert.pooler.dense.weight".to_owned(), 0.125)].into(),
            },
            skipped: SkipCounts { updates: 2, samples: 512 },
            times: StepTimes {
                seconds: 4.0,
                data_wait: 0.5,
                forward_backward: 2.0,
                communication: 0.25,
                ranks: Some(RankTimes { min: 1.0, median: 1.5, max: 2.0, slowest: 3 }),
                optimizer: 0.75,
                checkpoint: 0.5,
            },
            throughput: Throughput { samples_per_second: 64.0, tokens_per_second: 7500.0, flops_utilization: 0.375 },
            peak_memory: Some(1_234_567_890),
            gpu: Some(GpuRanges { utilization: Some(ValueRange { min: 0.5, max: 0.75 }), ..GpuRanges::default() }),
        }
    }

    #[test]
    fn records_keep_their_keys_and_their_order() {
        let text = |record: &StepRecord| serde_json::to_string(record).unwrap();
        assert_eq!(text(&full()), FULL);
        assert_eq!(text(&StepRecord { loss: f64::NAN, ..StepRecord::default() }), EMPTY);
        assert_eq!(text(&read(FULL).unwrap()), FULL);
        assert_eq!(text(&read(EMPTY).unwrap()), EMPTY);
    }

    #[test]
    fn records_of_earlier_versions_are_read() {
        let optional = [
            (r#""padding":0.0,"#, ""),
            (r#""imbalance":0.0,"#, ""),
            (r#""skipped_updates":0,"#, ""),
            (r#""skipped_samples":0,"#, r#""grad_norm":null,"ranks":null,"#),
            // Other JSON writers than serde_json write 0.0 as 0.
            (r#"0.0"#, "0"),
            (r#""step":0"#, r#""unknown":{"step":[1]},"step":0"#),
        ];
        let earlier = optional.iter().fold(EMPTY.to_owned(), |text, (now, then)| text.replace(now, then));
        assert!(!earlier.contains("imbalance") && !earlier.contains("0.0"), "{earlier}");
        assert_eq!(serde_json::to_string(&read(&earlier).unwrap()).unwrap(), EMPTY);
    }

    /// Versions up to 0.1 wrote these keys.
    #[test]
    fn old_keys_are_read() {
        let old = FULL.replace("imbalance", "balance").replace("communication", "communicate");
        assert!(old.contains(r#""balance":1.05"#) && old.contains(r#""communicate":0.25"#), "{old}");
        assert_eq!(serde_json::to_string(&read(&old).unwrap()).unwrap(), FULL);
    }

    #[test]
    fn damaged_records_are_rejected_by_key() {
        let refused = |now: &str, then: &str, cause: &str| {
            let error = read(&FULL.replace(now, then)).unwrap_err().to_string();
            assert!(error.contains(cause), "{error}");
        };
        refused(r#""seconds":4.0,"#, "", "missing field `seconds`");
        refused(r#""tokens":30000,"#, "", "missing field `tokens`");
        refused(r#""learning_rate":0.0001"#, r#""learning_rate":null"#, "invalid type: null, expected f64");
        refused(r#""samples":256"#, r#""samples":256.5"#, "invalid type: floating point `256.5`, expected u64");
        refused(r#""samples":256"#, r#""samples":-1"#, "invalid value: integer `-1`, expected u64");
        refused(r#""samples":256"#, r#""samples":256,"samples":256"#, "duplicate field `samples`");
    }

    /// In a report, a record is the value of the key `record` of a message.
    #[test]
    fn records_are_the_same_in_messages() {
        let message = SequencedMessage { number: 9, message: Message::Record(Box::new(read(EMPTY).unwrap())) };
        let text = serde_json::to_string(&message).unwrap();
        assert_eq!(text, format!(r#"{{"number":9,"record":{EMPTY}}}"#));
        let read: SequencedMessage = serde_json::from_str(&text).unwrap();
        assert_eq!(serde_json::to_string(&read).unwrap(), text);
    }

    #[test]
    fn times_of_ranks_are_summarized_by_spread_and_slowest_rank() {
        assert_eq!(RankTimes::of(&[]), None);
        let one = RankTimes::of(&[2.0]).unwrap();
        assert_eq!((one.min, one.median, one.max, one.slowest), (2.0, 2.0, 2.0, 0));
        let four = RankTimes::of(&[3.0, 1.0, 5.0, 2.0]).unwrap();
        assert_eq!((four.min, four.median, four.max, four.slowest), (1.0, 3.0, 5.0, 2));
    }
}
