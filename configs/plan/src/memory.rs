//! Host memory that a run needs, by formula, and the memory of this host.

mod cgroup;
pub mod fit;
pub mod gpu;
mod samples;
mod shortage;
pub mod teacher;

use std::path::Path;

use crate::architecture::{Architecture, CostUnit, Head, ModuleKind, Network};
use crate::muon::UpdateWork;
use crate::objectives::{self, TrainedNetwork};
use lambert_config::load::ConfigIssue;
use lambert_config::run::{
    Backend, DeviceKind, MuonPrecision, Objective, Optimizer, OptimizerKind, Precision, RunConfig, Stage,
};
use teacher::{ChunkCost, TeacherActivations};

pub use samples::{DatasetShape, READERS, WINDOW, batches_ahead, samples};

/// Bytes per parameter and rank: weights, gradients and two moments, 4 bytes each.
const STATE: u64 = 16;
/// Bytes per parameter and run: a snapshot of the weights and the two moments, from which checkpoints are written. The
/// snapshot is sharded over the ranks.
const SNAPSHOT: u64 = 12;
/// Bytes per parameter with `cluster.all_reduce.canonical`: the gradient sum, in two halves.
const CANONICAL_SUM: u64 = 16;
/// Bytes per parameter with `metrics.noise_scale_every_steps`: the gradient of the first half of a global batch.
const HALF_BATCH_GRADIENT: u64 = 4;

/// Returns the bytes of training state and checkpoint snapshot for a run whose `ranks` ranks share one host.
/// Activations, libraries and samples are not included.
pub fn state(parameters: u64, ranks: usize) -> u64 {
    parameters.saturating_mul((ranks as u64).saturating_mul(STATE).saturating_add(SNAPSHOT))
}

/// Bytes of a worker without tensors: libtorch, Open MPI, threads. Measured. The value differs by about 60 MiB between
/// CPU models. This is the larger value.
const WORKER: u64 = 200 << 20;

/// Bytes that a loss keeps for each logit until its backward pass: the log-softmax.
const KEPT_LOGIT: f64 = 4.0;

/// Additional bytes of a worker that computes in bf16 on a CPU: kernels and buffers of oneDNN for matrix products.
/// Measured with AMX, where these kernels and buffers are largest.
const WORKER_BF16: u64 = 56 << 20;

/// Bytes per element of the largest matrix in an update of Muon: gradient, momentum and direction in f32, and the matrices of an
/// iteration.
const ORTHOGONALIZATION: u64 = 28;

/// Bytes of host memory of a worker that uses a GPU, including the CUDA parts of its libraries. Estimated.
const WORKER_GPU: u64 = 2 << 30;
/// Bytes of host memory per parameter of a rank that uses a GPU: gradients in transit to other ranks.
const GRADIENT_STAGING: u64 = 4;

/// Micro-batches have many shapes, and the allocator retains memory of the shapes before. The retained memory grows over
/// hundreds of steps, up to about the activation memory of the largest micro-batch divided by this number
/// (docs/experiments/plan.md).
pub const RETAINED_DIVISOR: u64 = 4;

/// Returns the maximum number of tokens of a micro-batch, padding included. `ranks` is the number of all ranks, and `length`
/// the sequence length of the dataset.
pub fn max_micro_batch(stage: &Stage, ranks: usize, length: usize) -> usize {
    // The tokens of a rank exceed the mean by at most one sample.
    let share = (stage.global_batch.div_ceil(ranks.max(1)).saturating_add(1)).min(stage.global_batch);
    stage.micro_batch_tokens.on_cpu().max(length).min(share.saturating_mul(length))
}

/// Returns the peak bytes of activations and their gradients for one micro-batch of `tokens` tokens. `vocabulary` and
/// `length` are the vocabulary size and the sequence length of the dataset. The sum includes the tensors that each operation
/// keeps for its backward pass, and the larger of two terms: the softmax over the vocabulary, and the gradients of one
/// layer. The passes of several networks run one after another, so the largest peak counts.
pub fn activations(config: &RunConfig, stage: &Stage, vocabulary: usize, length: usize, tokens: usize) -> u64 {
    let architecture = Architecture::of_run(config, stage.depth(&config.model), vocabulary);
    let trained = objectives::networks(&config.model, &config.objective);
    let objective = stage.objective.of(&config.objective);
    let cost = ChunkCost::on_cpu(config.model.precision);
    let teacher = teacher::activations(config, &architecture, tokens as f64, length, cost);
    let networks = trained.iter().zip(architecture.networks());
    let bytes = networks.map(|(trained, network)| {
        let is_read = network.number + 1 < architecture.networks().len();
        pass_activations((trained, network), stage, &objective, (length, tokens), (is_read, teacher))
    });
    bytes.max().unwrap_or(0)
}

