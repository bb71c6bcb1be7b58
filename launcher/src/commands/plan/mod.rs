//! `lambert plan`: estimates time and memory of a run before it is started.
//!
//! - [`machine`]: compute rate of the machine; [`output`]: the plan as text; [`plot`]: time and efficiency as a chart

mod machine;
mod output;
mod plot;

use std::io::Write;
use std::path::PathBuf;

use lambert_config::run::{Precision, RunConfig, Stage};
use lambert_config::{Layers, exit};
use lambert_dataset::DatasetError;
use lambert_plan::durations;
use lambert_plan::estimate::{self, ScalingPoint, StageEstimate, StageSamples, checkpoints};
use lambert_plan::memory::fit::{self, GpuBudget};
use lambert_plan::memory::{self, DatasetShape};
use lambert_progress::Progress;
use serde::Serialize;

use super::files;
use crate::cli::{self, MachineName};
use crate::console;
use crate::failure::{Failure, Outcome};
use crate::run::open_datasets::OpenDatasets;
use crate::run::{data_warnings, run_plan, teacher};

/// Vocabulary size that is assumed if there is no dataset. It is the vocabulary size of bert-base-uncased.
const VOCABULARY: usize = 30522;

#[derive(Debug, thiserror::Error)]
enum PlanError {
    #[error("{option} is {value}; must be above 0{}", if *.most < f64::INFINITY { " and at most 1" } else { "" })]
    Range { option: &'static str, value: f64, most: f64 },
    #[error("--tokens-per-sample has {found} numbers; expected one, or one for each of the {stages} stages")]
    Lengths { found: usize, stages: usize },
    #[error("--tokens-per-sample: {length} tokens for stage.{stage}; must be from 1 to model.positions ({positions})")]
    Length { stage: usize, length: u16, positions: usize },
    #[error("--utilization applies to the published peak of a GPU, not to --machine here")]
    Measured,
    #[error("--scaling and --plot need a machine: add --machine or --bench")]
    NoMachine,
    #[error("cannot draw {}: {message}", path.display())]
    Plot { path: PathBuf, message: String },
    #[error("cannot read benchmark {path}")]
    Read { path: String, source: std::io::Error },
    #[error("{origin} is not the output of `lambert-worker bench --json`")]
    Format { origin: String, source: serde_json::Error },
    #[error("cannot write the description of the teacher as TOML")]
    Teacher(#[source] toml::ser::Error),
    #[error("cannot write a temporary file for the benchmark")]
    TeacherFile(#[source] std::io::Error),
    #[error("the benchmark failed: {0}")]
    Bench(String),
}

/// Result of the command.
#[derive(Debug, Serialize)]
struct Plan {
    machine: Option<String>,
    precision: Precision,
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
    /// Properties of the model that affect the time.
    notes: Vec<String>,
    /// Duration on 1 to 4,096 ranks; empty without a machine.
    scaling: Vec<ScalingPoint>,
}

/// Prints the plan.
pub fn plan(arguments: &cli::Plan) -> Outcome {
    check_ranges(arguments).map_err(Failure::usage)?;
    let progress = Progress::start("reading datasets");
    let sets = sets(arguments);
    let mut config: RunConfig =
        Layers::from_process(&sets).warn_with(|it| tracing::warn!("{it}")).load(&arguments.config)?;
    let lengths = lengths(&config, &arguments.tokens_per_sample).map_err(Failure::usage)?;
    let (data, mut assumptions) = samples(&config, &lengths)?;
    assumptions.extend(teacher::assume(&mut config));
    durations::replace_tokens(&mut config, &data);
    progress.set_label(if arguments.machine == Some(MachineName::Here) {
        "measuring this machine"
    } else {
        "planning"
    });
    let machine = machine::machine(arguments, &config, &sets)?;
    if machine.is_none() && (arguments.scaling || arguments.plot.is_some()) {
        return Err(Failure::usage(PlanError::NoMachine));
    }
    fit::replace_auto(&mut config, &shapes(&data), gpu_budget(arguments.machine).as_ref());
    let stages = estimate::stages(&config, &data, machine.as_ref());
    let total = |of: fn(&estimate::TimeEstimate) -> f64| stages.iter().map(|stage| stage.time.as_ref().map(of)).sum();
    let parameters = stages.iter().map(|stage| stage.parameters).max().unwrap_or(0);
    let checkpoint_bytes = checkpoints::bytes(parameters);
    let save_seconds = checkpoint_bytes as f64 / (1e6 * arguments.store_rate);
    let interval = |failures: f64| checkpoints::best_interval_seconds(save_seconds, 86_400.0 / failures);
    let plan = Plan {
        machine: machine.as_ref().map(|machine| machine.name.clone()),
        precision: config.model.precision,
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
        notes: notes(&config, &data),
        scaling: machine.as_ref().map_or(Vec::new(), |machine| estimate::scaling(&config, &data, machine)),
    };
    if let Some(path) = &arguments.plot {
        let svg = plot::svg(&plan.scaling)
            .map_err(|message| Failure::failed(PlanError::Plot { path: path.clone(), message }))?;
        files::write(path, |file| file.write_all(svg.as_bytes())).map_err(Failure::failed)?;
    }
    drop(progress);
    let mut lines = output::lines(&plan);
    if arguments.scaling {
        lines.extend(output::scaling_lines(&plan.scaling));
    }
    let text = match arguments.json {
        true => serde_json::to_string(&plan).map_err(Failure::failed)?,
        false => lines.join("\n"),
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

/// Returns the settings from the command line. If the command line names a GPU, `device.kind` is one of the settings.
fn sets(arguments: &cli::Plan) -> Vec<String> {
    let mut sets = arguments.sets.clone();
    sets.extend(arguments.ranks.map(|ranks| format!("cluster.ranks={ranks}")));
    sets.extend(arguments.machine.and_then(machine::gpu).map(|_| "device.kind=cuda".to_owned()));
    sets
}

fn notes(config: &RunConfig, data: &[StageSamples]) -> Vec<String> {
    let (groups, ranks) = (config.model.groups, config.cluster.ranks);
    let is_shared = groups > 0 && config.stage.iter().any(|stage| stage.depth(&config.model) > groups);
    let note = || {
        format!(
            "model.groups = {groups}: the gradients of a group of layers are final only after the backward pass of its \
             first layer, so little of the all-reduce overlaps with the backward pass"
        )
    };
    let few_masks = |(index, (stage, data)): (usize, (&Stage, &StageSamples))| {
        let objective = stage.objective.of(&config.objective);
        data_warnings::few_masks(&format!("stage.{index}"), &objective, data.shape.sequence_length)
    };
    let masks = config.stage.iter().zip(data).enumerate().filter_map(few_masks);
    (is_shared && ranks > 1).then(note).into_iter().chain(masks).collect()
}

/// Returns the tokens of a full sample, by stage, from the numbers of `--tokens-per-sample`. Without any, samples have as
/// many tokens as the model has positions.
fn lengths(config: &RunConfig, given: &[u16]) -> Result<Vec<usize>, PlanError> {
    let (stages, positions) = (config.stage.len(), config.model.positions);
    if given.len() > 1 && given.len() != stages {
        return Err(PlanError::Lengths { found: given.len(), stages });
    }
    for (stage, length) in given.iter().copied().enumerate() {
        if !(1..=positions).contains(&usize::from(length)) {
            return Err(PlanError::Length { stage, length, positions });
        }
    }
    let of_stage = |stage| given.get(stage).or(given.first()).map_or(positions, |length| usize::from(*length));
    Ok((0..stages).map(of_stage).collect())
}

/// Reads the datasets' manifests. A dataset that does not exist or cannot be reached is replaced by an assumption: full
/// samples of `lengths` tokens, by stage.
fn samples(config: &RunConfig, lengths: &[usize]) -> Result<(Vec<StageSamples>, Vec<String>), Failure> {
    let (mut data, mut assumptions, datasets) = (Vec::new(), Vec::new(), OpenDatasets::default());
    for (index, (stage, &length)) in config.stage.iter().zip(lengths).enumerate() {
        match run_plan::samples(stage, &datasets) {
            Ok(samples) => data.push(samples),
            Err(DatasetError::NoManifest { url } | DatasetError::Store { url, .. }) => {
                let url = lambert_store::shown(&url);
                assumptions.push(format!(
                    "stage.{index}: dataset {url} cannot be read; assuming full samples of {length} tokens and a vocabulary of {VOCABULARY}"
                ));
                data.push(StageSamples::assumed(length.max(1), VOCABULARY));
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok((data, assumptions))
}

fn shapes(data: &[StageSamples]) -> Vec<DatasetShape> {
    data.iter().map(|data| data.shape).collect()
}

/// Returns the memory of a GPU that no other process uses. `None` for this machine.
fn gpu_budget(name: Option<MachineName>) -> Option<GpuBudget> {
    let gpu = name.and_then(machine::gpu)?;
    Some(GpuBudget { rank: 0, gpu: gpu.name.to_owned(), free: gpu.memory, memory: gpu.memory })
}

/// Returns an error message for each stage that does not fit into the memory of the GPU or of this host.
fn shortages(config: &RunConfig, data: &[StageSamples], name: Option<MachineName>) -> Vec<String> {
    let (shapes, mut issues) = (shapes(data), Vec::new());
    if let Some(budget) = gpu_budget(name) {
        let shortage = fit::micro_batches(config, &shapes, config.cluster.ranks, Some(&budget), &[]).err();
        issues.extend(shortage.into_iter().flat_map(|shortage| shortage.issues));
    } else if config.cluster.hosts.is_empty() && name == Some(MachineName::Here) {
        memory::check(config, &shapes, config.cluster.ranks, &mut issues);
    }
    issues.iter().map(ToString::to_string).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_length_counts_for_all_stages_and_other_counts_are_refused() {
        let mut config = RunConfig { stage: vec![Stage::default(), Stage::default()], ..RunConfig::default() };
        config.model.positions = 512;
        let found = |given: &[u16]| lengths(&config, given).map_err(|error| error.to_string());
        assert_eq!(found(&[]), Ok(vec![512, 512]));
        assert_eq!(found(&[128]), Ok(vec![128, 128]));
        assert_eq!(found(&[128, 512]), Ok(vec![128, 512]));
        assert!(
            found(&[128, 256, 512]).unwrap_err().contains("3 numbers; expected one, or one for each of the 2 stages")
        );
        assert!(
            found(&[128, 513]).unwrap_err().contains("513 tokens for stage.1; must be from 1 to model.positions (512)")
        );
        assert!(found(&[0]).is_err());
    }
}
