//! Estimate of a run before it starts: FLOPs, memory, time and communication of each stage on a machine.

mod buckets;
pub mod checkpoints;
pub mod machine;

use lambert_config::run::{MuonPrecision, Precision, RunConfig, Stage};
use serde::Serialize;

use crate::architecture::Architecture;
use crate::batch_partition::{BatchPartition, Layout};
use crate::memory::{self, DatasetShape, gpu};
use crate::muon::UpdateWork;
use crate::scaling::{ClusterTopology, StepWork};
use crate::{flops, mixture, timeline};
use machine::Machine;

/// Assumed standard deviation of the ranks' step times, relative to their mean.
const RANK_DEVIATION: f64 = 0.01;
/// Largest number of ranks of [`scaling`].
const MAX_RANKS: usize = 4096;

/// Samples of a stage.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StageSamples {
    /// Shape of the dataset.
    pub shape: DatasetShape,
    /// Mean length of a sample, tokens.
    pub mean_tokens: f64,
    /// Number of samples after which a dataset starts its second pass. In a mixture, the minimum over the datasets.
    pub epoch: f64,
    /// True if there is no dataset. The shape is then assumed, and the number of samples is unknown.
    pub is_assumed: bool,
}

impl StageSamples {
    /// Describes the samples of a dataset that does not exist yet. All samples have the full length of `tokens` tokens.
    pub fn assumed(tokens: usize, vocabulary: usize) -> Self {
        let shape = DatasetShape {
            vocabulary,
            sequence_length: tokens,
            mean_length: tokens,
            rows: u64::MAX >> 16,
            row_group: 1024,
        };
        Self { shape, mean_tokens: tokens as f64, epoch: shape.rows as f64, is_assumed: true }
    }

    /// Describes a dataset with samples of `mean_tokens` tokens.
    pub fn of_dataset(shape: DatasetShape, mean_tokens: f64) -> Self {
        let shape = DatasetShape { mean_length: mean_tokens as usize, ..shape };
        Self { shape, mean_tokens, epoch: shape.rows as f64, is_assumed: false }
    }

    /// Describes the datasets of a stage, each with the mean length of its samples.
    pub fn of_stage(stage: &Stage, datasets: &[(DatasetShape, f64)]) -> Self {
        let rows: Vec<u64> = datasets.iter().map(|(shape, _)| shape.rows).collect();
        let shares = mixture::shares(&mixture::block_counts(&mixture::weights(stage, &rows)));
        let parts = || datasets.iter().zip(&shares);
        let mean_tokens: f64 = parts().map(|((_, tokens), share)| tokens * share).sum();
        let shape = DatasetShape::of_mixture(datasets.iter().map(|(shape, _)| *shape));
        Self {
            shape: DatasetShape { mean_length: mean_tokens as usize, ..shape },
            mean_tokens,
            epoch: parts().map(|((shape, _), share)| shape.rows as f64 / share).fold(f64::INFINITY, f64::min),
            is_assumed: false,
        }
    }

    /// Number of passes over the dataset in `samples` samples. In a mixture, the largest number.
    pub fn epochs(&self, samples: u64) -> f64 {
        samples as f64 / self.epoch.max(1.0)
    }
}

/// Estimate of a stage.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct StageEstimate {
    /// Name of the stage.
    pub name: String,
    /// Number of parameters of the model.
    pub parameters: u64,
    /// Maximum sample length.
    pub sequence_length_tokens: usize,
    /// Number of optimizer steps.
    pub steps: u64,
    /// Number of samples on which the stage trains.
    pub samples: u64,
    /// Number of passes over the dataset; in a mixture, over the dataset with the most passes. `None` without a dataset.
    pub epochs: Option<f64>,
    /// Number of samples that the last pass does not use. `None` without a dataset, and for a mixture.
    pub unused_samples: Option<u64>,
    /// FLOPs of training.
    pub flops: f64,
    /// FLOPs of the orthogonalizations of Muon; 0 with other optimizers.
    pub optimizer_flops: f64,
    /// Memory of a rank.
    pub memory: MemoryEstimate,
    /// Tokens of the busiest rank, divided by the mean over all ranks.
    pub imbalance: f64,
    /// Duration; `None` without a machine.
    pub time: Option<TimeEstimate>,
}

