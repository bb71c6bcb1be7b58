//! Last step. Writes the shards, then publishes shards, vocabulary and manifests. The manifest of `train` is published
//! last.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};

use lambert_store::Store;

use super::existing::{check_corpus, dataset_url, find_dataset};
use super::merge_passes::MergePasses;
use super::rejected::{FirstRejected, RejectedItem};
use super::spill::SourceTotals;
use super::{
    DatasetSplit, JobContext, PrepError, PrepProgress, PrepStatus, PreparedDataset, RemovedDocuments, SortedSamples,
    SpillFile, corpus, work_file,
};
use lambert_dataset::parallel::parallel;
use lambert_dataset::ranges::{self, CHECKSUMS, ShardRanges};
use lambert_dataset::token_counts::{self, TOKEN_COUNTS};
use lambert_dataset::{
    Corpus, Counts, MANIFEST, Manifest, REJECTED, RejectedExample, SampleRules, Shard, SourceCounts, VERSION,
    VocabularyFile, WrittenShard, entropy, sha256_hex,
};

/// Memory per shard writer for the read buffers of the sample files, bytes.
const SHARD_WRITER_BYTES: u64 = 24 << 20;
/// Memory of a shard writer per token of a row group, bytes: the ids, and their copy in an Arrow array.
const ROW_GROUP_TOKEN_BYTES: u64 = 8;

/// Fails if no document was accepted.
pub fn check_not_empty(
    job: &JobContext<'_>,
    spill_files: &[SpillFile],
    splits: &[DatasetSplit],
    removed: &RemovedDocuments,
) -> Result<(), PrepError> {
    if splits.iter().any(|split| split.totals.documents > 0) {
        return Ok(());
    }
    let rejected: Vec<String> = count_rejected(spill_files, removed)
        .into_iter()
        .map(|(reason, count)| format!("; skipped: {reason} ({count})"))
        .collect();
    Err(PrepError::EmptyCorpus { files: job.files.len(), rejected: Some(rejected.concat()) })
}

fn count_rejected(spill_files: &[SpillFile], removed: &RemovedDocuments) -> BTreeMap<String, u64> {
    let mut sum = BTreeMap::new();
    for (reason, count) in spill_files.iter().flat_map(|spill_file| &spill_file.contents.rejected) {
        *sum.entry(reason.clone()).or_default() += count;
    }
    removed.counts.iter().for_each(|(reason, count)| *sum.entry(reason.to_string()).or_default() += count);
    sum
}

/// Returns the examples of a job, by reason and in corpus order.
fn rejected_examples(
    job: &JobContext<'_>,
    spill_files: &[SpillFile],
    removed: &RemovedDocuments,
) -> Vec<RejectedExample> {
    let mut first = FirstRejected::default();
    spill_files.iter().for_each(|spill_file| first.merge(&spill_file.contents.rejected_examples));
    let name = |file: u32| job.files[file as usize].name.clone();
    let mut examples = Vec::new();
    for (reason, RejectedItem { file, offset, title, text }) in first.into_items() {
        let (offset, file) = (Some(offset), name(file));
        examples.push(RejectedExample { reason, file, offset, document: None, title, text });
    }
    for (reason, ids) in &removed.examples {
        for id in ids {
            let (reason, file, document) = ((*reason).to_owned(), name(id.file), Some(id.ordinal));
            examples.push(RejectedExample { reason, file, offset: None, document, title: None, text: String::new() });
        }
    }
    examples.sort_by(|left, right| left.reason.cmp(&right.reason));
    examples
}

