//! `lambert prep`: text to a dataset.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use lambert_config::{Layers, PrepConfig, exit};
use lambert_data_prep::prep::{self, Finished, Options, PrepError, Report, Status};

use crate::cli;
use crate::console;
use crate::failure::{Failure, Outcome};

/// Time between lines where there is no terminal.
const PERIOD: Duration = Duration::from_secs(10);

/// Prepares the datasets, or says that they are there.
pub fn prep(arguments: &cli::Prep) -> Outcome {
    let config: PrepConfig = Layers::from_process(&arguments.sets).load(&arguments.config)?;
    let threads = arguments.threads.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
    let display = Display::default();
    let progress = |status: &Status| display.show(status);
    let options = Options { threads, part: arguments.part, progress: &progress };
    let report = prep::run(&config, &options);
    display.end();
    let report = report.map_err(failure)?;
    let text =
        if arguments.json { serde_json::to_string(&report).map_err(Failure::failed)? } else { described(&report) };
    console::result(&text).map_err(Failure::failed)?;
    Ok(exit::DONE)
}

/// What the user has to mend is a usage error; what happened on the way is a failure.
pub fn failure(error: PrepError) -> Failure {
    if error.is_usage() { Failure::usage(error) } else { Failure::failed(error) }
}

fn described(report: &Report) -> String {
    let megabytes = report.input_bytes as f64 / 1e6;
    let mut lines = vec![format!(
        "{} files, {megabytes:.1} MB{}",
        report.files,
        if report.unchanged { ": nothing to do, the datasets are there" } else { "" }
    )];
    lines.extend(report.datasets.iter().map(dataset));
    if report.datasets.is_empty() {
        lines.push("this part is done; the same command without --part joins all parts".to_owned());
    } else if let Some(first) = report.datasets.first() {
        lines.extend(first.manifest.counts.rejected.iter().map(|(why, count)| format!("  {count} {why}")));
    }
    lines.join("\n")
}

fn dataset(Finished { url, manifest }: &Finished) -> String {
    let counts = &manifest.counts;
    format!(
        "{url}: {} documents, {} sentences, {} samples, {} tokens in {} shards; unigram entropy {:.4} nats",
        counts.documents,
        counts.sentences,
        counts.samples,
        counts.tokens,
        manifest.shards.len(),
        manifest.unigram_entropy
    )
}

/// A bar, or a line now and then.
#[derive(Default)]
struct Display(Mutex<Shown>);

#[derive(Default)]
struct Shown {
    phase: &'static str,
    bar: Option<ProgressBar>,
    line: Option<Instant>,
}

impl Display {
    fn show(&self, status: &Status) {
        let mut shown = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let new = shown.phase != status.phase;
        shown.phase = status.phase;
        if console::is_terminal() {
            if new && let Some(bar) = shown.bar.replace(console::show(bar(status))) {
                bar.finish_and_clear();
            }
            if let Some(bar) = &shown.bar {
                bar.set_position(status.done);
            }
        } else if new || shown.line.is_none_or(|at| at.elapsed() >= PERIOD) {
            console::line(&line(status));
            shown.line = Some(Instant::now());
        }
    }

    fn end(&self) {
        let mut shown = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(bar) = shown.bar.take() {
            bar.finish_and_clear();
        }
    }
}

fn bar(status: &Status) -> ProgressBar {
    let template = match status.unit {
        "bytes" => "{prefix} {bar:30} {bytes}/{total_bytes}  {bytes_per_sec}  {eta} left",
        _ => "{prefix} {bar:30} {pos}/{len} {msg}  {eta} left",
    };
    let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(status.total).with_style(style).with_prefix(status.phase).with_message(status.unit)
}

fn line(status: &Status) -> String {
    let share = 100.0 * status.done as f64 / status.total.max(1) as f64;
    format!("{}: {} of {} {} ({share:.0} %)", status.phase, status.done, status.total, status.unit)
}
