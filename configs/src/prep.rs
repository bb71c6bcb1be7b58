//! Data preparation: text sources, vocabulary, samples and output.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::load::{Checked, ConfigIssue, ConfigKind, strict};
use crate::slurm::Slurm;

/// Maximum number of rows in a row group. A row group is loaded into memory as a whole.
pub const MAX_ROW_GROUP_ROWS: u64 = 1 << 24;
/// Maximum number of tokens in a row group.
pub const MAX_ROW_GROUP_TOKENS: u64 = 1 << 28;

/// Configuration of data preparation.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct PrepConfig {
    /// Text sources, which together form the corpus.
    pub source: Vec<Source>,
    /// Documents to exclude from the dataset, e.g. a test set. Equal documents are excluded too, and similar ones with
    /// `documents.remove_near_duplicates`.
    pub exclude: Vec<Source>,
    /// Document filters.
    pub documents: DocumentRules,
    /// Output dataset.
    pub output: PrepOutput,
    /// Vocabulary.
    pub vocabulary: Vocabulary,
    /// Sample construction.
    pub samples: SampleSettings,
    /// Slurm options of the jobs. The options do not affect the datasets.
    #[serde(skip_serializing_if = "Slurm::is_default")]
    pub slurm: Slurm,
}

/// Text source.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Source {
    /// File, folder, glob or URL; required. gzip, bzip2, zstd and xz are detected by their first bytes.
    pub path: String,
    /// Input format: text, sentences, jsonl, parquet, wikipedia, or auto.
    ///
    /// `text`; `sentences` (one per line, blank lines between documents: the input of Google's BERT code); `jsonl`;
    /// `parquet`; `wikipedia` (a pages-articles dump); `auto`: detected from the first bytes of each file.
    pub format: FormatName,
    /// Document boundaries. Absent: `file` for text, `row` for jsonl and parquet.
    ///
    /// `text` takes `file` or `blank-line`; `jsonl` and `parquet` take `row` or `sentence`.
    pub documents: Option<Documents>,
    /// Column or field that contains the text, for `jsonl` and `parquet`.
    ///
    /// `doc.text` is the field `text` of the object or struct `doc`.
    pub field: String,
    /// Character encoding, by its WHATWG name. Absent: UTF-8, or UTF-16 if there is a byte order mark.
    pub encoding: Option<String>,
    /// Handling of bytes that are invalid in the encoding.
    pub invalid: Invalid,
    /// Handling of unreadable parts of a file.
    ///
    /// Examples are a truncated archive, an incomplete page and an invalid row.
    pub damaged: Damaged,
    /// Number of times that the documents of this source occur, relative to a source of weight 1.
    pub weight: usize,
    /// `wikipedia`: keeps list items.
    pub lists: bool,
    /// `wikipedia`: keeps headings.
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

/// Name of an input format, used by [`Source::format`]. The readers validate it together with the rest of the
/// configuration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct FormatName(String);

impl FormatName {
    /// Format name for detection of the format from the first bytes of each file.
    pub const AUTO: &str = "auto";

    /// Returns the name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// True if the format of each file is detected from its content.
    #[must_use]
    pub fn is_auto(&self) -> bool {
        self.0 == Self::AUTO
    }
}

/// Returns the default format, plain text.
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

/// Document boundaries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Documents {
    /// One document per file.
    File,
    /// Documents separated by blank lines.
    BlankLine,
    /// One document per row, or per page of a dump.
    Row,
    /// One sentence per row. A document ends at an empty row or after 512 sentences.
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

/// Handling of invalid bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Invalid {
    /// Stop with an error that names the location.
    #[default]
    Refuse,
    /// Replace invalid bytes by U+FFFD, which the text cleaning of BERT removes, and count the documents that have
    /// them.
    Replace,
}

/// Handling of unreadable parts of a file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Damaged {
    /// Stop with an error that names the location.
    #[default]
    Refuse,
    /// Skip the unreadable parts and count them.
    Skip,
}

/// Document filters.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct DocumentRules {
    /// Removes documents whose token IDs equal those of an earlier document.
    pub remove_duplicates: bool,
    /// Minimum similarity to an earlier document, 0 to 1, at which a document is removed. 0: no document is removed.
    ///
    /// The measure is the Jaccard similarity of five-token shingles, estimated by MinHash.
    pub remove_near_duplicates: f64,
    /// Minimum number of tokens. Shorter documents are removed.
    pub minimum_tokens: usize,
}

/// Output dataset.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct PrepOutput {
    /// Folder or URL in which the datasets `train/` and `held-out/` are written; required.
    pub url: String,
    /// Number of Parquet files in `train/`.
    pub shards: usize,
    /// Rows per row group, the unit of random access.
    pub rows_per_group: usize,
    /// Work folder, which is removed at the end. Absent: `URL.work`.
    ///
    /// For a `url` in an object store, the default is `lambert-prep-HASH.work` in the working directory.
    pub work: Option<String>,
    /// Refuses to start if the disk of the work folder seems too small.
    pub check_space: bool,
}

