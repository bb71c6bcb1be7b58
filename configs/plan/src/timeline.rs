//! Position of a step in the stages of a run.

use std::collections::BTreeMap;

use lambert_config::run::{RunConfig, Stage};
use serde::Deserialize;

/// Step counts of the stages that ended early, keyed by stage index.
pub type EarlyStops = BTreeMap<usize, u64>;

/// Returns the early stops in `state`, the training state in the manifest of a checkpoint; none if they are unreadable. Formats
/// up to 3 have them under another key.
pub fn stored_early_stops(state: &serde_json::Value) -> EarlyStops {
    let stops = state.get("early_stops").or_else(|| state.get("ended"));
    stops.and_then(|stops| EarlyStops::deserialize(stops).ok()).unwrap_or_default()
}

/// Position of a step in the run.
#[derive(Debug, Clone, Copy)]
pub struct StagePosition<'a> {
    /// Stage index, from 0.
    pub index: usize,
    /// The stage.
    pub stage: &'a Stage,
    /// Completed steps of this stage.
    pub done: u64,
}

/// Returns the global batch size, in samples, of the update after `done` steps of this stage.
pub fn global_batch(stage: &Stage, done: u64) -> usize {
    match stage.batch_ramp {
        Some(ramp) if done < ramp.steps => {
            // u128: the product of a batch size and a step count may exceed u64.
            let more = (stage.global_batch.saturating_sub(ramp.start)) as u128 * u128::from(done);
            ramp.start + (more / u128::from(ramp.steps)) as usize
        }
        _ => stage.global_batch,
    }
}

/// Returns the number of samples on which a stage trains if it does not end early, at most `u64::MAX`.
pub fn samples(stage: &Stage) -> u64 {
    let ramp = stage.batch_ramp.map_or(0, |ramp| ramp.steps.min(stage.steps));
    let after = (stage.steps - ramp).saturating_mul(stage.global_batch as u64);
    ramp_samples(stage, ramp).saturating_add(after)
}

/// Returns the number of samples of the steps of a stage after the first `done` steps.
pub fn samples_after(stage: &Stage, done: u64) -> u64 {
    samples(stage).saturating_sub(samples(&Stage { steps: done.min(stage.steps), ..stage.clone() }))
}

/// Returns the number of samples of the first `steps` steps of a batch ramp.
fn ramp_samples(stage: &Stage, steps: u64) -> u64 {
    let Some(ramp) = stage.batch_ramp else { return 0 };
    let more = stage.global_batch.saturating_sub(ramp.start) as u128;
    let start = u128::from(steps).saturating_mul(ramp.start as u128);
    let sum = start.saturating_add(floor_sum(u128::from(steps), more, u128::from(ramp.steps)));
    u64::try_from(sum).unwrap_or(u64::MAX)
}

/// Returns the sum of `floor(i * slope / divisor)` over all `i` below `count`, in logarithmic time: as in Euclid's algorithm for the
/// greatest common divisor, `slope` and `divisor` are reduced and swapped. The sum counts the points below a line, and the swap
/// counts them along the other axis. The arguments are below 2^64, and `count` is at most `divisor`.
fn floor_sum(mut count: u128, mut slope: u128, mut divisor: u128) -> u128 {
    let (mut offset, mut sum) = (0_u128, 0_u128);
    while divisor > 0 {
        let pairs = count.saturating_mul(count.saturating_sub(1)) / 2;
        sum = sum.saturating_add(pairs.saturating_mul(slope / divisor));
        sum = sum.saturating_add(count.saturating_mul(offset / divisor));
        (slope, offset) = (slope % divisor, offset % divisor);
        let end = slope.saturating_mul(count).saturating_add(offset);
        (count, offset) = (end / divisor, end % divisor);
        (slope, divisor) = (divisor, slope);
    }
    sum
}

/// Iterates over the stages and their step counts.
fn stages<'a>(config: &'a RunConfig, ended: &EarlyStops) -> impl Iterator<Item = (&'a Stage, u64)> {
    let steps = |index, stage: &Stage| ended.get(&index).map_or(stage.steps, |steps| stage.steps.min(*steps));
    config.stage.iter().enumerate().map(move |(index, stage)| (stage, steps(index, stage)))
}

/// Returns the total number of steps. This number is an upper bound as long as a stage may still end early at a
/// plateau. It is at most `u64::MAX`.
pub fn total_steps(config: &RunConfig, ended: &EarlyStops) -> u64 {
    stages(config, ended).fold(0, |sum, (_, steps)| sum.saturating_add(steps))
}

/// Returns the position of the step after `step` completed steps. Returns `None` after the last step.
pub fn position<'a>(config: &'a RunConfig, ended: &EarlyStops, step: u64) -> Option<StagePosition<'a>> {
    let mut done = step;
    for (index, (stage, steps)) in stages(config, ended).enumerate() {
        if done < steps {
            return Some(StagePosition { index, stage, done });
        }
        done -= steps;
    }
    None
}

