//! Training throughput and the remaining time of a run.

use std::collections::VecDeque;

use lambert_config::run::Stage;
use lambert_control::StepRecord;
use lambert_plan::timeline;

/// Maximum number of recent steps in the average.
const WINDOW: usize = 50;

/// FLOPs of the steps of a run. Steps differ in their batch sizes, sequence lengths and layers, so the remaining time
/// depends on the FLOPs that are left, not on the number of steps.
#[derive(Debug, Default)]
pub struct StepCosts {
    stages: Vec<Stage>,
    /// FLOPs of a sample of each stage.
    sample_flops: Vec<f64>,
}

impl StepCosts {
    /// Creates the costs of a run with these stages. `sample_flops` has the FLOPs of a sample of each stage.
    pub fn new(stages: &[Stage], sample_flops: &[f64]) -> Self {
        Self { stages: stages.to_vec(), sample_flops: sample_flops.to_vec() }
    }

    fn stage(&self, record: &StepRecord) -> Option<usize> {
        self.stages.iter().position(|stage| stage.name == record.stage).filter(|index| *index < self.sample_flops.len())
    }

    /// FLOPs of a completed step. If its stage is unknown, each step counts as 1.
    fn of_step(&self, record: &StepRecord) -> f64 {
        self.stage(record).map_or(1.0, |stage| self.sample_flops[stage] * record.batch.samples as f64)
    }

    /// FLOPs of the steps after `record`. The run has `steps` steps. If a stage before that of `record` ended early,
    /// `steps` does not include its other steps.
    fn after(&self, record: &StepRecord, steps: u64) -> f64 {
        let left = steps.saturating_sub(record.step);
        let Some(index) = self.stage(record) else { return left as f64 };
        let (stage, later) = (&self.stages[index], self.stages.iter().zip(&self.sample_flops).skip(index + 1));
        let later_steps = later.clone().fold(0_u64, |sum, (stage, _)| sum.saturating_add(stage.steps));
        let left_here = left.saturating_sub(later_steps).min(stage.steps);
        let here = timeline::samples_after(stage, stage.steps - left_here) as f64 * self.sample_flops[index];
        here + later.map(|(stage, flops)| timeline::samples(stage) as f64 * flops).sum::<f64>()
    }
}

/// A recent step.
#[derive(Debug, Clone, Copy)]
struct Step {
    samples: u64,
    seconds: f64,
    cost: f64,
}

/// Throughput averaged over recent steps.
#[derive(Debug, Default)]
pub struct Throughput {
    steps: VecDeque<Step>,
    costs: StepCosts,
}

impl Throughput {
    /// Creates the throughput of a run before its first step.
    pub fn new(costs: StepCosts) -> Self {
        Self { steps: VecDeque::new(), costs }
    }

    /// Adds a step.
    pub fn add(&mut self, record: &StepRecord) {
        let cost = self.costs.of_step(record);
        self.steps.push_back(Step { samples: record.batch.samples, seconds: record.times.seconds, cost });
        if self.steps.len() > WINDOW {
            self.steps.pop_front();
        }
    }

    /// Samples per second. 0 before the first step.
    pub fn samples_per_second(&self) -> f64 {
        let samples = self.steps.iter().fold(0_u64, |sum, step| sum.saturating_add(step.samples));
        if self.seconds() > 0.0 { samples as f64 / self.seconds() } else { 0.0 }
    }

    /// Estimated seconds for the steps after `record`. The run has `steps` steps. `None` before the first step.
    pub fn seconds_after(&self, record: &StepRecord, steps: u64) -> Option<f64> {
        let done: f64 = self.steps.iter().map(|step| step.cost).sum();
        (done > 0.0).then(|| self.costs.after(record, steps) * self.seconds() / done)
    }

    fn seconds(&self) -> f64 {
        self.steps.iter().map(|step| step.seconds).sum()
    }
}

#[cfg(test)]
mod tests {
    use lambert_config::run::BatchRamp;
    use lambert_control::{BatchStats, StepTimes};

    use super::*;

    fn record(stage: &str, step: u64, samples: u64, seconds: f64) -> StepRecord {
        let times = StepTimes { seconds, ..StepTimes::default() };
        let batch = BatchStats { samples, ..BatchStats::default() };
        StepRecord { step, stage: stage.to_owned(), batch, times, ..StepRecord::default() }
    }

    #[test]
    fn speed_is_averaged_over_a_window() {
        let mut throughput = Throughput::default();
        let last = record("", 200, 64, 1.0);
        assert_eq!((throughput.samples_per_second(), throughput.seconds_after(&last, 210)), (0.0, None));
        for step in 0..200 {
            throughput.add(&record("", step, 64, if step < 150 { 100.0 } else { 1.0 }));
        }
        assert_eq!((throughput.samples_per_second(), throughput.seconds_after(&last, 210)), (64.0, Some(10.0)));
    }

    /// The batch of the first stage grows from 10 to 20 samples, and a sample of the second stage costs four times as
    /// much.
    #[test]
    fn remaining_time_follows_the_cost_of_the_remaining_steps() {
        let ramp = Some(BatchRamp { start: 10, steps: 4 });
        let stage = |name: &str, steps, batch_ramp| Stage {
            name: name.to_owned(),
            steps,
            global_batch: 20,
            batch_ramp,
            ..Stage::default()
        };
        let stages = [stage("short", 6, ramp), stage("long", 3, None)];
        let mut throughput = Throughput::new(StepCosts::new(&stages, &[1e9, 4e9]));
        let first = record("short", 1, 10, 1.0);
        throughput.add(&first);
        // Batches of 12, 15, 17, 20 and 20 samples, then three of 20 samples with the fourfold cost.
        assert_eq!(throughput.seconds_after(&first, 9), Some(8.4 + 24.0));
        // The first stage has ended early, after 2 steps.
        assert_eq!(throughput.seconds_after(&record("long", 3, 20, 8.0), 5), Some(16.0));
        assert_eq!(throughput.seconds_after(&record("long", 9, 20, 8.0), 9), Some(0.0));
    }
}
