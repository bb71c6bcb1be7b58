//! Measurements of a step in little memory.

use lambert_control::StepRecord;
use serde::{Deserialize, Deserializer};

/// Values of a step that are drawn, by name. Losses are of the main objective (`loss`) and of all objectives (`total`).
pub const VALUES: [&str; VALUE_COUNT] = [
    "loss",
    "total",
    "learning_rate",
    "grad_norm",
    "samples_per_second",
    "tokens_per_second",
    "utilization",
    "data_wait",
    "forward_backward",
    "communication",
    "optimizer",
    "checkpoint",
    "other",
];

/// Number of [`VALUES`].
pub const VALUE_COUNT: usize = 13;

/// Measurements of a step.
#[derive(Debug, Clone, PartialEq)]
pub struct Point {
    pub stage: Box<str>,
    /// Samples of the global batch.
    pub samples: u32,
    /// Tokens of the global batch.
    pub tokens: u32,
    pub masked_tokens: u32,
    /// Wall-clock time of the step, seconds.
    pub seconds: f32,
    /// Samples skipped up to this step.
    pub skipped_samples: u64,
    /// In the order of [`VALUES`]; NaN if absent.
    pub values: [f32; VALUE_COUNT],
}

impl From<&StepRecord> for Point {
    fn from(record: &StepRecord) -> Self {
        let count = |count: u64| u32::try_from(count).unwrap_or(u32::MAX);
        let (times, throughput) = (&record.times, &record.throughput);
        let parts = [times.data_wait, times.forward_backward, times.communication, times.optimizer, times.checkpoint];
        let values = [
            record.scores.main().loss,
            record.loss,
            record.update.learning_rate,
            record.update.grad_norm.unwrap_or(f64::NAN),
            throughput.samples_per_second,
            throughput.tokens_per_second,
            throughput.flops_utilization,
            parts[0],
            parts[1],
            parts[2],
            parts[3],
            parts[4],
            (times.seconds - parts.iter().sum::<f64>()).max(0.0),
        ];
        Self {
            stage: record.stage.as_str().into(),
            samples: count(record.batch.samples),
            tokens: count(record.batch.tokens),
            masked_tokens: count(record.batch.masked_tokens),
            seconds: times.seconds as f32,
            skipped_samples: record.skipped.samples,
            values: values.map(|value| value as f32),
        }
    }
}

/// Reads a whole step record.
impl<'de> Deserialize<'de> for Point {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        StepRecord::deserialize(deserializer).map(|record| Self::from(&record))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use lambert_control::{BatchStats, Score, StepTimes, UpdateStats};

    use super::*;

    /// Record of a step of 2 seconds with 16 samples.
    pub(crate) fn record(step: u64, loss: f64) -> StepRecord {
        let score = Score::new("mlm", loss, None);
        StepRecord {
            step,
            stage: "one".into(),
            batch: BatchStats { samples: 16, tokens: 1000, masked_tokens: 150, ..BatchStats::default() },
            loss: loss + 0.5,
            scores: [score].into_iter().collect(),
            update: UpdateStats { learning_rate: 1e-3, ..UpdateStats::default() },
            times: StepTimes { seconds: 2.0, forward_backward: 1.5, ..StepTimes::default() },
            ..StepRecord::default()
        }
    }

    #[test]
    fn a_point_has_the_values_of_its_record() {
        let text = serde_json::to_string(&record(3, 5.0)).unwrap();
        let point: Point = serde_json::from_str(&text).unwrap();
        let value = |name: &str| point.values[VALUES.iter().position(|other| *other == name).unwrap()];
        assert_eq!((value("loss"), value("total"), value("forward_backward"), value("other")), (5.0, 5.5, 1.5, 0.5));
        assert!(value("grad_norm").is_nan());
        assert_eq!((&*point.stage, point.samples, point.seconds), ("one", 16, 2.0));
        assert!(serde_json::from_str::<Point>("{\"step\":3}").is_err());
    }
}