/// Memory of a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct MemoryEstimate {
    /// Host memory, bytes.
    pub host_bytes: u64,
    /// GPU memory, bytes; `None` on a CPU.
    pub gpu_bytes: Option<u64>,
}

/// Duration of a stage.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct TimeEstimate {
    /// Mean duration of a step, seconds.
    pub step_seconds: f64,
    /// Duration of the all-reduces of a step, seconds: all gradients, and with Muon the updates of the matrices.
    pub all_reduce_seconds: f64,
    /// Part of the all-reduce duration that does not overlap with the backward pass, seconds.
    pub exposed_seconds: f64,
    /// Throughput relative to independent ranks with the same work.
    pub scaling_efficiency: f64,
    /// Hours of the stage.
    pub hours: f64,
    /// Hours of all ranks together.
    pub rank_hours: f64,
}

/// Returns the FLOPs of a stage with `layers` layers, under the assumption that all samples have the mean length.
pub fn stage_flops(config: &RunConfig, stage: &Stage, layers: usize, data: StageSamples) -> f64 {
    sample_flops(config, stage, layers, data) * timeline::samples(stage) as f64
}

/// Returns the FLOPs of a sample of mean length in a stage with `layers` layers.
pub fn sample_flops(config: &RunConfig, stage: &Stage, layers: usize, data: StageSamples) -> f64 {
    let length = data.mean_tokens.round() as usize;
    let masked = stage.objective.of(&config.objective).predictions(length) as u64;
    let architecture = Architecture::of_run(config, layers, data.shape.vocabulary);
    let sample = flops::training(&architecture, std::iter::once(length as u64), masked);
    let teacher = config.objective.teacher.as_ref();
    sample + flops::teaching(teacher, &architecture, std::iter::once(length as u64))
}

/// Estimates the load imbalance of a global batch: the tokens of the busiest rank divided by the mean over all ranks.
/// The estimate assumes that a part of the samples has uniformly distributed lengths and that the other samples have
/// full length. The size of that part follows from the mean length of the dataset.
pub fn imbalance(stage: &Stage, data: StageSamples, ranks: usize) -> f64 {
    let longest = data.shape.sequence_length as f64;
    let cut = (2.0 * (1.0 - data.mean_tokens / longest)).clamp(0.0, 1.0);
    let samples = stage.global_batch as f64;
    let length = |index: usize| {
        let place = (index as f64 + 0.5) / samples;
        (longest * (place / cut.max(f64::EPSILON)).min(1.0)).ceil() as u16
    };
    let lengths: Vec<u16> = (0..stage.global_batch).map(length).collect();
    BatchPartition::new(&lengths, ranks, stage.micro_batch_tokens.on_cpu(), Layout::Padded).imbalance()
}

