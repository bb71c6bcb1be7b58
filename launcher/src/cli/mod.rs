//! Command-line interface: all arguments, declared once. Only their syntax is checked here.
//!
//! - `init`: files of a first run; `data`: dataset commands; `plan`: planning command; `run`: run commands
//! - `metrics`: export of step records; `report`: reports; `watch`: status, logs and the web page
//! - `model`: checkpoint and model commands
//! - `install`: completions and manual pages
//! - `values`: parsers for argument values

#![allow(rustdoc::broken_intra_doc_links, reason = "these comments are the help texts too, where [MASK] is no link")]

mod data;
mod init;
mod install;
mod metrics;
mod model;
mod plan;
mod report;
mod run;
mod values;
mod watch;

use clap::{Parser, Subcommand, ValueEnum};

pub use data::{Data, DataAction, DataReport, DataReportFormat, Generate, Inspect, Prep, Vocab, VocabModel};
pub use init::{Init, InitTarget, Recipe, Size, SourceKind};
pub use install::{Completions, Man, Shell};
pub use metrics::{Metrics, RecordFormat};
pub use model::{Checkpoint, CheckpointAction, Embed, Eval, Export, ExportedNetwork, FillMask, Import, Score};
pub use plan::{MachineName, Plan};
pub use report::{Report, ReportFormat};
pub use run::{Run, Stop, Submit, Tune};
pub use watch::{Logs, Status, Watch};

/// Pre-train BERT-family encoders on one machine or a cluster
#[derive(Debug, Parser)]
#[command(name = "lambert", version = lambert_control::version_text(), max_term_width = 110, after_help = EXIT_CODES)]
pub struct Cli {
    /// Command to run.
    #[command(subcommand)]
    pub command: Command,
    /// Log format on stderr
    #[arg(long, global = true, value_enum, default_value_t)]
    pub log: LogFormat,
    /// Print only results and errors; no progress and no log
    #[arg(long, short, global = true)]
    pub quiet: bool,
}

const EXIT_CODES: &str = "Exit codes: 0 success; 1 failure; 2 invalid command or configuration; 65 diverged; \
70 permanent failure, do not retry; 74 unrecoverable GPU error; 75 stopped with a checkpoint, rerun to resume; \
76 stopped by a user, rerun to resume; 77 another coordinator has taken over the run";

/// Format of log lines.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// Plain text.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

impl LogFormat {
    /// Format that an invalid command line asks for. `arguments` starts with the program.
    pub fn of_invalid(arguments: impl IntoIterator<Item = String>) -> Self {
        let arguments: Vec<String> = arguments.into_iter().collect();
        let is_json = arguments.iter().any(|argument| argument == "--log=json")
            || arguments.windows(2).any(|pair| pair == ["--log", "json"]);
        if is_json { Self::Json } else { Self::Text }
    }
}

/// Subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Write the configuration files of a first run
    Init(Init),
    /// Tokenize text into a shuffled, sharded Parquet dataset
    Prep(Prep),
    /// Train a WordPiece, BPE or unigram vocabulary
    Vocab(Vocab),
    /// Generate a synthetic corpus
    Generate(Generate),
    /// Show a dataset's manifest and samples, or verify its checksums
    Inspect(Inspect),
    /// Write a report of a dataset with lengths, token frequencies and duplicates
    Data(Data),
    /// Estimate time and memory of a run before it is started
    Plan(Plan),
    /// Start or resume a training run
    Run(Run),
    /// Submit a run or a preparation to Slurm and print the job ID
    Submit(Submit),
    /// Run a hyperparameter sweep and compare held-out losses
    Tune(Tune),
    /// Show a run's progress, restarts and checkpoints, or list the runs of a folder
    Status(Status),
    /// Print the logs of a run's ranks on this host
    Logs(Logs),
    /// Serve a web page that shows runs
    Watch(Watch),
    /// Export step records as JSON lines, CSV, Parquet or TensorBoard event files
    Metrics(Metrics),
    /// Write a report of runs with curves, failures and configuration
    Report(Report),
    /// Checkpoint and stop a run
    Stop(Stop),
    /// List, verify, prune, copy, average or save checkpoints
    Checkpoint(Checkpoint),
    /// Evaluate a checkpoint on a held-out dataset
    Eval(Eval),
    /// Write embeddings of texts
    Embed(Embed),
    /// Score texts by their pseudo-log-likelihood
    Score(Score),
    /// Predict the tokens at [MASK]
    FillMask(FillMask),
    /// Export a checkpoint to Hugging Face Transformers format
    Export(Export),
    /// Import a model in Hugging Face Transformers format as a checkpoint
    Import(Import),
    /// Print the completions of a shell
    Completions(Completions),
    /// Write the manual pages
    Man(Man),
}
