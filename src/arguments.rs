//! Command line of lambert-worker.

use std::ops::Range;
use std::path::PathBuf;

use clap::{Parser, Subcommand};
use lambert_config::run::DeviceKind;
use lambert_worker::inference::embed::{HiddenLayer, Pooling};

/// Arguments of lambert-worker.
#[derive(Parser)]
#[command(name = "lambert-worker", version = super::version_text(), about = "One rank of a lambert run; started by `lambert`")]
pub struct Arguments {
    /// Show the progress of eval and fill-mask on a terminal
    #[arg(long)]
    pub progress: bool,
    #[command(subcommand)]
    pub command: WorkerCommand,
}

/// Commands of lambert-worker.
#[derive(Subcommand)]
pub enum WorkerCommand {
    /// Train as one rank of a run that `lambert run` has created
    Train {
        /// The run's folder or URL
        #[arg(long)]
        run: String,
        /// Number of the attempt; the coordinator holds its lease
        #[arg(long)]
        attempt: u32,
        /// World size; default: the number of ranks started together
        #[arg(long)]
        world: Option<usize>,
        /// Folder for the log file of this rank; default: no log file
        #[arg(long)]
        logs: Option<PathBuf>,
        /// Steps to trace, such as 10..15; the trace is written beside the log file
        #[arg(long, value_parser = steps)]
        trace: Option<Range<u64>>,
        /// Folder of the launcher or MPI on this host, removed when the launcher has ended; repeatable
        #[arg(long = "session")]
        scratch: Vec<PathBuf>,
    },
    /// Held-out loss and accuracy
    Eval {
        /// A run, or one of its checkpoints
        model: String,
        /// Held-out dataset
        #[arg(long)]
        data: String,
        /// Maximum number of samples; 0: all
        #[arg(long, default_value_t = 0)]
        samples: u64,
        /// Average the weights of the run's newest N checkpoints
        #[arg(long, value_name = "N", default_value_t = 1)]
        average: usize,
        /// Compute device
        #[arg(long, default_value = "auto", value_parser = device)]
        device: DeviceKind,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Benchmark a stage of a configuration on this device, with a single rank; saves nothing
    Bench {
        /// Configuration of a run; later files override earlier ones; repeatable
        #[arg(long, required = true)]
        config: Vec<PathBuf>,
        /// Override a configuration key, such as device.kind="cuda"; repeatable
        #[arg(long = "set", value_name = "KEY=VALUE")]
        sets: Vec<String>,
        /// Stage index, from 0
        #[arg(long, default_value_t = 0)]
        stage: usize,
        /// Samples per step; default: the stage's global batch
        #[arg(long)]
        samples: Option<usize>,
        /// Number of measured steps
        #[arg(long, default_value_t = 10)]
        steps: usize,
        /// Number of warmup steps
        #[arg(long, default_value_t = 3)]
        warmup: usize,
        /// File `teacher.toml` of a run, for the model of the teacher of a configuration that has one
        #[arg(long, value_name = "FILE")]
        teacher: Option<PathBuf>,
        /// Print JSON
        #[arg(long)]
        json: bool,
        /// Write the global batches of `--steps` steps to this file as JSON instead of measuring
        #[arg(long)]
        batches: Option<PathBuf>,
    },
    /// Load the libraries of the compute device and print the device
    Device {
        /// Compute device
        #[arg(long, default_value = "auto", value_parser = device)]
        kind: DeviceKind,
        /// Folder of the CUDA build of libtorch; empty: see device.libtorch
        #[arg(long, default_value = "")]
        libtorch: String,
        /// Load NCCL, too
        #[arg(long)]
        nccl: bool,
    },
    /// Embeddings of the lines of a text file
    Embed {
        /// A run, or one of its checkpoints
        model: String,
        /// Text file; `-`: standard input
        #[arg(long)]
        input: PathBuf,
        /// Parquet file
        #[arg(long)]
        output: PathBuf,
        /// Vector of a text
        #[arg(long, default_value = "mean")]
        pooling: Pooling,
        /// Hidden states to use
        #[arg(long, default_value = "last")]
        layer: HiddenLayer,
        /// Compute device
        #[arg(long, default_value = "auto", value_parser = device)]
        device: DeviceKind,
    },
    /// Pseudo-log-likelihood of the lines of a text file
    Score {
        /// A run, or one of its checkpoints
        model: String,
        /// Text file; `-`: standard input
        #[arg(long)]
        input: PathBuf,
        /// Compute device
        #[arg(long, default_value = "auto", value_parser = device)]
        device: DeviceKind,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Predict the most probable tokens at each mask of a text
    FillMask {
        /// A run, or one of its checkpoints
        model: String,
        /// Text with MASK in brackets at each token to predict
        text: String,
        /// Predictions per mask
        #[arg(long, default_value_t = 5)]
        top: usize,
        /// Compute device
        #[arg(long, default_value = "auto", value_parser = device)]
        device: DeviceKind,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

/// Parses steps such as `10..15`.
fn steps(text: &str) -> Result<Range<u64>, String> {
    let parse = || {
        let (start, end) = text.split_once("..")?;
        Some(start.parse().ok()?..end.parse().ok()?)
    };
    parse().ok_or_else(|| "expected a range of steps such as 10..15".to_owned())
}

/// Parses a device name.
fn device(name: &str) -> Result<DeviceKind, String> {
    DeviceKind::named(name).ok_or_else(|| format!("expected one of {}", DeviceKind::NAMES.join(", ")))
}
