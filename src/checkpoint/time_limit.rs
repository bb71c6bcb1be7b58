//! Time limits of saves, which detect a write that never returns. Only the clock of rank 0 counts. The other ranks
//! learn the verdict from the vote after a step.

use std::time::Duration;

use lambert_collective::Group;
use lambert_config::RunConfig;

use crate::error::Error;
use crate::worker::agreement;

/// Fraction of the limit after which a save is reported as slow.
const SLOW: f64 = 0.1;

/// Time limits of a save.
#[derive(Debug, Clone, PartialEq)]
pub struct SaveTimeLimit {
    /// Limit on the time since the beginning of a save, seconds; infinite if disabled.
    total: f64,
    /// The limit and its configuration key, for messages.
    total_text: String,
    /// Limit on the time since a stop request, seconds; infinite if disabled.
    stop: f64,
}

/// State of a save relative to its time limits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SaveTiming {
    /// Within the limits.
    InTime,
    /// Within the limits, but slow.
    Slow,
    /// Over a limit, which the text names.
    Over(String),
}

impl SaveTimeLimit {
    /// Uses `checkpoint.give_up_minutes` as the limit of a save. If that key is 0, the first failure ends the run, and
    /// `cluster.limits.save_seconds` limits a save in progress.
    pub fn new(config: &RunConfig) -> Self {
        let (minutes, limits) = (config.checkpoint.give_up_minutes, &config.cluster.limits);
        let (total, total_text) = match minutes > 0.0 {
            true => (60.0 * minutes, format!("{minutes} minutes (checkpoint.give_up_minutes)")),
            false => (limits.save_seconds, format!("{} s (cluster.limits.save_seconds)", limits.save_seconds)),
        };
        let limit = |seconds: f64| if seconds > 0.0 { seconds } else { f64::INFINITY };
        Self { total: limit(total), total_text, stop: limit(limits.stop_seconds) }
    }

    /// Judges a save that began `took` ago. `stopping` is the time since the stop request; `None` without a request.
    pub fn judge(&self, took: Duration, stopping: Option<Duration>) -> SaveTiming {
        if let Some(message) = self.exceeded_stop_limit(stopping) {
            return SaveTiming::Over(message);
        }
        match took.as_secs_f64() {
            took if took >= self.total => SaveTiming::Over(format!("within {}", self.total_text)),
            took if took >= SLOW * self.total => SaveTiming::Slow,
            _ => SaveTiming::InTime,
        }
    }

    /// Returns a description of the stop limit if it is exceeded. `stopping` is the time since the stop request; `None`
    /// without one.
    pub fn exceeded_stop_limit(&self, stopping: Option<Duration>) -> Option<String> {
        let over = stopping.is_some_and(|stopping| stopping.as_secs_f64() >= self.stop);
        over.then(|| format!("within {} s of the request to stop (cluster.limits.stop_seconds)", self.stop))
    }

    /// Warning about the limit of a slow save.
    pub fn warning(&self) -> String {
        format!("the run ends if it is not saved within {}", self.total_text)
    }
}

/// Returns the text `beginning` of rank 0, followed by a list of the objects that each rank is still writing.
/// Collective. Returns the same text on all ranks. `own` are the URLs of the objects that this rank is still writing.
///
/// # Errors
/// A failed collective.
pub fn gather(collective: &mut dyn Group, own: &[String], beginning: String) -> Result<String, Error> {
    agreement::gather_and_decide(collective, &own.to_vec(), |all: &[Vec<String>]| {
        format!("{beginning}: {}", describe(all))
    })
}

/// Describes the first few ranks that are still writing, and counts the others. `waits` has the URLs of the objects
/// that each rank is still writing.
fn describe(waits: &[Vec<String>]) -> String {
    const SHOWN: usize = 4;
    let waiting: Vec<_> = waits.iter().enumerate().filter(|(_, urls)| !urls.is_empty()).collect();
    let shown = waiting.iter().take(SHOWN).map(|(rank, urls)| format!("rank {rank} is writing {}", urls.join(", ")));
    let shown: Vec<String> = shown.collect();
    match (shown.is_empty(), waiting.len().saturating_sub(SHOWN)) {
        (true, _) => "all ranks have written".to_owned(),
        (false, 0) => shown.join("; "),
        (false, more) => format!("{}; and {more} more ranks are writing", shown.join("; ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(minutes: f64, save: f64, stop: f64) -> SaveTimeLimit {
        let mut config = RunConfig::default();
        config.checkpoint.give_up_minutes = minutes;
        (config.cluster.limits.save_seconds, config.cluster.limits.stop_seconds) = (save, stop);
        SaveTimeLimit::new(&config)
    }

    fn judge(limit: &SaveTimeLimit, took: f64, stopping: Option<f64>) -> SaveTiming {
        limit.judge(Duration::from_secs_f64(took), stopping.map(Duration::from_secs_f64))
    }

    #[test]
    fn a_save_is_slow_after_a_tenth_of_its_limit() {
        let limit = limit(2.0, 3600.0, 600.0);
        assert_eq!(judge(&limit, 11.9, None), SaveTiming::InTime);
        assert_eq!(judge(&limit, 12.0, None), SaveTiming::Slow);
        assert_eq!(judge(&limit, 119.9, Some(119.9)), SaveTiming::Slow);
        let over = SaveTiming::Over("within 2 minutes (checkpoint.give_up_minutes)".into());
        assert_eq!(judge(&limit, 120.0, None), over);
    }

    #[test]
    fn a_stop_has_a_separate_limit() {
        let limit = limit(120.0, 3600.0, 30.0);
        assert_eq!(judge(&limit, 600.0, Some(29.0)), SaveTiming::InTime);
        let over = "within 30 s of the request to stop (cluster.limits.stop_seconds)";
        assert_eq!(judge(&limit, 1.0, Some(30.0)), SaveTiming::Over(over.into()));
        assert_eq!(limit.exceeded_stop_limit(Some(Duration::from_secs(31))).as_deref(), Some(over));
        assert_eq!(limit.exceeded_stop_limit(None), None);
    }

    #[test]
    fn zero_minutes_do_not_end_a_save_in_progress() {
        let limited = limit(0.0, 100.0, 600.0);
        assert_eq!(judge(&limited, 0.0, None), SaveTiming::InTime);
        assert_eq!(judge(&limited, 99.0, None), SaveTiming::Slow);
        let over = SaveTiming::Over("within 100 s (cluster.limits.save_seconds)".into());
        assert_eq!(judge(&limited, 100.0, None), over);
        let endless = limit(0.0, 0.0, 0.0);
        assert_eq!(judge(&endless, 1e6, Some(1e6)), SaveTiming::InTime);
    }

    #[test]
    fn the_first_waiting_ranks_are_named_and_the_rest_counted() {
        let none: Vec<String> = Vec::new();
        assert_eq!(describe(&[none.clone(), vec!["/r/a".into()], none]), "rank 1 is writing /r/a");
        let many: Vec<Vec<String>> = (0..6).map(|rank| vec![format!("/r/{rank}")]).collect();
        assert!(describe(&many).ends_with("rank 3 is writing /r/3; and 2 more ranks are writing"));
    }
}
