//! The stages of a run laid end to end: which stage a step is in.

use crate::run::{RunConfig, Stage};

/// A step's place in the run.
#[derive(Debug, Clone, Copy)]
pub struct Place<'a> {
    /// Index of the stage.
    pub index: usize,
    /// The stage.
    pub stage: &'a Stage,
    /// Steps of this stage that are done.
    pub done: u64,
}

/// Samples of the update after `done` steps of this stage.
pub fn global_batch(stage: &Stage, done: u64) -> usize {
    match stage.batch_ramp {
        Some(ramp) if done < ramp.steps => {
            // In 128 bits, because the product of a batch and a number of steps may have more than 64.
            let more = (stage.global_batch.saturating_sub(ramp.start)) as u128 * u128::from(done);
            ramp.start + (more / u128::from(ramp.steps)) as usize
        }
        _ => stage.global_batch,
    }
}

/// Samples of all updates of this stage.
pub fn samples(stage: &Stage) -> u64 {
    let ramp = stage.batch_ramp.map_or(0, |ramp| ramp.steps.min(stage.steps));
    let risen: u64 = (0..ramp).map(|done| global_batch(stage, done) as u64).sum();
    risen + (stage.steps - ramp) * stage.global_batch as u64
}

/// Steps of all stages.
pub fn total_steps(config: &RunConfig) -> u64 {
    config.stage.iter().map(|stage| stage.steps).sum()
}

/// The place of the step after `step` finished ones; `None` after the last.
pub fn place(config: &RunConfig, step: u64) -> Option<Place<'_>> {
    let mut done = step;
    for (index, stage) in config.stage.iter().enumerate() {
        if done < stage.steps {
            return Some(Place { index, stage, done });
        }
        done -= stage.steps;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::BatchRamp;

    #[test]
    fn a_ramp_rises_in_a_line() {
        let ramp = Some(BatchRamp { start: 10, steps: 4 });
        let stage = Stage { steps: 6, global_batch: 20, batch_ramp: ramp, ..Stage::default() };
        let sizes: Vec<_> = (0..6).map(|done| global_batch(&stage, done)).collect();
        assert_eq!(sizes, [10, 12, 15, 17, 20, 20]);
        assert_eq!(samples(&stage), 94);
        assert_eq!(samples(&Stage { batch_ramp: None, ..stage }), 120);
    }

    #[test]
    fn stages_follow_each_other() {
        let stage = |steps| Stage { steps, ..Stage::default() };
        let config = RunConfig { stage: vec![stage(3), stage(2)], ..RunConfig::default() };
        let places: Vec<_> = (0..6).map(|step| place(&config, step).map(|at| (at.index, at.done))).collect();
        assert_eq!(places, [Some((0, 0)), Some((0, 1)), Some((0, 2)), Some((1, 0)), Some((1, 1)), None]);
        assert_eq!(total_steps(&config), 5);
    }
}