/// Returns the bytes of the pass of one network. If a later pass reads its logits, `is_read` is true.
fn pass_activations(
    (trained, network): (&TrainedNetwork, &Network),
    stage: &Stage,
    objective: &Objective,
    (length, tokens): (usize, usize),
    (is_read, teacher): (bool, TeacherActivations),
) -> u64 {
    let model = &trained.model;
    let bytes = match model.precision {
        Precision::Fp32 | Precision::Tf32 => 4.0,
        Precision::Bf16 => 2.0,
    };
    let (hidden, intermediate) = (model.hidden as f64, model.feed_forward_width() as f64);
    let tokens = tokens as f64;
    let (width, heads) = (length as f64, model.heads as f64);
    let drops = |probability: f64| if probability > 0.0 { 4.0 } else { 0.0 };
    let (mask, attention_mask) = (drops(model.dropout), drops(model.attention_dropout.unwrap_or(model.dropout)));
    let layer_mask = drops(model.dropout.max(model.attention_output_dropout()));
    let (row, wide, weights) = (tokens * hidden, tokens * intermediate, tokens * width * heads);

    // A layer keeps the outputs of its modules, and its dropout masks in f32. Fused attention keeps no attention
    // weights. Other attention keeps the attention weights before and after dropout.
    let attention = match (attention_mask > 0.0, network.relative_rows() > 0) {
        (true, _) => weights * (2.0 * bytes + attention_mask),
        (false, true) => weights * bytes,
        (false, false) => 0.0,
    };
    let (kept, dropped) = (network.activation_elements() as f64, network.dropout_elements() as f64);
    let relative = bytes * network.relative_elements(tokens, length, model.hidden);
    let layer = tokens * (bytes * kept + layer_mask * dropped) + attention + relative;
    let projected = if network.module(ModuleKind::EmbeddingProjection).is_some() { bytes * row } else { 0.0 };
    let embeddings = (4.0 + bytes + mask) * tokens * model.embedding() as f64 + projected;
    // The peak is at the activation function, or at the attention weights once the tensors of the feed-forward layer
    // are freed.
    let products = if network.relative_rows() > 0 { 8.0 } else { 3.0 };
    let at_weights = if attention > 0.0 { products * weights + row - 2.0 * wide } else { 0.0 };
    // In bf16, inputs of dropout and normalizations also exist in f32.
    let transient = if bytes < 4.0 { bytes + 4.0 } else { bytes };
    let gradients = transient * (3.0 * row + 2.0 * wide).max(at_weights);

    let most = match objective.max_predictions {
        0 => f64::INFINITY,
        most => most as f64 * (tokens / width).ceil(),
    };
    let masked = (tokens * objective.mask_probability).min(most);
    let count = |unit| match unit {
        CostUnit::Token => tokens,
        CostUnit::MaskedToken => masked,
        CostUnit::Sample => tokens / width,
    };
    // 16 bytes per logit: log-softmax, incoming gradient, outgoing gradient, and the copy that a matrix product makes. Only the
    // log-softmax exists for all losses at the same time.
    let kept = KEPT_LOGIT + if is_read { bytes } else { 0.0 };
    let own = || trained.losses.iter().filter(|loss| !loss.needs_teacher()).map(|loss| loss.head);
    let states: f64 = own().map(|head| bytes * network.head_activation_elements(head, count)).sum();
    // A detection has no logits of the vocabulary. The gradients of its dense layer and of the activation function exist together.
    let detection = if own().any(|head| head == Head::ReplacedTokens) { 2.0 * bytes * row } else { 0.0 };
    let logits: f64 = own().map(|head| network.logits(head, count)).sum();
    // The backward pass of the heads runs loss by loss.
    let widest = own().map(|head| network.logits(head, count)).fold(0.0, f64::max);
    let at_score = states + teacher::KEPT_LOGIT * logits + teacher.at_score;
    let head = (states + kept * logits + (16.0 - KEPT_LOGIT) * widest + detection + teacher.at_backward).max(at_score);

    let layers = network.applications() as f64;
    let local_masks = bytes * tokens * network.local_mask_columns(length) as f64;
    let embeddings = embeddings + local_masks;
    let sum = match stage.recompute {
        false => embeddings + layers * layer + head.max(gradients),
        true => embeddings + layers * bytes * row + head.max(layer + gradients),
    };
    // The hidden states that a later pass may read.
    let sum = if is_read { sum + bytes * row } else { sum };
    (sum + teacher.kept).max(teacher.forward) as u64
}

