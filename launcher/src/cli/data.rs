//! The commands around datasets: prep, vocab, generate, inspect.

use std::path::PathBuf;

use clap::Args;

use super::values::{PREP_MEMORY, bytes, part};

/// Arguments of `lambert prep`.
#[derive(Debug, Args)]
pub struct Prep {
    /// The preparation, as TOML
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,
    /// Change a value of the configuration: samples.seed=7, source.0.path=books
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub sets: Vec<String>,
    /// Threads that tokenize; as many as there are processors if absent
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,
    /// Memory for all threads together, as 512M or 4G; changes nothing of the result
    #[arg(long, value_name = "BYTES", default_value = PREP_MEMORY.as_str(), value_parser = bytes)]
    pub memory: u64,
    /// Do only part I (from 0) of N; the same command without this joins all parts
    #[arg(long, value_name = "I/N", value_parser = part)]
    pub part: Option<(usize, usize)>,
    /// Print the manifests of the finished datasets as JSON
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `lambert vocab`.
#[derive(Debug, Args)]
pub struct Vocab {
    /// Text: files, folders, globs or URLs
    #[arg(long, required = true, num_args = 1.., value_name = "URL")]
    pub input: Vec<String>,
    /// Pieces of the vocabulary, the special ones included
    #[arg(long, default_value_t = 30522, value_name = "N")]
    pub size: usize,
    /// Where the vocabulary goes: a piece a line
    #[arg(long, value_name = "FILE")]
    pub output: PathBuf,
    /// Keep upper case and accents
    #[arg(long)]
    pub cased: bool,
    /// Pieces must occur this often
    #[arg(long, default_value_t = 2, value_name = "N")]
    pub min_frequency: u64,
}

/// Arguments of `lambert generate`.
#[derive(Debug, Args)]
pub struct Generate {
    /// Documents to write
    #[arg(long, value_name = "N")]
    pub documents: u64,
    /// Seed: the same seed gives the same text
    #[arg(long, default_value_t = 1, value_name = "S")]
    pub seed: u64,
    /// The text file: a sentence a line, a blank line between documents
    #[arg(long, value_name = "FILE")]
    pub output: PathBuf,
    /// Print the figures as JSON
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `lambert inspect`.
#[derive(Debug, Args)]
pub struct Inspect {
    /// The dataset's folder or URL
    pub dataset: String,
    /// Decode and show this many samples
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub samples: usize,
    /// Read every shard and compare its checksum
    #[arg(long)]
    pub verify: bool,
    /// Print as JSON
    #[arg(long)]
    pub json: bool,
}