/// Returns `ended` without stage `entered` if it has no `plateau` any more: the run continues in it. `entered` is the latest stage
/// that the run has entered.
pub fn without_removed_plateau(config: &RunConfig, mut ended: EarlyStops, entered: usize) -> EarlyStops {
    if config.stage.get(entered).is_some_and(|stage| stage.plateau.is_none()) {
        ended.remove(&entered);
    }
    ended
}

/// Returns an error message if the step after `step` completed steps is in an earlier stage than `entered`: the earlier stage has
/// become longer. The run would train it again, with fewer layers if it has fewer. `checkpoint` is the name of the checkpoint
/// that was saved after `step` steps, in stage `entered`.
pub fn longer_stage(
    config: &RunConfig,
    ended: &EarlyStops,
    (checkpoint, step, entered): (&str, u64, usize),
) -> Option<String> {
    let index = position(config, ended, step).map(|place| place.index).filter(|index| *index < entered)?;
    Some(format!(
        "stage.{index}.steps: {checkpoint} was saved in stage {entered}, but with this number of steps, step {step} is in stage \
         {index}; a stage cannot become longer once a later stage has begun"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use lambert_config::run::BatchRamp;

    #[test]
    fn batch_ramp_is_linear() {
        let ramp = Some(BatchRamp { start: 10, steps: 4 });
        let stage = Stage { steps: 6, global_batch: 20, batch_ramp: ramp, ..Stage::default() };
        let sizes: Vec<_> = (0..6).map(|done| global_batch(&stage, done)).collect();
        assert_eq!(sizes, [10, 12, 15, 17, 20, 20]);
        assert_eq!(samples(&stage), 94);
        assert_eq!([0, 1, 4, 6, 7].map(|done| samples_after(&stage, done)), [94, 84, 40, 0, 0]);
        assert_eq!(samples(&Stage { batch_ramp: None, ..stage }), 120);
    }

    #[test]
    fn the_samples_of_a_ramp_are_the_sum_of_its_batches() {
        let sizes = [(1, 1, 1), (3, 10, 7), (10, 3, 40), (1, 4096, 333), (7, 7, 9), (1, 1000, 1), (5, 64, 64)];
        for (start, global_batch, ramp_steps) in sizes {
            for steps in [1, 2, 5, 8, 39, 40, 41, 500] {
                let batch_ramp = Some(BatchRamp { start, steps: ramp_steps });
                let stage = Stage { steps, global_batch, batch_ramp, ..Stage::default() };
                let sum: u64 = (0..steps).map(|done| super::global_batch(&stage, done) as u64).sum();
                assert_eq!(samples(&stage), sum, "{stage:?}");
            }
        }
    }

    /// Without a loop over the steps.
    #[test]
    fn large_stages_do_not_overflow() {
        let long = 4_000_000_000;
        let ramp = Some(BatchRamp { start: 1, steps: long });
        let stage = Stage { steps: long, global_batch: 3, batch_ramp: ramp, ..Stage::default() };
        assert_eq!(samples(&stage), long / 2 * 3);
        let most = Stage { steps: u64::MAX, global_batch: usize::MAX, ..Stage::default() };
        assert_eq!(samples(&most), u64::MAX);
        let batch_ramp = Some(BatchRamp { start: 1, steps: u64::MAX });
        assert_eq!(samples(&Stage { batch_ramp, ..most.clone() }), u64::MAX);
        let config = RunConfig { stage: vec![most.clone(), most], ..RunConfig::default() };
        assert_eq!(total_steps(&config, &EarlyStops::new()), u64::MAX);
        assert_eq!(position(&config, &EarlyStops::new(), 5).map(|at| at.index), Some(0));
    }

    #[test]
    fn positions_span_all_stages() {
        let stage = |steps| Stage { steps, ..Stage::default() };
        let config = RunConfig { stage: vec![stage(3), stage(2)], ..RunConfig::default() };
        let places = |ended: &EarlyStops| -> Vec<_> {
            (0..6).map(|step| position(&config, ended, step).map(|at| (at.index, at.done))).collect()
        };
        let none = EarlyStops::new();
        assert_eq!(places(&none), [Some((0, 0)), Some((0, 1)), Some((0, 2)), Some((1, 0)), Some((1, 1)), None]);
        assert_eq!(total_steps(&config, &none), 5);
        let early = EarlyStops::from([(0, 1)]);
        assert_eq!(places(&early), [Some((0, 0)), Some((1, 0)), Some((1, 1)), None, None, None]);
        assert_eq!(total_steps(&config, &early), 3);
    }
}
