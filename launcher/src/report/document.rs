//! Report as headings, tables, code and charts, independent of the output format.

use lambert_store::run::CONFIG;

use super::chart::Point;
use super::chart::{self, ChartError};
use super::collect::RunReport;
use super::gpus::{self, XidReport};
use crate::status::goodput::TimeCategory;
use crate::text::{counted, duration, gib, percent, rate};

/// Part of a report.
#[derive(Debug)]
pub enum Block {
    Heading(String),
    Paragraph(String),
    /// Rows of cells; the first row is the header.
    Table(Vec<Vec<String>>),
    /// Text in a section that is folded at first, with a title.
    Code(String, String),
    /// Lines of code, with the name of the language.
    Snippet(&'static str, String),
    /// An SVG image with its description.
    Picture(String, String),
}

/// Builds the report of runs. Two and more runs are compared, with one column each.
///
/// # Errors
/// A chart that cannot be drawn.
pub fn build(runs: &[RunReport]) -> Result<Vec<Block>, ChartError> {
    let curves: Vec<_> = runs.iter().map(|run| &run.curves).collect();
    let mut blocks = vec![Block::Heading("Results".to_owned()), Block::Table(results(runs))];
    let picture = |svg: String, text: &str| Block::Picture(svg, text.to_owned());
    blocks.push(picture(chart::losses(&curves)?, "Training and held-out loss against steps"));
    for (value, name) in [
        (chart::PlottedMetric::LearningRate, "learning rate"),
        (chart::PlottedMetric::GradientNorm, "gradient norm"),
        (chart::PlottedMetric::SamplesPerSecond, "samples per second"),
    ] {
        blocks.push(picture(chart::small(&curves, value, name)?, name));
    }
    for run in runs {
        blocks.extend(of_run(run, runs.len() > 1));
    }
    let versions = format!("Written by lambert {}.", lambert_control::version_text());
    blocks.push(Block::Paragraph(versions));
    Ok(blocks)
}

/// Name of a run for headings: its name, or its URL if another run has the same name.
fn title<'a>(run: &'a RunReport, runs: &[RunReport]) -> &'a str {
    let is_unique = runs.iter().filter(|other| other.name == run.name).count() == 1;
    if is_unique && !run.name.is_empty() { &run.name } else { &run.url }
}

/// Change of a main loss from the first evaluation to the last.
fn change(first: Option<Point>, curve: &[Point]) -> String {
    match (first, curve) {
        (Some((step, before)), [.., (last, now)]) if *last > step => {
            format!("{:+.4} nats since step {step}", now - before)
        }
        _ => String::new(),
    }
}

