//! `lambert report`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::values::local_path;

const REPORT_EXAMPLES: &str = "Examples:
  lambert report runs/demo --output demo.html
  lambert report runs/a runs/b --format markdown
  lambert report runs/demo --output demo.html --curves demo.svg";

/// Arguments of `lambert report`.
#[derive(Debug, Args)]
#[command(after_help = REPORT_EXAMPLES)]
pub struct Report {
    /// Run folders or URLs; several are compared
    #[arg(required = true, value_name = "RUN")]
    pub runs: Vec<String>,
    /// Output file [default: stdout]
    #[arg(long, value_name = "FILE", value_parser = local_path())]
    pub output: Option<PathBuf>,
    /// Format of the report
    #[arg(long, value_enum, default_value_t)]
    pub format: ReportFormat,
    /// Also write the loss curves as SVG
    #[arg(long, value_name = "FILE", value_parser = local_path())]
    pub curves: Option<PathBuf>,
}

/// Format of a report.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum ReportFormat {
    /// One file with all charts.
    #[default]
    Html,
    /// Tables only.
    Markdown,
    /// The facts.
    Json,
}
