//! Facts of a run for a report, read from its store.

use std::collections::BTreeMap;

use lambert_config::RunConfig;
use lambert_config::run::{MixtureDataset, Stage};
use lambert_control::{Evaluation, Score, StepRecord};
use lambert_dataset::tokenizer::TokenTable;
use lambert_plan::architecture::Architecture;
use lambert_plan::flops;
use lambert_plan::timeline::{self, EarlyStops};
use lambert_store::run::CONFIG;
use lambert_store::{Store, StoredVocabulary, checkpoint};
use serde::Serialize;

use super::chart::{Curves, EventLine, Point, is_drawable};
use super::extra::{ExtraReport, by_name, curve};
use super::gpus::{GpuReport, XidReport};
use crate::decide::RestartHistory;
use crate::failure::Failure;
use crate::metrics::history::History;
use crate::status::goodput::Goodput;
use crate::status::stored;
use crate::stored_config;

/// Steps whose mean is the final loss.
const LAST: usize = 20;

/// Facts of a run.
#[derive(Debug, Serialize)]
pub struct RunReport {
    pub name: String,
    pub url: String,
    /// State in `status.json`; empty if there is none.
    pub state: String,
    /// Why the run failed, if it did.
    pub error: Option<String>,
    /// Steps that are not undone.
    pub steps: u64,
    /// Last step that is not undone.
    pub last_step: Option<u64>,
    pub planned_steps: u64,
    pub samples: u64,
    /// Tokens without padding.
    pub tokens: u64,
    /// FLOPs of the steps that are not undone; none for a configuration that this program cannot read.
    pub flops: Option<f64>,
    /// Seconds of the steps that are not undone.
    pub step_seconds: f64,
    /// Seconds of steps that were repeated or rolled back.
    pub undone_seconds: f64,
    pub undone_steps: u64,
    /// Seconds from failures until the run had made the lost steps again.
    pub recovery_seconds: f64,
    /// Median samples per second.
    pub samples_per_second: f64,
    /// Peak memory of the rank with the highest peak, bytes; none for a run of a version that did not record it.
    pub peak_memory: Option<u64>,
    /// Values of the GPUs; none for a run without GPUs or without NVML.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu: Option<GpuReport>,
    /// GPUs with Xid errors in the last attempt. Those of earlier attempts are in the causes of the failures.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub xids: Vec<XidReport>,
    /// Mean of the last 20 steps by loss, nats.
    pub losses: BTreeMap<String, f64>,
    /// Accuracies of the last 20 steps by loss, as fractions.
    pub accuracies: BTreeMap<String, f64>,
    /// Last evaluation by loss, nats.
    pub held_out: BTreeMap<String, f64>,
    /// Accuracies of the last evaluation by loss, as fractions.
    pub held_out_accuracies: BTreeMap<String, f64>,
    /// Step of the last evaluation.
    pub held_out_step: Option<u64>,
    /// Number of samples of the last evaluation.
    pub held_out_samples: Option<u64>,
    /// Step and main loss of the evaluation with the lowest total loss.
    pub best_held_out: Option<(u64, f64)>,
    /// Step and main loss of the first evaluation.
    pub first_held_out: Option<Point>,
    /// Results on the extra held-out datasets.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub extra: Vec<ExtraReport>,
    /// Loss of the unigram baseline, nats.
    pub unigram_entropy: Option<f64>,
    pub skipped_samples: u64,
    pub skipped_updates: u64,
    /// Fraction of the steps in which the loss or the gradient norm was a spike.
    pub spike_score: Option<f64>,
    pub stages: Vec<StageReport>,
    pub failures: Vec<FailureReport>,
    /// Wall-clock time by category; none for a run of a version that did not account for it.
    pub goodput: Option<Goodput>,
    pub checkpoint: Option<String>,
    /// SHA-256 of the dataset manifests that the newest checkpoint names.
    pub datasets_sha256: Vec<String>,
    /// Text of `run.toml`.
    pub config: String,
    #[serde(skip)]
    pub curves: Curves,
}

/// Stage of a run.
#[derive(Debug, Serialize)]
pub struct StageReport {
    pub name: String,
    pub layers: usize,
    pub data: String,
    pub steps: u64,
    pub samples: u64,
    pub tokens: u64,
    pub flops: f64,
    pub final_loss: f64,
}

