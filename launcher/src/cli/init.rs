//! Arguments of `lambert init`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::values::local_path;

const INIT_EXAMPLES: &str = "Examples:
  lambert init --source text --input notes.jsonl --size small
  lambert init --source books,wikipedia --size base --place slurm --nodes 4 --gpus-per-node 8 --output bert-base";

/// Arguments of `lambert init`.
#[derive(Debug, Args)]
#[command(after_help = INIT_EXAMPLES)]
pub struct Init {
    /// Text to train on; repeatable, or a list such as books,wikipedia
    #[arg(long, value_enum, required = true, value_delimiter = ',')]
    pub source: Vec<SourceKind>,
    /// With --source text: files, folders, globs or URLs of JSON lines, Parquet or plain text
    #[arg(long, value_name = "PATH", num_args = 1.., required_if_eq("source", "text"))]
    pub input: Vec<String>,
    /// With --source books: plain text, one file per book [default: corpus/books]
    #[arg(long, value_name = "PATH")]
    pub books: Option<String>,
    /// With --source wikipedia: pages-articles dumps [default: corpus/wiki/*.xml.bz2]
    #[arg(long, value_name = "PATH")]
    pub wikipedia: Option<String>,
    /// Where to train
    #[arg(long, value_enum, default_value_t = InitTarget::Machine)]
    pub place: InitTarget,
    /// With --place slurm: number of nodes [default: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub nodes: Option<u16>,
    /// GPUs per node, 0: train on CPUs [default: the GPUs of this machine; on Slurm 8]
    #[arg(long, value_name = "N")]
    pub gpus_per_node: Option<u16>,
    /// Model
    #[arg(long, value_enum, default_value_t = Size::Small)]
    pub size: Size,
    /// With --size base or large: optimizer and schedule [default: adam on one machine, lamb on Slurm]
    #[arg(long, value_enum)]
    pub recipe: Option<Recipe>,
    /// Folder for the files
    #[arg(long, value_name = "DIR", default_value = ".", value_parser = local_path())]
    pub output: PathBuf,
    /// Replace existing files
    #[arg(long)]
    pub force: bool,
}

/// Kind of a text source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum SourceKind {
    /// Books as plain text, one file per book.
    Books,
    /// A Wikipedia dump.
    Wikipedia,
    /// Own text, named by --input.
    Text,
}

/// Target of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum InitTarget {
    /// One machine.
    Machine,
    /// A Slurm cluster.
    Slurm,
}

/// Model of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Size {
    /// 4 layers, hidden size 256.
    Small,
    /// BERT-base: 12 layers, hidden size 768.
    Base,
    /// BERT-large: 24 layers, hidden size 1024.
    Large,
}

/// Optimizer and schedule of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Recipe {
    /// Adam, 1,000,000 steps of 256 samples.
    Adam,
    /// LAMB, 8,601 steps of up to 65,536 samples.
    Lamb,
    /// AdamW, 440,000 steps of 256 samples, with a growing number of layers.
    Stacked,
}
