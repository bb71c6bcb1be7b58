//! Machine of a plan. Its compute rate comes from the published peak rate of a GPU or from a benchmark.

use std::path::Path;
use std::process::Command;

use clap::ValueEnum;
use lambert_config::run::RunConfig;
use lambert_plan::estimate::machine::{GPUS, GpuModel, Machine};
use serde::Deserialize;

use super::PlanError;
use crate::cli::{self, MachineName};
use crate::failure::Failure;
use crate::worker;

/// Number of steps of the benchmark. The reported time is the median step time.
const STEPS: &str = "9";

/// Part of the report of `lambert-worker bench --json`.
#[derive(Debug, Deserialize)]
struct BenchFigures {
    device: String,
    /// Minimum, median and maximum step time, seconds.
    seconds: [f64; 3],
    teraflops: f64,
    /// Fraction of the step time that the optimizer update takes.
    optimizer: f64,
}

impl BenchFigures {
    fn machine(&self, ranks_per_host: usize) -> Machine {
        let passes = (1.0 - self.optimizer).max(f64::EPSILON);
        let update_seconds = self.optimizer * self.seconds[1];
        Machine::measured(self.device.clone(), 1e12 * self.teraflops / passes, update_seconds, ranks_per_host)
    }
}

/// Returns the machine that the arguments specify, if any. For `--machine here`, measures this machine.
pub fn machine(arguments: &cli::Plan, config: &RunConfig, sets: &[String]) -> Result<Option<Machine>, Failure> {
    if let Some(path) = &arguments.bench {
        let origin = path.display().to_string();
        let text = std::fs::read_to_string(path)
            .map_err(|source| Failure::usage(PlanError::Read { path: origin.clone(), source }))?;
        return Ok(Some(figures(&text, origin).map_err(Failure::usage)?.machine(config.cluster.ranks)));
    }
    match arguments.machine {
        None => Ok(None),
        Some(MachineName::Here) => bench(&arguments.config, config, sets).map(Some),
        Some(name) => Ok(gpu(name).map(|gpu| Machine::published(gpu, arguments.utilization))),
    }
}

fn figures(text: &str, origin: String) -> Result<BenchFigures, PlanError> {
    serde_json::from_str(text).map_err(|source| PlanError::Format { origin, source })
}

/// Runs the benchmark on the first stage. Each step has as many samples as one rank gets in the run.
fn bench(path: &Path, config: &RunConfig, sets: &[String]) -> Result<Machine, Failure> {
    let program = worker::find().map_err(Failure::failed)?;
    let samples = config.stage.first().map_or(1, |stage| stage.global_batch.div_ceil(config.cluster.ranks.max(1)));
    let mut command = Command::new(program);
    command.arg("bench").arg("--config").arg(path).args([
        "--samples",
        &samples.to_string(),
        "--steps",
        STEPS,
        "--json",
    ]);
    command.args(sets.iter().flat_map(|set| ["--set", set]));
    let output = command.output().map_err(Failure::failed)?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let last = said.trim_end().lines().last().unwrap_or("no message").to_owned();
        return Err(Failure::failed(PlanError::Bench(last)));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let figures = figures(&text, "the benchmark".to_owned()).map_err(Failure::failed)?;
    Ok(figures.machine(config.cluster.ranks))
}

/// Returns the GPU with this name. Returns `None` for the name of this machine.
pub fn gpu(name: MachineName) -> Option<GpuModel> {
    let value = name.to_possible_value()?;
    GPUS.into_iter().find(|gpu| gpu.name == value.get_name())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn benchmark_reports_give_a_rate_without_the_update() {
        let text = r#"{"device":"CPU","samples":4,"seconds":[1.0,2.0,3.0],"teraflops":0.3,"optimizer":0.25}"#;
        let machine = figures(text, String::new()).unwrap().machine(2);
        // The rate over the whole step is 0.3 TFLOP/s. The passes take three quarters of the step, so their rate is 0.4
        // TFLOP/s. The update takes a quarter of the median step time of 2 s.
        let precision = lambert_config::run::Precision::Fp32;
        assert!((machine.compute.flops_per_second(precision) / 0.4e12 - 1.0).abs() < 1e-12);
        assert_eq!(machine.compute.update_seconds(7), 0.5);
        assert!(figures("{}", "x".to_owned()).is_err());
    }

    #[test]
    fn every_named_machine_but_this_one_is_a_gpu() {
        for name in MachineName::value_variants() {
            assert_eq!(gpu(*name).is_none(), *name == MachineName::Here, "{name:?}");
        }
    }
}
