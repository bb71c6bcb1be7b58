//! Tags and values of step records and evaluations.

use lambert_control::GradientNoise;

use super::proto::Value;
use crate::metrics::line::{Field, fields};
use crate::status::NoiseScale;

/// Suffixes of the fields of objectives.
const LOSS: &str = "_loss";
const ACCURACY: &str = "_accuracy";
const PRECISION: &str = "_precision";
const RECALL: &str = "_recall";
/// Prefix of trust ratios.
const TRUST_RATIOS: &str = "trust_ratios.";
/// Prefix of the extra held-out datasets of an evaluation.
const EXTRA: &str = "extra.";
/// Prefix of the datasets of a mixture.
const MIXTURE: &str = "mixture.";

/// Fields that have fixed tags. All other tags are derived from the names of the fields.
const TAGS: [(&str, &str); 37] = [
    ("loss", "loss/total"),
    ("learning_rate", "optimizer/learning_rate"),
    ("grad_norm", "optimizer/gradient_norm"),
    ("spike_score", "optimizer/spike_score"),
    ("epoch", "batch/epoch"),
    ("samples", "batch/samples"),
    ("tokens", "batch/tokens"),
    ("masked_tokens", "batch/masked_tokens"),
    ("padding", "batch/padding"),
    ("imbalance", "batch/imbalance"),
    ("skipped_updates", "skipped/updates"),
    ("skipped_samples", "skipped/samples"),
    ("seconds", "seconds/step"),
    ("data_wait", "seconds/data_wait"),
    ("forward_backward", "seconds/forward_backward"),
    ("communication", "seconds/communication"),
    ("optimizer", "seconds/optimizer"),
    ("checkpoint", "seconds/checkpoint"),
    ("ranks.min", "seconds/ranks_min"),
    ("ranks.median", "seconds/ranks_median"),
    ("ranks.max", "seconds/ranks_max"),
    ("ranks.slowest", "seconds/slowest_rank"),
    ("samples_per_second", "throughput/samples_per_second"),
    ("tokens_per_second", "throughput/tokens_per_second"),
    ("flops_utilization", "throughput/flops_utilization"),
    ("peak_memory", "memory/peak_bytes"),
    ("gpu.utilization.min", "gpu/utilization_min"),
    ("gpu.utilization.max", "gpu/utilization_max"),
    ("gpu.memory_used.min", "gpu/memory_used_bytes_min"),
    ("gpu.memory_used.max", "gpu/memory_used_bytes_max"),
    ("gpu.power.min", "gpu/power_watts_min"),
    ("gpu.power.max", "gpu/power_watts_max"),
    ("gpu.temperature.min", "gpu/temperature_celsius_min"),
    ("gpu.temperature.max", "gpu/temperature_celsius_max"),
    (NOISE_GRADIENT, "noise/gradient"),
    (NOISE_VARIANCE, "noise/variance"),
    ("unigram_entropy", "held-out/unigram_entropy"),
];
const NOISE_GRADIENT: &str = "noise.gradient";
const NOISE_VARIANCE: &str = "noise.variance";

/// Tag of the tokens per second with padding. A record has the rate without padding, and the padding per token.
const PADDED: &str = "throughput/padded_tokens_per_second";

/// Tag of the gradient noise scale, in samples. It is computed from the averages of the estimates.
const NOISE_SCALE: &str = "noise/scale";

/// Tag and value of a scalar.
pub type Scalar = (String, f32);

/// Returns the scalars of a step record. `noise` averages the noise estimates of the steps so far.
///
/// # Errors
/// `text` is not a JSON object.
pub fn of_step(text: &str, noise: &mut NoiseScale) -> serde_json::Result<Vec<Scalar>> {
    let fields = fields(text)?;
    let number = |name: &str| fields.iter().find(|(other, _)| other == name).and_then(|(_, field)| field.number());
    let mut scalars: Vec<Scalar> = fields.iter().filter_map(|(name, field)| scalar(step_tag(name)?, field)).collect();
    if let (Some(tokens), Some(padding)) = (number("tokens_per_second"), number("padding")) {
        scalars.push((PADDED.to_owned(), (tokens * (1.0 + padding)) as f32));
    }
    if let (Some(gradient), Some(variance)) = (number(NOISE_GRADIENT), number(NOISE_VARIANCE)) {
        noise.add(GradientNoise { gradient, variance });
        scalars.extend(noise.samples().map(|samples| (NOISE_SCALE.to_owned(), samples as f32)));
    }
    Ok(scalars)
}

/// Returns the scalars of an evaluation: losses, accuracies and the unigram baseline.
///
/// # Errors
/// `text` is not a JSON object.
pub fn of_evaluation(text: &str) -> serde_json::Result<Vec<Scalar>> {
    Ok(fields(text)?.iter().filter_map(|(name, field)| scalar(evaluation_tag(name)?, field)).collect())
}

fn scalar(tag: String, field: &Field) -> Option<Scalar> {
    Some((tag, field.number()? as f32))
}

