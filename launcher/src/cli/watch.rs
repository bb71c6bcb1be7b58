//! `lambert watch`.

use clap::Args;

const WATCH_EXAMPLES: &str = "Examples:
  lambert watch runs/demo
  lambert watch runs/first runs/second s3://bucket/runs/third --port 8080";

/// Arguments of `lambert watch`.
#[derive(Debug, Args)]
#[command(after_help = WATCH_EXAMPLES)]
pub struct Watch {
    /// Run directories or URLs
    #[arg(required = true, value_name = "RUN")]
    pub runs: Vec<String>,
    /// Port on 127.0.0.1; 0 for a free one
    #[arg(long, value_name = "PORT", default_value_t = 0)]
    pub port: u16,
}