/// Failure that was followed by a restart.
#[derive(Debug, Serialize)]
pub struct FailureReport {
    pub attempt: u32,
    pub step: u64,
    pub cause: String,
    /// Seconds until the run reached the step again; none if it has not.
    pub recovery_seconds: Option<f64>,
}

/// Reads a run. `restarts` is its restart history.
///
/// # Errors
/// A store error. Damaged records are omitted with a warning.
pub fn collect(store: &Store, restarts: &RestartHistory) -> Result<RunReport, Failure> {
    let newest = checkpoint::list(store).map_err(Failure::failed)?.first().map(|listed| listed.name.clone());
    let datasets = newest.as_ref().and_then(|name| checkpoint::read_manifest(store, name).ok());
    let datasets = datasets.map_or(Vec::new(), |manifest| manifest.cursor.into_keys().collect());
    let report = collect_until(store, restarts, u64::MAX)?;
    Ok(RunReport { checkpoint: newest, datasets_sha256: datasets, ..report })
}

/// Reads a run up to a step. The report has no checkpoint and no datasets.
///
/// # Errors
/// As for [`collect`].
pub fn collect_until(store: &Store, restarts: &RestartHistory, last_step: u64) -> Result<RunReport, Failure> {
    let mut history = History::default();
    history.refresh(store).map_err(Failure::failed)?;
    let Records { steps, evaluations, undone } = parse(&history, store, last_step).map_err(Failure::failed)?;
    let config = String::from_utf8_lossy(&store.get(CONFIG).map_err(Failure::failed)?).into_owned();
    let parsed = stored_config::parse(&config, store)
        .inspect_err(|error| tracing::warn!("{error}; the report lacks layers and FLOPs"))
        .ok();
    let status = stored::read_if_intact(store)?;
    let status = status.inspect_err(|damage| tracing::warn!("{damage}; the report lacks the state"));
    let status = status.ok().flatten().unwrap_or_default();
    let named = parsed.as_ref().map_or("", |config| &config.run.name);
    let name = if status.name.is_empty() { named } else { &status.name }.to_owned();
    let stages = parsed.as_ref().map_or(Vec::new(), |config| stages(config, &steps, vocabulary(store)));
    // No checkpoint has the weights before the first step.
    let is_saved = |evaluation: &&Evaluation| evaluation.step > 0 && evaluation.total_loss().is_finite();
    let best = evaluations.iter().filter(is_saved);
    let best = best.min_by(|a, b| a.total_loss().total_cmp(&b.total_loss()));
    let last = steps.last();
    let newest = evaluations.last().map(|evaluation| &evaluation.scores);
    let curves = curves(&name, &steps, &undone, &evaluations, &stages, restarts);
    Ok(RunReport {
        name,
        url: store.url().to_owned(),
        state: if status.updated > 0.0 { status.state.to_string() } else { String::new() },
        error: status.error.filter(|_| status.state == crate::status::RunState::Failed),
        steps: steps.len() as u64,
        last_step: last.map(|record| record.step),
        planned_steps: parsed.as_ref().map_or(0, |config| timeline::total_steps(config, &EarlyStops::new())),
        samples: sum(&steps, |record| record.batch.samples),
        tokens: sum(&steps, |record| record.batch.tokens),
        flops: parsed.is_some().then(|| stages.iter().map(|stage| stage.flops).sum()),
        step_seconds: total(steps.iter().map(|record| record.times.seconds)),
        undone_seconds: total(undone.iter().map(|record| record.times.seconds)),
        undone_steps: undone.len() as u64,
        recovery_seconds: total(restarts.restarts.iter().filter_map(|restart| restart.seconds)),
        samples_per_second: median(steps.iter().map(|record| record.throughput.samples_per_second).collect()),
        peak_memory: steps.iter().chain(&undone).filter_map(|record| record.peak_memory).max(),
        gpu: GpuReport::of(steps.iter().chain(&undone)),
        xids: XidReport::of(&status.workers.ranks),
        losses: means(&steps, |score| Some(score.loss)),
        accuracies: means(&steps, |score| score.accuracy),
        held_out: by_name(newest, |score| Some(score.loss)),
        held_out_accuracies: by_name(newest, |score| score.accuracy),
        held_out_step: evaluations.last().map(|evaluation| evaluation.step),
        held_out_samples: evaluations.last().map(|evaluation| evaluation.samples),
        first_held_out: curves.held_out.first().copied(),
        extra: ExtraReport::all(&evaluations),
        best_held_out: best.map(|evaluation| (evaluation.step, evaluation.scores.main().loss)),
        unigram_entropy: evaluations.last().map(|evaluation| evaluation.unigram_entropy),
        skipped_samples: last.map_or(0, |record| record.skipped.samples),
        skipped_updates: last.map_or(0, |record| record.skipped.updates),
        spike_score: last.and_then(|record| record.update.spike_score),
        failures: failures(restarts),
        goodput: Some(status.goodput).filter(|goodput| !goodput.is_empty()),
        checkpoint: None,
        datasets_sha256: Vec::new(),
        curves,
        stages,
        config,
    })
}

