//! A small generated corpus, with preparation jobs for files beside it.

use std::io::Write;
use std::path::Path;

use lambert_config::PrepConfig;
use lambert_config::prep::{Documents, Source};
use lambert_data_prep::prep::PrepError;
use lambert_dataset::Manifest;

use super::{config, generated, run};

/// Corpus files in one folder, with the vocabulary.
pub struct Corpus {
    folder: tempfile::TempDir,
    pub text: String,
}

impl Corpus {
    pub fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (text, _) = generated(folder.path(), 60);
        let text = std::fs::read_to_string(text).unwrap();
        Self { folder, text }
    }

    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    pub fn source(&self, name: &str, bytes: &[u8], format: &str) -> Source {
        let path = self.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, bytes).unwrap();
        let documents = (format == "text").then_some(Documents::BlankLine);
        Source { path: path.display().to_string(), format: format.into(), documents, ..Source::default() }
    }

    pub fn prepare(&self, sources: Vec<Source>) -> Result<Manifest, PrepError> {
        self.prepare_with(sources, |_| {})
    }

    pub fn prepare_with(&self, sources: Vec<Source>, change: impl Fn(&mut PrepConfig)) -> Result<Manifest, PrepError> {
        let work = tempfile::tempdir().unwrap();
        let mut config = config(work.path(), &self.path().join("vocab.txt"), sources);
        config.samples.held_out = 0.0;
        change(&mut config);
        run(&config, 2).map(|report| report.datasets[0].manifest.clone())
    }

    /// Numbers of documents, sentences and samples of the unmodified text.
    pub fn plain(&self) -> [u64; 3] {
        counts(&self.prepare(vec![self.source("plain.txt", self.text.as_bytes(), "text")]).unwrap())
    }
}

pub fn counts(manifest: &Manifest) -> [u64; 3] {
    [manifest.counts.documents, manifest.counts.sentences, manifest.counts.samples]
}

pub fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

pub fn bzip2(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = bzip2::write::BzEncoder::new(Vec::new(), bzip2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}