impl Default for PrepOutput {
    fn default() -> Self {
        Self { url: String::new(), shards: 8, rows_per_group: 1024, work: None, check_space: true }
    }
}

/// Vocabulary.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Vocabulary {
    /// Vocabulary file; required: a WordPiece vocab.txt, or a tokenizer.json with byte-level BPE or Unigram.
    ///
    /// A vocab.txt has one token per line, and the line number, from 0, is the token ID.
    pub file: String,
    /// Lowercases text and strips accents, as for the uncased models; only with a vocab.txt.
    pub lowercase: bool,
}

impl Default for Vocabulary {
    fn default() -> Self {
        Self { file: String::new(), lowercase: true }
    }
}

/// Content of the second segment of a sample.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Pair {
    /// Next-sentence prediction: half of the second segments come from another document.
    #[default]
    Nsp,
    /// Sentence order: in half of the samples, the two segments are swapped. Documents of one sentence are left out.
    Sop,
    /// No second segment.
    None,
}

impl std::fmt::Display for Pair {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Nsp => "nsp",
            Self::Sop => "sop",
            Self::None => "none",
        })
    }
}

/// Packing of sentences into samples of one segment (Liu et al. 2019, RoBERTa).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Packing {
    /// Sentences of one document. The last sample of a document may be short.
    #[default]
    DocumentSentences,
    /// Sentences of consecutive documents, separated by \[SEP\], up to the full length.
    FullSentences,
}

/// Sample construction.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SampleSettings {
    /// Maximum sample length in tokens, \[CLS\] and \[SEP\] included; 8 to 65535.
    pub sequence_length: usize,
    /// Sentence-pair objective.
    pub pair: Pair,
    /// Packing of sentences into samples; only with `pair = "none"`.
    pub packing: Packing,
    /// Fraction of samples with a random shorter target length.
    pub short_sequence_probability: f64,
    /// Number of passes over the corpus. Each pass forms different pairs.
    pub passes: usize,
    /// Fraction of tokens in `held-out/`. Whole documents are held out if they can meet the fraction.
    pub held_out: f64,
    /// Seed of every random choice.
    pub seed: u64,
}

impl Default for SampleSettings {
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
    fn check(&self, issue: &mut dyn FnMut(&str, &str)) {
        if self.path.is_empty() {
            issue("path", "missing: expected a file, folder, glob or URL");
        }
        if self.field.is_empty() {
            issue("field", "missing: expected the name of a column or field");
        }
        if self.weight == 0 {
            issue("weight", "must be at least 1");
        }
    }
}

impl PrepConfig {
    /// Returns the configuration as TOML.
    ///
    /// # Errors
    /// An integer exceeds `i64`.
    pub fn to_toml(&self) -> Result<String, toml::ser::Error> {
        toml::to_string(self)
    }
}

impl Checked for PrepConfig {
    const KIND: Option<ConfigKind> = Some(ConfigKind::Prep);

    fn read(tree: toml::Value, issues: &mut Vec<ConfigIssue>) -> Option<Self> {
        strict::read_all(tree, issues)
    }

    fn check(&self, issues: &mut Vec<ConfigIssue>) {
        let mut issue = |key: &str, message: &str| issues.push(ConfigIssue::new(key, message));
        if self.source.is_empty() {
            issue("source", "at least one [[source]] is needed");
        }
        for (list, sources) in [("source", &self.source), ("exclude", &self.exclude)] {
            for (index, source) in sources.iter().enumerate() {
                source.check(&mut |key, message| issue(&format!("{list}.{index}.{key}"), message));
            }
        }
        if !(0.0..=1.0).contains(&self.documents.remove_near_duplicates) {
            issue("documents.remove_near_duplicates", "must be from 0 to 1");
        }
        if self.output.url.is_empty() {
            issue("output.url", "missing: expected a folder or URL");
        }
        if self.output.shards == 0 {
            issue("output.shards", "must be at least 1");
        }
        let most_rows = MAX_ROW_GROUP_ROWS.min(MAX_ROW_GROUP_TOKENS / self.samples.sequence_length.max(1) as u64);
        if !(1..=most_rows).contains(&(self.output.rows_per_group as u64)) {
            let message = format!("must be from 1 to {most_rows}: a row group is loaded into memory as a whole");
            issue("output.rows_per_group", &message);
        }
        if self.vocabulary.file.is_empty() {
            issue("vocabulary.file", "missing: expected a vocab.txt or tokenizer.json");
        }
        let samples = &self.samples;
        if !(8..=65535).contains(&samples.sequence_length) {
            issue("samples.sequence_length", "must be from 8 to 65535 tokens");
        }
        for (key, share) in [
            ("samples.short_sequence_probability", samples.short_sequence_probability),
            ("samples.held_out", samples.held_out),
        ] {
            if !(0.0..1.0).contains(&share) {
                issue(key, "must be at least 0 and below 1");
            }
        }
        if samples.pair != Pair::None && samples.packing != Packing::default() {
            issue("samples.packing", "full-sentences requires pair = \"none\"");
        }
        if samples.passes == 0 {
            issue("samples.passes", "must be at least 1");
        }
        issues.extend(self.slurm.task_issues());
    }
}
