//! Benchmark of a stage on this device (`lambert-worker bench`). It uses a single rank, the
//! samples of the stage, and random weights.

mod report;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use lambert_config::run::{Backend, Stage, TeacherInfo};
use lambert_config::{RunConfig, exit};
use lambert_dataset::random::Key;
use lambert_dataset::{Dataset, check_compatibility};
use lambert_plan::architecture::Architecture;
use lambert_plan::batch_partition::Layout;
use lambert_plan::estimate::machine::GpuModel;
use lambert_plan::memory;
use lambert_plan::memory::fit::{self, GpuBudget};
use lambert_plan::muon::UpdateWork;

use crate::data::{BatchRequest, Loader, LoaderOptions, MicroBatch, Mixture, MixturePosition, SampleSource};
use crate::error::Error;
use crate::gpu::{ComputeDevice, Gpu};
use crate::kernels::Kernels;
use crate::masking::Phrases;
use crate::model;
use crate::objective::{Objective, Teacher};
use crate::optim::{self, SingleRank};
use crate::recovery::skipped_samples::SkippedSamples;
use crate::state::{InitialDeviation, Parameters, TrainState};
use crate::torch;
use crate::train::phases::{Phase, PhaseClock, PhaseSeconds};
use crate::train::step;
use crate::worker::datasets::{open_mixture, tokenize_phrases};
use crate::worker::host_share::HostShare;
use crate::worker::output;
use crate::worker::stopwatch::Stopwatch;
use crate::worker::{matmul_peak, peak_memory};
pub use report::{BatchSize, BenchReport, FlopRates, MemoryUse, PhaseShares};

/// Options of a benchmark.
#[derive(Debug, Clone)]
pub struct BenchOptions {
    /// Stage index, from 0.
    pub stage: usize,
    /// Samples per step; `None`: the global batch size of the stage.
    pub samples: Option<usize>,
    /// Number of measured steps.
    pub steps: usize,
    /// Warmup steps.
    pub warmup: usize,
    /// File with the description of the teacher, as a run stores it. The teacher's weights are random, too.
    pub teacher: Option<PathBuf>,
    /// True to print JSON.
    pub json: bool,
    /// File to which the first `steps` global batches are written as JSON, so that another program can read them. If
    /// the file is set, nothing is measured.
    pub batches: Option<PathBuf>,
}

/// Runs a benchmark and prints the report.
///
/// # Errors
/// The stage does not exist, the dataset does not match, the device cannot be used, or memory runs out.
pub fn run(mut config: RunConfig, request: &BenchOptions) -> Result<i32, Error> {
    // Batches need no teacher.
    if request.batches.is_none() {
        read_teacher(&mut config, request)?;
    }
    let last = config.stage.len().saturating_sub(1);
    let none = || format!("--stage {}: expected 0 to {last}", request.stage);
    let stage = config.stage.get_mut(request.stage).ok_or_else(|| Error::Usage(none()))?;
    stage.global_batch = request.samples.unwrap_or(stage.global_batch).max(1);
    config.cluster.ranks = 1;
    let stage = &config.stage[request.stage];
    // A single rank needs no MPI or NCCL.
    let device = ComputeDevice::load(&config.device, Backend::Local)?;
    tch::set_num_threads(config.device.threads as i32);
    let open = |url: &str| Ok(Arc::new(Dataset::open(url)?.with_cache(&config.cluster.dataset_cache)));
    let mixture = open_mixture(stage, open)?;
    let mut errors = Vec::new();
    let opened = stage.datasets(request.stage).into_iter().zip(mixture.datasets());
    let used: Vec<(String, &Dataset)> = opened.map(|((key, _), dataset)| (key, &**dataset)).collect();
    check_compatibility(&config, &used, None, &mut errors);
    if !errors.is_empty() {
        return Err(Error::invalid_config("the configuration", errors));
    }
    let (kernels, gpu) = device.kernels(None, config.model.precision)?;
    let shapes = vec![mixture.shape(); config.stage.len()];
    let budget = gpu.as_ref().map(|gpu| {
        let (free, memory) = (gpu.free_memory, gpu.properties.memory);
        GpuBudget { rank: 0, gpu: gpu.name(), free, memory }
    });
    fit::replace_auto(&mut config, &shapes, budget.as_ref());
    if let Some(path) = &request.batches {
        write_batches(&config, request, mixture, path)?;
        return Ok(exit::DONE);
    }
    let measured = measure(&config, request, mixture, kernels, gpu.as_ref())?;
    if request.json {
        output::line(&serde_json::to_string(&measured).map_err(Error::Json)?)?;
    } else {
        output::line(&measured.to_string())?;
    }
    Ok(exit::DONE)
}

