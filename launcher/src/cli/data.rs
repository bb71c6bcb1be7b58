//! Dataset commands: prep, vocab, generate, inspect, data.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use super::values::{PREP_MEMORY, bytes, local_path, part};

/// Arguments of `lambert prep`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  lambert prep --config configs/prep-demo.toml")]
pub struct Prep {
    /// Preparation configuration (TOML); later files override earlier ones (repeatable)
    #[arg(long, value_name = "FILE", required = true)]
    pub config: Vec<PathBuf>,
    /// Override a configuration value, e.g. samples.seed=7 or source.0.path=books (repeatable)
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub sets: Vec<String>,
    /// Tokenizer threads [default: number of CPUs]
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,
    /// Memory for all threads together, e.g. 512M or 4G; does not affect the result
    #[arg(long, value_name = "BYTES", default_value = PREP_MEMORY.as_str(), value_parser = bytes)]
    pub memory: u64,
    /// Run only part I (from 0) of N; rerun without --part to merge all parts
    #[arg(long, value_name = "I/N", value_parser = part)]
    pub part: Option<(usize, usize)>,
    /// Print the manifests of the finished datasets as JSON
    #[arg(long)]
    pub json: bool,
}

const VOCAB_EXAMPLES: &str = "Examples:
  lambert vocab --input corpus/books --size 8192 --output vocab.txt
  lambert vocab --config configs/prep-books.toml --size 8192 --output vocab.txt
  lambert vocab --model bpe --input corpus/books --size 30522 --output tokenizer.json
  lambert vocab --model unigram --uncased --input corpus/books --size 8192 --output tokenizer.json
  lambert vocab --extend vocab.txt --input corpus/medicine --size 34000 --output extended.txt";

/// Arguments of `lambert vocab`.
#[derive(Debug, Args)]
#[command(after_help = VOCAB_EXAMPLES)]
pub struct Vocab {
    /// Input text: files, folders, globs or URLs
    #[arg(long, num_args = 1.., value_name = "URL", required_unless_present = "config")]
    pub input: Vec<String>,
    /// Preparation configuration (TOML, repeatable); its sources are the input, and vocabulary.lowercase applies to wordpiece
    #[arg(long, value_name = "FILE", conflicts_with = "input")]
    pub config: Vec<PathBuf>,
    /// Add tokens to this vocab.txt or tokenizer.json; the old tokens keep their ids
    #[arg(long, value_name = "FILE", conflicts_with = "model")]
    pub extend: Option<PathBuf>,
    /// Tokenization model; bpe is byte-level
    #[arg(long, value_enum, default_value_t)]
    pub model: VocabModel,
    /// Vocabulary size in tokens, including special tokens
    #[arg(long, default_value_t = 30522, value_name = "N")]
    pub size: usize,
    /// Output file: vocab.txt with one token per line for wordpiece, tokenizer.json for bpe and unigram
    #[arg(long, value_name = "FILE", value_parser = local_path())]
    pub output: PathBuf,
    /// Keep case, and with wordpiece accents; the default for bpe and unigram
    #[arg(long)]
    pub cased: bool,
    /// Lowercase the text, and with wordpiece strip accents; the default for wordpiece
    #[arg(long, conflicts_with = "cased")]
    pub uncased: bool,
    /// Minimum number of occurrences of a token; no effect on a new unigram vocabulary
    #[arg(long, default_value_t = 2, value_name = "N")]
    pub min_frequency: u64,
}

/// Tokenization model of a vocabulary.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum VocabModel {
    /// WordPiece, as in BERT.
    #[default]
    Wordpiece,
    /// Byte-level BPE, as in GPT-2.
    Bpe,
    /// Unigram, as in SentencePiece.
    Unigram,
}

/// Arguments of `lambert generate`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  lambert generate --documents 2000 --output corpus.txt")]
pub struct Generate {
    /// Number of documents to write
    #[arg(long, value_name = "N")]
    pub documents: u64,
    /// Random seed; the same seed gives the same text
    #[arg(long, default_value_t = 1, value_name = "S")]
    pub seed: u64,
    /// Output file: one sentence per line, a blank line between documents
    #[arg(long, value_name = "FILE", value_parser = local_path())]
    pub output: PathBuf,
    /// Print the statistics as JSON
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `lambert inspect`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  lambert inspect data/train --samples 2 --verify")]
pub struct Inspect {
    /// Dataset folder or URL
    pub dataset: String,
    /// Decode and show this many samples
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub samples: usize,
    /// Read every shard and verify its checksum
    #[arg(long)]
    pub verify: bool,
    /// Print as JSON
    #[arg(long)]
    pub json: bool,
}

const DATA_EXAMPLES: &str = "Examples:
  lambert data report data/train --output train.html
  lambert data report data/train --output train.json --format json --samples 100000";

/// Arguments of `lambert data`.
#[derive(Debug, Args)]
#[command(after_help = DATA_EXAMPLES)]
pub struct Data {
    /// Action on the dataset.
    #[command(subcommand)]
    pub action: DataAction,
}

/// Actions on a dataset.
#[derive(Debug, Subcommand)]
pub enum DataAction {
    /// Write statistics, charts and examples of a dataset to a file
    Report(DataReport),
}

/// Arguments of `lambert data report`.
#[derive(Debug, Args)]
pub struct DataReport {
    /// Dataset folder or URL
    pub dataset: String,
    /// Output file
    #[arg(long, value_name = "FILE", value_parser = local_path())]
    pub output: PathBuf,
    /// Format of the report
    #[arg(long, value_enum, default_value_t)]
    pub format: DataReportFormat,
    /// Number of threads [default: number of CPUs]
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,
    /// Read only about this many samples, in whole row groups [default: all]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub samples: Option<u64>,
    /// Random seed; chooses the samples and the examples
    #[arg(long, default_value_t = 1, value_name = "S")]
    pub seed: u64,
}

/// Format of a report of a dataset.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum DataReportFormat {
    /// One file with all charts.
    #[default]
    Html,
    /// The numbers.
    Json,
}
