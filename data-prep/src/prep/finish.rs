//! The last step: shards, vocabulary and manifests to their place, the manifest of `train` last of all.

use std::collections::BTreeMap;
use std::path::Path;

use lambert_store::Store;

use super::spill::SourceTotals;
use super::{Finished, Job, PrepError, Progress, Removed, Run, Sorted, Split, Status, corpus, parallel};
use crate::dataset::{
    Corpus, Counts, Dataset, DatasetError, MANIFEST, Manifest, SampleRules, Shard, SourceCounts, VERSION, VOCABULARY,
    VocabularyFile, sha256_hex,
};

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
    let mut finished = Vec::new();
    let corpus = corpus::read(job, runs)?;
    corpus::write_objects(job, runs)?;
    // `train` comes last: where it is, everything is.
    for split in splits.iter().rev().filter(|split| split.buckets() > 0) {
        finished.insert(0, dataset(job, runs, removed, split, &corpus, threads, progress)?);
    }
    job.remove()?;
    Ok(finished)
}

fn dataset(
    job: &Job<'_>,
    runs: &[Run],
    removed: &Removed,
    split: &Split,
    corpus: &Corpus,
    threads: usize,
    progress: &dyn Progress,
) -> Result<Finished, PrepError> {
    let url = url(job, split.name);
    if let Some(found) = find(job, split.name)? {
        return checked(found, corpus);
    }
    let folder = job.folder().join(split.name);
    for folder in [&folder, &folder.with_extension("done")] {
        std::fs::create_dir_all(folder).map_err(|source| PrepError::Work {
            operation: "create",
            path: folder.clone(),
            source,
        })?;
    }
    let sorted = Sorted::open(job, split)?;
    let shards = shard_count(job, split);
    let written = parallel(threads, shards, |index| {
        let shard = sorted.write_shard(&folder, job, index, shards)?;
        let (done, total) = (index as u64 + 1, shards as u64);
        progress.update(&Status { phase: "writing", source: None, done, total, unit: "shards", text_bytes: 0 });
        Ok(shard)
    })?;
    let mut manifest = manifest(job, runs, removed, split, &sorted, written)?;
    manifest.corpus = corpus.clone();
    publish(job, &url, &folder, &manifest)?;
    Ok(Finished { url, manifest })
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
    removed.ids().for_each(|id| duplicates[job.files[id.file as usize].source] += 1);
    let of = |index: usize| job.files.iter().filter(move |file| file.source == index);
    let count = |index: usize| SourceCounts {
        format: job.sources[index].format,
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

/// Nats per item of a distribution given by counts; to six decimals, so that it is the same on every machine.
pub fn entropy(counts: &[u64]) -> f64 {
    let total = counts.iter().sum::<u64>() as f64;
    let nats: f64 = counts
        .iter()
        .filter(|&&count| count > 0)
        .map(|&count| {
            let share = count as f64 / total;
            -share * share.ln()
        })
        .sum();
    (nats * 1e6).round() / 1e6
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
        let moved = match &local {
            Some(target) => target
                .parent()
                .map_or(Ok(()), std::fs::create_dir_all)
                .and_then(|()| std::fs::rename(&path, target))
                .is_ok(),
            None => false,
        };
        if !moved {
            let bytes = std::fs::read(&path).map_err(|source| PrepError::Work {
                operation: "read",
                path: path.clone(),
                source,
            })?;
            store.put(&shard.path, bytes.into()).map_err(fault)?;
        }
    }
    store.put(VOCABULARY, job.vocabulary.clone().into()).map_err(fault)?;
    store.put(MANIFEST, manifest.to_json().into()).map_err(fault)
}
