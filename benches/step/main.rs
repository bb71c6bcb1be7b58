//! Training throughput compared with Hugging Face transformers, on the same samples:
//! `cargo bench --workspace --bench step -- --shape base --family bert --family roberta --python PYTHON`.
//!
//! Samples are prepared from a folder of plain text. In each round, the programs run the same steps, one program after
//! another, in alternating order. Each printed rate is the median over the rounds. Each printed ratio is the median of
//! the ratios of the rounds. All programs use two threads, f32, the dropout of the family, AdamW, and an allocator that
//! does not return pages to the operating system. `--python` is a Python interpreter with torch and transformers.
//! Without `--python`, only lambert runs. FLOPs exclude padding and logits of unmasked tokens. The utilization compares
//! the FLOP rate with the rate of a 1024 x 1024 matmul, which is measured in every round.
#![allow(clippy::unwrap_used)] // A panic is how a benchmark reports.

mod engine;
mod peers;

use std::path::Path;
use std::sync::Arc;

use clap::{Parser, ValueEnum};
use lambert_config::run::{self, Family, FaultInjection, Model, Pair};
use lambert_config::{PrepConfig, prep};
use lambert_data_prep::prep::{DEFAULT_MEMORY, PrepOptions, PrepStatus, run as prepare};
use lambert_dataset::Dataset;
use lambert_plan::architecture::Architecture;
use lambert_plan::flops;
use lambert_worker::data::{BatchRequest, GlobalBatch, Loader, LoaderOptions, Mixture, MixturePosition, SampleSource};
use lambert_worker::kernels::Host;
use lambert_worker::recovery::skipped_samples::SkippedSamples;
use lambert_worker::worker::matmul_peak;
use serde::Deserialize;
use serde::de::IntoDeserializer;

use engine::Engine;
use peers::Peers;

#[derive(Parser)]
struct Arguments {
    /// Model, and number of samples in a global batch
    #[arg(long, value_enum, default_value_t = Shape::Small)]
    shape: Shape,
    /// Family of the encoder; may be repeated
    #[arg(long = "family", value_parser = family, default_value = "bert")]
    families: Vec<Family>,
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

fn family(name: &str) -> Result<Family, serde::de::value::Error> {
    Family::deserialize(name.into_deserializer())
}

#[derive(Clone, Copy, ValueEnum)]
enum Shape {
    /// Base shape of the family, batches of 8
    Base,
    /// 4 layers, 256 wide, batches of 32
    Small,
}

impl Shape {
    fn model(self, family: Family) -> Model {
        // transformers lacks the enhanced mask decoder.
        let base = Model { enhanced_decoder: false, ..family.model() };
        match self {
            Self::Base => base,
            Self::Small => {
                let intermediate = if base.gated { 512 } else { 1024 };
                Model { layers: 4, hidden: 256, heads: 4, intermediate, ..base }
            }
        }
    }