fn results(runs: &[RunReport]) -> Vec<Vec<String>> {
    let mut rows =
        vec![std::iter::once(String::new()).chain(runs.iter().map(|run| title(run, runs).to_owned())).collect()];
    let mut row = |name: &str, value: &dyn Fn(&RunReport) -> String| {
        let cells: Vec<String> = runs.iter().map(value).collect();
        if cells.iter().any(|cell| !cell.is_empty()) {
            rows.push(std::iter::once(name.to_owned()).chain(cells).collect());
        }
    };
    let nats = |value: Option<f64>| value.map_or(String::new(), |value| format!("{value:.4} nats"));
    row("state", &|run| run.state.clone());
    row("error", &|run| run.error.clone().unwrap_or_default());
    row("steps", &|run| format!("{} of {}", run.steps, run.planned_steps));
    row("samples", &|run| run.samples.to_string());
    row("tokens without padding", &|run| run.tokens.to_string());
    row("FLOPs", &|run| run.flops.map_or(String::new(), |flops| format!("{flops:.2e}")));
    let mut names: Vec<&String> = runs.iter().flat_map(|run| run.losses.keys().chain(run.held_out.keys())).collect();
    names.sort();
    names.dedup();
    for name in names {
        row(&format!("{name} loss, mean of the last 20 steps"), &|run| nats(run.losses.get(name).copied()));
        row(&format!("{name} loss, held-out"), &|run| nats(run.held_out.get(name).copied()));
        let share = |value: Option<&f64>| value.map_or(String::new(), |value| percent(*value));
        row(&format!("{name} accuracy, mean of the last 20 steps"), &|run| share(run.accuracies.get(name)));
        row(&format!("{name} accuracy, held-out"), &|run| share(run.held_out_accuracies.get(name)));
    }
    let mut extra: Vec<(&String, &String)> = Vec::new();
    for report in runs.iter().flat_map(|run| &run.extra) {
        extra.extend(report.losses.keys().map(|loss| (&report.name, loss)));
    }
    extra.sort();
    extra.dedup();
    for (dataset, loss) in &extra {
        let of = |run: &RunReport| {
            let report = run.extra.iter().find(|report| report.name == **dataset)?;
            Some((report.losses.get(*loss).copied(), report.accuracies.get(*loss).copied()))
        };
        row(&format!("{loss} loss, {dataset}"), &|run| nats(of(run).and_then(|(value, _)| value)));
        row(&format!("{loss} accuracy, {dataset}"), &|run| {
            of(run).and_then(|(_, share)| share).map_or(String::new(), percent)
        });
    }
    if !extra.is_empty() {
        row("change of the held-out loss", &|run| change(run.first_held_out, &run.curves.held_out));
    }
    for (dataset, _) in extra.chunk_by(|a, b| a.0 == b.0).map(|group| group[0]) {
        row(&format!("change of the loss, {dataset}"), &|run| {
            let report = run.extra.iter().find(|report| report.name == *dataset);
            report.map_or(String::new(), |report| change(report.first, &report.curve))
        });
    }
    row("best held-out loss", &|run| {
        run.best_held_out.map_or(String::new(), |(step, loss)| format!("{loss:.4} nats at step {step}"))
    });
    row("unigram baseline", &|run| nats(run.unigram_entropy));
    row("samples per second, median", &|run| rate(run.samples_per_second));
    row("peak memory of a rank", &|run| run.peak_memory.map_or(String::new(), gib));
    for (name, text) in gpus::ROWS {
        row(name, &|run| run.gpu.as_ref().and_then(text).unwrap_or_default());
    }
    row("time of the steps", &|run| duration(run.step_seconds));
    row("undone steps", &|run| {
        let share = run.undone_seconds / (run.step_seconds + run.undone_seconds).max(f64::MIN_POSITIVE);
        format!("{} ({} of the time)", run.undone_steps, percent(share))
    });
    row("failures", &|run| match run.failures.len() {
        0 => "none".to_owned(),
        failures => format!("{}, {} to recover", counted(failures as u64, "failure"), duration(run.recovery_seconds)),
    });
    row("goodput", &|run| {
        run.goodput
            .as_ref()
            .map_or(String::new(), |goodput| format!("{} of {}", percent(goodput.share()), duration(goodput.total())))
    });
    row("skipped samples", &|run| run.skipped_samples.to_string());
    row("skipped updates", &|run| run.skipped_updates.to_string());
    row("steps with a spike of loss or gradient", &|run| run.spike_score.map_or(String::new(), percent));
    row("newest checkpoint", &|run| run.checkpoint.clone().unwrap_or_default());
    rows
}

/// Names of columns.
pub fn head(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

fn of_run(run: &RunReport, is_compared: bool) -> Vec<Block> {
    let heading = |text: &str| match is_compared {
        true => Block::Heading(format!("{text}: {}", run.url)),
        false => Block::Heading(text.to_owned()),
    };
    let mut stages = vec![head(&["stage", "layers", "steps", "samples", "tokens", "FLOPs", "final loss", "data"])];
    stages.extend(run.stages.iter().map(|stage| {
        vec![
            stage.name.clone(),
            stage.layers.to_string(),
            stage.steps.to_string(),
            stage.samples.to_string(),
            stage.tokens.to_string(),
            format!("{:.2e}", stage.flops),
            if stage.final_loss.is_finite() { format!("{:.4}", stage.final_loss) } else { String::new() },
            stage.data.clone(),
        ]
    }));
    let mut blocks = vec![heading("Stages"), Block::Table(stages)];
    if !run.failures.is_empty() {
        let mut rows = vec![head(&["attempt", "step", "time to recover", "cause"])];
        rows.extend(run.failures.iter().map(|failure| {
            let recovery = failure.recovery_seconds.map_or("not recovered".to_owned(), duration);
            vec![failure.attempt.to_string(), failure.step.to_string(), recovery, failure.cause.clone()]
        }));
        blocks.extend([heading("Failures"), Block::Table(rows)]);
    }
    if !run.xids.is_empty() {
        let mut rows = vec![head(&["rank", "host", "GPU", "Xid errors in the last attempt"])];
        rows.extend(run.xids.iter().map(XidReport::cells));
        blocks.extend([heading("Xid errors"), Block::Table(rows)]);
    }
    if let Some(goodput) = &run.goodput {
        let mut rows = vec![head(&["wall-clock time", "", "share"])];
        let share = |seconds: f64| percent(seconds / goodput.total());
        let row = |(category, seconds): (TimeCategory, f64)| {
            vec![category.name().replace('_', " "), duration(seconds), share(seconds)]
        };
        rows.extend(goodput.by_time().into_iter().map(row));
        blocks.extend([heading("Goodput"), Block::Table(rows)]);
    }
    if !run.datasets_sha256.is_empty() {
        let mut rows = vec![head(&["SHA-256 of the dataset manifest"])];
        rows.extend(run.datasets_sha256.iter().map(|sha256| vec![sha256.clone()]));
        blocks.extend([heading("Data"), Block::Table(rows)]);
    }
    blocks.extend([heading("Configuration"), Block::Code(CONFIG.to_owned(), run.config.clone())]);
    blocks
}
