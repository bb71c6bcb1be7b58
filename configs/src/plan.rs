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

    #[test]
    fn stages_follow_each_other() {
        let stage = |steps| Stage { steps, ..Stage::default() };
        let config = RunConfig { stage: vec![stage(3), stage(2)], ..RunConfig::default() };
        let places: Vec<_> = (0..6).map(|step| place(&config, step).map(|at| (at.index, at.done))).collect();
        assert_eq!(places, [Some((0, 0)), Some((0, 1)), Some((0, 2)), Some((1, 0)), Some((1, 1)), None]);
        assert_eq!(total_steps(&config), 5);
    }
}
