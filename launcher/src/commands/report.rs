//! `lambert report`: curves, results, failures and configuration of runs in one file.

use std::io::Write;
use std::path::Path;

use lambert_config::exit;
use lambert_progress::{Progress, Unit};
use lambert_store::Store;

use super::files;
use super::stored_run::{history, require_run};
use crate::cli::{self, ReportFormat};
use crate::console;
use crate::failure::{Failure, Outcome};
use crate::report::collect::{RunReport, collect};
use crate::report::{chart, document, html, markdown};

/// Writes the report.
pub fn report(arguments: &cli::Report) -> Outcome {
    let progress = Progress::start("reading records");
    let read = |url: &String| -> Result<RunReport, Failure> {
        let store = progress.observe(&Store::open(url).map_err(Failure::usage)?);
        require_run(&store)?;
        collect(&store, &history(&store)?)
    };
    let runs = arguments.runs.iter().map(read).collect::<Result<Vec<_>, _>>()?;
    progress.phase("drawing", Unit::Bytes);
    if let Some(path) = &arguments.curves {
        let curves: Vec<_> = runs.iter().map(|run| &run.curves).collect();
        write(path, &chart::losses(&curves).map_err(Failure::failed)?)?;
    }
    let text = render(&runs, arguments.format)?;
    drop(progress);
    match &arguments.output {
        Some(path) => write(path, &text)?,
        None => console::result(text.trim_end()).map_err(Failure::failed)?,
    }
    Ok(exit::DONE)
}

fn render(runs: &[RunReport], format: ReportFormat) -> Result<String, Failure> {
    let names: Vec<&str> =
        runs.iter().map(|run| if run.name.is_empty() { &run.url } else { &run.name } as &str).collect();
    let title = names.join(", ");
    if format == ReportFormat::Json {
        return serde_json::to_string_pretty(runs).map(|text| text + "\n").map_err(Failure::failed);
    }
    let blocks = document::build(runs).map_err(Failure::failed)?;
    Ok(if format == ReportFormat::Html { html::render(&title, &blocks) } else { markdown::render(&title, &blocks) })
}

fn write(path: &Path, text: &str) -> Result<(), Failure> {
    files::write(path, |file| file.write_all(text.as_bytes())).map_err(Failure::failed)
}
