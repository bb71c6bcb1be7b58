//! Checkpoint and model commands: checkpoint, eval, embed, score, fill-mask, export, import.

use std::path::{Path, PathBuf};

use clap::{ArgGroup, Args, Subcommand, ValueEnum};
use lambert_config::run::DeviceKind;

use super::values::{hub_model, language, license, local_path};
use crate::import::InitializedModule;

const CHECKPOINT_EXAMPLES: &str = "Examples:
  lambert checkpoint list runs/demo
  lambert checkpoint copy runs/demo/checkpoints/step-000000600-a0001 s3://bucket/demo
  lambert checkpoint average --last 3 runs/demo runs/demo-averaged";

const IMPORT_EXAMPLES: &str = "Examples:
  hf download google-bert/bert-base-uncased --local-dir bert-base-uncased
  lambert import bert-base-uncased --output runs/base
  lambert run --config run.toml --run runs/domain --from runs/base/checkpoints/step-000000000-a0001";

const EXPORT_EXAMPLES: &str = "Examples:
  lambert export --output model runs/demo
  lambert export --output model --license apache-2.0 --language en runs/demo";

/// Arguments of `lambert checkpoint`.
#[derive(Debug, Args)]
#[command(after_help = CHECKPOINT_EXAMPLES)]
pub struct Checkpoint {
    /// Action on the run's checkpoints.
    #[command(subcommand)]
    pub action: CheckpointAction,
}

/// Actions on a run's checkpoints.
#[derive(Debug, Subcommand)]
pub enum CheckpointAction {
    /// List checkpoints, newest first
    List {
        /// Run folder or URL
        run: String,
        /// Print as JSON
        #[arg(long)]
        json: bool,
    },
    /// Verify the checksums of all checkpoints; exits with code 1 if one is damaged
    Verify {
        /// Run folder or URL
        run: String,
        /// Print as JSON
        #[arg(long)]
        json: bool,
    },
    /// Delete checkpoints that the retention settings do not keep, and orphaned objects; never the newest valid one
    Prune {
        /// Run folder or URL
        run: String,
        /// Number of newest checkpoints to keep [default: checkpoint.keep of the run]
        #[arg(long, value_name = "N")]
        keep: Option<usize>,
        /// Print as JSON
        #[arg(long)]
        json: bool,
    },
    /// Copy a checkpoint, verifying checksums, to another folder or bucket as a new run
    Copy {
        /// RUN/checkpoints/step-...
        checkpoint: String,
        /// Destination folder or URL
        to: String,
    },
    /// Average the weights of the newest checkpoints and write the result as a new run
    Average {
        /// Number of checkpoints
        #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
        last: u32,
        /// Run folder or URL
        run: String,
        /// Destination folder or URL
        to: String,
    },
    /// Save a checkpoint now and continue training
    Save {
        /// Run folder or URL
        run: String,
    },
}

/// Arguments of `lambert eval`, passed on to lambert-worker.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  lambert eval runs/demo --data data/held-out\n  lambert eval runs/demo --text domain.txt",
    group = ArgGroup::new("held_out").args(["data", "text"]).required(true)
)]
pub struct Eval {
    /// Run (newest valid checkpoint) or RUN/checkpoints/step-...
    #[arg(value_name = "RUN_OR_CHECKPOINT")]
    pub model: String,
    /// Held-out dataset
    #[arg(long, value_name = "DATASET")]
    pub data: Option<String>,
    /// Text instead of a dataset: files, folders, globs or URLs
    #[arg(long, num_args = 1.., value_name = "URL")]
    pub text: Vec<String>,
    /// Maximum number of samples; 0: all
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub samples: u64,
    /// Average the weights of the run's newest N checkpoints
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub average: u32,
    /// Compute device, independent of the training device
    #[arg(long, value_name = "DEVICE", default_value = "auto", value_parser = DeviceKind::NAMES)]
    pub device: String,
    /// Print as JSON
    #[arg(long)]
    pub json: bool,
}

impl Eval {
    /// Returns the arguments for lambert-worker.
    pub fn to_worker(&self, data: &str) -> Vec<String> {
        let mut line = vec!["eval".to_owned(), "--data".to_owned(), data.to_owned()];
        line.extend(["--samples".to_owned(), self.samples.to_string(), "--device".to_owned(), self.device.clone()]);
        line.extend(["--average".to_owned(), self.average.to_string()]);
        line.extend(self.json.then(|| "--json".to_owned()));
        line.extend(["--".to_owned(), self.model.clone()]);
        line
    }
}

/// Arguments of `lambert fill-mask`, passed on to lambert-worker.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  lambert fill-mask runs/demo \"The capital of France is [MASK].\"")]
pub struct FillMask {
    /// Run (newest valid checkpoint) or RUN/checkpoints/step-...
    #[arg(value_name = "RUN_OR_CHECKPOINT")]
    pub model: String,
    /// Text containing one or more [MASK]
    pub text: String,
    /// Number of predictions per [MASK]
    #[arg(long, default_value_t = 5, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub top: u32,
    /// Compute device, independent of the training device
    #[arg(long, value_name = "DEVICE", default_value = "auto", value_parser = DeviceKind::NAMES)]
    pub device: String,
    /// Print as JSON
    #[arg(long)]
    pub json: bool,
}

