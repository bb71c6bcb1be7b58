//! A preparation: sources of text, the vocabulary, how samples are cut, where the dataset goes.

use serde::{Deserialize, Serialize};

use crate::load::{Checked, Fault};

/// A preparation, as its TOML file says.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PrepConfig {
    /// Where text comes from; together they are the corpus.
    pub source: Vec<Source>,
    /// Where the dataset goes.
    pub output: Output,
    /// The WordPiece vocabulary.
    pub vocabulary: Vocabulary,
    /// How documents become samples.
    pub samples: Samples,
}

/// One source of documents.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Source {
    /// File, folder, glob or URL.
    pub path: String,
    /// What the files hold.
    pub format: Format,
    /// What a document is.
    pub documents: Documents,
    /// The character encoding, as the WHATWG names it; UTF-8 if absent.
    pub encoding: Option<String>,
}

/// What the files of a source hold.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Format {
    /// Running text.
    #[default]
    Text,
    /// A MediaWiki pages-articles dump (XML).
    Wikipedia,
}

/// What a document is in running text.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Documents {
    /// A file is a document.
    #[default]
    File,
    /// Blank lines separate documents.
    BlankLine,
}

/// Where the dataset goes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Output {
    /// A folder or URL; gets `train/` and `held-out/`, each a dataset.
    pub url: String,
    /// Parquet files of `train/`.
    pub shards: usize,
    /// Rows of a row group: what a reader seeks by.
    pub rows_per_group: usize,
    /// Folder for unfinished work; if absent it lies beside the output. Gone when the preparation is done.
    pub work: Option<String>,
}

impl Default for Output {
    fn default() -> Self {
        Self { url: String::new(), shards: 8, rows_per_group: 1024, work: None }
    }
}

/// The WordPiece vocabulary.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Vocabulary {
    /// vocab.txt: a piece a line, the line number from 0 is its id.
    pub file: String,
    /// Lowercase and strip accents, as the uncased models do.
    pub lowercase: bool,
}

impl Default for Vocabulary {
    fn default() -> Self {
        Self { file: String::new(), lowercase: true }
    }
}

/// What the second segment of a sample is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pair {
    /// Next-sentence prediction: half of the second segments are from another document.
    #[default]
    Nsp,
    /// Sentence order: half of the samples have their segments swapped.
    Sop,
    /// One segment.
    None,
}

/// How documents become samples.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Samples {
    /// Tokens a sample at most, \[CLS\] and \[SEP\] included.
    pub sequence_length: usize,
    /// The pair objective.
    pub pair: Pair,
    /// Share of the samples that aim at a random shorter length.
    pub short_sequence_probability: f64,
    /// How often each document is used, each time with other pairs.
    pub passes: usize,
    /// Share of the documents that go to `held-out/`.
    pub held_out: f64,
    /// Seed of every random choice.
    pub seed: u64,
}

impl Default for Samples {
    fn default() -> Self {
        Self {
            sequence_length: 128,
            pair: Pair::Nsp,
            short_sequence_probability: 0.1,
            passes: 1,
            held_out: 0.01,
            seed: 1,
        }
    }
}

impl Checked for PrepConfig {
    fn check(&self, faults: &mut Vec<Fault>) {
        let mut fault = |key: &str, message: &str| faults.push(Fault::new(key, message));
        if self.source.is_empty() {
            fault("source", "at least one [[source]] is needed");
        }
        for (index, source) in self.source.iter().enumerate() {
            if source.path.is_empty() {
                fault(&format!("source.{index}.path"), "missing: a file, folder, glob or URL");
            }
        }
        if self.output.url.is_empty() {
            fault("output.url", "missing: a folder or URL");
        }
        if self.output.shards == 0 {
            fault("output.shards", "must be at least 1");
        }
        if self.output.rows_per_group == 0 {
            fault("output.rows_per_group", "must be at least 1");
        }
        if self.vocabulary.file.is_empty() {
            fault("vocabulary.file", "missing: a vocab.txt");
        }
        let samples = &self.samples;
        if !(8..=65535).contains(&samples.sequence_length) {
            fault("samples.sequence_length", "must be from 8 to 65535 tokens");
        }
        for (key, share) in [
            ("samples.short_sequence_probability", samples.short_sequence_probability),
            ("samples.held_out", samples.held_out),
        ] {
            if !(0.0..1.0).contains(&share) {
                fault(key, "must be at least 0 and below 1");
            }
        }
        if samples.passes == 0 {
            fault("samples.passes", "must be at least 1");
        }
    }
}
