//! Commands that show a run: status, logs, web page.

use clap::Args;

const STATUS_EXAMPLES: &str = "Examples:
  lambert status runs/demo
  lambert status runs/demo --follow
  lambert status runs";

/// Arguments of `lambert status`.
#[derive(Debug, Args)]
#[command(after_help = STATUS_EXAMPLES)]
pub struct Status {
    /// Run folder or URL, or a folder of runs to list
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
    /// Run folder or URL
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

const WATCH_EXAMPLES: &str = "Examples:
  lambert watch runs/demo
  lambert watch runs/first runs/second s3://bucket/runs/third --port 8080";

/// Arguments of `lambert watch`.
#[derive(Debug, Args)]
#[command(after_help = WATCH_EXAMPLES)]
pub struct Watch {
    /// Run folders or URLs
    #[arg(required = true, value_name = "RUN")]
    pub runs: Vec<String>,
    /// Port on 127.0.0.1; 0 for a free one
    #[arg(long, value_name = "PORT", default_value_t = 0)]
    pub port: u16,
}
