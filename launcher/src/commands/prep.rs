//! `lambert prep`: prepares datasets from text.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use lambert_config::{Layers, exit};
use lambert_data_prep::prep::{
    self, PrepError, PrepOptions, PrepPlan, PrepProgress, PrepReport, PrepStatus, PreparedDataset,
};
use lambert_data_prep::source::{self, SkipNotice, SourceError};
use lambert_dataset::{HeldOut, SourceCounts};
use lambert_progress::terminal::shows_bars;
use lambert_progress::{Progress, Unit};

use crate::cli;
use crate::console;
use crate::failure::{Failure, Outcome};
use crate::text::{clock, counted, size};

/// Interval between progress lines if no bar is shown.
const PERIOD: Duration = Duration::from_secs(10);

/// Maximum number of skipped input locations to print per reason.
const NAMED: u64 = 20;
const MORE: u64 = NAMED + 1;

/// Prepares the datasets, unless they are up to date.
pub fn prep(arguments: &cli::Prep) -> Outcome {
    let config = prep::load(&Layers::from_process(&arguments.sets), &arguments.config)?;
    source::unused_settings(&config).iter().for_each(|setting| tracing::warn!("{setting}"));
    let threads = arguments.threads.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
    let display = PrepDisplay::start();
    let started = Instant::now();
    let options = PrepOptions { threads, memory: arguments.memory, part: arguments.part, progress: &display };
    let report = prep::run(&config, &options);
    display.end();
    let report = report.map_err(failure)?;
    let text =
        if arguments.json { serde_json::to_string(&report).map_err(Failure::failed)? } else { described(&report) };
    console::line(&cost(started.elapsed(), &report));
    console::result(&text).map_err(Failure::failed)?;
    Ok(exit::DONE)
}

/// Maps an error of `lambert prep` to a failure with an exit code: usage errors to `USAGE`, other errors to `FAILED`.
pub fn failure(error: PrepError) -> Failure {
    if error.is_usage() { Failure::usage(error) } else { Failure::failed(error) }
}

/// As [`failure`], for a command without a configuration of sources. An error about an input names `option`, which names
/// the inputs.
pub fn input_failure(error: PrepError, option: &str) -> Failure {
    match error {
        PrepError::Source(SourceError::NoFiles { path, reason, .. }) => {
            Failure::usage(format!("{option} {path}: {reason}"))
        }
        error => failure(error),
    }
}

fn described(report: &PrepReport) -> String {
    let unchanged = if report.unchanged { ": datasets are up to date" } else { "" };
    let mut lines =
        vec![format!("input: {}, {}{unchanged}", counted(report.files as u64, "file"), size(report.input_bytes))];
    if let Some(first) = report.datasets.first() {
        lines.extend(table(&first.manifest.sources));
    }
    let done = if report.unchanged { "" } else { "wrote " };
    lines.extend(report.datasets.iter().map(|prepared| format!("{done}{}", dataset(prepared))));
    lines.extend(report.held_out.iter().map(held_out));
    if report.datasets.is_empty() {
        lines.push("this part is complete; run the same command without --part to merge all parts".to_owned());
    } else if let Some(first) = report.datasets.first() {
        lines.extend(first.manifest.counts.rejected.iter().map(|(why, count)| format!("rejected: {count} {why}")));
    }
    lines.join("\n")
}

fn dataset(PreparedDataset { url, manifest }: &PreparedDataset) -> String {
    let counts = &manifest.counts;
    format!(
        "{url}: {} documents, {} sentences, {} samples, {} tokens, {}; unigram entropy {:.4} nats/token",
        counts.documents,
        counts.sentences,
        counts.samples,
        counts.tokens,
        counted(manifest.shards.len() as u64, "shard"),
        manifest.unigram_entropy
    )
}

fn held_out(HeldOut { configured, achieved, block_tokens }: &HeldOut) -> String {
    let how = match block_tokens {
        _ if *achieved == 0.0 => ": the corpus cannot be divided".to_owned(),
        Some(tokens) => format!(", in blocks of about {tokens} tokens (whole documents are too large)"),
        None => String::new(),
    };
    // Shares below 1% need more decimals.
    let percent = |share: f64| format!("{:.*}%", if share < 0.01 { 3 } else { 1 }, 100.0 * share);
    format!("held out {} of the tokens ({} requested){how}", percent(*achieved), percent(*configured))
}

/// Formats a summary of time, throughput and peak memory.
fn cost(time: Duration, report: &PrepReport) -> String {
    let seconds = time.as_secs_f64();
    let mut text = format!("done in {seconds:.1} s");
    let sources = report.datasets.first().map_or(&[][..], |first| &first.manifest.sources);
    let bytes: u64 = sources.iter().map(|source| source.text_bytes).sum();
    if bytes > 0 && !report.unchanged {
        text += &format!(": {:.1} MB/s", bytes as f64 / 1e6 / seconds);
    }
    match peak_memory() {
        Some(bytes) => format!("{text}, peak memory {:.0} MB", bytes as f64 / 1e6),
        None => text,
    }
}

/// Peak resident set size of this process, bytes.
pub fn peak_memory() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok().map(|kilobytes| kilobytes * 1024)
}

