//! Durations of the configuration, which are at most ten years.

use std::time::Duration;

use crate::load::ConfigIssue;

/// Seconds in ten years. Longer durations would overflow the clock.
const MAX_SECONDS: f64 = 315_360_000.0;

/// Converts seconds. The result is from 0 to ten years.
pub fn seconds(value: f64) -> Duration {
    // False for NaN, too.
    let is_positive = value > 0.0;
    if is_positive { Duration::from_secs_f64(value.min(MAX_SECONDS)) } else { Duration::ZERO }
}

/// Converts minutes. The result is from 0 to ten years.
pub fn minutes(value: f64) -> Duration {
    seconds(60.0 * value)
}

/// Rejects more than ten years. `unit` is the number of seconds in a unit of `value`.
pub(crate) fn check(key: &str, value: f64, unit: f64, issues: &mut Vec<ConfigIssue>) {
    let most = MAX_SECONDS / unit;
    if value.is_finite() && value > most {
        let message = format!("must be at most {most} (ten years)");
        issues.push(ConfigIssue::of_value(key, format!("{value:?}"), message));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_than_ten_years_are_an_issue() {
        let issues = |value, unit| {
            let mut issues = Vec::new();
            check("key", value, unit, &mut issues);
            issues.into_iter().map(|issue| issue.to_string()).collect::<Vec<_>>()
        };
        assert!(issues(MAX_SECONDS, 1.0).is_empty() && issues(MAX_SECONDS / 60.0, 60.0).is_empty());
        assert_eq!(issues(1e300, 60.0), ["key = 1e300: must be at most 5256000 (ten years)"]);
        assert_eq!(issues(4e8, 1.0), ["key = 400000000.0: must be at most 315360000 (ten years)"]);
    }

    #[test]
    fn conversions_are_total() {
        assert_eq!((seconds(0.5), minutes(2.0)), (Duration::from_millis(500), Duration::from_secs(120)));
        for value in [1e300, f64::INFINITY, f64::MAX] {
            assert_eq!((seconds(value), minutes(value)), (Duration::from_secs(315_360_000), seconds(MAX_SECONDS)));
        }
        for value in [-1e300, f64::NAN, f64::NEG_INFINITY] {
            assert_eq!((seconds(value), minutes(value)), (Duration::ZERO, Duration::ZERO));
        }
    }
}
