//! Preparation jobs with tiny limits. Spilling to disk must not change the result.

use std::fs::File;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use lambert_config::prep::{Documents, Pair, Source};
use lambert_config::{Layers, PrepConfig};

use super::{DEFAULT_MEMORY, Manifest, PrepOptions, PrepStatus, WorkLimits, load, run_with_limits};
use crate::{grammar, vocab};

/// Configuration that reads the same 600 documents twice and holds half of them out.
fn config(folder: &Path) -> PrepConfig {
    let (text, vocabulary) = (folder.join("corpus.txt"), folder.join("vocab.txt"));
    grammar::generate(File::create(&text).unwrap(), 600, 1).unwrap();
    let path = text.display().to_string();
    let (format, documents) = ("text", Some(Documents::BlankLine));
    let source = Source { path, format: format.into(), documents, ..Source::default() };
    let settings = vocab::VocabSettings { size: 600, ..Default::default() };
    std::fs::write(&vocabulary, vocab::train(std::slice::from_ref(&source), &settings).unwrap()).unwrap();
    let mut config = PrepConfig { source: vec![source.clone(), source], ..PrepConfig::default() };
    config.vocabulary.file = vocabulary.display().to_string();
    (config.output.shards, config.samples.held_out) = (3, 0.5);
    config
}

/// Returns the manifests of both datasets and the number of buckets.
fn prepare(config: &PrepConfig, name: &str, limits: WorkLimits) -> (Vec<Manifest>, u64) {
    let mut config = config.clone();
    config.output.url = Path::new(&config.vocabulary.file).with_file_name(name).display().to_string();
    let buckets = AtomicU64::new(0);
    let progress = |status: &PrepStatus| {
        if status.unit == "buckets" {
            buckets.fetch_max(status.total, Ordering::Relaxed);
        }
    };
    let options = PrepOptions { threads: 2, memory: DEFAULT_MEMORY, part: None, progress: &progress };
    let report = run_with_limits(&config, &options, limits).unwrap();
    (report.datasets.into_iter().map(|dataset| dataset.manifest).collect(), buckets.into_inner())
}

#[test]
fn spilling_to_disk_does_not_change_the_result() {
    let folder = tempfile::tempdir().unwrap();
    let mut config = config(folder.path());
    config.documents.remove_near_duplicates = 0.8;
    let whole = WorkLimits { bucket_tokens: 2000, ..WorkLimits::default() };
    let (expected, buckets) = prepare(&config, "whole", whole);
    assert!(buckets > 8, "{buckets} buckets");
    assert_eq!(expected[0].counts.rejected["documents: duplicate"], 600);
    for (name, limits) in [
        ("sorted", WorkLimits { sort_bytes: 2000, ..whole }),
        ("merged", WorkLimits { merge_files: 2, ..whole }),
        ("compared", WorkLimits { compare_bytes: 5000, ..whole }),
        ("all", WorkLimits { sort_bytes: 2000, merge_files: 3, compare_bytes: 5000, ..whole }),
    ] {
        assert_eq!(prepare(&config, name, limits).0, expected, "{name}");
    }
}

/// With `bucket_tokens = 4`, a bucket is smaller than a held-out cell. There are 64 held-out cells.
#[test]
fn buckets_smaller_than_a_cell_keep_every_token() {
    let folder = tempfile::tempdir().unwrap();
    let mut config = config(folder.path());
    config.samples.pair = Pair::None;
    for (name, limits) in
        [("large", WorkLimits::default()), ("small", WorkLimits { bucket_tokens: 4, ..WorkLimits::default() })]
    {
        let (manifests, buckets) = prepare(&config, name, limits);
        assert_eq!(buckets > 400, name == "small", "{buckets} buckets");
        let sum = |count: fn(&Manifest) -> u64| manifests.iter().map(count).sum::<u64>();
        let read: u64 = manifests[0].sources.iter().map(|source| source.tokens).sum();
        // A sample without pairs has [CLS] and [SEP], and a [SEP] between two documents.
        let framed = sum(|manifest| manifest.counts.tokens) - 2 * sum(|manifest| manifest.counts.samples);
        assert!((read..read + 1200).contains(&framed), "{name}: {framed} of {read}");
        assert_eq!(sum(|manifest| manifest.counts.documents), 1200, "{name}");
    }
}

