//! `lambert data report`: statistics of a dataset in one file.

use std::io::Write;
use std::time::Instant;

use lambert_config::exit;
use lambert_data_prep::statistics::{DatasetStatistics, ScanOptions, scan};
use lambert_progress::{Progress, Unit};

use super::files;
use super::prep::peak_memory;
use crate::cli::{self, DataReportFormat};
use crate::console;
use crate::data_report::document;
use crate::failure::{Failure, Outcome};
use crate::report::html;
use crate::text::{counted, size};

/// Reads the dataset and writes the report.
pub fn data_report(arguments: &cli::DataReport) -> Outcome {
    let threads = arguments.threads.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
    let (progress, started) = (Progress::start("reading"), Instant::now());
    progress.phase("reading", Unit::Count("samples"));
    let update = |done, total| {
        progress.set_total(total);
        progress.set_done(done);
    };
    let options = ScanOptions { threads, samples: arguments.samples, seed: arguments.seed, progress: &update };
    let found = scan(&arguments.dataset, &options)?;
    let text = render(&found, arguments.format)?;
    files::write(&arguments.output, |file| file.write_all(text.as_bytes())).map_err(Failure::failed)?;
    let memory = peak_memory().map_or(String::new(), |bytes| format!(", peak memory {}", size(bytes)));
    let (samples, seconds) = (counted(found.read.samples, "sample"), started.elapsed().as_secs_f64());
    drop(progress);
    console::line(&format!("read {samples} of {} in {seconds:.1} s{memory}", found.counts.samples));
    console::result(&arguments.output.display().to_string()).map_err(Failure::failed)?;
    Ok(exit::DONE)
}

fn render(found: &DatasetStatistics, format: DataReportFormat) -> Result<String, Failure> {
    if format == DataReportFormat::Json {
        return serde_json::to_string_pretty(found).map(|text| text + "\n").map_err(Failure::failed);
    }
    let blocks = document::build(found).map_err(Failure::failed)?;
    Ok(html::render(&found.url, &blocks))
}