/// Writes both datasets and removes the work folder.
pub fn write_datasets(
    job: &JobContext<'_>,
    spill_files: &[SpillFile],
    removed: &RemovedDocuments,
    splits: &[DatasetSplit],
    threads: usize,
    progress: &dyn PrepProgress,
) -> Result<Vec<PreparedDataset>, PrepError> {
    let corpus = corpus::as_tokenized(job, spill_files)?;
    corpus::record_objects(job, spill_files)?;
    let mut finished = Vec::new();
    let mut pending = Vec::new();
    for split in splits.iter().filter(|split| split.buckets() > 0) {
        match find_dataset(job, split.name)? {
            Some(found) => {
                let found = check_corpus(found, &corpus)?;
                // A version that reads some documents differently divides them differently.
                let counts = (found.manifest.counts.documents, &found.manifest.sources);
                if counts != (split.totals.documents, &source_counts(job, spill_files, removed)) {
                    return Err(PrepError::DatasetExists { url: found.url });
                }
                finished.push(found);
            }
            None => pending.push(PendingDataset::open(job, split)?),
        }
    }
    let mut written = write_shards(job, &pending, threads, progress)?;
    let examples = rejected_examples(job, spill_files, removed);
    // The `train` dataset is published last. So if `train` exists, both datasets are complete.
    for (split, written) in pending.iter().zip(&mut written).rev() {
        let (shards, ranges) =
            std::mem::take(written).into_iter().map(|written| (written.shard, written.ranges)).unzip();
        let ranges: Vec<Option<ShardRanges>> = ranges;
        let mut manifest = build_manifest(job, spill_files, removed, split.split, &split.sorted, shards)?;
        manifest.corpus = corpus.clone();
        let url = dataset_url(job, split.split.name);
        let counts = split.sorted.token_counts(job.tokenizer.size())?;
        let optional =
            OptionalFiles { ranges: ranges.into_iter().collect(), token_counts: &counts, examples: &examples };
        publish(job, &url, &split.folder, &manifest, &optional)?;
        finished.push(PreparedDataset { url, manifest });
    }
    finished.sort_by_key(|dataset| splits.iter().position(|split| split.name == dataset.manifest.split));
    job.remove_folder()?;
    Ok(finished)
}

/// A dataset that is not published yet.
struct PendingDataset<'a> {
    split: &'a DatasetSplit,
    sorted: SortedSamples,
    folder: PathBuf,
    shards: usize,
}

impl<'a> PendingDataset<'a> {
    fn open(job: &JobContext<'_>, split: &'a DatasetSplit) -> Result<Self, PrepError> {
        let folder = job.folder().join(split.file_prefix());
        for folder in [&folder, &folder.with_extension("done")] {
            std::fs::create_dir_all(folder).map_err(|source| PrepError::WorkIo {
                operation: "create",
                path: folder.clone(),
                source,
            })?;
        }
        let sorted = SortedSamples::open(job, &MergePasses::new(job, split))?;
        Ok(Self { split, sorted, folder, shards: shard_count(job, split) })
    }
}