/// With 40 documents, neither cells nor whole documents reach the target share, so documents are split.
#[test]
fn blocks_across_many_buckets_keep_every_token() {
    let folder = tempfile::tempdir().unwrap();
    let mut config = config(folder.path());
    let text = std::fs::read_to_string(folder.path().join("corpus.txt")).unwrap();
    let books: Vec<String> =
        text.trim_end().split("\n\n").collect::<Vec<_>>().chunks(15).map(|book| book.join("\n")).collect();
    std::fs::write(folder.path().join("corpus.txt"), books.join("\n\n")).unwrap();
    config.source.truncate(1);
    (config.samples.pair, config.samples.held_out) = (Pair::None, 0.005);
    for (name, limits) in
        [("large", WorkLimits::default()), ("small", WorkLimits { bucket_tokens: 50, ..WorkLimits::default() })]
    {
        let (manifests, buckets) = prepare(&config, name, limits);
        assert_eq!(buckets > 4, name == "small", "{buckets} buckets");
        assert!(manifests[0].held_out.as_ref().unwrap().block_tokens.is_some());
        let sum = |count: fn(&Manifest) -> u64| manifests.iter().map(count).sum::<u64>();
        let framed = sum(|manifest| manifest.counts.tokens) - 2 * sum(|manifest| manifest.counts.samples);
        let read = manifests[0].sources[0].tokens;
        assert_eq!(framed, read, "{name}: no document is followed by another one in a sample");
        assert_eq!(sum(|manifest| manifest.counts.sentences), manifests[0].sources[0].sentences, "{name}");
    }
}

#[test]
fn steps_are_logged_at_debug_level() {
    let folder = tempfile::tempdir().unwrap();
    let mut config = config(folder.path());
    config.output.url = folder.path().join("data").display().to_string();
    // This global subscriber is needed. Without it, if another test reached an event first, `tracing` would disable the
    // event for the whole process.
    let discard = tracing_subscriber::fmt().with_max_level(tracing::Level::DEBUG).with_writer(std::io::sink);
    let _ = tracing::subscriber::set_global_default(discard.finish());
    let log = tempfile::NamedTempFile::new().unwrap();
    let lines = tracing_subscriber::fmt().with_max_level(tracing::Level::DEBUG).with_ansi(false);
    let lines = lines.with_writer(log.reopen().unwrap()).finish();
    // The subscriber receives events of this thread only, so the job must use one thread.
    let options = PrepOptions { threads: 1, memory: DEFAULT_MEMORY, part: None, progress: &|_: &PrepStatus| {} };
    tracing::subscriber::with_default(lines, || {
        (0..2).for_each(|_| drop(run_with_limits(&config, &options, WorkLimits::default()).unwrap()));
    });
    let log = std::fs::read_to_string(log.path()).unwrap();
    let count = |words: &str| log.lines().filter(|line| line.contains(words)).count();
    assert_eq!(count("preparation started files=2"), 1, "{log}");
    assert_eq!(count("tokenizing files=2"), 1, "{log}");
    assert_eq!((count("shard written shard=shard-"), count("dataset complete url=")), (5, 2), "{log}");
    assert_eq!(count("datasets are up to date datasets=2"), 1, "{log}");
}

#[test]
fn an_unknown_format_is_reported_with_all_other_errors() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("prep.toml");
    let sources =
        "[[source]]\npath = 'a'\nformat = 'docx'\n[[exclude]]\npath = 'b'\nformat = 'parquet'\ndocuments = 'file'\n";
    std::fs::write(&path, format!("colour = 1\n{sources}[output]\nshards = 0\n")).unwrap();
    let message = load(&Layers::default(), &[path]).unwrap_err().to_string();
    for fault in [
        "\n  colour: ",
        "\n  source.0.format: unknown format \"docx\", expected one of auto, text, sentences, jsonl, parquet, wikipedia",
        "\n  exclude.0.documents: format = \"parquet\" takes row or sentence, not file",
        "\n  output.url: missing",
        "\n  output.shards: must be at least 1",
    ] {
        assert!(message.contains(fault), "no {fault:?} in {message}");
    }
}
