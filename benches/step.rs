//! Training throughput compared with Hugging Face transformers, on the same samples:
//! `cargo bench --workspace --bench step -- --shape base --python PYTHON`.
//!
//! Samples are prepared from a folder of plain text. In each round, the programs run the same steps, one program after
//! another. Each printed rate is the median over the rounds. Each printed ratio is the median of the ratios of the
//! rounds. All programs use two threads, f32, dropout 0.1, AdamW, and an allocator that does not return pages to the
//! operating system. `--python` is a Python interpreter with torch and transformers. Without `--python`, only lambert
//! runs. FLOPs exclude padding and logits of unmasked tokens. The utilization compares the FLOP rate with the rate of a
//! 1024 x 1024 matmul, which is measured in every round.
#![allow(clippy::unwrap_used)] // A panic is how a benchmark reports.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::Instant;

use clap::{Parser, ValueEnum};
use lambert_config::run::{self, FaultInjection, Model, Optimizer as Settings, OptimizerKind};
use lambert_config::{PrepConfig, prep};
use lambert_data_prep::prep::{DEFAULT_MEMORY, PrepOptions, PrepStatus, run as prepare};
use lambert_dataset::Dataset;
use lambert_dataset::random::Key;
use lambert_plan::architecture::Architecture;
use lambert_plan::flops;
use lambert_worker::data::{BatchRequest, GlobalBatch, Loader, LoaderOptions, MicroBatch, SampleSource};
use lambert_worker::kernels::Host;
use lambert_worker::objective::Objective;
use lambert_worker::optim;
use lambert_worker::recovery::skipped_samples::SkippedSamples;
use lambert_worker::state::{Parameters, TrainState};
use lambert_worker::train::step;
use lambert_worker::worker::peak;

#[derive(Parser)]
struct Arguments {
    /// Model, and number of samples in a global batch
    #[arg(long, value_enum, default_value_t = Shape::Small)]
    shape: Shape,
    /// Folder of plain text
    #[arg(long, default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/../shared/corpora/books/en"))]
    text: String,
    /// Vocabulary in the format of vocab.txt
    #[arg(long, default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/../shared/corpora/vocab/bert-base-uncased-vocab.txt"))]
    vocabulary: String,
    /// Python interpreter with torch and transformers
    #[arg(long)]
    python: Option<String>,
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Number of steps per round
    #[arg(long, default_value_t = 4)]
    steps: usize,
    #[arg(long, default_value_t = 2)]
    threads: usize,
    /// Recompute activations in the backward pass
    #[arg(long)]
    recompute: bool,
    /// Passed by cargo to every benchmark
    #[arg(long, hide = true)]
    bench: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum Shape {
    /// BERT-base, batches of 8
    Base,
    /// 4 layers, 256 wide, batches of 32
    Small,
}

impl Shape {
    fn model(self) -> Model {
        match self {
            Self::Base => Model::default(),
            Self::Small => Model { layers: 4, hidden: 256, heads: 4, intermediate: 1024, ..Model::default() },
        }
    }

