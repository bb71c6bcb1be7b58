//! A preparation: a corpus to two datasets, `train` and `held-out`.
//!
//! ```text
//! files -> documents -> sentences -> token ids    (any number of threads and parts; `tokenize`)
//!       -> buckets of documents -> samples        (`buckets`, `crate::samples`)
//!       -> one global order of samples -> shards  (`shards`)
//!       -> manifests                              (`finish`)
//! ```
//!
//! Every step leaves whole files in a work folder and skips what is there, so that a preparation that was killed goes
//! on where it was. What ends up in a dataset is a pure function of the input bytes and the configuration: documents
//! carry their place in the corpus, cells, partners and the order of the samples follow from it by keyed randomness,
//! and no step depends on which thread or part did it.

mod buckets;
mod collected;
mod corpus;
mod duplicates;
mod error;
mod finish;
mod heads;
mod held_out;
mod job;
mod levels;
mod lock;
mod memory;
mod merge;
mod partitions;
mod sample_file;
mod sealed;
mod shards;
mod space;
mod spill;
#[cfg(test)]
mod tests;
mod tokenize;
mod totals;

use std::path::Path;

use lambert_config::load::ConfigError;
use lambert_config::{Layers, PrepConfig};
use serde::Serialize;

pub use error::PrepError;
pub use space::Needs;

use crate::source::{self, Note};
use buckets::Split;
use duplicates::Removed;
use job::{Job, Run, Scale};
use lambert_dataset::parallel::parallel;
use lambert_dataset::{HeldOut, Manifest};
use levels::Levels;
use memory::Memory;
use shards::Sorted;

/// Bytes of memory that a preparation takes unless it is told otherwise.
pub const MEMORY: u64 = 2 << 30;

/// Bytes of memory for each token of a bucket whose samples are made: its id, and its share of what is beside it.
const BUCKET_BYTES: u64 = 5;

/// How a preparation is run; none of it changes a byte of the result.
pub struct Options<'a> {
    /// Threads.
    pub threads: usize,
    /// Bytes of memory for all of them together.
    pub memory: u64,
    /// Only this part (from 0) of so many: tokenizes its share of the input and ends there.
    pub part: Option<(usize, usize)>,
    /// Told how far it is.
    pub progress: &'a dyn Progress,
}

/// Is told how far a preparation is, from any of its threads, several times a second.
pub trait Progress: Sync {
    /// Takes note of what there is to do, before it is begun.
    fn begin(&self, _plan: &Plan) {}

    /// Takes note that nothing keeps other processes out of the work folder, because its file system has no locks.
    fn not_locked(&self, _folder: &Path) {}

    /// Takes note of a place in an input file that was left out or mended.
    fn left_out(&self, _file: &str, _note: &Note) {}

    /// Takes note.
    fn update(&self, status: &Status);
}

impl<F: Fn(&Status) + Sync> Progress for F {
    fn update(&self, status: &Status) {
        self(status);
    }
}

/// What a preparation has before it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// Input files.
    pub files: usize,
    /// Sources, those of `exclude` included.
    pub sources: usize,
    /// Bytes of the input files as stored.
    pub input_bytes: u64,
    /// Disk space that is needed at the most, about; see [`Needs`].
    pub needs: Needs,
}

/// How far a preparation is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    /// What it does: `comparing` (is it done already?), `tokenizing`, `sampling`, `writing`.
    pub phase: &'static str,
    /// The number of the source that it reads.
    pub source: Option<usize>,
    /// How much of it is done in this process.
    pub done: u64,
    /// How much there is to do.
    pub total: u64,
    /// Of what: `bytes` (as stored), `buckets`, `shards`.
    pub unit: &'static str,
    /// Bytes of text or decompressed XML that were tokenized in this process.
    pub text_bytes: u64,
}

/// What a preparation made.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Input files.
    pub files: usize,
    /// Bytes of the input files as stored.
    pub input_bytes: u64,
    /// `true` if the datasets were there already, made from the same corpus and configuration.
    pub unchanged: bool,
    /// The share of the tokens that is held out, if any was asked for and it is known: it is not after a part.
    pub held_out: Option<HeldOut>,
    /// Where each dataset is and what its manifest says; empty after a part.
    pub datasets: Vec<Finished>,
}

/// A dataset that is there.
#[derive(Debug, Clone, Serialize)]
pub struct Finished {
    /// Its folder or URL.
    pub url: String,
    /// Its manifest.
    pub manifest: Manifest,
}

