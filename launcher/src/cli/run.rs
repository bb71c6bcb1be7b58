//! Run commands: run, submit, tune, stop.

use std::path::PathBuf;

use clap::Args;

use super::values::{PREP_MEMORY, bytes};

const RUN_EXAMPLES: &str = "Examples:
  lambert run --config configs/demo.toml --run runs/demo
  lambert run --run runs/demo";

/// Arguments of `lambert run`.
#[derive(Debug, Args)]
#[command(after_help = RUN_EXAMPLES)]
pub struct Run {
    /// Run configuration (TOML), optional when resuming; later files override earlier ones (repeatable)
    #[arg(long, value_name = "FILE")]
    pub config: Vec<PathBuf>,
    /// Run folder or object-store URL
    #[arg(long, value_name = "URL")]
    pub run: String,
    /// Number of workers; same as --set cluster.ranks=N
    #[arg(long, value_name = "N")]
    pub ranks: Option<usize>,
    /// Override a configuration value, e.g. stage.0.steps=100 (repeatable)
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub sets: Vec<String>,
    /// Initialize weights from RUN/checkpoints/step-..., or hf:FOLDER for a Hugging Face Transformers folder
    #[arg(long, value_name = "CHECKPOINT")]
    pub from: Option<String>,
    /// With --from, also load the optimizer state
    #[arg(long, requires = "from")]
    pub with_optimizer: bool,
    /// Allow this key or section to differ from the run's stored configuration (repeatable)
    #[arg(long = "allow-change", value_name = "KEY")]
    pub allow_change: Vec<String>,
    /// Print step records and events to stdout as JSON lines
    #[arg(long)]
    pub json: bool,
    /// Check everything and print the plan, without starting or writing anything
    #[arg(long)]
    pub check: bool,
}

const SUBMIT_USAGE: &str =
    "lambert submit [OPTIONS] --run <URL>\n       lambert submit [OPTIONS] --prep --config <FILE>";

const SUBMIT_EXAMPLES: &str = "Examples:
  lambert submit --config run.toml --run s3://bucket/run --ranks 8
  lambert submit --prep --config prep.toml --parts 8";

/// Arguments of `lambert submit`.
#[derive(Debug, Args)]
#[command(override_usage = SUBMIT_USAGE, after_help = SUBMIT_EXAMPLES)]
pub struct Submit {
    /// Run configuration, or with --prep preparation configuration (TOML, repeatable); optional when resuming
    #[arg(long, value_name = "FILE", required_if_eq("prep", "true"))]
    pub config: Vec<PathBuf>,
    /// Run folder or object-store URL; required without --prep
    #[arg(long, value_name = "URL", required_unless_present = "prep", conflicts_with = "prep")]
    pub run: Option<String>,
    /// Number of workers; same as --set cluster.ranks=N
    #[arg(long, value_name = "N", conflicts_with = "prep")]
    pub ranks: Option<usize>,
    /// Override a configuration value, e.g. stage.0.steps=100 (repeatable)
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub sets: Vec<String>,
    /// Initialize weights from RUN/checkpoints/step-..., or hf:FOLDER for a Hugging Face Transformers folder
    #[arg(long, value_name = "CHECKPOINT", conflicts_with = "prep")]
    pub from: Option<String>,
    /// With --from, also load the optimizer state
    #[arg(long, requires = "from")]
    pub with_optimizer: bool,
    /// Allow this key or section to differ from the run's stored configuration (repeatable)
    #[arg(long = "allow-change", value_name = "KEY", conflicts_with = "prep")]
    pub allow_change: Vec<String>,
    /// Submit a preparation: a job array with one task per part, and a job that merges the parts
    #[arg(long)]
    pub prep: bool,
    /// With --prep: number of parts
    #[arg(long, value_name = "N", requires = "prep", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..))]
    pub parts: u16,
    /// With --prep: submit only these parts (from 0), e.g. 1,3 to rerun failed ones
    #[arg(long, value_name = "LIST", requires = "prep", value_delimiter = ',')]
    pub tasks: Vec<usize>,
    /// With --prep: threads per task
    #[arg(long, value_name = "N", requires = "prep", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    pub threads: u16,
    /// With --prep: memory per task for all threads together, e.g. 512M or 4G
    #[arg(long, value_name = "BYTES", requires = "prep", default_value = PREP_MEMORY.as_str(), value_parser = bytes)]
    pub memory: u64,
    /// Print the batch script without submitting it
    #[arg(long)]
    pub dry_run: bool,
    /// Print job IDs as JSON
    #[arg(long)]
    pub json: bool,
}

impl Submit {
    /// Returns the equivalent `lambert run` arguments for the run at `run`.
    pub fn to_run(&self, run: &str) -> Run {
        Run {
            config: self.config.clone(),
            run: run.to_owned(),
            ranks: self.ranks,
            sets: self.sets.clone(),
            from: self.from.clone(),
            with_optimizer: self.with_optimizer,
            allow_change: self.allow_change.clone(),
            json: false,
            check: false,
        }
    }
}

const TUNE_EXAMPLES: &str = "Examples:
  lambert tune --config run.toml --runs runs/rates --grid stage.0.learning_rate=1e-3,2e-3,4e-3";

/// Arguments of `lambert tune`.
#[derive(Debug, Args)]
#[command(after_help = TUNE_EXAMPLES)]
pub struct Tune {
    /// Base configuration of all runs (TOML, repeatable); evaluation.data names the held-out dataset
    #[arg(long, value_name = "FILE", required = true)]
    pub config: Vec<PathBuf>,
    /// Folder or object-store URL for the runs, tune.csv, tune.svg and best.toml
    #[arg(long, value_name = "URL")]
    pub runs: String,
    /// Key and values to sweep, e.g. stage.0.learning_rate=1e-3,2e-3; repeat for a grid of all combinations
    #[arg(long, value_name = "KEY=VALUE,VALUE")]
    pub grid: Vec<String>,
    /// Additional run, e.g. "stage.0.learning_rate=5e-3 optimizer.kind=adamw" (repeatable)
    #[arg(long, value_name = "SETTINGS")]
    pub trial: Vec<String>,
    /// Override a configuration value for all runs, e.g. stage.0.steps=100 (repeatable)
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub sets: Vec<String>,
    /// Number of concurrent runs [default: as many as CPUs, memory or GPUs allow]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub parallel: Option<u16>,
    /// Print the results as JSON
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `lambert stop`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  lambert stop runs/demo")]
pub struct Stop {
    /// Run folder or URL
    pub run: String,
}