/// Estimates all stages of a run on `config.cluster.ranks` ranks. `data` has an entry per stage. Without a `machine`
/// there are no durations. An automatic micro-batch size counts as that of a CPU
/// ([`fit::replace_auto`](crate::memory::fit::replace_auto)).
pub fn stages(config: &RunConfig, data: &[StageSamples], machine: Option<&Machine>) -> Vec<StageEstimate> {
    let ranks = config.cluster.ranks.max(1);
    let estimate = |(index, data): (usize, &StageSamples)| {
        let stage = &config.stage[index];
        let layers = stage.depth(&config.model);
        let (samples, rows) = (timeline::samples(stage), data.shape.rows.max(1));
        let architecture = Architecture::of_run(config, layers, data.shape.vocabulary);
        let parameters = architecture.parameters();
        let update = UpdateWork::new(&config.optimizer, &architecture, ranks);
        let on_host = machine.map_or(ranks, |machine| machine.ranks_per_host.min(ranks));
        let tokens = stage.micro_batch_tokens.on_cpu();
        let on_gpu = memory::uses_gpu(config).then(|| gpu::needed(config, index, data.shape, ranks, tokens));
        let host_bytes = memory::rank_bytes(config, stage, data.shape, on_host);
        let mut estimate = StageEstimate {
            name: stage.name.clone(),
            parameters,
            sequence_length_tokens: data.shape.sequence_length,
            steps: stage.steps,
            samples,
            epochs: (!data.is_assumed).then(|| data.epochs(samples)),
            unused_samples: (!data.is_assumed && stage.mixture.is_empty()).then(|| (rows - samples % rows) % rows),
            flops: stage_flops(config, stage, layers, *data),
            optimizer_flops: update.flops * stage.steps as f64,
            memory: MemoryEstimate { host_bytes, gpu_bytes: on_gpu },
            imbalance: imbalance(stage, *data, ranks),
            time: None,
        };
        estimate.time = machine.map(|machine| time(config, index, *data, &estimate, update, machine));
        estimate
    };
    data.iter().enumerate().map(estimate).collect()
}

/// Duration of a run on a number of ranks.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct ScalingPoint {
    /// Number of ranks.
    pub ranks: usize,
    /// Hours of the run.
    pub hours: f64,
    /// Hours of all ranks together.
    pub rank_hours: f64,
    /// Rank-hours of the run on one rank, divided by its rank-hours on `ranks` ranks.
    pub efficiency: f64,
}

/// Estimates the duration of a run with the same global batches on 1, 2, 4, ... up to 4,096 ranks. Omits numbers of
/// ranks at which a rank would have no sample.
pub fn scaling(config: &RunConfig, data: &[StageSamples], machine: &Machine) -> Vec<ScalingPoint> {
    let most = config.stage.iter().map(|stage| stage.global_batch).min().unwrap_or(0).min(MAX_RANKS);
    let hours = |ranks: usize| -> f64 {
        let mut config = config.clone();
        config.cluster.ranks = ranks;
        stages(&config, data, Some(machine)).iter().filter_map(|stage| Some(stage.time?.hours)).sum()
    };
    let one = hours(1);
    let point = |ranks: usize| {
        let hours = hours(ranks);
        let rank_hours = hours * ranks as f64;
        ScalingPoint { ranks, hours, rank_hours, efficiency: one / rank_hours }
    };
    std::iter::successors(Some(1), |ranks| Some(2 * ranks)).take_while(|ranks| *ranks <= most).map(point).collect()
}

