//! Thread that draws the progress of a command.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use crate::signals;
use crate::state::{Shared, Snapshot, Stage, Unit};
use crate::terminal::{elapsed, show};
use crate::text::{clock, rate, size};

/// Age of a command at which its bar appears.
const DELAY: Duration = Duration::from_secs(2);
/// Interval between two updates of the bar.
const PERIOD: Duration = Duration::from_millis(100);
/// Longest time left that is shown. A longer one means that nothing moves at the moment.
const MAX_TIME_LEFT: Duration = Duration::from_secs(100 * 3600);

/// Draws until the command is over, then removes the bar.
pub(crate) fn run(shared: &Shared) {
    let bar = ProgressBar::hidden();
    let (mut is_drawn, mut before) = (false, None);
    loop {
        let now = shared.snapshot();
        update(&bar, before.as_ref(), &now);
        before = Some(now);
        if !is_drawn && elapsed() >= DELAY {
            signals::clear_bars_before_exit();
            show(bar.clone());
            is_drawn = true;
        }
        bar.tick();
        if shared.wait(PERIOD, |stage| stage == Stage::Ending) {
            break;
        }
    }
    bar.finish_and_clear();
    shared.enter(Stage::Ended);
}

fn update(bar: &ProgressBar, before: Option<&Snapshot>, now: &Snapshot) {
    let is_new = before.is_none_or(|before| before.phase != now.phase);
    if is_new {
        bar.reset();
    }
    if before.is_none_or(|before| (before.total > 0) != (now.total > 0)) {
        bar.set_style(style(now.total > 0));
    }
    bar.set_prefix(now.label.clone());
    bar.set_length(now.total);
    bar.set_position(now.done);
    if is_new || before.is_some_and(|before| before.done == 0) && now.done > 0 {
        // The rate does not depend on the first amount, whose time is unknown or includes connections and listings.
        bar.tick();
        bar.reset_eta();
    }
    bar.set_message(message(now, &Speed { per_second: bar.per_sec(), left: bar.eta(), elapsed: bar.elapsed() }));
}

fn style(has_total: bool) -> ProgressStyle {
    // A bar fits into 80 columns.
    let template = if has_total { "{prefix} {bar:20} {wide_msg}" } else { "{spinner} {prefix} {wide_msg}" };
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}

/// Rate and times of a phase.
struct Speed {
    per_second: f64,
    left: Duration,
    elapsed: Duration,
}

/// Formats the text after the bar: `52.4 MB/210 MB, 50.4 MB/s, ETA 0:12`.
fn message(now: &Snapshot, speed: &Speed) -> String {
    let mut parts = Vec::new();
    if now.done > 0 || now.total > 0 {
        parts.push(amount(now));
    }
    match &now.detail {
        Some(detail) => parts.extend((!detail.is_empty()).then(|| detail.clone())),
        None => parts.extend((speed.per_second > 0.0).then(|| rate_of(now.unit, speed.per_second))),
    }
    let is_known = now.done > 0 && now.done < now.total && !speed.left.is_zero() && speed.left < MAX_TIME_LEFT;
    match now.total {
        0 => parts.push(clock(speed.elapsed.as_secs_f64())),
        _ if is_known => parts.push(format!("ETA {}", clock(speed.left.as_secs_f64()))),
        _ => {}
    }
    parts.join(", ")
}

fn amount(now: &Snapshot) -> String {
    match (now.unit, now.total) {
        (Unit::Bytes, 0) => size(now.done),
        (Unit::Bytes, total) => format!("{}/{}", size(now.done), size(total)),
        (Unit::Count(unit), 0) => format!("{} {unit}", now.done),
        (Unit::Count(unit), total) => format!("{}/{total} {unit}", now.done),
    }
}

fn rate_of(unit: Unit, per_second: f64) -> String {
    match unit {
        Unit::Bytes => format!("{}/s", size(per_second as u64)),
        Unit::Count(unit) => format!("{} {unit}/s", rate(per_second)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(unit: Unit, done: u64, total: u64, detail: Option<&str>) -> String {
        let now =
            Snapshot { phase: 0, label: "reading".into(), unit, done, total, detail: detail.map(ToOwned::to_owned) };
        let speed = Speed { per_second: 50.4e6, left: Duration::from_secs(192), elapsed: Duration::from_secs(5) };
        message(&now, &speed)
    }

    #[test]
    fn the_text_has_amounts_rate_and_time_left() {
        let bytes = |done, total| text(Unit::Bytes, done, total, None);
        assert_eq!(bytes(52_400_000, 210_000_000), "52.4 MB/210 MB, 50.4 MB/s, ETA 3:12");
        assert_eq!(bytes(210_000_000, 210_000_000), "210 MB/210 MB, 50.4 MB/s");
        assert_eq!(bytes(52_400_000, 0), "52.4 MB, 50.4 MB/s, 5 s");
        assert_eq!(text(Unit::Count("shards"), 2, 8, Some("")), "2/8 shards, ETA 3:12");
        assert_eq!(text(Unit::Bytes, 0, 0, Some("")), "5 s");
        assert_eq!(text(Unit::Bytes, 5, 9, Some("source 1/2")), "5 B/9 B, source 1/2, ETA 3:12");
    }
}