/// Sum of a count over steps, at most `u64::MAX`.
fn sum<'a>(steps: impl IntoIterator<Item = &'a StepRecord>, of: fn(&StepRecord) -> u64) -> u64 {
    steps.into_iter().map(of).fold(0, u64::saturating_add)
}

/// Sum of seconds. The sum of no values is 0.0, not -0.0.
fn total(seconds: impl Iterator<Item = f64>) -> f64 {
    seconds.sum::<f64>() + 0.0
}

/// Records of a run.
struct Records {
    /// Step records that are not undone, by step.
    steps: Vec<StepRecord>,
    /// Evaluations that are not undone, by step.
    evaluations: Vec<Evaluation>,
    undone: Vec<StepRecord>,
}

/// Parses the records up to step `last`.
fn parse(history: &History, store: &Store, last: u64) -> Result<Records, lambert_store::Error> {
    let (mut steps, mut evaluations, mut undone) = (BTreeMap::new(), BTreeMap::new(), Vec::new());
    let entries = history.entries();
    history.read(store, entries.iter().filter(|entry| entry.position.step <= last), |entry, text| {
        let step = entry.position.step;
        if entry.is_event {
            let evaluation = serde_json::from_str::<Evaluation>(text).ok().filter(|_| !entry.is_undone);
            evaluations.extend(evaluation.map(|evaluation| (step, evaluation)));
        } else if let Ok(record) = serde_json::from_str::<StepRecord>(text) {
            match entry.is_undone {
                true => undone.push(record),
                false => drop(steps.insert(step, record)),
            }
        }
        Ok::<(), lambert_store::Error>(())
    })?;
    Ok(Records { steps: steps.into_values().collect(), evaluations: evaluations.into_values().collect(), undone })
}

/// Number of tokens in the vocabulary of the run; 0 if it has none yet.
fn vocabulary(store: &Store) -> usize {
    let vocabulary = StoredVocabulary::read(store).ok();
    vocabulary.and_then(|vocabulary| TokenTable::count(&vocabulary.bytes)).unwrap_or(0)
}

fn stages(config: &RunConfig, steps: &[StepRecord], vocabulary: usize) -> Vec<StageReport> {
    let report = |stage: &Stage| {
        let records: Vec<&StepRecord> = steps.iter().filter(|record| record.stage == stage.name).collect();
        let layers = stage.depth(&config.model);
        let sum = |of: fn(&StepRecord) -> u64| sum(records.iter().copied(), of);
        let (samples, tokens) = (sum(|record| record.batch.samples), sum(|record| record.batch.tokens));
        let architecture = Architecture::of_run(config, layers, vocabulary);
        let count = samples.max(1);
        let sample = flops::training(
            &architecture,
            std::iter::once(tokens / count),
            sum(|record| record.batch.masked_tokens) / count,
        );
        let teacher = config.objective.teacher.as_ref();
        let sample = sample + flops::teaching(teacher, &architecture, std::iter::once(tokens / count));
        let last = &records[records.len().saturating_sub(LAST)..];
        StageReport {
            name: stage.name.clone(),
            layers,
            data: data(stage, &records),
            steps: records.len() as u64,
            samples,
            tokens,
            flops: sample * samples as f64,
            final_loss: last.iter().map(|record| record.loss).sum::<f64>() / last.len() as f64,
        }
    };
    config.stage.iter().map(report).collect()
}

