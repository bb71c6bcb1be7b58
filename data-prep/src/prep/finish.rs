//! The last step: shards, vocabulary and manifests to their place, the manifest of `train` last of all.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};

use lambert_store::Store;

use super::levels::Levels;
use super::spill::SourceTotals;
use super::{Finished, Job, PrepError, Progress, Removed, Run, Sorted, Split, Status, corpus, sealed};
use lambert_dataset::parallel::parallel;
use lambert_dataset::{
    Corpus, Counts, Dataset, DatasetError, MANIFEST, Manifest, SampleRules, Shard, SourceCounts, VERSION, VOCABULARY,
    VocabularyFile, entropy, sha256_hex,
};

/// Bytes of memory for a shard that is written: a row group, and what is read ahead of each sample file.
const SHARD_BYTES: u64 = 32 << 20;

/// The datasets, if they are all there already and of this very job and corpus.
pub fn existing(job: &Job<'_>, threads: usize, progress: &dyn Progress) -> Result<Option<Vec<Finished>>, PrepError> {
    let Some(found) = find(job, "train")? else { return Ok(None) };
    let corpus = corpus::now(job, threads, progress)?;
    let train = checked(found, &corpus)?;
    let held_out = find(job, "held-out")?.map(|found| checked(found, &corpus)).transpose()?;
    Ok(Some(std::iter::once(train).chain(held_out).collect()))
}

/// A dataset that is there, if it is this job's.
fn find(job: &Job<'_>, split: &str) -> Result<Option<Finished>, PrepError> {
    let url = url(job, split);
    match Dataset::open(&url) {
        Ok(dataset) if dataset.manifest().preparation == job.fingerprint => {
            Ok(Some(Finished { url, manifest: dataset.manifest().clone() }))
        }
        Err(DatasetError::NoManifest { .. }) => Ok(None),
        Ok(_) => Err(PrepError::Exists { url }),
        Err(error) => Err(error.into()),
    }
}

fn checked(found: Finished, corpus: &Corpus) -> Result<Finished, PrepError> {
    if found.manifest.corpus == *corpus { Ok(found) } else { Err(PrepError::Exists { url: found.url }) }
}

fn url(job: &Job<'_>, split: &str) -> String {
    format!("{}/{split}", job.config.output.url.trim_end_matches('/'))
}

/// An error if nothing came out of the corpus.
pub fn check_not_empty(job: &Job<'_>, runs: &[Run], splits: &[Split], removed: &Removed) -> Result<(), PrepError> {
    if splits.iter().any(|split| split.totals.documents > 0) {
        return Ok(());
    }
    let rejected: Vec<String> =
        rejected(runs, removed).into_iter().map(|(reason, count)| format!("; left out: {reason} ({count})")).collect();
    Err(PrepError::Empty { files: job.files.len(), rejected: Some(rejected.concat()) })
}

fn rejected(runs: &[Run], removed: &Removed) -> BTreeMap<String, u64> {
    let mut sum = BTreeMap::new();
    for (reason, count) in runs.iter().flat_map(|run| &run.contents.rejected) {
        *sum.entry(reason.clone()).or_default() += count;
    }
    removed.counts.iter().for_each(|(reason, count)| *sum.entry(reason.to_string()).or_default() += count);
    sum
}

/// Writes both datasets; then the work folder goes.
pub fn datasets(
    job: &Job<'_>,
    runs: &[Run],
    removed: &Removed,
    splits: &[Split],
    threads: usize,
    progress: &dyn Progress,
) -> Result<Vec<Finished>, PrepError> {
    let corpus = corpus::read(job, runs)?;
    corpus::write_objects(job, runs)?;
    let mut finished = Vec::new();
    let mut open = Vec::new();
    for split in splits.iter().filter(|split| split.buckets() > 0) {
        match find(job, split.name)? {
            Some(found) => finished.push(checked(found, &corpus)?),
            None => open.push(Unwritten::open(job, split)?),
        }
    }
    let mut written = write_shards(job, &open, threads, progress)?;
    // `train` comes last: where it is, everything is.
    for (split, shards) in open.iter().zip(&mut written).rev() {
        let mut manifest = manifest(job, runs, removed, split.split, &split.sorted, std::mem::take(shards))?;
        manifest.corpus = corpus.clone();
        let url = url(job, split.split.name);
        publish(job, &url, &split.folder, &manifest)?;
        finished.push(Finished { url, manifest });
    }
    finished.sort_by_key(|dataset| splits.iter().position(|split| split.name == dataset.manifest.split));
    job.remove()?;
    Ok(finished)
}

/// A dataset that is to be written.
struct Unwritten<'a> {
    split: &'a Split,
    sorted: Sorted,
    folder: PathBuf,
    shards: usize,
}

impl<'a> Unwritten<'a> {
    fn open(job: &Job<'_>, split: &'a Split) -> Result<Self, PrepError> {
        let folder = job.folder().join(split.work_name());
        for folder in [&folder, &folder.with_extension("done")] {
            std::fs::create_dir_all(folder).map_err(|source| PrepError::Work {
                operation: "create",
                path: folder.clone(),
                source,
            })?;
        }
        let sorted = Sorted::open(job, &Levels::new(job, split))?;
        Ok(Self { split, sorted, folder, shards: shard_count(job, split) })
    }
}

