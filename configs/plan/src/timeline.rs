//! Position of a step in the stages of a run.

use std::collections::BTreeMap;

use lambert_config::run::{RunConfig, Stage};

/// Step counts of the stages that ended early, keyed by stage index.
pub type EarlyStops = BTreeMap<usize, u64>;

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

/// Returns the number of samples on which a stage trains if it does not end early.
pub fn samples(stage: &Stage) -> u64 {
    let ramp = stage.batch_ramp.map_or(0, |ramp| ramp.steps.min(stage.steps));
    let risen: u64 = (0..ramp).map(|done| global_batch(stage, done) as u64).sum();
    risen + (stage.steps - ramp) * stage.global_batch as u64
}

/// Iterates over the stages and their step counts.
fn stages<'a>(config: &'a RunConfig, ended: &EarlyStops) -> impl Iterator<Item = (&'a Stage, u64)> {
    let steps = |index, stage: &Stage| ended.get(&index).map_or(stage.steps, |steps| stage.steps.min(*steps));
    config.stage.iter().enumerate().map(move |(index, stage)| (stage, steps(index, stage)))
}

/// Returns the total number of steps. This number is an upper bound as long as a stage may still end early at a
/// plateau.
pub fn total_steps(config: &RunConfig, ended: &EarlyStops) -> u64 {
    stages(config, ended).map(|(_, steps)| steps).sum()
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
        assert_eq!(samples(&Stage { batch_ramp: None, ..stage }), 120);
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