fn step_tag(field: &str) -> Option<String> {
    let own = TAGS.iter().find(|(name, _)| *name == field).map(|(_, tag)| (*tag).to_owned());
    let named = |suffix: &str, group: &str| Some(format!("{group}/{}", field.strip_suffix(suffix)?));
    let ratio = || Some(format!("trust_ratio/{}", field.strip_prefix(TRUST_RATIOS)?));
    let dataset = || {
        let (name, value) = field.strip_prefix(MIXTURE)?.rsplit_once('.')?;
        Some(format!("mixture_{value}/{name}"))
    };
    let score = || {
        let accuracy = || named(ACCURACY, "accuracy");
        named(LOSS, "loss")
            .or_else(accuracy)
            .or_else(|| named(PRECISION, "precision"))
            .or_else(|| named(RECALL, "recall"))
    };
    own.or_else(ratio).or_else(dataset).or_else(score)
}

fn evaluation_tag(field: &str) -> Option<String> {
    // The losses on all datasets are in one group.
    if let Some((dataset, field)) = field.strip_prefix(EXTRA).and_then(|rest| rest.rsplit_once('.')) {
        return Some(format!("{}/{dataset}", evaluation_tag(field)?));
    }
    let named = |suffix: &str, group: &str| Some(format!("{group}/{}", field.strip_suffix(suffix)?));
    let total = || (field == "loss").then(|| "held-out/total".to_owned());
    let entropy = || TAGS.iter().find(|(name, _)| *name == field && field == "unigram_entropy");
    named(LOSS, "held-out")
        .or_else(|| named(ACCURACY, "held-out-accuracy"))
        .or_else(|| named(PRECISION, "held-out-precision"))
        .or_else(|| named(RECALL, "held-out-recall"))
        .or_else(total)
        .or_else(|| entropy().map(|(_, tag)| (*tag).to_owned()))
}

/// Converts scalars to summary values.
pub fn values(scalars: Vec<Scalar>) -> Vec<Value> {
    let value = |(tag, value)| Value { tag, simple_value: Some(value), ..Value::default() };
    scalars.into_iter().map(value).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scalar(tag: &str, value: f32) -> Scalar {
        (tag.to_owned(), value)
    }

    #[test]
    fn records_and_evaluations_have_tags() {
        let text = r#"{"step":1,"stage":"s","batch_digest":7,"samples":64,"padding":0.25,"loss":7.5,"x_loss":0.1,
            "x_accuracy":0.25,"tokens_per_second":80.0,"peak_memory":4096,
            "gpu":{"power":{"min":600.5,"max":610.5},"memory_total":{"min":80,"max":80}},"trust_ratios":{"a.x_loss":0.5},"mixture":{"a-b":{"share":0.5}},"ranks":{"min":1.5}}"#;
        let expected = [
            scalar("batch/samples", 64.0),
            scalar("batch/padding", 0.25),
            scalar("loss/total", 7.5),
            scalar("loss/x", 0.1),
            scalar("accuracy/x", 0.25),
            scalar("throughput/tokens_per_second", 80.0),
            scalar("memory/peak_bytes", 4096.0),
            scalar("gpu/power_watts_min", 600.5),
            scalar("gpu/power_watts_max", 610.5),
            scalar("trust_ratio/a.x_loss", 0.5),
            scalar("mixture_share/a-b", 0.5),
            scalar("seconds/ranks_min", 1.5),
            scalar("throughput/padded_tokens_per_second", 100.0),
        ];
        assert_eq!(of_step(text, &mut NoiseScale::default()).unwrap(), expected);
        let text = r#"{"event":"evaluation","step":1,"samples":32,"loss":4.5,"x_loss":1.5,"x_accuracy":0.5,"x_precision":0.75,"unigram_entropy":3.5,
            "extra":{"general":{"samples":32,"x_loss":2.5,"unigram_entropy":3.0}}}"#;
        let expected = [
            scalar("held-out/total", 4.5),
            scalar("held-out/x", 1.5),
            scalar("held-out-accuracy/x", 0.5),
            scalar("held-out-precision/x", 0.75),
            scalar("held-out/unigram_entropy", 3.5),
            scalar("held-out/x/general", 2.5),
            scalar("held-out/unigram_entropy/general", 3.0),
        ];
        assert_eq!(of_evaluation(text).unwrap(), expected);
    }

    #[test]
    fn a_loss_that_is_not_finite_is_nan() {
        let scalars = of_step("{\"loss\":null}", &mut NoiseScale::default()).unwrap();
        assert!(scalars[0].0 == "loss/total" && scalars[0].1.is_nan());
    }

    #[test]
    fn the_noise_scale_is_the_ratio_of_averages() {
        let mut noise = NoiseScale::default();
        let mut scale = |gradient: f64, variance: f64| {
            let text = format!("{{\"noise\":{{\"gradient\":{gradient},\"variance\":{variance}}}}}");
            of_step(&text, &mut noise).unwrap().into_iter().find(|(tag, _)| tag == NOISE_SCALE).map(|(_, value)| value)
        };
        assert_eq!([scale(-1.0, 30.0), scale(3.0, 50.0)], [None, Some(40.0)]);
    }
}