/// Returns the bytes of the temporary tensors of an update on one of `world` ranks. Zero for other optimizers than Muon.
fn update(config: &RunConfig, architecture: &Architecture, world: usize) -> u64 {
    ORTHOGONALIZATION.saturating_mul(UpdateWork::new(&config.optimizer, architecture, world).largest)
}

/// True if the worker computes matrix products in bf16.
fn uses_bf16(config: &RunConfig) -> bool {
    let Optimizer { kind, muon, .. } = &config.optimizer;
    let is_muon = *kind == OptimizerKind::Muon && muon.precision == MuonPrecision::Bf16;
    config.model.precision == Precision::Bf16 || is_muon
}

/// Host memory of one rank in a stage by purpose, bytes.
#[derive(Debug, Clone, Copy)]
struct RankMemory {
    /// The worker without tensors.
    program: u64,
    /// Parameters with gradients and moments, a share of the checkpoint snapshot, and the teacher. With a GPU, copies of the
    /// parameters.
    parameters: u64,
    /// Activations of a micro-batch, or the temporary tensors of an update if these are larger. None with a GPU.
    temporary: u64,
    /// Prefetched samples.
    samples: u64,
    /// Further gradients: the sum of canonical mode, and the gradient of half a batch.
    gradients: u64,
}

impl RankMemory {
    /// Maximum in a stage with this dataset. All `ranks` ranks share one host.
    fn new(config: &RunConfig, stage: &Stage, data: DatasetShape, ranks: usize) -> Self {
        let tokens = max_micro_batch(stage, config.cluster.ranks.max(ranks), data.sequence_length);
        let architecture = Architecture::of_run(config, stage.depth(&config.model), data.vocabulary);
        let parameters = architecture.parameters();
        let samples = samples(stage, config.cluster.ranks.max(ranks), data);
        if uses_gpu(config) {
            let copies =
                GRADIENT_STAGING.saturating_add(SNAPSHOT.div_ceil(ranks.max(1) as u64)).saturating_mul(parameters);
            return Self { program: WORKER_GPU, parameters: copies, temporary: 0, samples, gradients: 0 };
        }
        let state =
            (state(parameters, ranks) / ranks.max(1) as u64).saturating_add(teacher::state(config, data.vocabulary));
        let activations = activations(config, stage, data.vocabulary, data.sequence_length, tokens);
        let activations = activations.saturating_add(activations / RETAINED_DIVISOR);
        let temporary = activations.max(update(config, &architecture, config.cluster.ranks.max(ranks)));
        let exact = if config.cluster.all_reduce.canonical { CANONICAL_SUM } else { 0 };
        let half = if config.metrics.noise_scale_every_steps > 0 { HALF_BATCH_GRADIENT } else { 0 };
        let gradients = (exact + half).saturating_mul(parameters);
        let program = WORKER + if uses_bf16(config) { WORKER_BF16 } else { 0 };
        Self { program, parameters: state, temporary, samples, gradients }
    }

    fn total(self) -> u64 {
        let Self { program, parameters, temporary, samples, gradients } = self;
        [program, parameters, temporary, samples, gradients].into_iter().fold(0, u64::saturating_add)
    }
}

/// Returns the maximum bytes of host memory of one rank in a stage with this dataset. All `ranks` ranks share one host.
pub fn rank_bytes(config: &RunConfig, stage: &Stage, data: DatasetShape, ranks: usize) -> u64 {
    RankMemory::new(config, stage, data, ranks).total()
}

/// True if the ranks of this host use GPUs. With `device.kind = "auto"`, true if the NVIDIA driver is present.
pub fn uses_gpu(config: &RunConfig) -> bool {
    match config.device.kind {
        DeviceKind::Cuda => true,
        DeviceKind::Cpu => false,
        DeviceKind::Auto => Path::new("/proc/driver/nvidia/version").exists(),
    }
}

/// True if NCCL sums the gradients of the ranks of this host.
pub fn uses_nccl(config: &RunConfig) -> bool {
    uses_gpu(config) && matches!(config.cluster.all_reduce.backend, Backend::Auto | Backend::Nccl)
}

/// Reports the stage that needs the most memory, if `ranks` ranks do not fit into the memory of this host in that
/// stage. `data` has the shapes of the datasets of the stages.
pub fn check(config: &RunConfig, data: &[DatasetShape], ranks: usize, issues: &mut Vec<ConfigIssue>) {
    if !config.model.is_sized() || config.stage.iter().any(|stage| stage.depth(&config.model) > 1 << 20) {
        return;
    }
    if let Some(available) = host_memory() {
        issues.extend(shortage::find(config, data, ranks, available));
    }
}

