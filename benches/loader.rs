//! Comparison of loader throughput and training speed: `cargo bench --workspace --bench loader`.
//!
//! The benchmark runs rank 0 alone. It measures every combination of a global batch size (256, 8,192 or 65,536 samples)
//! and a number of ranks (1, 8 or 64). The rank reads its shard of each global batch. Between batches, it sleeps for
//! the time of a step at 1,500 or 5,000 samples/s. For each combination, the benchmark prints:
//!
//! - the fraction of time that the rank waits for samples, without the wait for the first batch
//! - the number of row groups decoded per step (mean/maximum)
//! - the number of threads
//! - the samples/s of one reader thread
//! - the measured memory use, and the memory use by formula

#![allow(clippy::unwrap_used, reason = "a panic is how a benchmark reports")]

#[path = "../tests/support/samples.rs"]
mod samples;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Parser;
use lambert_config::run::{FaultInjection, Objective, Stage};
use lambert_dataset::Dataset;
use lambert_plan::memory;
use lambert_worker::data::reader::BatchReader;
use lambert_worker::data::{BatchRequest, Loader, LoaderOptions, Mixture, MixturePosition, SampleSource};
use lambert_worker::recovery::skipped_samples::SkippedSamples;
use samples::Shape;

#[derive(Parser)]
struct Arguments {
    /// Number of samples in the dataset
    #[arg(long, default_value_t = 400_000)]
    rows: u64,
    /// Approximate time of each measurement, seconds
    #[arg(long, default_value_t = 10.0)]
    seconds: f64,
    /// Maximum number of reader threads
    #[arg(long, default_value_t = 2)]
    threads: usize,
    /// Folder of the dataset; a missing dataset is created
    #[arg(long)]
    folder: Option<String>,
    /// Passed by cargo to every benchmark
    #[arg(long, hide = true)]
    bench: bool,
}

const MAX_TOKENS: usize = 128;

fn main() {
    let arguments = Arguments::parse();
    let temporary = tempfile::tempdir().unwrap();
    let folder = arguments.folder.clone().unwrap_or_else(|| temporary.path().to_str().unwrap().to_owned());
    if !Path::new(&folder).join("manifest.json").exists() {
        let shape = Shape { rows: arguments.rows, longest: MAX_TOKENS, rows_per_group: 1024, shards: 8, pieces: 30522 };
        samples::write(Path::new(&folder), &shape);
    }
    let dataset = Arc::new(Dataset::open(&folder).unwrap());
    // Each shard is hashed on first use. Read every shard now, so that the measurement does not include the hashing.
    (0..dataset.row_groups().len()).for_each(|group| drop(dataset.lengths(group).unwrap()));
    println!("batch    world  samples/s  waited  decoded  threads  produced/s  memory MB  formula MB");
    for batch in [256, 8192, 65536] {
        for world in [1, 8, 64] {
            let (decoded, produced) = decoding(&dataset, batch, world, &arguments);
            for rate in [1500.0, 5000.0] {
                let (waited, memory) = consume(&dataset, batch, world, rate, &arguments);
                let formula = memory::samples(&stage(batch), world, dataset.sizes()) as f64 / 1e6;
                println!(
                    "{batch:<7}  {world:<5}  {rate:<9}  {waited:5.2} %  {decoded:>7}  {:>7}  {produced:>10.0}  \
                     {memory:>9.0}  {formula:>10.0}",
                    arguments.threads
                );
            }
        }
    }
}

fn stage(global_batch: usize) -> Stage {
    Stage { global_batch, ..Stage::default() }
}

fn source(dataset: &Arc<Dataset>) -> SampleSource {
    let (objective, fault_injection) = (Objective::default(), FaultInjection::default());
    SampleSource {
        mixture: Mixture::single(Arc::clone(dataset)),
        objective,
        phrases: None,
        seed: 1,
        shuffle: true,
        fault_injection,
    }
}

fn options(batch: usize, world: usize, arguments: &Arguments) -> LoaderOptions {
    let (position, skipped, max_threads) = (MixturePosition::default(), SkippedSamples::default(), arguments.threads);
    LoaderOptions {
        position,
        skipped,
        skipped_shards: Vec::new(),
        micro_batch_tokens: 16384,
        layout: lambert_plan::batch_partition::Layout::Padded,
        rank: 0,
        world_size: world,
        batch_shards: world,
        max_threads,
        max_batch: batch,
    }
}

/// Measures the number of row groups decoded per step (mean/maximum), and the samples/s of one thread.
fn decoding(dataset: &Arc<Dataset>, batch: usize, world: usize, arguments: &Arguments) -> (String, f64) {
    let mut reader = BatchReader::new(source(dataset)).unwrap();
    let options = options(batch, world, arguments);
    let (start, mut steps, mut most) = (Instant::now(), 0, 0);
    while steps < 2 || start.elapsed().as_secs_f64() < arguments.seconds / 5.0 {
        let before = reader.decoded_row_groups();
        drop(reader.global_batch(&options, steps * batch as u64, BatchRequest::whole(batch), 1).unwrap());
        (steps, most) = (steps + 1, most.max(reader.decoded_row_groups() - before));
    }
    let samples = (steps as usize * batch) as f64 / world as f64;
    let mean = reader.decoded_row_groups() as f64 / steps as f64;
    (format!("{mean:.1}/{most}"), samples / start.elapsed().as_secs_f64())
}

/// Measures the percentage of time that a consumer waits, and the peak memory of the loader in MB.
fn consume(dataset: &Arc<Dataset>, batch: usize, world: usize, rate: f64, arguments: &Arguments) -> (f64, f64) {
    let before = resident();
    let step = batch as f64 / world as f64 / rate;
    let steps = ((arguments.seconds / step) as usize).max(3);
    let mut loader = Loader::start(
        source(dataset),
        options(batch, world, arguments),
        (0..steps).map(move |_| BatchRequest::whole(batch)),
    )
    .unwrap();
    let mut held = loader.next_batch().unwrap().unwrap();
    let (start, mut waited, mut most) = (Instant::now(), 0.0, 0.0_f64);
    for _ in 1..steps {
        // Simulate the step by short sleeps, and measure the memory after each sleep.
        let until = Instant::now() + Duration::from_secs_f64(step);
        while let Some(left) = until.checked_duration_since(Instant::now()) {
            most = most.max(resident() - before);
            std::thread::sleep(left.min(Duration::from_millis(50)));
        }
        let asked = Instant::now();
        let next = loader.next_batch().unwrap().unwrap();
        waited += asked.elapsed().as_secs_f64();
        held = next;
    }
    drop(held);
    (100.0 * waited / start.elapsed().as_secs_f64(), most)
}

/// Resident memory of this process, MB.
fn resident() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().strip_suffix(" kB").unwrap().parse::<f64>().unwrap() / 1e3
}