    fn batch(self) -> usize {
        match self {
            Self::Base => 8,
            Self::Small => 32,
        }
    }
}

/// Prepares the text with the sentence pairs of a family, and returns the first `count` global batches and the size of the
/// vocabulary. Samples have up to 128 tokens.
fn batches(arguments: &Arguments, pair: Pair, folder: &Path, count: usize) -> (Vec<GlobalBatch>, usize) {
    let source = prep::Source { path: arguments.text.clone(), ..prep::Source::default() };
    let mut config = PrepConfig { source: vec![source], ..PrepConfig::default() };
    config.output.url = folder.join("data").display().to_string();
    config.vocabulary.file = arguments.vocabulary.clone();
    config.samples.held_out = 0.0;
    config.samples.pair = pair;
    prepare(&config, &PrepOptions { threads: 2, memory: DEFAULT_MEMORY, part: None, progress: &|_: &PrepStatus| {} })
        .unwrap();
    let dataset = Arc::new(Dataset::open(&folder.join("data/train").display().to_string()).unwrap());
    let vocabulary = dataset.manifest().vocabulary.size;
    let source = SampleSource {
        mixture: Mixture::single(dataset),
        objective: run::Objective { pair, ..run::Objective::default() },
        phrases: None,
        seed: 1,
        shuffle: true,
        fault_injection: FaultInjection::default(),
    };
    let batch = arguments.shape.batch();
    let (position, skipped) = (MixturePosition::default(), SkippedSamples::default());
    let options = LoaderOptions {
        position,
        skipped,
        skipped_shards: Vec::new(),
        micro_batch_tokens: batch * 128,
        layout: lambert_plan::batch_partition::Layout::Padded,
        rank: 0,
        world_size: 1,
        batch_shards: 1,
        max_threads: 1,
        max_batch: batch,
    };
    let mut loader = Loader::start(source, options, std::iter::repeat_n(BatchRequest::whole(batch), count)).unwrap();
    let batches = std::iter::from_fn(|| loader.next_batch()).collect::<Result<_, _>>().unwrap();
    (batches, vocabulary)
}

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

/// Prints the median rate of a program, and returns the speedup of lambert over this program.
fn line(name: &str, rates: &[f64], ours: &[f64]) -> f64 {
    let ratios: Vec<f64> = ours.iter().zip(rates).map(|(ours, theirs)| ours / theirs).collect();
    let (rate, ratio) = (median(rates), median(&ratios));
    println!(
        "{name:<72} {rate:>7.2} samples/s (spread {:.0} %)  lambert is {ratio:.2} times it (spread {:.0} %)",
        spread(rates),
        spread(&ratios)
    );
    ratio
}

/// Rates and ratios of a family.
struct Measured {
    family: Family,
    /// Median rates of the programs, samples/s. lambert is the first.
    rates: Vec<f64>,
    /// Median ratios of lambert to the programs.
    ratios: Vec<f64>,
    utilization: f64,
}

fn measure(arguments: &Arguments, family: Family) -> Measured {
    let folder = tempfile::tempdir().unwrap();
    let count = arguments.steps * (arguments.rounds + 1);
    let (batches, vocabulary) = batches(arguments, family.pair(), folder.path(), count);
    let model = arguments.shape.model(family);
    let architecture = Architecture::new(&model, model.layers, vocabulary);
    let mut engine = Engine::new(&model, vocabulary, arguments.recompute);
    let start = |python| Peers::start(python, arguments.threads, folder.path(), (&model, vocabulary), &batches);
    let mut peers = arguments.python.as_deref().map(start);
    let names: Vec<String> = std::iter::once("lambert".to_owned()).chain(peers.iter().flat_map(Peers::names)).collect();
    let mut rates = vec![Vec::new(); names.len()];
    let (mut forward_backward, mut optimizer, mut utilization) = (Vec::new(), Vec::new(), Vec::new());
    for (round, chunk) in batches.chunks(arguments.steps).enumerate() {
        let samples: usize = chunk.iter().map(|batch| batch.lengths.len()).sum();
        let peak = matmul_peak::measure(&Host, tch::Kind::Float, false).unwrap();
        let range = round * arguments.steps..(round + 1) * arguments.steps;
        let mut order: Vec<usize> = (0..names.len()).collect();
        if round % 2 == 1 {
            order.reverse();
        }
        let (mut all, mut ours) = (vec![0.0; names.len()], None);
        for program in order {
            all[program] = match (&mut peers, program) {
                (_, 0) => ours.insert(engine.steps(chunk)).all,
                (Some(peers), program) => peers.steps(program - 1, range.clone()),
                (None, _) => 0.0,
            };
        }
        let seconds = ours.unwrap();
        // The first round is a warmup.
        if round == 0 {
            continue;
        }
        let useful = |batch: &GlobalBatch| {
            let lengths = batch.lengths.iter().map(|length| u64::from(*length));
            flops::training(&architecture, lengths, batch.masked_tokens)
        };
        for (rates, seconds) in rates.iter_mut().zip(all) {
            rates.push(samples as f64 / seconds);
        }
        forward_backward.push(seconds.forward_backward / arguments.steps as f64);
        optimizer.push((seconds.all - seconds.forward_backward) / arguments.steps as f64);
        utilization.push(chunk.iter().map(useful).sum::<f64>() / seconds.all / peak);
    }
    if let Some(peers) = peers {
        peers.end();
    }
    println!("{family}");
    let ratios = names.iter().zip(&rates).map(|(name, theirs)| line(name, theirs, &rates[0])).collect();
    let tokens: u64 = batches.iter().map(GlobalBatch::tokens).sum();
    println!("tokens/s {:.0}", median(&rates[0]) * tokens as f64 / (count * arguments.shape.batch()) as f64);
    println!("forward_backward {:.4} s, optimizer {:.4} s a step", median(&forward_backward), median(&optimizer));
    println!("flops_utilization {:.3}", median(&utilization));
    let rates = rates.iter().map(|rates| median(rates)).collect();
    Measured { family, rates, ratios, utilization: median(&utilization) }
}

fn main() {
    let arguments = Arguments::parse();
    if !Path::new(&arguments.text).is_dir() {
        println!("SKIPPED: no text at {}; name a folder with --text", arguments.text);
        return;
    }
    tch::set_num_threads(arguments.threads as i32);
    let measured: Vec<Measured> = arguments.families.iter().map(|family| measure(&arguments, *family)).collect();
    println!("| family | samples/s | FLOP utilization | ratios, in the order above |");
    for Measured { family, rates, ratios, utilization } in &measured {
        let ratios: Vec<String> = ratios[1..].iter().map(|ratio| format!("{ratio:.2}")).collect();
        println!("| {family} | {:.2} | {utilization:.3} | {} |", rates[0], ratios.join(" | "));
    }
}