impl FillMask {
    /// Returns the arguments for lambert-worker.
    pub fn to_worker(&self) -> Vec<String> {
        let mut line = vec!["fill-mask".to_owned(), "--top".to_owned(), self.top.to_string()];
        line.extend(["--device".to_owned(), self.device.clone()]);
        line.extend(self.json.then(|| "--json".to_owned()));
        line.extend(["--".to_owned(), self.model.clone(), self.text.clone()]);
        line
    }
}

/// Arguments of `lambert embed`, passed on to lambert-worker.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  lambert embed runs/demo --input sentences.txt --output embeddings.parquet")]
pub struct Embed {
    /// Run (newest valid checkpoint) or RUN/checkpoints/step-...
    #[arg(value_name = "RUN_OR_CHECKPOINT")]
    pub model: String,
    /// Text file with a text per line; -: standard input
    #[arg(long, value_name = "FILE")]
    pub input: PathBuf,
    /// Parquet file with the texts and their embeddings
    #[arg(long, value_name = "FILE", value_parser = local_path())]
    pub output: PathBuf,
    /// Pooling: mean over the tokens, or the hidden state of [CLS]
    #[arg(long, default_value = "mean", value_parser = ["mean", "cls"])]
    pub pooling: String,
    /// Hidden states: last, last-four (concatenated), or the number of a layer (0: embeddings)
    #[arg(long, default_value = "last", value_name = "LAYER", value_parser = hidden_layer)]
    pub layer: String,
    /// Compute device, independent of the training device
    #[arg(long, value_name = "DEVICE", default_value = "auto", value_parser = DeviceKind::NAMES)]
    pub device: String,
}

impl Embed {
    /// Returns the arguments for lambert-worker.
    pub fn to_worker(&self) -> Vec<String> {
        let path = |path: &Path| path.to_string_lossy().into_owned();
        let mut line = vec!["embed".to_owned(), "--input".to_owned(), path(&self.input)];
        line.extend(["--output".to_owned(), path(&self.output), "--pooling".to_owned(), self.pooling.clone()]);
        line.extend(["--layer".to_owned(), self.layer.clone(), "--device".to_owned(), self.device.clone()]);
        line.extend(["--".to_owned(), self.model.clone()]);
        line
    }
}

/// Parses `last`, `last-four` or a number.
fn hidden_layer(text: &str) -> Result<String, String> {
    let is_layer = ["last", "last-four"].contains(&text) || text.parse::<usize>().is_ok();
    is_layer.then(|| text.to_owned()).ok_or_else(|| "expected last, last-four or the number of a layer".to_owned())
}

/// Arguments of `lambert score`, passed on to lambert-worker.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  lambert score runs/demo --input sentences.txt")]
pub struct Score {
    /// Run (newest valid checkpoint) or RUN/checkpoints/step-...
    #[arg(value_name = "RUN_OR_CHECKPOINT")]
    pub model: String,
    /// Text file with a text per line; -: standard input
    #[arg(long, value_name = "FILE")]
    pub input: PathBuf,
    /// Compute device, independent of the training device
    #[arg(long, value_name = "DEVICE", default_value = "auto", value_parser = DeviceKind::NAMES)]
    pub device: String,
    /// Print as JSON
    #[arg(long)]
    pub json: bool,
}

impl Score {
    /// Returns the arguments for lambert-worker.
    pub fn to_worker(&self) -> Vec<String> {
        let mut line = vec!["score".to_owned(), "--input".to_owned(), self.input.to_string_lossy().into_owned()];
        line.extend(["--device".to_owned(), self.device.clone()]);
        line.extend(self.json.then(|| "--json".to_owned()));
        line.extend(["--".to_owned(), self.model.clone()]);
        line
    }
}

/// Network of a run with replaced-token detection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ExportedNetwork {
    /// Detects replaced tokens.
    Discriminator,
    /// Predicts masked tokens.
    Generator,
}

/// Arguments of `lambert export`.
#[derive(Debug, Args)]
#[command(after_help = EXPORT_EXAMPLES)]
pub struct Export {
    /// Run (newest valid checkpoint) or RUN/checkpoints/step-...
    #[arg(value_name = "RUN_OR_CHECKPOINT")]
    pub model: String,
    /// Output folder; must be empty or absent
    #[arg(long, value_name = "DIR", value_parser = local_path())]
    pub output: PathBuf,
    /// Network of a run with objective.replaced_tokens [default: discriminator]
    #[arg(long, value_name = "NETWORK")]
    pub network: Option<ExportedNetwork>,
    /// License in the model card, as the Hugging Face Hub names it, e.g. apache-2.0
    #[arg(long, value_name = "ID", value_parser = license)]
    pub license: Option<String>,
    /// Language code in the model card, e.g. en (repeatable)
    #[arg(long, value_name = "CODE", value_parser = language)]
    pub language: Vec<String>,
    /// Model on the Hugging Face Hub whose weights the training started from, as ORGANIZATION/NAME
    #[arg(long, value_name = "MODEL", value_parser = hub_model)]
    pub base_model: Option<String>,
}

/// Arguments of `lambert import`.
#[derive(Debug, Args)]
#[command(after_help = IMPORT_EXAMPLES)]
pub struct Import {
    /// Folder on this machine with config.json, safetensors weights and the files of a tokenizer
    pub folder: PathBuf,
    /// New run folder or URL
    #[arg(long, value_name = "RUN")]
    pub output: String,
    /// Modules to initialize randomly if they are missing
    #[arg(long, value_name = "PART", value_delimiter = ',')]
    pub init_missing: Vec<InitializedModule>,
}
