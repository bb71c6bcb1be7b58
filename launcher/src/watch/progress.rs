//! Samples, tokens, hours and FLOPs up to a step.

use std::collections::HashMap;

use lambert_config::RunConfig;
use lambert_config::run::Teacher;
use lambert_plan::architecture::Architecture;
use lambert_plan::flops;

use super::point::Point;

/// Totals up to a step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Progress {
    pub samples: f64,
    pub tokens: f64,
    /// Seconds of the steps, without pauses between attempts and without undone steps.
    pub seconds: f64,
    /// Floating-point operations; `None` if the run's configuration or vocabulary is not known.
    pub flops: Option<f64>,
}

impl Default for Progress {
    fn default() -> Self {
        Self { samples: 0.0, tokens: 0.0, seconds: 0.0, flops: Some(0.0) }
    }
}

impl Progress {
    /// Adds `steps` steps like this one.
    pub fn add(&mut self, point: &Point, steps: u64, flops: &mut StepFlops<'_>) {
        let steps = steps as f64;
        self.samples += steps * f64::from(point.samples);
        self.tokens += steps * f64::from(point.tokens);
        self.seconds += steps * f64::from(point.seconds);
        self.flops = self.flops.zip(flops.of(point)).map(|(before, flops)| before + steps * flops);
    }
}

/// FLOPs of steps, by [`flops::training`] for samples of the batch's mean length.
#[derive(Debug)]
pub struct StepFlops<'a> {
    config: Option<&'a RunConfig>,
    /// Tokens of the vocabulary.
    vocabulary: Option<usize>,
    stages: HashMap<Box<str>, StageFlops>,
}

#[derive(Debug)]
struct StageFlops {
    architecture: Architecture,
    /// Teacher of the run, if it has one.
    teacher: Option<Teacher>,
    /// FLOPs of a sample without masked tokens and of a masked token, by the sample's length.
    by_length: HashMap<u64, (f64, f64)>,
}

impl<'a> StepFlops<'a> {
    pub fn new(config: Option<&'a RunConfig>, vocabulary: Option<usize>) -> Self {
        Self { config, vocabulary, stages: HashMap::new() }
    }

    fn of(&mut self, point: &Point) -> Option<f64> {
        let (config, vocabulary) = self.config.zip(self.vocabulary)?;
        if !self.stages.contains_key(&point.stage) {
            let stage = config.stage.iter().position(|stage| *stage.name == *point.stage)?;
            let architecture = Architecture::of_run(config, config.depth(stage), vocabulary);
            let teacher = config.objective.teacher.clone();
            self.stages.insert(point.stage.clone(), StageFlops { architecture, teacher, by_length: HashMap::new() });
        }
        self.stages.get_mut(&point.stage).map(|stage| stage.of(point))
    }
}

impl StageFlops {
    fn of(&mut self, point: &Point) -> f64 {
        let samples = f64::from(point.samples);
        let length = (f64::from(point.tokens) / samples.max(1.0)).round() as u64;
        let architecture = &self.architecture;
        let (sample, masked) = *self.by_length.entry(length).or_insert_with(|| {
            let with = |masked| flops::training(architecture, std::iter::once(length), masked);
            let taught = flops::teaching(self.teacher.as_ref(), architecture, std::iter::once(length));
            (with(0) + taught, with(1) - with(0))
        });
        samples * sample + f64::from(point.masked_tokens) * masked
    }
}

#[cfg(test)]
mod tests {
    use lambert_config::run::Stage;

    use super::super::point::tests::record;
    use super::*;

    #[test]
    fn totals_add_up() {
        let config =
            RunConfig { stage: vec![Stage { name: "one".into(), ..Stage::default() }], ..RunConfig::default() };
        let point = Point::from(&record(1, 5.0));
        let mut progress = Progress::default();
        progress.add(&point, 2, &mut StepFlops::new(Some(&config), Some(30522)));
        assert_eq!((progress.samples, progress.tokens, progress.seconds), (32.0, 2000.0, 4.0));
        let architecture = Architecture::of_run(&config, config.depth(0), 30522);
        let expected = 2.0 * flops::training(&architecture, std::iter::repeat_n(63, 16), 150);
        let flops = progress.flops.unwrap();
        assert!((flops / expected - 1.0).abs() < 1e-9, "{flops} {expected}");
        progress.add(&point, 1, &mut StepFlops::new(Some(&config), None));
        assert_eq!(progress.flops, None);
    }
}