/// Returns the bytes of memory available to the processes of this host: the physical memory, or the limit of a cgroup
/// if that is less. `None` if unknown.
pub fn host_memory() -> Option<u64> {
    let read = |path: &Path| std::fs::read_to_string(path).unwrap_or_default();
    total(&read(Path::new("/proc/meminfo"))).into_iter().chain(cgroup::limit(read)).min()
}

/// Parses `MemTotal` of /proc/meminfo, in bytes.
fn total(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn state_of_bert_large_on_two_ranks() {
        // The model has 336,226,108 parameters. Each takes 2 x 16 bytes for two ranks and 12 bytes for the snapshot.
        assert_eq!(state(336_226_108, 2), 14_793_948_752);
        assert_eq!(state(u64::MAX, 2), u64::MAX);
    }

    #[test]
    fn the_stage_with_the_largest_need_is_reported() {
        // A batch that is large enough for each micro-batch.
        let stage = |tokens: usize| Stage { micro_batch_tokens: tokens.into(), global_batch: 4096, ..Stage::default() };
        let config = RunConfig { stage: vec![stage(1024), stage(65536), stage(4096)], ..RunConfig::default() };
        let data =
            DatasetShape { vocabulary: 30522, sequence_length: 128, mean_length: 128, rows: 1 << 20, row_group: 1024 };
        let needed = |index: usize| 2 * rank_bytes(&config, &config.stage[index], data, 2);
        let short = |available| shortage::find(&config, &[data; 3], 2, available);
        assert_eq!(short(needed(1)), None);
        let issue = short(needed(1) - 1).unwrap().to_string();
        assert!(issue.contains("stage.1:") && issue.contains("65536 tokens"), "{issue}");
        assert!(needed(0) < needed(2) && needed(2) < needed(1));
    }

    #[test]
    fn micro_batches_are_at_most_the_share_of_a_rank() {
        let stage = Stage { micro_batch_tokens: 4096.into(), global_batch: 64, ..Stage::default() };
        assert_eq!(
            [1, 2, 8, 32, 64, 100].map(|ranks| max_micro_batch(&stage, ranks, 128)),
            [4096, 4096, 1152, 384, 256, 256]
        );
        assert_eq!(max_micro_batch(&Stage { global_batch: 1, ..stage.clone() }, 1, 128), 128);
        // A sample that is longer than the micro-batch has its own micro-batch.
        assert_eq!(max_micro_batch(&stage, 2, 8192), 8192);
    }

    #[test]
    fn gpu_ranks_need_host_memory_for_copies_only() {
        let data =
            DatasetShape { vocabulary: 30522, sequence_length: 128, mean_length: 128, rows: 1 << 20, row_group: 1024 };
        let of = |kind, tokens: usize| {
            let stage = Stage { micro_batch_tokens: tokens.into(), global_batch: 1 << 16, ..Stage::default() };
            let device = lambert_config::run::Device { kind, ..Default::default() };
            let config = RunConfig { stage: vec![stage], device, ..RunConfig::default() };
            (rank_bytes(&config, &config.stage[0], data, 2), shortage::find(&config, &[data], 2, 1 << 30))
        };
        let (cuda, cpu) = (of(DeviceKind::Cuda, 1 << 20), of(DeviceKind::Cpu, 1 << 20));
        assert_eq!(cuda.0, of(DeviceKind::Cuda, 1 << 10).0, "no activations");
        assert!(cuda.0 < 5 << 30 && cpu.0 > 100 << 30, "{} {}", cuda.0, cpu.0);
        assert!(cuda.1.unwrap().message.contains("of host memory for "));
    }

    #[test]
    fn activations_of_bert_base() {
        let config = RunConfig::default();
        let bytes = |stage: Stage| activations(&config, &stage, 30522, 128, 1024) as f64 / 1e9;
        let whole = Stage { micro_batch_tokens: 1024.into(), ..Stage::default() };
        // Per token and layer: 8 x 768 and 2 x 3072 elements, two dropout masks, and three times 12 x 128 attention
        // weights. In addition, 154 rows of four tensors of shape [masked tokens, 30522].
        assert!((bytes(whole.clone()) - 0.992).abs() < 0.002, "{}", bytes(whole.clone()));
        let again = Stage { recompute: true, ..whole };
        assert!((bytes(again.clone()) - 0.157).abs() < 0.002, "{}", bytes(again));
    }

    #[test]
    fn meminfo_is_in_kibibytes() {
        assert_eq!(total("MemTotal:       24602316 kB\nMemFree:         9601388 kB\n"), Some(24_602_316 << 10));
        assert_eq!(total("MemFree: 3 kB"), None);
        assert!(host_memory().is_some_and(|bytes| bytes > 1 << 28));
    }
}
