//! Planning command: plan.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::values::local_path;

const PLAN_EXAMPLES: &str = "Examples:
  lambert plan --config configs/bert-large-lamb.toml --machine h100 --tokens-per-sample 128,512
  lambert plan --config configs/demo.toml --machine here --failures-per-day 1";

/// Arguments of `lambert plan`.
#[derive(Debug, Args)]
#[command(after_help = PLAN_EXAMPLES)]
pub struct Plan {
    /// Run configuration (TOML); later files override earlier ones (repeatable)
    #[arg(long, value_name = "FILE", required = true)]
    pub config: Vec<PathBuf>,
    /// Override a configuration value, e.g. stage.0.steps=100 (repeatable)
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub sets: Vec<String>,
    /// Number of workers; same as --set cluster.ranks=N
    #[arg(long, value_name = "N")]
    pub ranks: Option<usize>,
    /// Estimate times for this machine (measured) or a GPU (published peak)
    #[arg(long, value_enum)]
    pub machine: Option<MachineName>,
    /// Estimate times from this output of `lambert-worker bench --json`
    #[arg(long, value_name = "FILE", conflicts_with = "machine")]
    pub bench: Option<PathBuf>,
    /// Assume this fraction of a GPU's peak [default: an assumption per GPU]
    #[arg(long, value_name = "F", requires = "machine")]
    pub utilization: Option<f64>,
    /// Assume this many tokens per sample where a dataset does not exist yet: one number, or one per stage
    #[arg(long, value_name = "N,N", value_delimiter = ',')]
    pub tokens_per_sample: Vec<u16>,
    /// Show the best checkpoint interval for this many failures of the run per day
    #[arg(long, value_name = "F")]
    pub failures_per_day: Option<f64>,
    /// Assume this write rate of the run's store, MB/s
    #[arg(long, value_name = "F", default_value_t = 500.0)]
    pub store_rate: f64,
    /// Add a table of hours and efficiency on 1 to 4,096 ranks
    #[arg(long)]
    pub scaling: bool,
    /// Draw hours and efficiency on 1 to 4,096 ranks as SVG
    #[arg(long, value_name = "FILE", value_parser = local_path())]
    pub plot: Option<PathBuf>,
    /// Print as JSON
    #[arg(long)]
    pub json: bool,
}

/// Machine of an estimate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum MachineName {
    /// This machine, measured.
    Here,
    /// NVIDIA A100 80GB SXM.
    A100,
    /// NVIDIA H100 SXM.
    H100,
    /// NVIDIA H200 SXM.
    H200,
    /// NVIDIA B200.
    B200,
}