fn time(
    config: &RunConfig,
    index: usize,
    data: StageSamples,
    estimate: &StageEstimate,
    matrices: UpdateWork,
    machine: &Machine,
) -> TimeEstimate {
    let (stage, ranks) = (&config.stage[index], config.cluster.ranks.max(1));
    let steps = estimate.steps.max(1) as f64;
    let rate = machine.compute.flops_per_second(config.model.precision);
    let passes = estimate.flops / steps / ranks as f64 * estimate.imbalance / rate;
    let precision = match config.optimizer.muon.precision {
        MuonPrecision::Bf16 => Precision::Bf16,
        MuonPrecision::Fp32 => Precision::Fp32,
    };
    let orthogonalize = matrices.rank_flops / machine.compute.flops_per_second(precision);
    let update = machine.compute.update_seconds(estimate.parameters) + orthogonalize;
    let ranks_per_host = machine.ranks_per_host.min(ranks);
    let hosts = ranks.div_ceil(ranks_per_host);
    let Machine { intra_host, inter_host, .. } = *machine;
    let cluster = ClusterTopology { hosts, ranks_per_host, intra_host, inter_host };
    let rank_tokens = stage.global_batch as f64 * data.mean_tokens / ranks as f64;
    let last = (stage.micro_batch_tokens.on_cpu() as f64 / rank_tokens.max(1.0)).min(1.0);
    // The forward pass is a third of the work, or a quarter with recomputation. The rest is the backward pass.
    let backward = passes * last * if stage.recompute { 0.75 } else { 2.0 / 3.0 };
    // MPI cannot sum gradients in the memory of a GPU during the passes. On CPUs, the communication thread competes with the
    // passes. By default, they overlap only on several hosts.
    let overlaps = match (memory::uses_gpu(config), memory::uses_nccl(config)) {
        (true, false) => false,
        (_, uses_nccl) => config.cluster.all_reduce.overlap.unwrap_or(uses_nccl || hosts > 1),
    };
    let gradients = buckets::of_gradients(config, stage, data.shape.vocabulary, if overlaps { backward } else { 0.0 });
    let buckets = [gradients, buckets::of_matrices(config, matrices, ranks)].concat();
    let all_reduce_seconds = buckets.iter().map(|bucket| cluster.all_reduce_seconds(bucket.bytes)).sum();
    let work = StepWork { seconds: passes + update, buckets, relative_deviation: RANK_DEVIATION };
    let step_seconds = work.step_seconds(&cluster);
    let hours = steps * step_seconds / 3600.0;
    TimeEstimate {
        step_seconds,
        all_reduce_seconds,
        exposed_seconds: work.exposed_seconds(&cluster),
        scaling_efficiency: work.scaling_efficiency(&cluster) / estimate.imbalance,
        hours,
        rank_hours: hours * ranks as f64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::estimate::machine::GPUS;
    use lambert_config::run::{Device, DeviceKind, OptimizerKind, Precision};

    fn run(ranks: usize, precision: Precision) -> RunConfig {
        let stage = Stage { name: "one".into(), steps: 3600, global_batch: 256, ..Stage::default() };
        let mut config = RunConfig { stage: vec![stage], ..RunConfig::default() };
        config.device = Device { kind: DeviceKind::Cuda, ..Device::default() };
        (config.cluster.ranks, config.model.precision) = (ranks, precision);
        config
    }

    #[test]
    fn one_rank_takes_the_flops_over_the_rate_and_the_update() {
        let data = StageSamples::assumed(128, 30522);
        for (precision, peak) in [(Precision::Bf16, 312e12), (Precision::Tf32, 156e12), (Precision::Fp32, 19.5e12)] {
            let machine = Machine::published(GPUS[0], Some(0.5));
            let stage = &stages(&run(1, precision), &[data], Some(&machine))[0];
            // The global batch has 256 samples of 128 tokens. Each of the 12 layers takes 14.2 MFLOPs per token, plus
            // 0.39 MFLOPs for attention. The MLM head predicts 19 tokens per sample.
            let sample = 128.0 * 12.0 * (14_155_776.0 + 393_216.0) + 19.0 * 48_061_440.0;
            let passes = 3.0 * 256.0 * sample / (0.5 * peak);
            // 110,106,428 parameters x 44 bytes at 2,039 GB/s: 2.4 ms.
            let expected = passes + 110_106_428.0 * 44.0 / 2.039e12;
            let time = stage.time.unwrap();
            assert!((time.step_seconds / expected - 1.0).abs() < 1e-3, "{} {expected}", time.step_seconds);
            assert!((time.hours - time.step_seconds).abs() < 1e-9, "3,600 steps");
            assert_eq!((time.exposed_seconds, time.all_reduce_seconds), (0.0, 0.0));
            assert_eq!((stage.epochs, stage.unused_samples), (None, None));
        }
    }

    #[test]
    fn ranks_save_time_and_overlap_hides_communication() {
        let data = StageSamples::assumed(128, 30522);
        let machine = Machine::published(GPUS[0], None);
        let time = |config: &RunConfig| stages(config, &[data], Some(&machine))[0].time.unwrap();
        let (one, eight) = (time(&run(1, Precision::Fp32)), time(&run(8, Precision::Fp32)));
        assert!(eight.hours < one.hours / 6.0 && eight.rank_hours > one.rank_hours);
        let mut after = run(8, Precision::Fp32);
        after.cluster.all_reduce.overlap = Some(false);
        let after = time(&after);
        assert!((after.exposed_seconds / after.all_reduce_seconds - 1.0).abs() < 1e-9);
        assert!(eight.exposed_seconds < 0.5 * after.exposed_seconds);
    }

    #[test]
    fn more_ranks_are_less_efficient_and_save_time_until_communication_dominates() {
        let data = StageSamples::assumed(128, 30522);
        let points = scaling(&run(1, Precision::Bf16), &[data], &Machine::published(GPUS[0], None));
        // The global batch has 256 samples.
        let ranks: Vec<usize> = points.iter().map(|point| point.ranks).collect();
        assert_eq!(ranks, [1, 2, 4, 8, 16, 32, 64, 128, 256]);
        assert_eq!(points[0].efficiency, 1.0);
        assert!(points.is_sorted_by(|a, b| a.efficiency > b.efficiency), "{points:?}");
        // With 16 samples per rank, the all-reduce of 440 MB takes longer than the passes. More hosts make it slower.
        assert!(points[..5].is_sorted_by(|a, b| a.hours > b.hours), "{points:?}");
        assert!(points[8].hours > points[4].hours, "{points:?}");
    }

    #[test]
    fn muon_adds_flops_and_communication() {
        let data = StageSamples::assumed(128, 30522);
        let machine = Machine::published(GPUS[0], Some(0.5));
        let estimate = |ranks, kind| {
            let mut config = run(ranks, Precision::Bf16);
            config.optimizer.kind = kind;
            stages(&config, &[data], Some(&machine)).remove(0)
        };
        let seconds = |stage: &StageEstimate| stage.time.unwrap().step_seconds;
        let [one, with] = [OptimizerKind::Lamb, OptimizerKind::Muon].map(|kind| estimate(1, kind));
        // A layer has four matrices of h x h, and two of i x h. There are five iterations.
        let (h, i) = (768.0, 3072.0);
        let work = 5.0 * 12.0 * (24.0 * h * h * h + 2.0 * h * h * (4.0 * i + 2.0 * h));
        assert_eq!((one.optimizer_flops, with.optimizer_flops), (0.0, 3600.0 * work));
        assert_eq!(one.flops, with.flops);
        let expected = work / (0.5 * 312e12);
        assert!(((seconds(&with) - seconds(&one)) / expected - 1.0).abs() < 1e-6);
        // Eight ranks divide the work, and exchange 84.9 million elements after the passes.
        let [before, with] = [OptimizerKind::Lamb, OptimizerKind::Muon].map(|kind| estimate(8, kind));
        let exposed = |stage: &StageEstimate| stage.time.unwrap().exposed_seconds;
        let added = seconds(&with) - seconds(&before);
        let exchange = exposed(&with) - exposed(&before);
        assert!(exchange > 0.0 && added < 1.3 * expected / 8.0 + 1.05 * exchange, "{added} {exchange} {expected}");
    }

    #[test]
    fn epochs_count_the_dataset() {
        let shape = DatasetShape {
            vocabulary: 30522,
            sequence_length: 128,
            mean_length: 128,
            rows: 1_000_000,
            row_group: 1024,
        };
        let data = StageSamples::of_dataset(shape, 120.0);
        let stage = &stages(&run(1, Precision::Fp32), &[data], None)[0];
        // The stage uses 3,600 x 256 = 921,600 of the 1,000,000 samples.
        assert_eq!((stage.epochs, stage.unused_samples), (Some(0.9216), Some(78_400)));
        assert_eq!(stage.time, None);
    }
}
