//! Commands that show a run: status, logs.

use clap::Args;

const STATUS_EXAMPLES: &str = "Examples:
  lambert status runs/demo
  lambert status runs/demo --follow
  lambert status runs";

/// Arguments of `lambert status`.
#[derive(Debug, Args)]
#[command(after_help = STATUS_EXAMPLES)]
pub struct Status {
    /// Run directory or URL, or a directory of runs to list
    pub run: String,
    /// Print as JSON; a list has one line per run
    #[arg(long)]
    pub json: bool,
    /// Print the status again at each change, until the run is over
    #[arg(long)]
    pub follow: bool,
}

const LOGS_EXAMPLES: &str = "Examples:
  lambert logs runs/demo
  lambert logs runs/demo --rank 1 --follow
  lambert logs runs/demo --rank 1 --attempt 2";

/// Arguments of `lambert logs`.
#[derive(Debug, Args)]
#[command(after_help = LOGS_EXAMPLES)]
pub struct Logs {
    /// Run directory or URL
    pub run: String,
    /// Show only the log of this rank [default: all ranks of this host]
    #[arg(long, value_name = "N")]
    pub rank: Option<usize>,
    /// Show the logs of this attempt [default: the newest]
    #[arg(long, value_name = "N", conflicts_with = "follow")]
    pub attempt: Option<u32>,
    /// Print new lines, also of later attempts, until the run is over
    #[arg(long)]
    pub follow: bool,
}