/// Reads the configuration of a preparation and checks it, its formats included.
///
/// # Errors
/// See [`ConfigError`]; all that is wrong with the values is listed.
pub fn load(layers: &Layers, path: &Path) -> Result<PrepConfig, ConfigError> {
    layers.load_with(path, source::check)
}

/// Prepares the datasets that `config` describes. Blocks until they are there.
///
/// # Errors
/// See [`PrepError`]; a second call goes on where the first one failed.
pub fn run(config: &PrepConfig, options: &Options<'_>) -> Result<Report, PrepError> {
    run_in_pieces(config, options, Scale::default())
}

fn run_in_pieces(config: &PrepConfig, options: &Options<'_>, scale: Scale) -> Result<Report, PrepError> {
    let threads = options.threads.max(1);
    let job = Job::new(config, Memory::new(options.memory, threads)?, scale, threads)?;
    let input_bytes = job.files.iter().map(|file| file.bytes).sum();
    let report = |held_out, unchanged, datasets: Vec<Finished>| Report {
        files: job.files.len(),
        input_bytes,
        unchanged,
        held_out,
        datasets,
    };
    if let Some(datasets) = finish::existing(&job, threads, options.progress)? {
        if options.part.is_none() {
            job.clear()?;
        }
        tracing::debug!(datasets = datasets.len(), "preparation was done before; nothing to do");
        let held_out = datasets.first().and_then(|train| train.manifest.held_out.clone());
        return Ok(report(held_out, true, datasets));
    }
    let needs = space::check_input(&job)?;
    options.progress.begin(&Plan { files: job.files.len(), sources: job.sources.len(), input_bytes, needs });
    let lock = job.begin(options.part)?;
    if !lock.is_held {
        options.progress.not_locked(job.folder());
    }
    let (files, part, folder) = (job.files.len(), options.part, job.folder().display());
    tracing::debug!(files, input_bytes, threads, ?part, %folder, "preparation started");
    tokenize::run(&job, options.part, threads, options.progress)?;
    if options.part.is_some() {
        return Ok(report(None, false, Vec::new()));
    }
    let runs = job.runs()?;
    let removed = duplicates::find(&job, &runs)?;
    let splits = Split::all(&job, &runs, &removed)?;
    finish::check_not_empty(&job, &runs, &splits, &removed)?;
    space::check_samples(&job, &runs)?;
    sample(&job, &runs, &removed, &splits, threads, options.progress)?;
    let datasets = finish::datasets(&job, &runs, &removed, &splits, threads, options.progress)?;
    Ok(report(Split::held_out(&job, &splits), false, datasets))
}

/// All buckets of all splits to samples, and these to few files.
fn sample(
    job: &Job<'_>,
    runs: &[Run],
    removed: &Removed,
    splits: &[Split],
    threads: usize,
    progress: &dyn Progress,
) -> Result<(), PrepError> {
    let of_cells = buckets::totals(runs)?;
    let levels: Vec<Levels<'_>> = splits.iter().map(|split| Levels::new(job, split)).collect();
    let tokens: Vec<Vec<u64>> = splits.iter().map(|split| split.tokens(&of_cells)).collect();
    let mut tasks: Vec<(usize, usize)> = (0..splits.len())
        .flat_map(|split| (0..splits[split].buckets()).map(move |bucket| (split, bucket)))
        .filter(|&(split, bucket)| !levels[split].is_done(0, bucket))
        .collect();
    // The largest first, so that all threads end together.
    tasks.sort_by_key(|&(split, bucket)| std::cmp::Reverse(tokens[split][bucket]));
    let largest = tasks.first().map_or(0, |&(split, bucket)| tokens[split][bucket]);
    let workers = job.memory.workers(largest * BUCKET_BYTES + 2 * job.scale.sorted as u64).min(threads);
    parallel(workers, tasks.len(), |index| -> Result<_, PrepError> {
        let (split, bucket) = tasks[index];
        buckets::make(job, runs, removed, &splits[split], bucket, &levels[split].path(0, bucket))?;
        progress.update(&Status {
            phase: "sampling",
            source: None,
            done: index as u64 + 1,
            total: tasks.len() as u64,
            unit: "buckets",
            text_bytes: 0,
        });
        Ok(())
    })?;
    for levels in &levels {
        for level in 1..levels.len() {
            parallel(threads, levels.files(level), |index| levels.make(level, index))?;
        }
    }
    Ok(())
}
