//! What the tests of preparations share.
#![allow(dead_code)] // Each test file uses a part of it.

use std::path::{Path, PathBuf};

use lambert_config::PrepConfig;
use lambert_config::prep::{Documents, Format, Source};
use lambert_data_prep::prep::{self, Options, PrepError, Report, Status};

/// `shared/corpora` beside the checkout, if it is there.
pub fn corpora() -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/corpora");
    if path.is_dir() {
        return Some(path);
    }
    eprintln!("SKIPPED: no development corpora at {}", path.display());
    None
}

/// A source of the given kind.
pub fn source(path: &Path, format: Format, documents: Documents) -> Source {
    let documents = (format == Format::Text).then_some(documents);
    Source { path: path.display().to_string(), format, documents, ..Source::default() }
}

/// A preparation of `sources` into `folder/data`.
pub fn config(folder: &Path, vocabulary: &Path, sources: Vec<Source>) -> PrepConfig {
    let mut config = PrepConfig { source: sources, ..PrepConfig::default() };
    config.output.url = folder.join("data").display().to_string();
    config.output.shards = 3;
    config.vocabulary.file = vocabulary.display().to_string();
    config
}

/// Runs it with so many threads.
pub fn run(config: &PrepConfig, threads: usize) -> Result<Report, PrepError> {
    prep::run(config, &Options { threads, part: None, progress: &|_: &Status| {} })
}

/// A corpus from the grammar and a vocabulary trained on it.
pub fn generated(folder: &Path, documents: u64) -> (PathBuf, PathBuf) {
    let text = folder.join("corpus.txt");
    lambert_data_prep::grammar::generate(std::fs::File::create(&text).unwrap(), documents, 1).unwrap();
    let settings = lambert_data_prep::vocab::Settings { size: 600, ..Default::default() };
    let pieces =
        lambert_data_prep::vocab::train(&[source(&text, Format::Text, Documents::BlankLine)], &settings).unwrap();
    let vocabulary = folder.join("vocab.txt");
    std::fs::write(&vocabulary, pieces).unwrap();
    (text, vocabulary)
}

/// Every file below `folder` with its bytes, sorted by name.
pub fn tree(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let mut files = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in std::fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let name = path.strip_prefix(folder).unwrap().display().to_string();
                files.push((name, std::fs::read(&path).unwrap()));
            }
        }
    }
    files.sort();
    files
}

/// Asserts that two trees are equal, and names the first file that is not.
pub fn assert_same(left: &[(String, Vec<u8>)], right: &[(String, Vec<u8>)]) {
    let names = |tree: &[(String, Vec<u8>)]| tree.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
    assert_eq!(names(left), names(right));
    for ((name, one), (_, other)) in left.iter().zip(right) {
        assert!(one == other, "{name} differs");
    }
}