/// Writes the shards of all datasets in one parallel loop, so that threads do not idle until the last shard of a small
/// dataset is written.
fn write_shards(
    job: &JobContext<'_>,
    pending: &[PendingDataset<'_>],
    threads: usize,
    progress: &dyn PrepProgress,
) -> Result<Vec<Vec<WrittenShard>>, PrepError> {
    let mut tasks: Vec<(usize, usize)> = pending
        .iter()
        .enumerate()
        .flat_map(|(index, split)| (0..split.shards).map(move |shard| (index, shard)))
        .collect();
    // The largest tasks come first, so that all threads finish at about the same time.
    tasks.sort_by_key(|&(index, _)| std::cmp::Reverse(pending[index].sorted.len() / pending[index].shards as u64));
    let group_tokens = job.config.output.rows_per_group as u64 * job.config.samples.sequence_length as u64;
    let workers = job.memory.max_threads(SHARD_WRITER_BYTES + ROW_GROUP_TOKEN_BYTES * group_tokens).min(threads);
    let shards = parallel(workers, tasks.len(), |number| -> Result<_, PrepError> {
        let (index, shard) = tasks[number];
        let split = &pending[index];
        let written = split.sorted.write_shard(&split.folder, job, shard, split.shards)?;
        let (done, total) = (number as u64 + 1, tasks.len() as u64);
        progress.update(&PrepStatus { phase: "writing", source: None, done, total, unit: "shards", text_bytes: 0 });
        Ok(written)
    })?;
    let mut written = vec![Vec::new(); pending.len()];
    tasks.iter().zip(shards).for_each(|(&(index, _), shard)| written[index].push(shard));
    Ok(written)
}

fn shard_count(job: &JobContext<'_>, split: &DatasetSplit) -> usize {
    let shards = job.config.output.shards;
    match split.name {
        "train" => shards,
        _ => ((shards as f64 * job.config.samples.held_out).ceil() as usize).max(1),
    }
}

fn build_manifest(
    job: &JobContext<'_>,
    spill_files: &[SpillFile],
    removed: &RemovedDocuments,
    split: &DatasetSplit,
    sorted: &SortedSamples,
    shards: Vec<Shard>,
) -> Result<Manifest, PrepError> {
    let samples = &job.config.samples;
    let mut counts = Counts {
        documents: split.totals.documents,
        sentences: split.totals.sentences,
        rejected: count_rejected(spill_files, removed),
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
        lowercase: job.tokenizer.lowercase(),
        vocabulary: VocabularyFile {
            path: job.tokenizer.tokens().model().file().to_owned(),
            model: job.tokenizer.tokens().model(),
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
        sources: source_counts(job, spill_files, removed),
        held_out: split.selection().map(|selection| selection.summary(samples.held_out)),
        unigram_entropy: entropy(&sorted.token_counts(job.tokenizer.size())?),
        shards,
    })
}

/// Counts of each source.
fn source_counts(job: &JobContext<'_>, spill_files: &[SpillFile], removed: &RemovedDocuments) -> Vec<SourceCounts> {
    let mut totals = vec![SourceTotals::default(); job.sources.len()];
    for (source, part) in spill_files.iter().flat_map(|spill_file| &spill_file.contents.sources) {
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

/// Content of the optional files of a dataset.
struct OptionalFiles<'a> {
    /// Checksums of the byte ranges of each shard. `None` if an earlier version wrote some of the shards.
    ranges: Option<Vec<ShardRanges>>,
    token_counts: &'a [u64],
    examples: &'a [RejectedExample],
}

/// Moves or uploads the files of a finished dataset, its manifest last.
fn publish(
    job: &JobContext<'_>,
    url: &str,
    folder: &Path,
    manifest: &Manifest,
    optional: &OptionalFiles<'_>,
) -> Result<(), PrepError> {
    let OptionalFiles { ranges, token_counts, examples } = optional;
    let store_error = |source| PrepError::Store { url: url.to_owned(), source };
    let store = Store::open(url).map_err(store_error)?;
    for shard in &manifest.shards {
        let path = folder.join(&shard.path);
        let local = store.local_path(&shard.path).map_err(store_error)?;
        if !path.exists() && store.head(&shard.path).map_err(store_error)? == Some(shard.bytes) {
            continue;
        }
        let work = |operation| {
            let path = path.clone();
            move |source| PrepError::WorkIo { operation, path, source }
        };
        match local {
            // The disk of the target is the one that may be full.
            Some(target) => work_file::move_file(&path, &target).map_err(|source| PrepError::WorkIo {
                operation: "write",
                path: target.clone(),
                source,
            })?,
            None => {
                let file = File::open(&path).map_err(work("read"))?;
                store.put_file(&shard.path, file, shard.bytes).map_err(store_error)?;
            }
        }
    }
    store.put(&manifest.vocabulary.path, job.vocabulary.clone().into()).map_err(store_error)?;
    let counts = token_counts::to_json(&manifest.vocabulary.sha256, token_counts);
    store.put(TOKEN_COUNTS, counts.into()).map_err(store_error)?;
    if let Some(ranges) = ranges {
        store.put(CHECKSUMS, ranges::to_json(manifest, ranges).into()).map_err(store_error)?;
    }
    if !examples.is_empty() {
        let json = serde_json::to_string_pretty(examples).unwrap_or_default() + "\n";
        store.put(REJECTED, json.into()).map_err(store_error)?;
    }
    store.put(MANIFEST, manifest.to_json().into()).map_err(store_error)?;
    store.remove_temporary_files().map_err(store_error)?;
    tracing::debug!(%url, samples = manifest.counts.samples, shards = manifest.shards.len(), "dataset complete");
    Ok(())
}
