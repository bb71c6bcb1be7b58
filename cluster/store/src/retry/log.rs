//! Log of retries. If many requests of the process are retried, a summary replaces most of the warnings.

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Number of retries that are shown one by one.
const SHOWN: u32 = 3;
/// Time from the last shown line to the first summary. It doubles with each summary.
const FIRST_INTERVAL: Duration = Duration::from_secs(10);
/// Upper bound of the time between two summaries.
const MAX_INTERVAL: Duration = Duration::from_secs(160);
/// Time without retries after which retries are shown one by one again.
const QUIET: Duration = Duration::from_secs(300);

/// Log of the retries of this process.
pub struct RetryLog(Mutex<RetryCounts>);

static OF_PROCESS: RetryLog = RetryLog(Mutex::new(RetryCounts::new()));

impl RetryLog {
    pub fn of_process() -> &'static Self {
        &OF_PROCESS
    }

    /// Records a retry. Returns true if the retry is shown by itself. Otherwise the next summary counts it, and ends with
    /// `failure` if it is the last one. Call this in a task of tokio.
    pub fn is_shown(&'static self, failure: fmt::Arguments<'_>) -> bool {
        let recorded = self.lock().record(Instant::now(), failure);
        if let Recorded::First(pause) = recorded {
            tokio::spawn(async move {
                tokio::time::sleep(pause).await;
                let summary = self.lock().summary(Instant::now());
                tracing::warn!("{summary}");
            });
        }
        recorded == Recorded::Shown
    }

    fn lock(&self) -> MutexGuard<'_, RetryCounts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Result of [`RetryCounts::record`].
#[derive(Debug, PartialEq, Eq)]
enum Recorded {
    /// The retry is shown by itself.
    Shown,
    /// The next summary counts the retry.
    Counted,
    /// Like `Counted`. It is the first retry after the last summary. The summary is due after this time.
    First(Duration),
}

/// Retries since the last quiet time.
struct RetryCounts {
    /// Number of retries shown one by one.
    shown: u32,
    /// Number of retries that the next summary counts.
    counted: u64,
    /// Last of these retries.
    last_failure: String,
    /// Times of the last retry and of the last shown line.
    last_times: Option<(Instant, Instant)>,
    /// Time from the last shown line to the next summary.
    interval: Duration,
}

impl RetryCounts {
    const fn new() -> Self {
        Self { shown: 0, counted: 0, last_failure: String::new(), last_times: None, interval: FIRST_INTERVAL }
    }

    fn record(&mut self, now: Instant, failure: fmt::Arguments<'_>) -> Recorded {
        let is_quiet = self.last_times.is_some_and(|(last_retry, _)| now >= last_retry + QUIET);
        if is_quiet && self.counted == 0 {
            *self = Self::new();
        }
        if self.shown < SHOWN {
            self.shown += 1;
            self.last_times = Some((now, now));
            return Recorded::Shown;
        }
        let last_line = self.last_times.map_or(now, |(_, last_line)| last_line);
        self.last_times = Some((now, last_line));
        self.counted += 1;
        self.last_failure = failure.to_string();
        match self.counted {
            1 => Recorded::First((last_line + self.interval).saturating_duration_since(now)),
            _ => Recorded::Counted,
        }
    }

    /// Returns the text of the summary that is due `now`, and starts to count again.
    fn summary(&mut self, now: Instant) -> String {
        let last_line = self.last_times.map_or(now, |(_, last_line)| last_line);
        self.last_times = self.last_times.map(|(last_retry, _)| (last_retry, now));
        self.interval = (self.interval * 2).min(MAX_INTERVAL);
        let (counted, seconds) =
            (std::mem::take(&mut self.counted), now.saturating_duration_since(last_line).as_secs());
        let requests = if counted == 1 { "request was" } else { "requests were" };
        let last = std::mem::take(&mut self.last_failure);
        format!("{counted} more {requests} retried in the last {seconds} s; the last: {last}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn most_retries_are_counted_in_summaries() {
        let (mut counts, begin) = (RetryCounts::new(), Instant::now());
        let at = |seconds: u64| begin + Duration::from_secs(seconds);
        let record = |counts: &mut RetryCounts, seconds| {
            counts.record(at(seconds), format_args!("head s3://bucket/{seconds}: 503 Slow Down"))
        };
        assert_eq!([(); 3].map(|()| record(&mut counts, 0)), [Recorded::Shown, Recorded::Shown, Recorded::Shown]);
        assert_eq!(record(&mut counts, 4), Recorded::First(Duration::from_secs(6)));
        assert!((0..136).all(|_| record(&mut counts, 9) == Recorded::Counted));
        let text = "137 more requests were retried in the last 10 s; the last: head s3://bucket/9: 503 Slow Down";
        assert_eq!(counts.summary(at(10)), text);
        assert_eq!(record(&mut counts, 11), Recorded::First(Duration::from_secs(19)), "the interval doubles");
        let text = "1 more request was retried in the last 20 s; the last: head s3://bucket/11: 503 Slow Down";
        assert_eq!(counts.summary(at(30)), text);
        // After a quiet time, retries are shown again.
        assert_eq!(record(&mut counts, 310), Recorded::First(Duration::ZERO));
        counts.summary(at(310));
        assert_eq!(record(&mut counts, 610), Recorded::Shown);
        assert_eq!([(); 2].map(|()| record(&mut counts, 611)), [Recorded::Shown, Recorded::Shown]);
        assert_eq!(record(&mut counts, 612), Recorded::First(Duration::from_secs(9)));
    }
}