/// Formats a table with one line per source.
fn table(sources: &[SourceCounts]) -> Vec<String> {
    let row = |cells: [String; 8]| {
        let [name, files, stored, text, found, used, sentences, tokens] = cells;
        format!("{name:<13}{files:>7}{stored:>11}{text:>11}{found:>11}{used:>11}{sentences:>12}{tokens:>14}")
    };
    let head = ["source", "files", "stored MB", "text MB", "documents", "used", "sentences", "tokens"];
    let megabytes = |bytes: u64| format!("{:.1}", bytes as f64 / 1e6);
    let source = |(number, source): (usize, &SourceCounts)| {
        let kind = if source.excluded { "excluded".to_owned() } else { source.format.to_string() };
        let count = |number: u64| number.to_string();
        row([
            format!("{number} {kind}"),
            count(source.files),
            megabytes(source.stored_bytes),
            megabytes(source.text_bytes),
            count(source.found),
            count(source.documents),
            count(source.sentences),
            count(source.tokens),
        ])
    };
    std::iter::once(row(head.map(str::to_owned))).chain(sources.iter().enumerate().map(source)).collect()
}

/// Progress bar on a terminal, otherwise periodic lines.
struct PrepDisplay(Mutex<Shown>);

#[derive(Default)]
struct Shown {
    phase: &'static str,
    sources: usize,
    begun: Option<Instant>,
    left_out: HashMap<&'static str, u64>,
    /// `None` without a terminal.
    bar: Option<Progress>,
    line: Option<Instant>,
}

impl PrepProgress for PrepDisplay {
    fn start(&self, plan: &PrepPlan) {
        let mut shown = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        (shown.phase, shown.begun, shown.sources) = ("", Some(Instant::now()), plan.sources);
        drop(shown);
        console::line(&format!(
            "input: {}, {}; work folder: {} in {} ({} free)",
            counted(plan.files as u64, "file"),
            size(plan.input_bytes),
            size(plan.space.needed),
            plan.space.folder.display(),
            size(plan.space.free)
        ));
    }

    fn lock_unavailable(&self, folder: &Path) {
        let folder = folder.display();
        console::line(&format!(
            "{folder}: no file locks on this file system: a second preparation there would go unnoticed"
        ));
    }

    fn skipped(&self, file: &str, notice: &SkipNotice) {
        let mut shown = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = shown.left_out.entry(notice.reason).or_default();
        *count += 1;
        let count = *count;
        drop(shown);
        let title = notice.title.as_ref().map_or(String::new(), |title| format!(" ({title})"));
        match count {
            ..=NAMED => console::line(&format!("{}: {file}, byte {}{title}", notice.reason, notice.offset)),
            MORE => console::line(&format!("{}: further occurrences are only counted", notice.reason)),
            _ => {}
        }
    }

    fn update(&self, status: &PrepStatus) {
        let mut shown = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let new = shown.phase != status.phase;
        if new && !shown.phase.is_empty() {
            shown.begun = Some(Instant::now());
        }
        shown.phase = status.phase;
        let elapsed = shown.begun.map_or(0.0, |begun| begun.elapsed().as_secs_f64());
        if let Some(bar) = &shown.bar {
            if new {
                bar.phase(status.phase, if status.unit == "bytes" { Unit::Bytes } else { Unit::Count(status.unit) });
            }
            bar.set_total(status.total);
            bar.set_done(status.done);
            let detail = detail(status, shown.sources, elapsed);
            if let Some(detail) = detail.strip_prefix(", ") {
                bar.set_detail(detail.to_owned());
            }
        } else if new || shown.line.is_none_or(|at| at.elapsed() >= PERIOD) {
            console::line(&line(status, shown.sources, elapsed));
            shown.line = Some(Instant::now());
        }
    }
}

impl PrepDisplay {
    /// Shows that the input is searched.
    fn start() -> Self {
        let bar = shows_bars().then(|| Progress::start("searching the input"));
        Self(Mutex::new(Shown { bar, ..Shown::default() }))
    }

    /// Removes the bar.
    fn end(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).bar = None;
    }
}

/// Formats a progress line: `tokenizing 2.2/2.3 MB (98%), source 1/1, 50.4 MB/s, ETA 0 s`.
fn line(status: &PrepStatus, sources: usize, elapsed: f64) -> String {
    let share = status.done as f64 / status.total.max(1) as f64;
    let left = if share > 0.0 { format!(", ETA {}", clock(elapsed / share * (1.0 - share))) } else { String::new() };
    let percent = 100.0 * share;
    let detail = detail(status, sources, elapsed);
    let amount = match status.unit {
        "bytes" => format!("{:.1}/{:.1} MB", status.done as f64 / 1e6, status.total as f64 / 1e6),
        unit => format!("{}/{} {unit}", status.done, status.total),
    };
    format!("{} {amount} ({percent:.0}%){detail}{left}", status.phase)
}

/// Formats the current source and the throughput.
fn detail(status: &PrepStatus, sources: usize, elapsed: f64) -> String {
    let source = status.source.map_or(String::new(), |source| format!(", source {}/{sources}", source + 1));
    if status.text_bytes == 0 || elapsed <= 0.0 {
        return source;
    }
    format!("{source}, {:.1} MB/s", status.text_bytes as f64 / 1e6 / elapsed)
}
