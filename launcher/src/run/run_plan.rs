//! Summary of a run before it starts: stages, FLOPs and memory per rank.

use lambert_config::run::{RunConfig, Stage, TokenBudget};
use lambert_dataset::DatasetError;
use lambert_plan::architecture::{Architecture, Tensor};
use lambert_plan::estimate::{self, StageSamples, imbalance, stage_flops};
use lambert_plan::memory::{DatasetShape, fit, gpu};
use lambert_plan::objectives::LossSpec;
use lambert_plan::{memory, objectives, timeline};

use super::open_datasets::OpenDatasets;
use crate::failure::Failure;
use crate::text::align;

/// Describes the samples of a stage, from the manifests of its datasets.
pub fn samples(stage: &Stage, opened: &OpenDatasets) -> Result<StageSamples, DatasetError> {
    let describe = |(_, url): (String, &str)| {
        let dataset = opened.open(url)?;
        let mean_tokens = dataset.manifest().counts.tokens as f64 / dataset.rows().max(1) as f64;
        Ok((dataset.sizes(), mean_tokens))
    };
    let datasets = stage.datasets(0).into_iter().map(describe).collect::<Result<Vec<_>, DatasetError>>()?;
    Ok(StageSamples::of_stage(stage, &datasets))
}

/// Summary of a run.
pub struct RunSummary {
    /// Table of the stages and a line with the totals.
    pub lines: Vec<String>,
    /// FLOPs of a sample of each stage.
    pub sample_flops: Vec<f64>,
}

/// Summarizes a run.
///
/// # Errors
/// A dataset cannot be opened.
pub fn summarize(config: &RunConfig, opened: &OpenDatasets) -> Result<RunSummary, Failure> {
    let data = config.stage.iter().map(|stage| samples(stage, opened)).collect::<Result<Vec<_>, _>>()?;
    let flops = |(stage, data): (&Stage, &StageSamples)| {
        estimate::sample_flops(config, stage, stage.depth(&config.model), *data)
    };
    let sample_flops = config.stage.iter().zip(&data).map(flops).collect();
    Ok(RunSummary { lines: table(config, &data), sample_flops })
}

/// Returns the main memory that all ranks together need on one host in the most demanding stage, bytes.
///
/// # Errors
/// A dataset cannot be opened.
pub fn memory(config: &RunConfig, opened: &OpenDatasets) -> Result<u64, Failure> {
    let ranks = config.cluster.ranks.max(1);
    let mut needed = config.stage.iter().map(|stage| {
        let a_rank = memory::rank_bytes(config, stage, samples(stage, opened)?.shape, ranks);
        Ok(a_rank.saturating_mul(ranks as u64))
    });
    needed.try_fold(0, |most, needed: Result<u64, Failure>| Ok(most.max(needed?)))
}

