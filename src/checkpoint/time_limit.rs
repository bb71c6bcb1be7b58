//! How long a save may take. A write that never returns would otherwise end checkpointing without a word. Only rank 0's clock
//! counts: the other ranks learn the verdict from the agreement after a step.

use std::time::Duration;

use lambert_collective::Group;
use lambert_config::RunConfig;

use crate::error::Error;
use crate::worker::agreement;

/// After this part of its time a save is reported as slow.
const SLOW: f64 = 0.1;

/// The time limits of a save.
#[derive(Debug, Clone, PartialEq)]
pub struct TimeLimit {
    /// From its beginning, seconds; infinite without a limit.
    total: f64,
    /// The limit and its key, for messages.
    total_text: String,
    /// From a request to stop, seconds; infinite without a limit.
    stop: f64,
}

/// How a save stands by the clock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    /// Within its time.
    InTime,
    /// Within its time, and slower than is usual.
    Slow,
    /// Over a limit, which the text names.
    Over(String),
}

impl TimeLimit {
    /// Takes `checkpoint.give_up_minutes`; where that is 0, so that the first failure ends a run, a save that is merely under
    /// way has `cluster.limits.save_seconds`.
    pub fn new(config: &RunConfig) -> Self {
        let (minutes, limits) = (config.checkpoint.give_up_minutes, &config.cluster.limits);
        let (total, total_text) = match minutes > 0.0 {
            true => (60.0 * minutes, format!("{minutes} minutes (checkpoint.give_up_minutes)")),
            false => (limits.save_seconds, format!("{} s (cluster.limits.save_seconds)", limits.save_seconds)),
        };
        let limit = |seconds: f64| if seconds > 0.0 { seconds } else { f64::INFINITY };
        Self { total: limit(total), total_text, stop: limit(limits.stop_seconds) }
    }

    /// How a save stands that began `took` ago, where a stop was requested `stopping` ago.
    pub fn judge(&self, took: Duration, stopping: Option<Duration>) -> Standing {
        if let Some(message) = self.stop_is_over(stopping) {
            return Standing::Over(message);
        }
        match took.as_secs_f64() {
            took if took >= self.total => Standing::Over(format!("within {}", self.total_text)),
            took if took >= SLOW * self.total => Standing::Slow,
            _ => Standing::InTime,
        }
    }

    /// The limit that is over where a stop was requested `stopping` ago.
    pub fn stop_is_over(&self, stopping: Option<Duration>) -> Option<String> {
        let over = stopping.is_some_and(|stopping| stopping.as_secs_f64() >= self.stop);
        over.then(|| format!("within {} s of the request to stop (cluster.limits.stop_seconds)", self.stop))
    }

    /// What follows if the save goes on like this, for people.
    pub fn warning(&self) -> String {
        format!("the run ends if it is not saved within {}", self.total_text)
    }
}

/// Rank 0's `beginning`, and what the ranks wait for: the same text on all, which call this together. `own` are the URLs that
/// this rank writes.
///
/// # Errors
/// They cannot exchange it.
pub fn gather(collective: &mut dyn Group, own: &[String], beginning: String) -> Result<String, Error> {
    agreement::together(collective, &own.to_vec(), |all: &[Vec<String>]| format!("{beginning}: {}", describe(all)))
}

/// What ranks wait for, for people: the first few of them and the number of the others. Each rank's `waits` are the URLs that it
/// writes.
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

    fn limit(minutes: f64, save: f64, stop: f64) -> TimeLimit {
        let mut config = RunConfig::default();
        config.checkpoint.give_up_minutes = minutes;
        (config.cluster.limits.save_seconds, config.cluster.limits.stop_seconds) = (save, stop);
        TimeLimit::new(&config)
    }

    fn judge(limit: &TimeLimit, took: f64, stopping: Option<f64>) -> Standing {
        limit.judge(Duration::from_secs_f64(took), stopping.map(Duration::from_secs_f64))
    }

    #[test]
    fn a_save_is_slow_after_a_tenth_of_its_time() {
        let limit = limit(2.0, 3600.0, 600.0);
        assert_eq!(judge(&limit, 11.9, None), Standing::InTime);
        assert_eq!(judge(&limit, 12.0, None), Standing::Slow);
        assert_eq!(judge(&limit, 119.9, Some(119.9)), Standing::Slow);
        let over = Standing::Over("within 2 minutes (checkpoint.give_up_minutes)".into());
        assert_eq!(judge(&limit, 120.0, None), over);
    }

    #[test]
    fn a_stop_has_a_limit_of_its_own() {
        let limit = limit(120.0, 3600.0, 30.0);
        assert_eq!(judge(&limit, 600.0, Some(29.0)), Standing::InTime);
        let over = "within 30 s of the request to stop (cluster.limits.stop_seconds)";
        assert_eq!(judge(&limit, 1.0, Some(30.0)), Standing::Over(over.into()));
        assert_eq!(limit.stop_is_over(Some(Duration::from_secs(31))).as_deref(), Some(over));
        assert_eq!(limit.stop_is_over(None), None);
    }

    #[test]
    fn zero_minutes_end_no_save_that_is_under_way() {
        let limited = limit(0.0, 100.0, 600.0);
        assert_eq!(judge(&limited, 0.0, None), Standing::InTime);
        assert_eq!(judge(&limited, 99.0, None), Standing::Slow);
        let over = Standing::Over("within 100 s (cluster.limits.save_seconds)".into());
        assert_eq!(judge(&limited, 100.0, None), over);
        let endless = limit(0.0, 0.0, 0.0);
        assert_eq!(judge(&endless, 1e6, Some(1e6)), Standing::InTime);
    }

    #[test]
    fn those_who_write_are_named_and_the_rest_counted() {
        let none: Vec<String> = Vec::new();
        assert_eq!(describe(&[none.clone(), vec!["/r/a".into()], none]), "rank 1 is writing /r/a");
        let many: Vec<Vec<String>> = (0..6).map(|rank| vec![format!("/r/{rank}")]).collect();
        assert!(describe(&many).ends_with("rank 3 is writing /r/3; and 2 more ranks are writing"));
    }
}
