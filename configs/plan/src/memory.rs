//! What a run needs of its machines' memory, by formula, and what this machine has.

pub mod card;
mod cgroup;
pub mod fit;
mod samples;

use std::path::Path;

use crate::architecture::{Architecture, Each};
use crate::objectives::{self, Loss};
use lambert_config::load::Fault;
use lambert_config::run::{DeviceKind, Precision, RunConfig, Stage};

pub use samples::{Data, READERS, WINDOW, batches_ahead, samples};

/// Weights, gradients and two moments, 4 bytes each.
const STATE: u64 = 16;
/// Weights and two moments once more, over all ranks together: the copy that checkpoints are written from.
const SNAPSHOT: u64 = 12;
/// With `cluster.all_reduce.canonical`: the sum of the gradients, in two halves.
const EXACT: u64 = 16;
/// With `metrics.noise_scale_every_steps`: the gradient of the first half of a global batch.
const HALF: u64 = 4;

/// Bytes of the training state of `ranks` ranks on one host, which are all of the run's; activations, libraries and
/// samples come on top.
pub fn state(parameters: u64, ranks: usize) -> u64 {
    parameters.saturating_mul((ranks as u64).saturating_mul(STATE).saturating_add(SNAPSHOT))
}

/// Bytes of a worker without tensors: libtorch, Open MPI, threads. Measured; it differs by some
/// 60 MiB between types of processors, and this is the larger.
const PROGRAM: u64 = 200 << 20;

/// Bytes more of a worker that computes in bf16 on a processor: oneDNN's code and buffers for its matrix products. Measured with AMX,
/// where it is largest.
const PROGRAM_BF16: u64 = 56 << 20;

/// Bytes in main memory of a worker whose tensors are on a card: the CUDA halves of its libraries come on top. Assumed.
const PROGRAM_OF_CARD: u64 = 2 << 30;
/// Bytes a parameter in main memory of a rank that computes on a card: gradients on their way to the other ranks.
const EXCHANGE: u64 = 4;

/// The allocator keeps some of the memory of smaller micro-batches while the largest, which comes last, takes its own: this part
/// of the largest's activations. Measured.
const KEPT: u64 = 8;

/// Bytes of the activations, and of the gradients of activations, of one micro-batch of a stage at their most; `length` is
/// the dataset's sequence length, `vocabulary` its pieces. Counted is what each operation keeps for its backward pass, and the
/// larger of the softmax over the vocabulary and one layer's gradients.
pub fn activations(config: &RunConfig, stage: &Stage, vocabulary: usize, length: usize) -> u64 {
    let model = &config.model;
    let bytes = match model.precision {
        Precision::Fp32 | Precision::Tf32 => 4.0,
        Precision::Bf16 => 2.0,
    };
    let (hidden, intermediate) = (model.hidden as f64, model.intermediate as f64);
    // No micro-batch is larger than the global batch.
    let tokens = (stage.micro_batch_tokens.or_default() as f64).min(stage.global_batch as f64 * length as f64);
    let (width, heads) = (length as f64, model.heads as f64);
    let drops = |probability: f64| if probability > 0.0 { 4.0 } else { 0.0 };
    let (mask, attention_mask) = (drops(model.dropout), drops(model.attention_dropout.unwrap_or(model.dropout)));
    let (row, wide, weights) = (tokens * hidden, tokens * intermediate, tokens * width * heads);

    // What the parts put out, and dropout's factors, in f32. The fused attention keeps no weights; the other keeps them before
    // and after dropout.
    let attention = if attention_mask > 0.0 { weights * (2.0 * bytes + attention_mask) } else { 0.0 };
    let architecture = Architecture::of_run(config, 1, vocabulary);
    let network = &architecture.networks()[0];
    let (kept, dropped) = (network.kept_by_layer() as f64, network.dropped_by_layer() as f64);
    let layer = tokens * (bytes * kept + mask * dropped) + attention;
    let embeddings = (4.0 + bytes + mask) * row;
    // At the activation; or at the attention weights, when what the feed-forward layer kept has gone.
    let at_weights = if attention > 0.0 { 3.0 * weights + row - 2.0 * wide } else { 0.0 };
    // In bf16 what goes through dropout and normalisations is there in f32 as well.
    let transient = if bytes < 4.0 { bytes + 4.0 } else { bytes };
    let gradients = transient * (3.0 * row + 2.0 * wide).max(at_weights);

    let objective = &config.objective;
    let most = match objective.max_predictions {
        0 => f64::INFINITY,
        most => most as f64 * (tokens / width).ceil(),
    };
    let masked = (tokens * objective.mask_probability).min(most);
    let count = |each| match each {
        Each::Token => tokens,
        Each::MaskedToken => masked,
        Each::Sample => tokens / width,
    };
    // Logarithms of the softmax, the gradient that comes in, the one that goes out, and the copy that a matrix product makes.
    let of_loss =
        |loss: &Loss| bytes * network.kept_by_head(loss.head, count) + 16.0 * network.logits(loss.head, count);
    let head: f64 = objectives::losses(&config.objective).iter().map(of_loss).sum();

    let layers = stage.depth(model) as f64;
    let sum = match stage.recompute {
        false => embeddings + layers * layer + head.max(gradients),
        true => embeddings + layers * bytes * row + head.max(layer + gradients),
    };
    sum as u64
}

