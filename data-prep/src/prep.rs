//! Dataset preparation. Turns a corpus into two datasets, `train` and `held-out`.
//!
//! ```text
//! files -> documents -> sentences -> token IDs     (any number of threads and parts; `tokenize`)
//!       -> buckets of documents -> samples         (`buckets`, `crate::samples`)
//!       -> globally shuffled samples -> shards     (`shards`)
//!       -> manifests                               (`finish`)
//! ```
//!
//! Every step writes complete files to a work folder and skips files that already exist. So if a preparation job is
//! killed, the next run continues where it stopped.
//!
//! A dataset is a pure function of the input bytes and the configuration. Every document has a fixed ID in the corpus.
//! The cell and the pair partners of a document are pseudo-random functions of the seed and this ID. The order of the
//! samples is a pseudo-random function of the seed and of the index of each sample in its bucket. No result depends on
//! the thread or the part that computed it.

mod buckets;
mod corpus;
mod duplicates;
mod error;
mod existing;
mod fingerprints;
mod finish;
mod held_out;
mod job;
mod job_file;
mod lock;
mod memory;
mod merge;
mod merge_passes;
mod partitions;
mod rejected;
mod sample_file;
mod shards;
mod sort_buffer;
mod space;
mod spill;
#[cfg(test)]
mod tests;
mod tokenize;
mod totals;
mod work_file;
mod work_folder;

use std::path::{Path, PathBuf};

use lambert_config::load::ConfigError;
use lambert_config::{Layers, PrepConfig};
use serde::Serialize;

pub use error::PrepError;
pub use memory::PrepMemory;
pub use space::SpaceEstimate;

use crate::source::{self, SkipNotice};
use buckets::DatasetSplit;
use duplicates::RemovedDocuments;
use job::{JobContext, SpillFile, WorkLimits};
use lambert_dataset::parallel::parallel;
use lambert_dataset::{HeldOut, Manifest};
use merge_passes::MergePasses;
use shards::SortedSamples;

/// Default memory budget, bytes.
pub const DEFAULT_MEMORY: u64 = 2 << 30;

/// Memory per token of a bucket while samples are generated, bytes: the token ID and a share of the document index.
const BYTES_PER_BUCKET_TOKEN: u64 = 5;

/// Resources and scope of a preparation job. They have no effect on the bytes of the datasets.
pub struct PrepOptions<'a> {
    /// Worker threads.
    pub threads: usize,
    /// Memory budget of all threads together, bytes.
    pub memory: u64,
    /// The part to tokenize, as (index from 0, number of parts). `None` tokenizes all batches that no part has
    /// tokenized, and writes the datasets.
    pub part: Option<(usize, usize)>,
    /// Receives progress reports.
    pub progress: &'a dyn PrepProgress,
}

/// Receives progress reports from any thread of a preparation job, several times a second.
pub trait PrepProgress: Sync {
    /// Called once before the work starts.
    fn start(&self, _plan: &PrepPlan) {}

    /// Called if the file system of the work folder has no locks. Concurrent preparation jobs are then not detected.
    fn lock_unavailable(&self, _folder: &Path) {}

    /// Called for each place in an input file that was skipped or repaired.
    fn skipped(&self, _file: &str, _notice: &SkipNotice) {}

    /// Called when a unit of work is done.
    fn update(&self, status: &PrepStatus);
}

impl<F: Fn(&PrepStatus) + Sync> PrepProgress for F {
    fn update(&self, status: &PrepStatus) {
        self(status);
    }
}

/// Size of a preparation job, computed before the work starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PrepPlan {
    /// Number of input files.
    pub files: usize,
    /// Number of sources, `exclude` included.
    pub sources: usize,
    /// Stored size of the input files, bytes.
    pub input_bytes: u64,
    /// Estimated peak disk space.
    pub space: SpaceEstimate,
}

/// Progress of a preparation job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PrepStatus {
    /// Current phase: `comparing` (checks existing datasets), `tokenizing`, `sampling` or `writing`.
    pub phase: &'static str,
    /// Index of the source being read.
    pub source: Option<usize>,
    /// Units done by this process.
    pub done: u64,
    /// Units in total.
    pub total: u64,
    /// Unit of `done` and `total`: `bytes` (of the input files, before decompression), `buckets` or `shards`.
    pub unit: &'static str,
    /// Bytes of text or decompressed XML tokenized by this process.
    pub text_bytes: u64,
}

/// Result of a preparation job.
#[derive(Debug, Clone, Serialize)]
pub struct PrepReport {
    /// Number of input files.
    pub files: usize,
    /// Stored size of the input files, bytes.
    pub input_bytes: u64,
    /// True if datasets of the same corpus and configuration already existed.
    pub unchanged: bool,
    /// Held-out share of the tokens. `None` if no share is configured, if existing datasets do not record it, or after
    /// a run of a single part.
    pub held_out: Option<HeldOut>,
    /// The datasets with their manifests. Empty after a run of a single part.
    pub datasets: Vec<PreparedDataset>,
}

/// A finished dataset.
#[derive(Debug, Clone, Serialize)]
pub struct PreparedDataset {
    /// Folder or URL.
    pub url: String,
    /// Manifest.
    pub manifest: Manifest,
}