/// Inserts the description of the teacher into a configuration that has one.
fn read_teacher(config: &mut RunConfig, request: &BenchOptions) -> Result<(), Error> {
    let (teacher, hidden) = (&mut config.objective.teacher, config.model.hidden);
    let Some(teacher) = teacher else {
        let message = "--teacher: the configuration has no objective.teacher".to_owned();
        return if request.teacher.is_some() { Err(Error::Usage(message)) } else { Ok(()) };
    };
    let Some(path) = &request.teacher else {
        let message = "objective.teacher: the benchmark does not know the model of the teacher; add --teacher with the file \
                       teacher.toml of a run, or use `lambert plan --machine here`";
        return Err(Error::Usage(message.to_owned()));
    };
    let cannot = |error| Error::Usage(format!("--teacher: cannot read {}: {error}", path.display()));
    let text = std::fs::read_to_string(path).map_err(cannot)?;
    let info = TeacherInfo::parse(&text, &path.display().to_string())?;
    if teacher.cosine_weight > 0.0 && info.model.hidden != hidden {
        let theirs = info.model.hidden;
        return Err(Error::Usage(format!(
            "objective.teacher.cosine_weight: needs equal hidden sizes, but model.hidden is {hidden}, that of the teacher is {theirs}; \
             set it to 0"
        )));
    }
    teacher.info = Some(Box::new(info));
    Ok(())
}

/// Creates a loader for `steps` steps.
fn loader(
    config: &RunConfig,
    stage: &Stage,
    mixture: Mixture,
    layout: Layout,
    samples: usize,
    steps: usize,
) -> Result<Loader, Error> {
    let (objective, seed, fault_injection) =
        (stage.objective.of(&config.objective), config.run.seed, config.test.clone());
    let phrases = phrases(config, &mixture)?;
    let source = SampleSource { mixture, objective, phrases, seed, shuffle: true, fault_injection };
    let options = LoaderOptions {
        position: MixturePosition::default(),
        skipped: SkippedSamples::default(),
        skipped_shards: Vec::new(),
        micro_batch_tokens: stage.micro_batch_tokens.on_cpu(),
        layout,
        rank: 0,
        world_size: 1,
        batch_shards: 1,
        max_threads: HostShare::count().readers(),
        max_batch: samples,
    };
    Loader::start(source, options, std::iter::repeat_n(BatchRequest::whole(samples), steps)).map_err(Error::Thread)
}

/// Reads the phrases of the configuration, if any.
fn phrases(config: &RunConfig, mixture: &Mixture) -> Result<Option<Arc<Phrases>>, Error> {
    let Some(path) = &config.objective.phrases else { return Ok(None) };
    let list =
        std::fs::read(path).map_err(|error| Error::Usage(format!("objective.phrases: cannot read {path}: {error}")))?;
    Ok(Some(Arc::new(tokenize_phrases(&list, path, &mixture.datasets()[0])?)))
}

