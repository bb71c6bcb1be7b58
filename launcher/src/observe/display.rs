//! Training progress on stderr, as a progress bar on a terminal, otherwise as periodic lines.

use std::time::{Duration, Instant};

use lambert_control::Score;
use lambert_control::StepRecord;
use lambert_progress::terminal::shows_bars;

use super::Throughput;
use crate::console::{self, Bar, BarState};
use crate::text::{clock, percent, rate};

/// Number of initial steps that are always printed.
const FIRST: usize = 5;
/// Interval between lines after the first `FIRST` lines.
const PERIOD: Duration = Duration::from_secs(10);

/// Shows the steps of a run on standard error.
#[derive(Debug)]
pub struct ProgressDisplay {
    bar: bool,
    steps: u64,
    lines: usize,
    last: Option<(Instant, u64)>,
}

impl ProgressDisplay {
    /// Creates the display for a run of `steps` steps. Uses a progress bar if stderr can show it.
    pub fn new(steps: u64) -> Self {
        Self { bar: shows_bars(), steps, lines: 0, last: None }
    }

    /// Updates the total number of steps.
    pub fn set_steps(&mut self, steps: u64) {
        self.steps = steps;
    }

    /// Shows a completed step.
    pub fn step(&mut self, record: &StepRecord, throughput: &Throughput) {
        if self.bar {
            let message = brief(record, throughput, self.steps);
            console::draw(Bar::Shown(BarState { position: record.step, length: self.steps, message }));
        } else if due(record.step, self.steps, self.lines, self.last.map(|(at, step)| (at.elapsed(), step))) {
            console::line(&line(record, throughput, self.steps));
            self.lines += 1;
            self.last = Some((Instant::now(), record.step));
        }
    }

    /// Removes the progress bar but not the lines above it.
    pub fn end(&mut self) {
        console::draw(Bar::Removed);
    }
}

/// True if a step is printed. The first steps and the last step are printed. Between them, a step is printed every ten
/// seconds and every 5% of the run.
fn due(step: u64, steps: u64, lines: usize, last: Option<(Duration, u64)>) -> bool {
    let Some((ago, shown)) = last else { return true };
    let twentieth = (steps / 20).max(1);
    // The first step after a restart is also printed. The number of this step is not above the last printed number.
    let passed = step / twentieth != shown / twentieth;
    lines < FIRST || step >= steps || step <= shown || ago >= PERIOD || (passed && ago >= PERIOD / 20)
}

/// Formats a line: `step 120/300  loss 7.3101  mlm 6.8125  acc 5.1%  lr 1.80e-3  44 samples/s  data wait 0.4%  ETA
/// 4:05`.
fn line(record: &StepRecord, throughput: &Throughput, steps: u64) -> String {
    let wait = percent(ratio(record.times.data_wait, record.times.seconds));
    let Score { name, loss, accuracy, .. } = record.scores.main();
    let accuracy = accuracy.map_or(String::new(), |accuracy| format!("  acc {}", percent(accuracy)));
    format!(
        "step {}/{steps}  loss {:.4}  {name} {loss:.4}{accuracy}  lr {:.2e}  {} samples/s  data wait {wait}{}",
        record.step,
        record.loss,
        record.update.learning_rate,
        rate(throughput.samples_per_second()),
        left(record, throughput, steps),
    )
}

fn brief(record: &StepRecord, throughput: &Throughput, steps: u64) -> String {
    let left = left(record, throughput, steps);
    let Score { name, loss, .. } = record.scores.main();
    format!("loss {:.3}  {name} {loss:.3}  {} samples/s{left}", record.loss, rate(throughput.samples_per_second()))
}

fn left(record: &StepRecord, throughput: &Throughput, steps: u64) -> String {
    match throughput.seconds_after(record, steps) {
        Some(seconds) if steps > record.step => format!("  ETA {}", clock(seconds)),
        _ => String::new(),
    }
}

fn ratio(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use lambert_control::{BatchStats, StepTimes, UpdateStats};

    use super::*;

    fn record(step: u64) -> StepRecord {
        StepRecord {
            step,
            batch: BatchStats { samples: 64, ..BatchStats::default() },
            loss: 7.5,
            scores: [Score::new("mlm", 6.8125, Some(0.05))].into_iter().collect(),
            update: UpdateStats { learning_rate: 0.0018, ..UpdateStats::default() },
            times: StepTimes { seconds: 2.0, data_wait: 0.01, ..StepTimes::default() },
            ..StepRecord::default()
        }
    }

    #[test]
    fn a_step_line_has_position_loss_and_rates() {
        let mut throughput = Throughput::default();
        throughput.add(&record(120));
        assert_eq!(
            line(&record(120), &throughput, 300),
            "step 120/300  loss 7.5000  mlm 6.8125  acc 5.0%  lr 1.80e-3  32 samples/s  data wait 0.5%  ETA 6:00"
        );
        assert!(line(&record(300), &throughput, 300).ends_with("data wait 0.5%"));
    }

    #[test]
    fn first_last_and_periodic_steps_are_printed() {
        let soon = Duration::from_millis(10);
        assert!(due(1, 1000, 0, None));
        assert!(due(3, 1000, 2, Some((soon, 2))));
        assert!(!due(20, 1000, 5, Some((soon, 19))));
        assert!(due(20, 1000, 5, Some((PERIOD, 19))));
        assert!(!due(50, 1000, 5, Some((soon, 49))), "a fast run prints no line a step");
        assert!(due(50, 1000, 5, Some((PERIOD / 20, 49))));
        assert!(due(40, 1000, 5, Some((soon, 60))), "back after a restart");
        assert!(due(1000, 1000, 50, Some((soon, 999))));
    }
}