    fn batch(self) -> usize {
        match self {
            Self::Base => 8,
            Self::Small => 32,
        }
    }
}

/// Prepares the text, and returns the first `count` global batches. Samples have up to 128 tokens.
fn batches(arguments: &Arguments, folder: &Path, count: usize) -> (Vec<GlobalBatch>, usize) {
    let source = prep::Source { path: arguments.text.clone(), ..prep::Source::default() };
    let mut config = PrepConfig { source: vec![source], ..PrepConfig::default() };
    config.output.url = folder.join("data").display().to_string();
    config.vocabulary.file = arguments.vocabulary.clone();
    config.samples.held_out = 0.0;
    prepare(&config, &PrepOptions { threads: 2, memory: DEFAULT_MEMORY, part: None, progress: &|_: &PrepStatus| {} })
        .unwrap();
    let dataset = Arc::new(Dataset::open(&folder.join("data/train").display().to_string()).unwrap());
    let vocabulary = dataset.manifest().vocabulary.size;
    let source = SampleSource {
        dataset,
        objective: run::Objective::default(),
        seed: 1,
        shuffle: true,
        test: FaultInjection::default(),
    };
    let batch = arguments.shape.batch();
    let (cursor, skipped) = (0, SkippedSamples::default());
    let options = LoaderOptions {
        cursor,
        skipped,
        micro_batch_tokens: batch * 128,
        layout: lambert_plan::batch_partition::Layout::Padded,
        rank: 0,
        world_size: 1,
        shards: 1,
        max_threads: 1,
        max_batch: batch,
    };
    let mut loader = Loader::start(source, options, std::iter::repeat_n(BatchRequest::whole(batch), count)).unwrap();
    let batches = std::iter::from_fn(|| loader.next_batch()).collect::<Result<_, _>>().unwrap();
    (batches, vocabulary)
}

/// Total time of several steps, and the time of their forward and backward passes, in seconds.
#[derive(Clone, Copy)]
struct Seconds {
    all: f64,
    forward_backward: f64,
}

struct Engine {
    state: TrainState,
    objective: Objective,
    settings: Settings,
    step: u64,
}

impl Engine {
    fn new(model: &Model, vocabulary: usize, recompute: bool) -> Self {
        let specs = Architecture::new(model, model.layers, vocabulary);
        let state = TrainState::new(Parameters::initialize(Arc::new(Host), specs, 1, 0.02));
        let settings = Settings { kind: OptimizerKind::Adamw, ..Settings::default() };
        let objective = Objective::new(&state.parameters, model, &run::Objective::default());
        Self { objective: objective.recomputing(recompute), state, settings, step: 0 }
    }

    fn steps(&mut self, batches: &[GlobalBatch]) -> Seconds {
        let start = Instant::now();
        let mut forward_backward = 0.0;
        for batch in batches {
            let begin = Instant::now();
            let dropout = Key::new(1).with_bytes(b"dropout").with(self.step);
            let computed =
                step::forward_backward(&self.objective, &mut self.state, batch.whole(), dropout, &mut |_, _| ())
                    .unwrap();
            forward_backward += begin.elapsed().as_secs_f64();
            let norm = optim::update(&mut self.state, &self.settings, 1e-4).norm;
            computed.fetch(&Host, &norm).unwrap();
            self.state.count_update();
            self.step += 1;
        }
        Seconds { all: start.elapsed().as_secs_f64(), forward_backward }
    }
}

/// Python process that runs the programs to compare with. Each input line has the name of a program and a range of
/// batches. Each output line has the time that the program took, in seconds.
struct Peers {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Peers {
    fn start(python: &str, arguments: &Arguments, folder: &Path, batches: &[GlobalBatch], vocabulary: usize) -> Self {
        let model = arguments.shape.model();
        let plain = |batch: &GlobalBatch| {
            let micro = &batch.micro_batches[0];
            serde_json::json!({
                "ids": micro.ids, "segments": segments(micro), "lengths": micro.lengths, "width": micro.seq_len,
                "positions": micro.positions, "labels": micro.labels, "pair_labels": micro.pair_labels,
            })
        };
        let batches: Vec<_> = batches.iter().map(plain).collect();
        let task = serde_json::json!({
            "threads": arguments.threads, "vocabulary": vocabulary, "layers": model.layers, "hidden": model.hidden,
            "heads": model.heads, "intermediate": model.intermediate, "batches": batches,
        });
        let file = folder.join("task.json");
        std::fs::write(&file, serde_json::to_vec(&task).unwrap()).unwrap();
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/step_peers.py");
        let mut child = Command::new(python)
            .arg(script)
            .arg(file)
            .env("MALLOC_MMAP_THRESHOLD_", "8589934592")
            .env("MALLOC_TRIM_THRESHOLD_", "17179869184")
            .env("MALLOC_TOP_PAD_", "67108864")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (input, output) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        Self { child, input, output }
    }

    fn steps(&mut self, name: &str, range: std::ops::Range<usize>) -> f64 {
        writeln!(self.input, "{name} {} {}", range.start, range.end).unwrap();
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line.trim().parse().unwrap()
    }