/// Writes global batches to a JSON file ([`BenchOptions::batches`]).
fn write_batches(config: &RunConfig, request: &BenchOptions, mixture: Mixture, path: &Path) -> Result<(), Error> {
    let stage = &config.stage[request.stage];
    let samples = stage.global_batch;
    let vocabulary = config.model.padded_vocabulary(mixture.shape().vocabulary);
    let mut loader = loader(config, stage, mixture, Layout::Padded, samples, request.steps)?;
    let mut batches = Vec::new();
    while let Some(batch) = loader.next_batch() {
        let micro_batches = batch?.micro_batches;
        let json = |batch: &MicroBatch| {
            let MicroBatch { rows, seq_len, ids, segment_b_starts, lengths, positions, labels, pair_labels, .. } =
                batch;
            serde_json::json!({
                "rows": rows, "width": seq_len, "ids": ids, "second": segment_b_starts, "lengths": lengths, "positions": positions,
                "labels": labels, "pair_labels": pair_labels,
            })
        };
        batches.push(micro_batches.iter().map(json).collect::<Vec<_>>());
    }
    loader.finish()?;
    let (layers, model) = (stage.depth(&config.model), &config.model);
    let whole = serde_json::json!({"model": model, "layers": layers, "vocabulary": vocabulary, "batches": batches});
    std::fs::write(path, whole.to_string()).map_err(Error::Output)
}

/// Measurements of one step. Times are in seconds.
#[derive(Debug, Clone, Copy, Default)]
struct StepTiming {
    data_wait: f64,
    enqueued: f64,
    forward_backward: f64,
    optimizer: f64,
    /// Time of the whole step.
    whole: f64,
    /// Floating-point operations, without padding.
    flops: f64,
    tokens: u64,
    padding: u64,
}

/// Stage that is measured.
struct Bench<'a> {
    config: &'a RunConfig,
    stage: &'a Stage,
    objective: Objective,
    state: TrainState,
    loader: Loader,
}

impl<'a> Bench<'a> {
    fn new(
        config: &'a RunConfig,
        stage: &'a Stage,
        mixture: Mixture,
        kernels: Arc<dyn Kernels>,
        sizes: (usize, usize),
    ) -> Result<Self, Error> {
        let (layers, vocabulary) = (stage.depth(&config.model), mixture.shape().vocabulary);
        let layout = model::layout(config, &*kernels);
        let (seed, range) = (config.run.seed, InitialDeviation::of_model(&config.model));
        let random = |architecture| {
            let mut parameters = Parameters::initialize(Arc::clone(&kernels), architecture, seed, range);
            parameters.keep_bf16_copy(model::compute_dtype(&config.model));
            parameters
        };
        let state = torch::guard(|| TrainState::new(random(Architecture::of_run(config, layers, vocabulary))))?;
        let info = config.objective.teacher.as_ref().and_then(|teacher| teacher.info.as_ref());
        let teacher = info.map(|info| {
            let model = Teacher::model(&info.model, &config.model);
            torch::guard(|| Teacher::new(random(Architecture::new(&model, model.layers, vocabulary)), model))
        });
        let objective = Objective::new(&state.parameters, &config.model, &config.objective);
        let objective = objective.with_teacher(teacher.transpose()?.as_ref(), &config.objective);
        let objective = objective.recomputing(stage.recompute);
        let loader = loader(config, stage, mixture, layout, sizes.0, sizes.1)?;
        Ok(Self { config, stage, objective, state, loader })
    }

    /// Runs a training step.
    fn step(&mut self) -> Result<StepTiming, Error> {
        let (mut whole, mut watch) = (Stopwatch::start(), Stopwatch::start());
        let Some(batch) = self.loader.next_batch() else {
            self.loader.finish()?;
            return Err(Error::NoMoreSamples(self.state.step));
        };
        let batch = batch?;
        let data_wait = watch.lap();
        let dropout = Key::new(self.config.run.seed).with_bytes(b"dropout").with(self.state.step);
        let kernels = Arc::clone(self.state.parameters.kernels());
        let mut clock = PhaseClock::start(&*kernels)?;
        let computed =
            step::forward_backward(&self.objective, &mut self.state, batch.whole(), dropout, &mut |_, _| ())?;
        clock.end(Phase::ForwardBackward)?;
        let enqueued = watch.lap();
        let rate = self.stage.learning_rate;
        let norm = optim::update(&mut self.state, &self.config.optimizer, rate, &mut SingleRank)?.norm;
        clock.end(Phase::Optimizer)?;
        computed.fetch(&*kernels, &norm)?;
        let whole = whole.lap();
        let PhaseSeconds { forward_backward, optimizer, .. } = clock.seconds()?;
        self.state.step += 1;
        Ok(StepTiming {
            data_wait,
            enqueued,
            forward_backward,
            optimizer,
            whole,
            flops: step::flops(self.config, &self.state, &batch),
            tokens: batch.tokens(),
            padding: batch.padding,
        })
    }
}

