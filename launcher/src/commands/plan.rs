//! `lambert plan`: estimates time and memory of a run before it is started.

use std::path::Path;
use std::process::Command;

use clap::ValueEnum;
use lambert_config::run::RunConfig;
use lambert_config::{Layers, exit};
use lambert_dataset::{Dataset, DatasetError};
use lambert_plan::estimate::machine::{GPUS, GpuModel, Machine};
use lambert_plan::estimate::{self, StageEstimate, StageSamples, checkpoints};
use lambert_plan::memory::fit::{self, GpuBudget};
use lambert_plan::memory::{self, DatasetShape};
use serde::{Deserialize, Serialize};

use crate::cli::{self, MachineName};
use crate::console;
use crate::failure::{Failure, Outcome};
use crate::text::{align, duration, size};
use crate::worker;

/// Vocabulary size where there is no dataset: that of bert-base-uncased.
const VOCABULARY: usize = 30522;
/// Steps of the benchmark; the median counts.
const STEPS: &str = "9";

#[derive(Debug, thiserror::Error)]
enum PlanError {
    #[error("{option}: is {value}; must be above 0{}", if *.most < f64::INFINITY { " and at most 1" } else { "" })]
    Range { option: &'static str, value: f64, most: f64 },
    #[error("--utilization applies to the published peak of a GPU, not to --machine here")]
    Measured,
    #[error("cannot read benchmark {path}")]
    Read { path: String, source: std::io::Error },
    #[error("{origin} is not the output of `lambert-worker bench --json`")]
    Format { origin: String, source: serde_json::Error },
    #[error("the benchmark failed: {0}")]
    Bench(String),
}

/// Part of the report of `lambert-worker bench --json`.
#[derive(Debug, Deserialize)]
struct BenchFigures {
    device: String,
    /// Minimum, median and maximum of a step.
    seconds: [f64; 3],
    teraflops: f64,
    /// Fraction of a step.
    optimizer: f64,
}

impl BenchFigures {
    fn machine(&self, ranks_per_host: usize) -> Machine {
        let passes = (1.0 - self.optimizer).max(f64::EPSILON);
        let update_seconds = self.optimizer * self.seconds[1];
        Machine::measured(self.device.clone(), 1e12 * self.teraflops / passes, update_seconds, ranks_per_host)
    }
}

/// Result of the command.
#[derive(Debug, Serialize)]
struct Plan {
    machine: Option<String>,
    ranks: usize,
    stages: Vec<StageEstimate>,
    total_flops: f64,
    total_hours: Option<f64>,
    total_rank_hours: Option<f64>,
    checkpoint_bytes: u64,
    checkpoint_save_seconds: f64,
    best_checkpoint_interval_seconds: Option<f64>,
    /// Stages that do not fit into memory.
    shortages: Vec<String>,
    /// Assumptions about missing datasets.
    assumptions: Vec<String>,
}

/// Prints the plan.
pub fn plan(arguments: &cli::Plan) -> Outcome {
    check_ranges(arguments).map_err(Failure::usage)?;
    let sets = sets(arguments);
    let config: RunConfig =
        Layers::from_process(&sets).warn_with(|it| tracing::warn!("{it}")).load(&arguments.config)?;
    let (data, assumptions) = samples(&config, &arguments.tokens_per_sample)?;
    let machine = machine(arguments, &config, &sets)?;
    let stages = estimate::stages(&config, &data, machine.as_ref());
    let total = |of: fn(&estimate::TimeEstimate) -> f64| stages.iter().map(|stage| stage.time.as_ref().map(of)).sum();
    let parameters = stages.iter().map(|stage| stage.parameters).max().unwrap_or(0);
    let checkpoint_bytes = checkpoints::bytes(parameters);
    let save_seconds = checkpoint_bytes as f64 / (1e6 * arguments.store_rate);
    let interval = |failures: f64| checkpoints::best_interval_seconds(save_seconds, 86_400.0 / failures);
    let plan = Plan {
        machine: machine.as_ref().map(|machine| machine.name.clone()),
        ranks: config.cluster.ranks,
        total_flops: stages.iter().map(|stage| stage.flops).sum(),
        total_hours: total(|time| time.hours),
        total_rank_hours: total(|time| time.rank_hours),
        stages,
        checkpoint_bytes,
        checkpoint_save_seconds: save_seconds,
        best_checkpoint_interval_seconds: arguments.failures_per_day.map(interval),
        shortages: shortages(&config, &data, arguments.machine),
        assumptions,
    };
    let text = match arguments.json {
        true => serde_json::to_string(&plan).map_err(Failure::failed)?,
        false => lines(&plan).join("\n"),
    };
    console::result(&text).map_err(Failure::failed)?;
    Ok(exit::DONE)
}

fn check_ranges(arguments: &cli::Plan) -> Result<(), PlanError> {
    let rates = [
        ("--utilization", arguments.utilization, 1.0),
        ("--failures-per-day", arguments.failures_per_day, f64::INFINITY),
        ("--store-rate", Some(arguments.store_rate), f64::INFINITY),
    ];
    for (option, value, most) in rates {
        if let Some(value) = value.filter(|value| !(*value > 0.0 && *value <= most && value.is_finite())) {
            return Err(PlanError::Range { option, value, most });
        }
    }
    if arguments.utilization.is_some() && arguments.machine == Some(MachineName::Here) {
        return Err(PlanError::Measured);
    }
    Ok(())
}

/// Returns the settings of the command line; a named GPU implies `device.kind`.
fn sets(arguments: &cli::Plan) -> Vec<String> {
    let mut sets = arguments.sets.clone();
    sets.extend(arguments.ranks.map(|ranks| format!("cluster.ranks={ranks}")));
    sets.extend(arguments.machine.and_then(gpu).map(|_| "device.kind=cuda".to_owned()));
    sets
}

fn gpu(name: MachineName) -> Option<GpuModel> {
    let value = name.to_possible_value()?;
    GPUS.into_iter().find(|gpu| gpu.name == value.get_name())
}

/// Reads the datasets' manifests. A dataset that does not exist or cannot be reached is replaced by an assumption.
fn samples(config: &RunConfig, tokens: &[u16]) -> Result<(Vec<StageSamples>, Vec<String>), Failure> {
    let (mut data, mut assumptions) = (Vec::new(), Vec::new());
    for (index, stage) in config.stage.iter().enumerate() {
        match Dataset::open(&stage.data) {
            Ok(dataset) => {
                let mean_tokens = dataset.manifest().counts.tokens as f64 / dataset.rows().max(1) as f64;
                data.push(StageSamples { shape: dataset.sizes(), mean_tokens, is_assumed: false });
            }
            Err(DatasetError::NoManifest { .. } | DatasetError::Store { .. }) => {
                let length = tokens.get(index).or(tokens.last()).map_or(config.model.positions, |it| usize::from(*it));
                let url = &stage.data;
                assumptions.push(format!(
                    "stage.{index}.data: {url} cannot be read; assuming full samples of {length} tokens and a vocabulary of {VOCABULARY}"
                ));
                data.push(StageSamples::assumed(length.max(1), VOCABULARY));
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok((data, assumptions))
}

fn machine(arguments: &cli::Plan, config: &RunConfig, sets: &[String]) -> Result<Option<Machine>, Failure> {
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

/// Measures the first stage with the samples of one rank.
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

/// Stages that do not fit into the memory of the GPU, or of this host.
fn shortages(config: &RunConfig, data: &[StageSamples], name: Option<MachineName>) -> Vec<String> {
    let shapes: Vec<DatasetShape> = data.iter().map(|data| data.shape).collect();
    let mut issues = Vec::new();
    if let Some(gpu) = name.and_then(gpu) {
        let budget = GpuBudget { rank: 0, gpu: gpu.name.to_owned(), free: gpu.memory, memory: gpu.memory };
        let shortage = fit::micro_batches(config, &shapes, config.cluster.ranks, Some(&budget)).err();
        issues.extend(shortage.into_iter().flat_map(|shortage| shortage.issues));
    } else if config.cluster.hosts.is_empty() && name == Some(MachineName::Here) {
        memory::check(config, &shapes, config.cluster.ranks, &mut issues);
    }
    issues.iter().map(ToString::to_string).collect()
}

fn lines(plan: &Plan) -> Vec<String> {
    let head = ["stage", "parameters", "seq_len", "steps", "samples", "epochs", "FLOPs", "GiB/rank", "imbalance"];
    let times = ["s/step", "exposed s", "efficiency", "hours", "rank-hours"];
    let mut rows = vec![head.iter().chain(&times).map(|name| (*name).to_owned()).collect::<Vec<String>>()];
    rows.extend(plan.stages.iter().enumerate().map(|(index, stage)| row(index, stage)));
    let mut lines = align(&rows);
    lines.extend(plan.assumptions.iter().cloned());
    lines.extend(plan.shortages.iter().map(|shortage| format!("does not fit: {shortage}")));
    let best = plan.best_checkpoint_interval_seconds;
    let best = best.map_or(String::new(), |seconds| format!("; best interval: {} (Young/Daly)", duration(seconds)));
    let saved = plan.checkpoint_save_seconds;
    lines.push(format!("checkpoint: {}, written in about {saved:.1} s{best}", size(plan.checkpoint_bytes)));
    let time = match (&plan.machine, plan.total_hours, plan.total_rank_hours) {
        (Some(name), Some(hours), Some(all)) => {
            format!(", {hours:.2} hours on {} ranks ({all:.1} rank-hours; machine: {name})", plan.ranks)
        }
        _ => "; --machine or --bench estimates the hours".to_owned(),
    };
    lines.push(format!("total: {:.2e} FLOPs{time}", plan.total_flops));
    lines
}

fn row(index: usize, stage: &StageEstimate) -> Vec<String> {
    let bytes = stage.memory.gpu_bytes.unwrap_or(stage.memory.host_bytes);
    let mut row = vec![
        format!("{index} {}", stage.name),
        stage.parameters.to_string(),
        stage.sequence_length_tokens.to_string(),
        stage.steps.to_string(),
        stage.samples.to_string(),
        stage.epochs.map_or("?".to_owned(), |epochs| format!("{epochs:.2}")),
        format!("{:.2e}", stage.flops),
        format!("{:.1}", bytes as f64 / f64::from(1 << 30)),
        format!("{:.2}", stage.imbalance),
    ];
    row.extend(match &stage.time {
        Some(time) => [
            format!("{:.3}", time.step_seconds),
            format!("{:.4}", time.exposed_seconds),
            format!("{:.2}", time.scaling_efficiency),
            format!("{:.2}", time.hours),
            format!("{:.1}", time.rank_hours),
        ],
        None => std::array::from_fn(|_| "?".to_owned()),
    });
    row
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn benchmark_reports_give_a_rate_without_the_update() {
        let text = r#"{"device":"CPU","samples":4,"seconds":[1.0,2.0,3.0],"teraflops":0.3,"optimizer":0.25}"#;
        let machine = figures(text, String::new()).unwrap().machine(2);
        // 0.3 TFLOP/s over the whole step, of which the passes take three quarters; a quarter of 2 s for the update.
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