    fn end(self) {
        let Self { mut child, input, .. } = self;
        drop(input);
        child.wait().unwrap();
    }
}

const PEERS: [&str; 2] = ["transformers", "transformers, head at masked positions"];

fn median(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// (largest - smallest) / median, in percent.
fn spread(values: &[f64]) -> f64 {
    let extreme = |pick: fn(f64, f64) -> f64| values.iter().copied().reduce(pick).unwrap();
    100.0 * (extreme(f64::max) - extreme(f64::min)) / median(values)
}

/// Prints the median rate of a program, and the speedup of lambert over this program.
fn line(name: &str, rates: &[f64], ours: &[f64]) {
    let ratios: Vec<f64> = ours.iter().zip(rates).map(|(ours, theirs)| ours / theirs).collect();
    let (rate, ratio) = (median(rates), median(&ratios));
    println!(
        "{name:<42} {rate:>7.2} samples/s (spread {:.0} %)  lambert is {ratio:.2} times it (spread {:.0} %)",
        spread(rates),
        spread(&ratios)
    );
}

/// Returns the segment of each token, in row-major order.
fn segments(batch: &MicroBatch) -> Vec<u8> {
    let row = |(second, length): (&i32, &i32)| {
        (0..batch.seq_len as i32)
            .map(|position| u8::from(position >= *second && position < *length))
            .collect::<Vec<_>>()
    };
    batch.segment_b_starts.iter().zip(&batch.lengths).flat_map(row).collect()
}

fn main() {
    let arguments = Arguments::parse();
    if !Path::new(&arguments.text).is_dir() {
        println!("SKIPPED: no text at {}; name a folder with --text", arguments.text);
        return;
    }
    tch::set_num_threads(arguments.threads as i32);
    let folder = tempfile::tempdir().unwrap();
    let count = arguments.steps * (arguments.rounds + 1);
    let (batches, vocabulary) = batches(&arguments, folder.path(), count);
    let model = arguments.shape.model();
    let architecture = Architecture::new(&model, model.layers, vocabulary);
    let mut engine = Engine::new(&model, vocabulary, arguments.recompute);
    let start = |python| Peers::start(python, &arguments, folder.path(), &batches, vocabulary);
    let mut peers = arguments.python.as_deref().map(start);
    let mut rates = vec![Vec::new(); 1 + PEERS.len()];
    let (mut forward_backward, mut optimizer, mut utilization) = (Vec::new(), Vec::new(), Vec::new());
    for (round, chunk) in batches.chunks(arguments.steps).enumerate() {
        let samples: usize = chunk.iter().map(|batch| batch.lengths.len()).sum();
        let peak = peak::matmul_peak(&Host, tch::Kind::Float, 1024).unwrap();
        let seconds = engine.steps(chunk);
        let range = round * arguments.steps..(round + 1) * arguments.steps;
        let others: Vec<f64> = match &mut peers {
            Some(peers) => PEERS.iter().map(|name| peers.steps(name, range.clone())).collect(),
            None => Vec::new(),
        };
        // The first round is a warmup.
        if round == 0 {
            continue;
        }
        let useful = |batch: &GlobalBatch| {
            let lengths = batch.lengths.iter().map(|length| u64::from(*length));
            flops::training(&architecture, lengths, batch.masked_tokens)
        };
        for (rates, seconds) in rates.iter_mut().zip(std::iter::once(seconds.all).chain(others)) {
            rates.push(samples as f64 / seconds);
        }
        forward_backward.push(seconds.forward_backward / arguments.steps as f64);
        optimizer.push((seconds.all - seconds.forward_backward) / arguments.steps as f64);
        utilization.push(chunk.iter().map(useful).sum::<f64>() / seconds.all / peak);
    }
    let tokens: u64 = batches.iter().map(GlobalBatch::tokens).sum();
    let ours = &rates[0];
    line("lambert", ours, ours);
    for (name, rates) in PEERS.iter().zip(&rates[1..]).filter(|(_, rates)| !rates.is_empty()) {
        line(name, rates, ours);
    }
    println!("tokens/s {:.0}", median(ours) * tokens as f64 / (count * arguments.shape.batch()) as f64);
    println!("forward_backward {:.4} s, optimizer {:.4} s a step", median(&forward_backward), median(&optimizer));
    println!("flops_utilization {:.3}", median(&utilization));
    if let Some(peers) = peers {
        peers.end();
    }
}