fn measure(
    config: &RunConfig,
    request: &BenchOptions,
    mixture: Mixture,
    kernels: Arc<dyn Kernels>,
    gpu: Option<&Gpu>,
) -> Result<BenchReport, Error> {
    let stage = &config.stage[request.stage];
    let samples = stage.global_batch;
    let steps = request.steps.max(1);
    let tokens = stage.micro_batch_tokens.on_cpu();
    let shape = mixture.shape();
    let needed = || memory::gpu::needed(config, request.stage, shape, 1, tokens);
    let needed_memory = gpu.map(|_| needed());
    let peak = matmul_peak::measure(&*kernels, model::compute_dtype(&config.model), gpu.is_some())?;
    kernels.reset_peak_memory();
    let datasheet = gpu.and_then(|gpu| GpuModel::of_product(&gpu.properties.name));
    let datasheet = datasheet.map(|model| model.peak(config.model.precision));
    let mut bench = Bench::new(config, stage, mixture, kernels.clone(), (samples, request.warmup + steps))?;
    for _ in 0..request.warmup {
        bench.step()?;
    }
    let all = (0..steps).map(|_| bench.step()).collect::<Result<Vec<_>, _>>()?;
    let seconds = sorted(&all, |timed| timed.whole);
    let rate = median(&all, |timed| timed.flops / timed.whole);
    let sum = |of: fn(&StepTiming) -> u64| all.iter().map(of).sum::<u64>();
    let (tokens, padding) = (sum(|timed| timed.tokens), sum(|timed| timed.padding));
    Ok(BenchReport {
        device: gpu.map_or_else(|| format!("CPU, {} threads", config.device.threads), Gpu::to_string),
        batch: BatchSize {
            samples,
            tokens: tokens as f64 / steps as f64,
            padding: padding as f64 / (tokens + padding).max(1) as f64,
        },
        seconds: [seconds[0], seconds[steps / 2], seconds[steps - 1]],
        samples_per_second: median(&all, |timed| samples as f64 / timed.whole),
        flops: FlopRates {
            teraflops: rate / 1e12,
            peak_teraflops: peak / 1e12,
            utilization: rate / peak,
            datasheet_teraflops: datasheet.map(|peak| peak / 1e12),
            optimizer_flops: UpdateWork::new(&config.optimizer, bench.state.parameters.architecture(), 1).flops,
        },
        phases: PhaseShares {
            data_wait: median(&all, |timed| timed.data_wait / timed.whole),
            forward_backward: median(&all, |timed| timed.forward_backward / timed.whole),
            optimizer: median(&all, |timed| timed.optimizer / timed.whole),
            enqueued: median(&all, |timed| timed.enqueued / timed.forward_backward),
        },
        memory: MemoryUse { peak_memory: peak_memory::peak_memory(&*kernels).unwrap_or(0), needed_memory },
    })
}

fn sorted(all: &[StepTiming], of: impl Fn(&StepTiming) -> f64) -> Vec<f64> {
    let mut values: Vec<f64> = all.iter().map(of).collect();
    values.sort_by(f64::total_cmp);
    values
}

fn median(all: &[StepTiming], of: impl Fn(&StepTiming) -> f64) -> f64 {
    sorted(all, of)[all.len() / 2]
}