/// Dataset of a stage, or the names of the datasets of its mixture with their shares of the samples.
fn data(stage: &Stage, records: &[&StepRecord]) -> String {
    if stage.mixture.is_empty() {
        return stage.data.clone();
    }
    let samples = sum(records.iter().copied(), |record| record.batch.samples).max(1) as f64;
    let of_step = |record: &&StepRecord, name: &str| {
        record.mixture.get(name).map_or(0.0, |stats| stats.share * record.batch.samples as f64)
    };
    let name = |part: &MixtureDataset| {
        let share = records.iter().map(|record| of_step(record, &part.name)).sum::<f64>() / samples;
        format!("{} {:.1}%", part.name, 100.0 * share)
    };
    stage.mixture.iter().map(name).collect::<Vec<_>>().join(", ")
}

/// Means of a value of each loss over the last steps.
fn means(steps: &[StepRecord], value: fn(&Score) -> Option<f64>) -> BTreeMap<String, f64> {
    let last = &steps[steps.len().saturating_sub(LAST)..];
    let mut sums: BTreeMap<String, (f64, f64)> = BTreeMap::new();
    for score in last.iter().flat_map(|record| record.scores.iter()) {
        if let Some(value) = value(score).filter(|value| value.is_finite()) {
            let sum = sums.entry(score.name.clone()).or_default();
            *sum = (sum.0 + value, sum.1 + 1.0);
        }
    }
    sums.into_iter().map(|(name, (sum, count))| (name, sum / count)).collect()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

fn failures(history: &RestartHistory) -> Vec<FailureReport> {
    let report = |restart: &crate::decide::history::Restart| FailureReport {
        attempt: restart.attempt,
        step: restart.step,
        cause: restart.cause.clone(),
        recovery_seconds: restart.seconds,
    };
    history.restarts.iter().map(report).collect()
}

fn curves(
    name: &str,
    steps: &[StepRecord],
    undone: &[StepRecord],
    evaluations: &[Evaluation],
    stages: &[StageReport],
    history: &RestartHistory,
) -> Curves {
    let objective = steps.first().map_or(String::new(), |record| record.scores.main().name.to_uppercase());
    let point = |record: &StepRecord, value: f64| Some((record.step as f64, value)).filter(|_| is_drawable(value));
    let series = |of: fn(&StepRecord) -> f64| steps.iter().filter_map(|record| point(record, of(record))).collect();
    let by_stage = steps.chunk_by(|a, b| a.stage == b.stage);
    let main_loss = |record: &StepRecord| record.scores.main().loss;
    let restarts = history.restarts.iter().map(|restart| {
        let label = match () {
            () if restart.cause.contains("rolled back") => "rollback",
            () if restart.cause.contains("killed by") => "worker killed",
            () => "restart",
        };
        EventLine { step: restart.step as f64, label: format!("{label} at step {}", restart.step) }
    });
    let mut end = 0;
    let growth = stages.windows(2).filter_map(|pair| {
        end += pair[0].steps;
        let (before, after) = (pair[0].layers, pair[1].layers);
        let label = format!("grown from {before} to {after} layers");
        (before < after && pair[1].steps > 0).then_some(EventLine { step: end as f64, label })
    });
    Curves {
        name: name.to_owned(),
        objective,
        training: by_stage
            .map(|stage| stage.iter().filter_map(|record| point(record, main_loss(record))).collect())
            .collect(),
        undone: undone.iter().filter_map(|record| point(record, main_loss(record))).collect(),
        held_out: curve(evaluations.iter().map(|evaluation| (evaluation.step, &evaluation.scores))),
        extra: ExtraReport::all(evaluations).into_iter().map(|extra| (extra.name, extra.curve)).collect(),
        baseline: evaluations.last().map(|evaluation| evaluation.unigram_entropy).filter(|nats| is_drawable(*nats)),
        learning_rate: series(|record| record.update.learning_rate),
        gradient_norm: series(|record| record.update.grad_norm.unwrap_or(f64::NAN)),
        samples_per_second: series(|record| record.throughput.samples_per_second),
        marks: restarts.chain(growth).collect(),
    }
}

#[cfg(test)]
mod tests {
    use lambert_control::BatchStats;

    use super::*;

    #[test]
    fn sums_of_counts_do_not_overflow() {
        let batch = BatchStats { samples: u64::MAX, ..BatchStats::default() };
        let steps = [StepRecord { batch, ..StepRecord::default() }, StepRecord::default()];
        assert_eq!(sum(&steps, |record| record.batch.samples), u64::MAX);
        assert_eq!(sum(steps.iter().chain(&steps), |record| record.batch.samples), u64::MAX);
    }
}