/// The shards of each dataset; those of all datasets side by side, so that no thread waits for the end of a small one.
fn write_shards(
    job: &Job<'_>,
    open: &[Unwritten<'_>],
    threads: usize,
    progress: &dyn Progress,
) -> Result<Vec<Vec<Shard>>, PrepError> {
    let mut tasks: Vec<(usize, usize)> =
        open.iter().enumerate().flat_map(|(index, split)| (0..split.shards).map(move |shard| (index, shard))).collect();
    // The largest first, so that all threads end together.
    tasks.sort_by_key(|&(index, _)| std::cmp::Reverse(open[index].sorted.len() / open[index].shards as u64));
    let workers = job.memory.workers(SHARD_BYTES).min(threads);
    let shards = parallel(workers, tasks.len(), |number| -> Result<_, PrepError> {
        let (index, shard) = tasks[number];
        let split = &open[index];
        let written = split.sorted.write_shard(&split.folder, job, shard, split.shards)?;
        let (done, total) = (number as u64 + 1, tasks.len() as u64);
        progress.update(&Status { phase: "writing", source: None, done, total, unit: "shards", text_bytes: 0 });
        Ok(written)
    })?;
    let mut written = vec![Vec::new(); open.len()];
    tasks.iter().zip(shards).for_each(|(&(index, _), shard)| written[index].push(shard));
    Ok(written)
}

fn shard_count(job: &Job<'_>, split: &Split) -> usize {
    let shards = job.config.output.shards;
    match split.name {
        "train" => shards,
        _ => ((shards as f64 * job.config.samples.held_out).ceil() as usize).max(1),
    }
}

fn manifest(
    job: &Job<'_>,
    runs: &[Run],
    removed: &Removed,
    split: &Split,
    sorted: &Sorted,
    shards: Vec<Shard>,
) -> Result<Manifest, PrepError> {
    let samples = &job.config.samples;
    let mut counts = Counts {
        documents: split.totals.documents,
        sentences: split.totals.sentences,
        rejected: rejected(runs, removed),
        ..Counts::default()
    };
    for contents in sorted.contents() {
        counts.samples += contents.samples;
        counts.tokens += contents.tokens;
        counts.positive_pairs += contents.positive_pairs;
    }
    Ok(Manifest {
        version: VERSION,
        split: split.name.to_owned(),
        preparation: job.fingerprint.clone(),
        corpus: Corpus::default(),
        sequence_length: samples.sequence_length,
        lowercase: job.config.vocabulary.lowercase,
        vocabulary: VocabularyFile {
            path: VOCABULARY.to_owned(),
            size: job.tokenizer.size(),
            bytes: job.vocabulary.len() as u64,
            sha256: sha256_hex(&job.vocabulary),
        },
        special: job.tokenizer.special(),
        samples: SampleRules {
            pair: samples.pair,
            packing: samples.packing,
            short_sequence_probability: samples.short_sequence_probability,
            passes: samples.passes,
            held_out: samples.held_out,
            seed: samples.seed,
        },
        counts,
        sources: sources(job, runs, removed),
        held_out: split.selection().map(|selection| selection.describe(samples.held_out)),
        unigram_entropy: entropy(&sorted.token_counts(job.tokenizer.size())?),
        shards,
    })
}

/// What was read of each source and what is left of it.
fn sources(job: &Job<'_>, runs: &[Run], removed: &Removed) -> Vec<SourceCounts> {
    let mut totals = vec![SourceTotals::default(); job.sources.len()];
    for (source, part) in runs.iter().flat_map(|run| &run.contents.sources) {
        totals[*source as usize] += *part;
    }
    let mut duplicates = vec![0; job.sources.len()];
    removed.by_file().for_each(|(file, count)| duplicates[job.files[file as usize].source] += count);
    let of = |index: usize| job.files.iter().filter(move |file| file.source == index);
    let count = |index: usize| SourceCounts {
        format: job.sources[index].format.clone(),
        excluded: index >= job.config.source.len(),
        files: of(index).count() as u64,
        stored_bytes: of(index).map(|file| file.bytes).sum(),
        text_bytes: totals[index].text_bytes,
        found: totals[index].found,
        documents: totals[index].kept.documents - duplicates[index],
        duplicates: duplicates[index],
        sentences: totals[index].kept.sentences,
        tokens: totals[index].kept.tokens,
    };
    (0..job.sources.len()).map(count).collect()
}

/// Puts a finished dataset where it belongs, its manifest last.
fn publish(job: &Job<'_>, url: &str, folder: &Path, manifest: &Manifest) -> Result<(), PrepError> {
    let fault = |source| PrepError::Store { url: url.to_owned(), source };
    let store = Store::open(url).map_err(fault)?;
    for shard in &manifest.shards {
        let path = folder.join(&shard.path);
        let local = store.local_path(&shard.path).map_err(fault)?;
        if !path.exists() && store.head(&shard.path).map_err(fault)? == Some(shard.bytes) {
            continue;
        }
        let work = |operation| {
            let path = path.clone();
            move |source| PrepError::Work { operation, path, source }
        };
        match local {
            Some(target) => sealed::move_file(&path, &target).map_err(work("move"))?,
            None => {
                let file = File::open(&path).map_err(work("read"))?;
                store.put_file(&shard.path, file, shard.bytes).map_err(fault)?;
            }
        }
    }
    store.put(VOCABULARY, job.vocabulary.clone().into()).map_err(fault)?;
    store.put(MANIFEST, manifest.to_json().into()).map_err(fault)?;
    tracing::debug!(%url, samples = manifest.counts.samples, shards = manifest.shards.len(), "dataset complete");
    Ok(())
}
