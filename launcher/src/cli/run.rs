//! The commands around runs: run, submit, tune, status, stop.

use std::path::PathBuf;

use clap::Args;

use super::values::{PREP_MEMORY, bytes};

/// Arguments of `lambert run`.
#[derive(Debug, Args)]
pub struct Run {
    /// The run, as TOML; may be left out where the run exists already
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Where the run lives: a folder or an object-store URL
    #[arg(long, value_name = "URL")]
    pub run: String,
    /// Worker processes: the same as --set cluster.ranks=N
    #[arg(long, value_name = "N")]
    pub ranks: Option<usize>,
    /// Change a value of the configuration: stage.0.steps=100
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub sets: Vec<String>,
    /// Start a new run with the weights of another's checkpoint, RUN/checkpoints/step-...
    #[arg(long, value_name = "CHECKPOINT")]
    pub from: Option<String>,
    /// Take its optimizer's moments and count of updates, too
    #[arg(long, requires = "from")]
    pub with_optimizer: bool,
    /// Let this key, or the section of this name, differ from what the run was started with: it trains something else
    /// from here on
    #[arg(long = "allow-change", value_name = "KEY")]
    pub allow_change: Vec<String>,
    /// Print each step's record, and what else happens, on standard output, a JSON object a line
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `lambert submit`.
#[derive(Debug, Args)]
pub struct Submit {
    /// The run, or with --prep the preparation, as TOML; may be left out where the run exists already
    #[arg(long, value_name = "FILE", required_if_eq("prep", "true"))]
    pub config: Option<PathBuf>,
    /// Where the run lives: a folder or an object-store URL
    #[arg(long, value_name = "URL", required_unless_present = "prep", conflicts_with = "prep")]
    pub run: Option<String>,
    /// Worker processes: the same as --set cluster.ranks=N
    #[arg(long, value_name = "N", conflicts_with = "prep")]
    pub ranks: Option<usize>,
    /// Change a value of the configuration: stage.0.steps=100
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub sets: Vec<String>,
    /// Start a new run with the weights of another's checkpoint, RUN/checkpoints/step-...
    #[arg(long, value_name = "CHECKPOINT", conflicts_with = "prep")]
    pub from: Option<String>,
    /// Take its optimizer's moments and count of updates, too
    #[arg(long, requires = "from")]
    pub with_optimizer: bool,
    /// Let this key, or the section of this name, differ from what the run was started with
    #[arg(long = "allow-change", value_name = "KEY", conflicts_with = "prep")]
    pub allow_change: Vec<String>,
    /// Queue a preparation: an array of tasks that do a part each, and a job that joins the parts
    #[arg(long)]
    pub prep: bool,
    /// With --prep: parts that the preparation is divided into
    #[arg(long, value_name = "N", requires = "prep", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..))]
    pub parts: u16,
    /// With --prep: only these parts (from 0), as 1,3: those that have failed
    #[arg(long, value_name = "LIST", requires = "prep", value_delimiter = ',')]
    pub tasks: Vec<usize>,
    /// With --prep: threads of a task
    #[arg(long, value_name = "N", requires = "prep", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    pub threads: u16,
    /// With --prep: memory of a task for all threads together, as 512M or 4G
    #[arg(long, value_name = "BYTES", requires = "prep", default_value = PREP_MEMORY.as_str(), value_parser = bytes)]
    pub memory: u64,
    /// Show what would be queued, and queue nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Print the numbers of the jobs as JSON
    #[arg(long)]
    pub json: bool,
}

impl Submit {
    /// The same for `lambert run`, at `run`.
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
        }
    }
}

/// Arguments of `lambert tune`.
#[derive(Debug, Args)]
pub struct Tune {
    /// What all runs have in common, as TOML; evaluation.data names the held-out dataset
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,
    /// A folder or an object-store URL for the runs, and for tune.csv, tune.svg and best.toml beside them
    #[arg(long, value_name = "URL")]
    pub runs: String,
    /// A key and its values: stage.0.learning_rate=1e-3,2e-3; given several times, all combinations are made
    #[arg(long, value_name = "KEY=VALUE,VALUE")]
    pub grid: Vec<String>,
    /// One more run: "stage.0.learning_rate=5e-3 optimizer.kind=adamw"
    #[arg(long, value_name = "SETTINGS")]
    pub trial: Vec<String>,
    /// Change a value of the configuration for all runs: stage.0.steps=100
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub sets: Vec<String>,
    /// Runs at a time; as many as processors or cards are enough for if absent
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub parallel: Option<u16>,
    /// Print the results as JSON
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `lambert status`.
#[derive(Debug, Args)]
pub struct Status {
    /// The run's folder or URL
    pub run: String,
    /// Print as JSON
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `lambert stop`.
#[derive(Debug, Args)]
pub struct Stop {
    /// The run's folder or URL
    pub run: String,
}
