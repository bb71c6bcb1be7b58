//! Machine of a plan. Its compute rate comes from the published peak rate of a GPU or from a benchmark.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use clap::ValueEnum;
use lambert_config::run::RunConfig;
use lambert_plan::estimate::machine::{GPUS, GpuModel, Machine};
use lambert_plan::memory;
use serde::Deserialize;
use tempfile::NamedTempFile;

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
    /// FLOPs of the orthogonalizations of Muon in an update. Reports of older versions do not have this field.
    #[serde(default)]
    optimizer_flops: f64,
}

impl BenchFigures {
    /// Returns the mean of the figures of several ranks.
    fn mean(ranks: &[Self]) -> Self {
        let count = ranks.len().max(1) as f64;
        let mean = |of: &dyn Fn(&Self) -> f64| ranks.iter().map(of).sum::<f64>() / count;
        Self {
            device: ranks.first().map_or(String::new(), |rank| rank.device.clone()),
            seconds: [0, 1, 2].map(|index: usize| mean(&|rank| rank.seconds[index])),
            teraflops: mean(&|rank| rank.teraflops),
            optimizer: mean(&|rank| rank.optimizer),
            optimizer_flops: mean(&|rank| rank.optimizer_flops),
        }
    }

    /// Returns the machine that a benchmark of one rank measured. The estimate of a run adds the orthogonalizations of Muon,
    /// which the ranks of the run share. So the duration of an update is without them.
    fn machine(&self, ranks_per_host: usize) -> Machine {
        let passes = (1.0 - self.optimizer).max(f64::EPSILON);
        let flops_per_second = 1e12 * self.teraflops / passes;
        let orthogonalizations = self.optimizer_flops / flops_per_second.max(f64::EPSILON);
        let update_seconds = (self.optimizer * self.seconds[1] - orthogonalizations).max(0.0);
        Machine::measured(self.device.clone(), flops_per_second, update_seconds, ranks_per_host)
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

/// Runs the benchmark on the first stage. Each step has as many samples as one rank gets in the run. As many benchmarks run
/// at the same time as there are ranks, or as there are CPUs for them, because ranks share the memory bandwidth of a host.
fn bench(files: &[PathBuf], config: &RunConfig, sets: &[String]) -> Result<Machine, Failure> {
    let program = worker::find().map_err(Failure::failed)?;
    let samples = config.stage.first().map_or(1, |stage| stage.global_batch.div_ceil(config.cluster.ranks.max(1)));
    let mut command = Command::new(program);
    command.args(["bench", "--samples", &samples.to_string(), "--steps", STEPS, "--json"]);
    for file in files {
        command.arg("--config").arg(file);
    }
    command.args(sets.iter().flat_map(|set| ["--set", set]));
    let teacher = teacher_file(config).map_err(Failure::failed)?;
    if let Some(file) = &teacher {
        command.arg("--teacher").arg(file.path());
    }
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let started: Result<Vec<Child>, std::io::Error> = (0..concurrent(config)).map(|_| command.spawn()).collect();
    let reports: Result<Vec<BenchFigures>, Failure> =
        started.map_err(Failure::failed)?.into_iter().map(report).collect();
    Ok(BenchFigures::mean(&reports?).machine(config.cluster.ranks))
}

/// Writes the description of the teacher to a temporary file, if the run has a teacher.
fn teacher_file(config: &RunConfig) -> Result<Option<NamedTempFile>, PlanError> {
    let Some(info) = config.objective.teacher.as_ref().and_then(|teacher| teacher.info.as_ref()) else {
        return Ok(None);
    };
    let text = info.to_toml().map_err(PlanError::Teacher)?;
    let mut file = NamedTempFile::new().map_err(PlanError::TeacherFile)?;
    file.write_all(text.as_bytes()).map_err(PlanError::TeacherFile)?;
    Ok(Some(file))
}

/// Returns the number of ranks that the benchmark runs at the same time.
fn concurrent(config: &RunConfig) -> usize {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    match memory::uses_gpu(config) {
        true => 1,
        false => config.cluster.ranks.min(cpus / config.device.threads.max(1)).max(1),
    }
}

/// Waits for a benchmark and reads its report.
fn report(benchmark: Child) -> Result<BenchFigures, Failure> {
    let output = benchmark.wait_with_output().map_err(Failure::failed)?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let last = said.trim_end().lines().last().unwrap_or("no message").to_owned();
        return Err(Failure::failed(PlanError::Bench(last)));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    figures(&text, "the benchmark".to_owned()).map_err(Failure::failed)
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
        // At this rate, the orthogonalizations of Muon take 0.3 s of the update.
        let muon = text.replace('}', r#","optimizer_flops":1.2e11}"#);
        let machine = figures(&muon, String::new()).unwrap().machine(2);
        assert!((machine.compute.update_seconds(7) - 0.2).abs() < 1e-12);
        assert!(figures("{}", "x".to_owned()).is_err());
    }

    #[test]
    fn figures_of_several_ranks_are_averaged() {
        let of = |seconds, teraflops| BenchFigures {
            device: "CPU".into(),
            seconds: [seconds, seconds, seconds],
            teraflops,
            optimizer: 0.1,
            optimizer_flops: 0.0,
        };
        let mean = BenchFigures::mean(&[of(1.0, 0.4), of(2.0, 0.2)]);
        assert_eq!((mean.seconds[1], mean.device.as_str()), (1.5, "CPU"));
        assert!((mean.teraflops - 0.3).abs() < 1e-12 && (mean.optimizer - 0.1).abs() < 1e-12);
    }

    #[test]
    fn every_named_machine_but_this_one_is_a_gpu() {
        for name in MachineName::value_variants() {
            assert_eq!(gpu(*name).is_none(), *name == MachineName::Here, "{name:?}");
        }
    }
}