fn table(run: &RunConfig, data: &[StageSamples]) -> Vec<String> {
    let shapes: Vec<DatasetShape> = data.iter().map(|data| data.shape).collect();
    let mut config = run.clone();
    fit::replace_auto(&mut config, &shapes, None);
    let config = &config;
    let deepest = config.stage.iter().map(|stage| stage.depth(&config.model)).max().unwrap_or_default();
    let (mut all_samples, mut all, mut at_full_depth) = (0_u64, 0.0, 0.0);
    let head = ["stage", "layers", "seq_len", "steps", "samples", "epochs", "FLOPs", "GiB/rank", "imbalance"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    for (index, (stage, data)) in config.stage.iter().zip(data).enumerate() {
        let layers = stage.depth(&config.model);
        let here = stage_flops(config, stage, layers, *data);
        all_samples = all_samples.saturating_add(timeline::samples(stage));
        all += here;
        at_full_depth += stage_flops(config, stage, deepest, *data);
        let memory = memory::rank_bytes(config, stage, data.shape, config.cluster.ranks);
        rows.push(vec![
            format!("{index} {}", stage.name),
            layers.to_string(),
            data.shape.sequence_length.to_string(),
            format!("{}{}", if stage.plateau.is_some() { "<=" } else { "" }, stage.steps),
            timeline::samples(stage).to_string(),
            format!("{:.2}", data.epochs(timeline::samples(stage))),
            format!("{here:.2e}"),
            format!("{:.1}", memory as f64 / f64::from(1 << 30)),
            format!("{:.2}", imbalance(stage, *data, config.cluster.ranks)),
        ]);
    }
    let mut lines = align(&rows);
    let saved = 100.0 * (1.0 - all / at_full_depth);
    let less = if saved > 0.0 {
        format!(", {saved:.0}% less than with {deepest} layers in all stages")
    } else {
        String::new()
    };
    let steps = timeline::total_steps(config, &timeline::EarlyStops::new());
    let most = if config.stage.iter().any(|stage| stage.plateau.is_some()) { "at most " } else { "" };
    lines.extend(gpu_lines(run, data));
    lines.extend(frozen(config));
    lines.push(format!("total: {most}{steps} steps, {all_samples} samples, {all:.2e} FLOPs{less}"));
    lines
}

/// Describes the GPU memory per rank in each stage, if the ranks compute on GPUs.
fn gpu_lines(config: &RunConfig, data: &[StageSamples]) -> Vec<String> {
    let line = |(index, data): (usize, &StageSamples)| {
        let (stage, needed) =
            (&config.stage[index], |tokens| gpu::needed(config, index, data.shape, config.cluster.ranks, tokens));
        let gib = |bytes: u64| bytes as f64 / f64::from(1 << 30);
        match stage.micro_batch_tokens {
            TokenBudget::Tokens(tokens) => {
                format!(
                    "stage {index} needs about {:.1} GiB of GPU memory per rank with micro-batches of {tokens} tokens",
                    gib(needed(tokens))
                )
            }
            TokenBudget::Auto => format!(
                "stage {index} uses the largest micro-batches that fit into GPU memory, of at most {} tokens; it needs {:.1} to {:.1} \
                 GiB per rank",
                TokenBudget::MAX_AUTO,
                gib(needed(0)),
                gib(needed(TokenBudget::MAX_AUTO))
            ),
        }
    };
    if !memory::uses_gpu(config) {
        return Vec::new();
    }
    let by = if gpu::dropout_depends_on_micro_batches(config) { "micro-batch (fused attention)" } else { "sample" };
    let draws = config.model.drops_attention().then(|| format!("attention dropout is drawn per {by}"));
    data.iter().enumerate().map(line).chain(draws).collect()
}

/// Describes parameters that are not trained, one line for each reason.
fn frozen(config: &RunConfig) -> Vec<String> {
    let objective = &config.objective;
    let tensors = Architecture::of_run(config, 0, 0).tensors();
    let frozen = tensors.iter().rev().filter(|tensor| objectives::is_head_frozen(tensor.head, objective));
    let (unused, weightless): (Vec<&Tensor>, Vec<&Tensor>) =
        frozen.partition(|tensor| objectives::is_head_unused(tensor.head, objective));
    let would_train = |loss: &LossSpec| unused.iter().any(|tensor| tensor.head == Some(loss.head));
    let others = objectives::ALL.into_iter().filter(would_train);
    let titles: Vec<&str> = others.map(|loss| loss.title).collect();
    let without = format!("not trained without a {} objective, and not exported", titles.join(" or "));
    let line = |tensors: &[&Tensor], why: &str| {
        let part = |tensor: &&Tensor| tensor.name.rsplit_once('.').map_or("", |(part, _)| part).to_owned();
        let mut parts: Vec<String> = tensors.iter().map(part).collect();
        parts.dedup();
        (!parts.is_empty()).then(|| format!("frozen: {} ({why})", parts.join(", ")))
    };
    let lines = [line(&unused, &without), line(&weightless, "its losses have the weight 0")];
    lines.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use lambert_config::run::{Cluster, Device, DeviceKind, Objective, Pair};

    use super::*;

    #[test]
    fn stages_may_differ_in_depth_and_length() {
        let stage = |layers, steps| Stage { name: "one".into(), layers: Some(layers), steps, ..Stage::default() };
        let config = RunConfig { stage: vec![stage(6, 100), stage(12, 100)], ..RunConfig::default() };
        let sizes =
            DatasetShape { vocabulary: 30522, sequence_length: 128, mean_length: 128, rows: 51200, row_group: 1024 };
        let short = StageSamples::of_dataset(sizes, 128.0);
        let shape = DatasetShape { sequence_length: 512, mean_length: 512, ..sizes };
        let long = StageSamples::of_dataset(shape, 512.0);
        let lines = table(&config, &[short, long]);
        assert_eq!(lines.len(), 4);
        // A sample has 128 tokens and 19 predictions. A layer needs 14.2 MFLOPs per token, plus 0.39 MFLOPs for
        // attention.
        let words: Vec<&str> = lines[1].split_whitespace().collect();
        assert_eq!(words[..7], ["0", "one", "6", "128", "100", "25600", "0.50"]);
        let expected = 3.0 * 25600.0 * (128.0 * 6.0 * (14_155_776.0 + 393_216.0) + 19.0 * 48_061_440.0);
        assert!((words[7].parse::<f64>().unwrap() / expected - 1.0).abs() < 0.01, "{} {expected:e}", words[7]);
        assert_eq!(words[words.len() - 1], "1.00");
        assert!(lines[3].starts_with("total: 200 steps, 51200 samples, ") && lines[3].contains("% less than with 12"));
        // With six samples on four ranks, two of the ranks have two samples each.
        let small = Stage { global_batch: 6, ..stage(6, 100) };
        let uneven =
            RunConfig { stage: vec![small], cluster: Cluster { ranks: 4, ..Cluster::default() }, ..config.clone() };
        assert!(table(&uneven, &[short])[1].ends_with(" 1.33"), "{:?}", table(&uneven, &[short]));
        assert!(frozen(&config).is_empty());
        let device = Device { kind: DeviceKind::Cuda, ..Device::default() };
        let mut on_card = RunConfig { device, ..config.clone() };
        on_card.stage[1].micro_batch_tokens = 4096.into();
        let lines = gpu_lines(&on_card, &[short, long]);
        let auto =
            "stage 0 uses the largest micro-batches that fit into GPU memory, of at most 65536 tokens; it needs ";
        assert!(lines[0].starts_with(auto), "{lines:?}");
        assert!(
            lines[1].starts_with("stage 1 needs about ") && lines[1].ends_with("micro-batches of 4096 tokens"),
            "{lines:?}"
        );
        assert_eq!(lines[2], "attention dropout is drawn per micro-batch (fused attention)");
        let objective = Objective { pair: Pair::None, ..config.objective.clone() };
        let expected =
            "frozen: bert.pooler.dense, cls.seq_relationship (not trained without a pair objective, and not exported)";
        assert!(table(&RunConfig { objective, ..config.clone() }, &[short; 2]).contains(&expected.to_owned()));
        let alone = RunConfig { stage: vec![stage(12, 100)], ..config };
        assert!(!table(&alone, &[short])[2].contains("less"), "{:?}", table(&alone, &[short]));
    }
}
