//! A preparation: sources of text, the vocabulary, how samples are cut, where the dataset goes.

use serde::{Deserialize, Serialize};

use crate::load::{Checked, Fault};
use crate::slurm::Slurm;

/// A preparation, as its TOML file says.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PrepConfig {
    /// Where text comes from; together they are the corpus.
    pub source: Vec<Source>,
    /// Documents that must not be in the dataset (a test set): what equals or resembles one of them is removed.
    pub exclude: Vec<Source>,
    /// Which documents are used.
    pub documents: DocumentRules,
    /// Where the dataset goes.
    pub output: Output,
    /// The WordPiece vocabulary.
    pub vocabulary: Vocabulary,
    /// How documents become samples.
    pub samples: Samples,
    /// What its jobs ask Slurm for; nothing of the datasets depends on it.
    #[serde(skip_serializing_if = "Slurm::is_default")]
    pub slurm: Slurm,
}

/// One source of documents.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Source {
    /// File, folder, glob or URL. gzip, bzip2, zstd and xz are seen by their first bytes.
    pub path: String,
    /// What the files hold.
    pub format: FormatName,
    /// What a document is; each format has its own default.
    pub documents: Option<Documents>,
    /// The column or field that holds the text, for `jsonl` and `parquet`.
    pub field: String,
    /// The character encoding, as the WHATWG names it. If absent: UTF-8, or UTF-16 where a byte-order mark says so.
    pub encoding: Option<String>,
    /// What happens to bytes that are no text in this encoding.
    pub invalid: Invalid,
    /// What happens to parts of a file that cannot be read: a torn archive, a cut page, a bad row.
    pub damaged: Damaged,
    /// How often the documents of this source are used, compared with one of weight 1.
    pub weight: usize,
    /// `wikipedia`: keep the items of lists.
    pub lists: bool,
    /// `wikipedia`: keep headings.
    pub headings: bool,
}

impl Default for Source {
    fn default() -> Self {
        Self {
            path: String::new(),
            format: FormatName::default(),
            documents: None,
            field: "text".to_owned(),
            encoding: None,
            invalid: Invalid::default(),
            damaged: Damaged::default(),
            weight: 1,
            lists: false,
            headings: false,
        }
    }
}

/// The name of an input format, as [`Source::format`] has it. Which names there are is known to the readers, which check
/// it when the rest of the configuration is checked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct FormatName(String);

impl FormatName {
    /// The format that each file's first bytes show.
    pub const AUTO: &str = "auto";

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Tells whether the files themselves show their formats.
    #[must_use]
    pub fn is_auto(&self) -> bool {
        self.0 == Self::AUTO
    }
}

/// Running text.
impl Default for FormatName {
    fn default() -> Self {
        Self("text".to_owned())
    }
}

impl From<&str> for FormatName {
    fn from(name: &str) -> Self {
        Self(name.to_owned())
    }
}

impl std::fmt::Display for FormatName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// What a document is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Documents {
    /// A file.
    File,
    /// What stands between blank lines.
    BlankLine,
    /// A row (a page of a dump is one).
    Row,
    /// The rows are sentences; an empty one, or the 512th, ends a document.
    Sentence,
}

impl std::fmt::Display for Documents {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::File => "file",
            Self::BlankLine => "blank-line",
            Self::Row => "row",
            Self::Sentence => "sentence",
        })
    }
}

/// What happens to bytes that are no text.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Invalid {
    /// The preparation stops and says where they are.
    #[default]
    Refuse,
    /// U+FFFD takes their place (which BERT's cleaning drops); the documents are counted.
    Replace,
}

/// What happens to parts of a file that cannot be read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Damaged {
    /// The preparation stops and says where they are.
    #[default]
    Refuse,
    /// They are left out and counted.
    Skip,
}

/// Which documents are used.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DocumentRules {
    /// Remove documents whose token ids equal those of an earlier one.
    pub remove_duplicates: bool,
    /// Remove documents at least this similar to an earlier one (share of common runs of five pieces, estimated by
    /// MinHash); 0 keeps them.
    pub remove_near_duplicates: f64,
    /// Remove shorter documents, in tokens.
    pub minimum_tokens: usize,
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
    /// Whether to refuse a preparation for which the disk of the work folder seems too small.
    pub check_space: bool,
}

impl Default for Output {
    fn default() -> Self {
        Self { url: String::new(), shards: 8, rows_per_group: 1024, work: None, check_space: true }
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

/// How samples of one segment are filled with sentences (Liu et al. 2019, RoBERTa).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Packing {
    /// With sentences of one document: its last sample is as short as it comes out.
    #[default]
    DocumentSentences,
    /// With sentences of one document after another, \[SEP\] between two documents: samples are full.
    FullSentences,
}

/// How documents become samples.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Samples {
    /// Tokens a sample at most, \[CLS\] and \[SEP\] included.
    pub sequence_length: usize,
    /// The pair objective.
    pub pair: Pair,
    /// With `pair = "none"`: what fills a sample.
    pub packing: Packing,
    /// Share of the samples that aim at a random shorter length.
    pub short_sequence_probability: f64,
    /// How often each document is used, each time with other pairs.
    pub passes: usize,
    /// Share of the tokens that go to `held-out/`, in whole documents where these can meet it.
    pub held_out: f64,
    /// Seed of every random choice.
    pub seed: u64,
}

impl Default for Samples {
    fn default() -> Self {
        Self {
            sequence_length: 128,
            pair: Pair::Nsp,
            packing: Packing::default(),
            short_sequence_probability: 0.1,
            passes: 1,
            held_out: 0.01,
            seed: 1,
        }
    }
}

impl Source {
    fn check(&self, fault: &mut dyn FnMut(&str, &str)) {
        if self.path.is_empty() {
            fault("path", "missing: a file, folder, glob or URL");
        }
        if self.field.is_empty() {
            fault("field", "missing: the name of a column or field");
        }
        if self.weight == 0 {
            fault("weight", "must be at least 1");
        }
    }
}

impl Checked for PrepConfig {
    fn check(&self, faults: &mut Vec<Fault>) {
        let mut fault = |key: &str, message: &str| faults.push(Fault::new(key, message));
        if self.source.is_empty() {
            fault("source", "at least one [[source]] is needed");
        }
        for (list, sources) in [("source", &self.source), ("exclude", &self.exclude)] {
            for (index, source) in sources.iter().enumerate() {
                source.check(&mut |key, message| fault(&format!("{list}.{index}.{key}"), message));
            }
        }
        if !(0.0..=1.0).contains(&self.documents.remove_near_duplicates) {
            fault("documents.remove_near_duplicates", "must be from 0 to 1");
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
        if samples.pair != Pair::None && samples.packing != Packing::default() {
            fault("samples.packing", "full-sentences goes with pair = \"none\" only");
        }
        if samples.passes == 0 {
            fault("samples.passes", "must be at least 1");
        }
        self.slurm.faults_of_tasks().iter().for_each(|(key, message)| fault(key, message));
    }
}
