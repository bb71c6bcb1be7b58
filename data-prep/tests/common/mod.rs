//! Helpers for the tests of preparation jobs.
#![allow(dead_code, unused_imports)] // Each test file uses a part of it.

pub mod corpus;
pub mod remote;
#[path = "../../../tests/support/tree.rs"]
mod tree;

use std::path::{Path, PathBuf};

use lambert_config::PrepConfig;
use lambert_config::prep::{Documents, Source};
use lambert_data_prep::prep::{self, PrepError, PrepOptions, PrepReport, PrepStatus};
pub use tree::{assert_same, tree};

/// Returns the folder of the development corpora, if it exists. The folder is `LAMBERT_TEST_CORPORA`, or
/// `shared/corpora` in the checkout if this variable is not set.
pub fn corpora() -> Option<PathBuf> {
    let beside = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/corpora");
    let path = std::env::var_os("LAMBERT_TEST_CORPORA").map_or_else(beside, PathBuf::from);
    if path.is_dir() {
        return Some(path);
    }
    eprintln!("SKIPPED: no development corpora at {}", path.display());
    None
}

/// A source of the given format.
pub fn source(path: &Path, format: &str, documents: Documents) -> Source {
    let documents = (format == "text").then_some(documents);
    Source { path: path.display().to_string(), format: format.into(), documents, ..Source::default() }
}

/// Configuration that prepares `sources` into `folder/data`.
pub fn config(folder: &Path, vocabulary: &Path, sources: Vec<Source>) -> PrepConfig {
    let mut config = PrepConfig { source: sources, ..PrepConfig::default() };
    config.output.url = folder.join("data").display().to_string();
    config.output.shards = 3;
    config.vocabulary.file = vocabulary.display().to_string();
    config
}

/// Runs the preparation job with `threads` threads.
pub fn run(config: &PrepConfig, threads: usize) -> Result<PrepReport, PrepError> {
    prep::run(
        config,
        &PrepOptions { threads, memory: prep::DEFAULT_MEMORY, part: None, progress: &|_: &PrepStatus| {} },
    )
}

/// A generated corpus and a vocabulary trained on it.
pub fn generated(folder: &Path, documents: u64) -> (PathBuf, PathBuf) {
    let text = folder.join("corpus.txt");
    lambert_data_prep::grammar::generate(std::fs::File::create(&text).unwrap(), documents, 1).unwrap();
    let settings = lambert_data_prep::vocab::VocabSettings { size: 600, ..Default::default() };
    let pieces = lambert_data_prep::vocab::train(&[source(&text, "text", Documents::BlankLine)], &settings).unwrap();
    let vocabulary = folder.join("vocab.txt");
    std::fs::write(&vocabulary, pieces).unwrap();
    (text, vocabulary)
}
