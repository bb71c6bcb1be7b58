//! `lambert metrics`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::values::local_path;

const METRICS_EXAMPLES: &str = "Examples:
  lambert metrics runs/demo --format csv --output demo.csv
  lambert metrics runs/demo --follow
  lambert metrics runs/demo --tensorboard logs/demo --follow";

/// Arguments of `lambert metrics`.
#[derive(Debug, Args)]
#[command(after_help = METRICS_EXAMPLES)]
pub struct Metrics {
    /// Run folder or URL
    pub run: String,
    /// Format of the step records of all attempts
    #[arg(long, value_enum, default_value_t, value_name = "FORMAT")]
    pub format: RecordFormat,
    /// Output file; required for Parquet [default: stdout]
    #[arg(long, value_name = "FILE", value_parser = local_path())]
    pub output: Option<PathBuf>,
    /// Write TensorBoard event files to this folder instead, replacing earlier ones
    #[arg(long, value_name = "DIR", conflicts_with_all = ["format", "output"], value_parser = local_path())]
    pub tensorboard: Option<PathBuf>,
    /// Continue with new steps until the run is over; JSON lines on stdout, or --tensorboard
    #[arg(long, conflicts_with = "output")]
    pub follow: bool,
}

/// Format of exported step records.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum RecordFormat {
    /// JSON lines: records and evaluations as stored, with `attempt` and `undone`.
    #[default]
    Jsonl,
    /// One row per step, a header line.
    Csv,
    /// One row per step.
    Parquet,
}
