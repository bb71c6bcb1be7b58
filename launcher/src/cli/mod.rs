//! The command line as it is typed: everything a user can touch, declared once. Nothing here is checked beyond its form.
//!
//! - `data`: the commands around datasets; `run`: those around runs; `model`: those around checkpoints and models
//! - `values`: the forms of values

#![allow(rustdoc::broken_intra_doc_links, reason = "these comments are the help texts too, where [MASK] is no link")]

mod data;
mod model;
mod run;
mod values;

use clap::{Parser, Subcommand, ValueEnum};

pub use data::{Generate, Inspect, Prep, Vocab};
pub use model::{Checkpoint, CheckpointAction, Eval, Export, FillMask};
pub use run::{Run, Status, Stop, Submit, Tune};

/// Pre-trains BERT-family encoders: text to dataset, dataset to model, on one machine or many.
#[derive(Debug, Parser)]
#[command(name = "lambert", version = lambert_control::version_text(), max_term_width = 110, after_help = EXIT_CODES)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
    /// How log lines on standard error look.
    #[arg(long, global = true, value_enum, default_value_t)]
    pub log: LogFormat,
}

const EXIT_CODES: &str = "Exit codes: 0 done; 1 failed; 2 the command or the configuration is wrong; \
65 diverged and given up; 70 failed, and the same command would fail again; \
75 stopped with a checkpoint, the same command goes on from it; 76 the same, by a person (`lambert stop`, Ctrl-C, scancel); 77 another `lambert run` has taken the run over.";

/// How log lines look.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Turn text into a dataset: shuffled Parquet shards of token ids with a manifest
    Prep(Prep),
    /// Train a WordPiece vocabulary
    Vocab(Vocab),
    /// Write a synthetic corpus, drawn from a small grammar in which words far apart agree
    Generate(Generate),
    /// Show a dataset: its manifest, decoded samples, whether it is whole
    Inspect(Inspect),
    /// Start a run, or go on with the one that is there
    Run(Run),
    /// Queue a run, or with --prep a preparation, with Slurm, as [slurm] of its configuration says; prints the job's number
    Submit(Submit),
    /// Make runs that differ in some keys, side by side, and compare their held-out losses
    Tune(Tune),
    /// Show where a run is
    Status(Status),
    /// Ask a run to save a checkpoint and stop
    Stop(Stop),
    /// Look after a run's checkpoints
    Checkpoint(Checkpoint),
    /// Measure loss and accuracy of a model on a held-out dataset
    Eval(Eval),
    /// Let a model guess the pieces at [MASK]
    FillMask(FillMask),
    /// Write a model as a folder that Hugging Face transformers loads
    Export(Export),
}