/// Bytes in main memory of one rank in a stage over this dataset, if it is one of `ranks`, all on one host.
pub fn of_a_rank(config: &RunConfig, stage: &Stage, data: Data, ranks: usize) -> u64 {
    let parameters = Architecture::of_run(config, stage.depth(&config.model), data.pieces).parameters();
    let samples = samples(stage, config.cluster.ranks.max(ranks), data);
    if is_on_card(config) {
        let copies = EXCHANGE.saturating_add(SNAPSHOT.div_ceil(ranks.max(1) as u64)).saturating_mul(parameters);
        return [copies, samples].into_iter().fold(PROGRAM_OF_CARD, u64::saturating_add);
    }
    let state = state(parameters, ranks) / ranks.max(1) as u64;
    let activations = activations(config, stage, data.pieces, data.longest);
    let activations = activations.saturating_add(activations / KEPT);
    let exact = if config.cluster.all_reduce.canonical { EXACT.saturating_mul(parameters) } else { 0 };
    let half = if config.metrics.noise_scale_every_steps > 0 { HALF.saturating_mul(parameters) } else { 0 };
    let program = PROGRAM + if config.model.precision == Precision::Bf16 { PROGRAM_BF16 } else { 0 };
    [state, activations, samples, exact, half].into_iter().fold(program, u64::saturating_add)
}

/// Whether ranks of this host compute on cards, as far as can be known without the driver.
pub fn is_on_card(config: &RunConfig) -> bool {
    match config.device.kind {
        DeviceKind::Cuda => true,
        DeviceKind::Cpu => false,
        DeviceKind::Auto => Path::new("/proc/driver/nvidia/version").exists(),
    }
}

/// Adds a fault for the stage that needs most, if `ranks` ranks of it do not fit into the memory of this host. `data` are the
/// stages' datasets.
pub fn check(config: &RunConfig, data: &[Data], ranks: usize, faults: &mut Vec<Fault>) {
    if !config.model.is_sized() || config.stage.iter().any(|stage| stage.depth(&config.model) > 1 << 20) {
        return;
    }
    if let Some(there) = of_this_host() {
        faults.extend(shortage(config, data, ranks, there));
    }
}

fn shortage(config: &RunConfig, data: &[Data], ranks: usize, there: u64) -> Option<Fault> {
    let stages = config.stage.iter().zip(data).enumerate();
    let needed = stages
        .map(|(index, (stage, data))| (of_a_rank(config, stage, *data, ranks).saturating_mul(ranks as u64), index));
    let (needed, index) = needed.max()?;
    let (stage, data) = (&config.stage[index], data[index]);
    let parameters = Architecture::of_run(config, stage.depth(&config.model), data.pieces).parameters();
    let gib = |bytes: u64| bytes as f64 / f64::from(1 << 30);
    let samples = samples(stage, config.cluster.ranks.max(ranks), data);
    if needed > there && is_on_card(config) {
        let message = format!(
            "needs about {:.1} GiB of main memory for {ranks} rank(s) on this host, which has {:.1}, beside its cards: copies of \
             {parameters} parameters for checkpoints and sums, and {:.1} GiB a rank for samples that are read ahead",
            gib(needed),
            gib(there),
            gib(samples),
        );
        return Some(Fault::new(format!("stage.{index}"), message));
    }
    (needed > there).then(|| {
        let message = format!(
            "needs about {:.1} GiB for {ranks} rank(s) on this host, which has {:.1}: {:.1} GiB for {parameters} parameters \
             with gradients, moments and the copy for checkpoints, {:.1} GiB a rank for a micro-batch of {} tokens \
             (stage.{index}.micro_batch_tokens and stage.{index}.recompute change that), and {:.1} GiB a rank for samples \
             that are read ahead (stage.{index}.global_batch, more ranks)",
            gib(needed),
            gib(there),
            gib(state(parameters, ranks)),
            gib(activations(config, stage, data.pieces, data.longest)),
            stage.micro_batch_tokens.or_default(),
            gib(samples),
        );
        Fault::new(format!("stage.{index}"), message)
    })
}