/// Loads and validates the configuration of a preparation job, including the input formats.
///
/// # Errors
/// A [`ConfigError`] that lists every invalid value.
pub fn load(layers: &Layers, paths: &[PathBuf]) -> Result<PrepConfig, ConfigError> {
    layers.load_with(paths, source::check_settings)
}

/// Prepares the datasets that `config` describes. Blocks until they are written.
///
/// # Errors
/// See [`PrepError`]. A later call resumes the work.
pub fn run(config: &PrepConfig, options: &PrepOptions<'_>) -> Result<PrepReport, PrepError> {
    run_with_limits(config, options, WorkLimits::default())
}

fn run_with_limits(
    config: &PrepConfig,
    options: &PrepOptions<'_>,
    limits: WorkLimits,
) -> Result<PrepReport, PrepError> {
    let threads = options.threads.max(1);
    let job = JobContext::new(config, PrepMemory::new(options.memory, threads)?, limits, threads)?;
    let input_bytes = job.files.iter().map(|file| file.bytes).sum();
    let report = |held_out, unchanged, datasets: Vec<PreparedDataset>| PrepReport {
        files: job.files.len(),
        input_bytes,
        unchanged,
        held_out,
        datasets,
    };
    if let Some(datasets) = existing::existing_datasets(&job, threads, options.progress)? {
        if options.part.is_none() {
            job.remove_leftovers()?;
        }
        tracing::debug!(datasets = datasets.len(), "datasets are up to date");
        let held_out = datasets.first().and_then(|train| train.manifest.held_out.clone());
        return Ok(report(held_out, true, datasets));
    }
    // A part writes only to the work folder.
    if options.part.is_none() {
        existing::check_output_folder(&job)?;
    }
    let space = space::check_input(&job)?;
    options.progress.start(&PrepPlan { files: job.files.len(), sources: job.sources.len(), input_bytes, space });
    let lock = job.open_folder(options.part)?;
    if !lock.is_held {
        options.progress.lock_unavailable(job.folder());
    }
    let (files, part, folder) = (job.files.len(), options.part, job.folder().display());
    tracing::debug!(files, input_bytes, threads, ?part, %folder, "preparation started");
    tokenize::run(&job, options.part, threads, options.progress)?;
    if options.part.is_some() {
        return Ok(report(None, false, Vec::new()));
    }
    let spill_files = job.spill_files()?;
    let removed = duplicates::find_duplicates(&job, &spill_files)?;
    let splits = DatasetSplit::train_and_held_out(&job, &spill_files, &removed)?;
    finish::check_not_empty(&job, &spill_files, &splits, &removed)?;
    space::check_samples(&job, &spill_files)?;
    write_sample_files(&job, &spill_files, &removed, &splits, threads, options.progress)?;
    let datasets = finish::write_datasets(&job, &spill_files, &removed, &splits, threads, options.progress)?;
    Ok(report(DatasetSplit::held_out(&job, &splits), false, datasets))
}

/// Generates the samples of all buckets of all splits and merges the sample files.
fn write_sample_files(
    job: &JobContext<'_>,
    spill_files: &[SpillFile],
    removed: &RemovedDocuments,
    splits: &[DatasetSplit],
    threads: usize,
    progress: &dyn PrepProgress,
) -> Result<(), PrepError> {
    let cell_totals = buckets::cell_totals(spill_files)?;
    let merge_passes: Vec<MergePasses<'_>> = splits.iter().map(|split| MergePasses::new(job, split)).collect();
    let tokens: Vec<Vec<u64>> = splits.iter().map(|split| split.tokens(&cell_totals)).collect();
    let mut tasks: Vec<(usize, usize)> = (0..splits.len())
        .flat_map(|split| (0..splits[split].buckets()).map(move |bucket| (split, bucket)))
        .filter(|&(split, bucket)| !merge_passes[split].is_done(0, bucket))
        .collect();
    // The largest tasks come first, so that all threads finish at about the same time.
    tasks.sort_by_key(|&(split, bucket)| std::cmp::Reverse(tokens[split][bucket]));
    let largest = tasks.first().map_or(0, |&(split, bucket)| tokens[split][bucket]);
    let workers =
        job.memory.max_threads(largest * BYTES_PER_BUCKET_TOKEN + 2 * job.limits.sort_bytes as u64).min(threads);
    parallel(workers, tasks.len(), |index| -> Result<_, PrepError> {
        let (split, bucket) = tasks[index];
        buckets::write_samples(
            job,
            spill_files,
            removed,
            &splits[split],
            bucket,
            &merge_passes[split].path(0, bucket),
        )?;
        progress.update(&PrepStatus {
            phase: "sampling",
            source: None,
            done: index as u64 + 1,
            total: tasks.len() as u64,
            unit: "buckets",
            text_bytes: 0,
        });
        Ok(())
    })?;
    for passes in &merge_passes {
        for pass in 1..passes.passes() {
            parallel(threads, passes.files(pass), |index| passes.merge_file(pass, index))?;
        }
    }
    Ok(())
}
