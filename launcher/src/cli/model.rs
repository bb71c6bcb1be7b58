//! The commands around checkpoints and models: checkpoint, eval, fill-mask, export.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use lambert_config::run::DeviceKind;

/// Arguments of `lambert checkpoint`.
#[derive(Debug, Args)]
pub struct Checkpoint {
    /// What to do with the checkpoints.
    #[command(subcommand)]
    pub action: CheckpointAction,
}

/// What to do with a run's checkpoints.
#[derive(Debug, Subcommand)]
pub enum CheckpointAction {
    /// List them, newest first
    List {
        /// The run's folder or URL
        run: String,
        /// Print as JSON
        #[arg(long)]
        json: bool,
    },
    /// Read every object of every checkpoint and compare its checksum; exit code 1 if one is damaged
    Verify {
        /// The run's folder or URL
        run: String,
        /// Print as JSON
        #[arg(long)]
        json: bool,
    },
    /// Delete all but the newest and those that the run's configuration keeps, and objects that belong to none; the
    /// newest good one always stays
    Prune {
        /// The run's folder or URL
        run: String,
        /// How many of the newest to keep; checkpoint.keep of the run if absent
        #[arg(long, value_name = "N")]
        keep: Option<usize>,
        /// Print as JSON
        #[arg(long)]
        json: bool,
    },
    /// Copy a checkpoint, each object checked on the way, to another folder or bucket, which becomes a run like this one
    Copy {
        /// RUN/checkpoints/step-...
        checkpoint: String,
        /// The folder or URL that it goes to
        to: String,
    },
    /// Ask a run to save a checkpoint now and go on
    Save {
        /// The run's folder or URL
        run: String,
    },
}

/// Arguments of `lambert eval`, which are lambert-worker's.
#[derive(Debug, Args)]
pub struct Eval {
    /// A run (its newest good checkpoint), or RUN/checkpoints/step-...
    #[arg(value_name = "RUN_OR_CHECKPOINT")]
    pub model: String,
    /// The held-out dataset
    #[arg(long, value_name = "DATASET")]
    pub data: String,
    /// Samples at most; 0 for all
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub samples: u64,
    /// What computes, whatever the run was trained on
    #[arg(long, value_name = "DEVICE", default_value = "auto", value_parser = DeviceKind::NAMES)]
    pub device: String,
    /// Print as JSON
    #[arg(long)]
    pub json: bool,
}

impl Eval {
    /// The same for lambert-worker.
    pub fn to_worker(&self) -> Vec<String> {
        let mut line = vec!["eval".to_owned(), "--data".to_owned(), self.data.clone()];
        line.extend(["--samples".to_owned(), self.samples.to_string(), "--device".to_owned(), self.device.clone()]);
        line.extend(self.json.then(|| "--json".to_owned()));
        line.extend(["--".to_owned(), self.model.clone()]);
        line
    }
}

/// Arguments of `lambert fill-mask`, which are lambert-worker's.
#[derive(Debug, Args)]
pub struct FillMask {
    /// A run (its newest good checkpoint), or RUN/checkpoints/step-...
    #[arg(value_name = "RUN_OR_CHECKPOINT")]
    pub model: String,
    /// Text with one or more [MASK]
    pub text: String,
    /// Guesses at each [MASK]
    #[arg(long, default_value_t = 5, value_name = "N")]
    pub top: usize,
    /// What computes, whatever the run was trained on
    #[arg(long, value_name = "DEVICE", default_value = "auto", value_parser = DeviceKind::NAMES)]
    pub device: String,
    /// Print as JSON
    #[arg(long)]
    pub json: bool,
}

impl FillMask {
    /// The same for lambert-worker.
    pub fn to_worker(&self) -> Vec<String> {
        let mut line = vec!["fill-mask".to_owned(), "--top".to_owned(), self.top.to_string()];
        line.extend(["--device".to_owned(), self.device.clone()]);
        line.extend(self.json.then(|| "--json".to_owned()));
        line.extend(["--".to_owned(), self.model.clone(), self.text.clone()]);
        line
    }
}

/// Arguments of `lambert export`.
#[derive(Debug, Args)]
pub struct Export {
    /// A run (its newest good checkpoint), or RUN/checkpoints/step-...
    #[arg(value_name = "RUN_OR_CHECKPOINT")]
    pub model: String,
    /// The folder to write; must not hold anything yet
    #[arg(long, value_name = "DIR")]
    pub output: PathBuf,
}