/// Bytes of memory that processes of this host may have together: its own, or less where a control group says so.
/// `None` where the system does not tell.
pub fn of_this_host() -> Option<u64> {
    let read = |path: &Path| std::fs::read_to_string(path).unwrap_or_default();
    total(&read(Path::new("/proc/meminfo"))).into_iter().chain(cgroup::limit(read)).min()
}

/// `MemTotal` of /proc/meminfo, in bytes.
fn total(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bert_large_on_two_ranks() {
        // 336,226,108 parameters: 2 x 16 and 12 bytes each.
        assert_eq!(state(336_226_108, 2), 14_793_948_752);
        assert_eq!(state(u64::MAX, 2), u64::MAX);
    }

    #[test]
    fn the_stage_that_needs_most_is_named() {
        let stage = |tokens: usize| Stage { micro_batch_tokens: tokens.into(), ..Stage::default() };
        let config = RunConfig { stage: vec![stage(1024), stage(65536), stage(4096)], ..RunConfig::default() };
        let data = Data { pieces: 30522, longest: 128, rows: 1 << 20, row_group: 1024 };
        let needed = |index: usize| 2 * of_a_rank(&config, &config.stage[index], data, 2);
        let short = |there| shortage(&config, &[data; 3], 2, there);
        assert_eq!(short(needed(1)), None);
        let fault = short(needed(1) - 1).unwrap().to_string();
        assert!(fault.contains("stage.1:") && fault.contains("65536 tokens"), "{fault}");
        assert!(needed(0) < needed(2) && needed(2) < needed(1));
    }

    #[test]
    fn of_what_is_on_a_card_main_memory_has_copies() {
        let data = Data { pieces: 30522, longest: 128, rows: 1 << 20, row_group: 1024 };
        let of = |kind, tokens: usize| {
            let stage = Stage { micro_batch_tokens: tokens.into(), global_batch: 1 << 16, ..Stage::default() };
            let device = lambert_config::run::Device { kind, ..Default::default() };
            let config = RunConfig { stage: vec![stage], device, ..RunConfig::default() };
            (of_a_rank(&config, &config.stage[0], data, 2), shortage(&config, &[data], 2, 1 << 30))
        };
        let (cuda, cpu) = (of(DeviceKind::Cuda, 1 << 20), of(DeviceKind::Cpu, 1 << 20));
        assert_eq!(cuda.0, of(DeviceKind::Cuda, 1 << 10).0, "no activations");
        assert!(cuda.0 < 5 << 30 && cpu.0 > 100 << 30, "{} {}", cuda.0, cpu.0);
        assert!(cuda.1.unwrap().message.contains("beside its cards"));
    }

    #[test]
    fn activations_of_bert_base() {
        let config = RunConfig::default();
        let bytes = |stage: Stage| activations(&config, &stage, 30522, 128) as f64 / 1e9;
        let whole = Stage { micro_batch_tokens: 1024.into(), ..Stage::default() };
        // 8 x 768 and 2 x 3072 numbers and two masks a token and layer, three of 12 x 128 attention weights; 154 rows of
        // four tables of 30522.
        assert!((bytes(whole.clone()) - 0.992).abs() < 0.002, "{}", bytes(whole.clone()));
        let again = Stage { recompute: true, ..whole };
        assert!((bytes(again.clone()) - 0.157).abs() < 0.002, "{}", bytes(again));
    }

    #[test]
    fn meminfo_is_in_kibibytes() {
        assert_eq!(total("MemTotal:       24602316 kB\nMemFree:         9601388 kB\n"), Some(24_602_316 << 10));
        assert_eq!(total("MemFree: 3 kB"), None);
        assert!(of_this_host().is_some_and(|bytes| bytes > 1 << 28));
    }
}
