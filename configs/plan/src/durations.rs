//! Durations and intervals in tokens, and the steps that they take.

use lambert_config::run::{RunConfig, Stage};

use crate::estimate::StageSamples;
use crate::timeline::{self, EarlyStops};

/// True if a duration or an interval is given in tokens.
pub fn has_tokens(config: &RunConfig) -> bool {
    let intervals = [config.evaluation.every_tokens, config.checkpoint.every_tokens];
    intervals.iter().any(Option::is_some) || config.stage.iter().any(|stage| stage.tokens.is_some())
}

/// Replaces each number of tokens by a number of steps. `data` has the samples of each stage.
///
/// A stage has the smallest number of steps with at least its tokens. An interval is rounded to a whole number of steps
/// with the mean number of tokens of a step of the run.
pub fn replace_tokens(config: &mut RunConfig, data: &[StageSamples]) {
    for (stage, data) in config.stage.iter_mut().zip(data) {
        if let Some(tokens) = stage.tokens.take() {
            stage.steps = steps_for(stage, tokens / data.mean_tokens.max(1.0));
        }
    }
    let steps = timeline::total_steps(config, &EarlyStops::new());
    let of_stage = |(stage, data): (&Stage, &StageSamples)| timeline::samples(stage) as f64 * data.mean_tokens;
    let of_step = config.stage.iter().zip(data).map(of_stage).sum::<f64>() / steps.max(1) as f64;
    let interval = |tokens: f64| (tokens / of_step).round().max(1.0) as u64;
    if let Some(tokens) = config.evaluation.every_tokens.take() {
        config.evaluation.every_steps = interval(tokens);
    }
    if let Some(tokens) = config.checkpoint.every_tokens.take() {
        config.checkpoint.every_steps = interval(tokens);
    }
}

/// Returns the smallest number of steps in which a stage draws at least `samples` samples.
fn steps_for(stage: &Stage, samples: f64) -> u64 {
    let drawn = |steps: u64| timeline::samples(&Stage { steps, ..stage.clone() }) as f64;
    let batch = stage.global_batch.max(1) as f64;
    let ramp = stage.batch_ramp.map_or(0, |ramp| ramp.steps);
    let in_ramp = drawn(ramp);
    if samples > in_ramp {
        return ramp.saturating_add(((samples - in_ramp) / batch).ceil() as u64);
    }
    // The batches grow, so the number of samples is not linear in the steps.
    let (mut low, mut high) = (1, ramp.max(1));
    while low < high {
        let middle = low + (high - low) / 2;
        if drawn(middle) >= samples { high = middle } else { low = middle + 1 }
    }
    low
}

#[cfg(test)]
mod tests {
    use lambert_config::run::BatchRamp;

    use super::*;
    use crate::memory::DatasetShape;

    fn samples(mean_tokens: f64) -> StageSamples {
        let shape =
            DatasetShape { vocabulary: 100, sequence_length: 128, mean_length: 128, rows: 1 << 20, row_group: 1024 };
        StageSamples::of_dataset(shape, mean_tokens)
    }

    fn stage(tokens: f64) -> Stage {
        Stage { tokens: Some(tokens), global_batch: 10, ..Stage::default() }
    }

    #[test]
    fn tokens_are_replaced_by_steps() {
        let mut config = RunConfig { stage: vec![stage(1e6), stage(999.0)], ..RunConfig::default() };
        (config.evaluation.every_tokens, config.checkpoint.every_tokens) = (Some(1e5), Some(1.0));
        assert!(has_tokens(&config));
        replace_tokens(&mut config, &[samples(100.0), samples(50.0)]);
        // Steps of 1,000 and of 500 tokens.
        assert_eq!(config.stage.iter().map(|stage| stage.steps).collect::<Vec<_>>(), [1000, 2]);
        assert_eq!((config.evaluation.every_steps, config.checkpoint.every_steps), (100, 1));
        assert!(!has_tokens(&config));
        let before = config.clone();
        replace_tokens(&mut config, &[samples(7.0), samples(7.0)]);
        assert_eq!(config, before, "numbers of steps are kept");
    }

    #[test]
    fn a_stage_with_a_ramp_draws_at_least_its_samples() {
        let ramp = BatchRamp { start: 1, steps: 40 };
        for wanted in (1..600).map(f64::from) {
            let stage = Stage { batch_ramp: Some(ramp), global_batch: 10, ..Stage::default() };
            let steps = steps_for(&stage, wanted);
            let drawn = |steps| timeline::samples(&Stage { steps, ..stage.clone() }) as f64;
            assert!(drawn(steps) >= wanted && drawn(steps - 1) < wanted, "{wanted}: {steps} steps");
        }
        assert_eq!(steps_for(&stage(1.0), 0.1), 1);
    }
}
