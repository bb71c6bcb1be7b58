//! Curves over steps, reduced to buckets with minimum, mean and maximum.

use serde_json::{Map, Value, json};

use super::point::{Point, VALUE_COUNT, VALUES};
use super::progress::Progress;

/// Maximum number of buckets.
const BUCKETS: u64 = 2000;
/// Decimal digits of values, and of totals.
const DIGITS: usize = 5;
const TOTAL_DIGITS: usize = 8;

/// Steps of equal width in buckets: bucket `i` has the steps `i * width + 1` to `(i + 1) * width`.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Series {
    /// Steps of a bucket, a power of two.
    pub width: u64,
    pub buckets: Vec<Bucket>,
}

/// Some consecutive steps.
#[derive(Debug, Clone, PartialEq)]
pub struct Bucket {
    /// Attempt of the steps; 0 if that does not matter.
    pub attempt: u32,
    number: u64,
    /// Last step.
    pub step: u64,
    /// Totals up to the last step.
    pub progress: Progress,
    /// Ranges of the values, in the order of [`VALUES`].
    values: [Range; VALUE_COUNT],
}

/// Minimum, mean and maximum of the finite values, if there are any.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Range {
    min: f32,
    max: f32,
    sum: f64,
    count: u32,
}

impl Range {
    const EMPTY: Self = Self { min: f32::INFINITY, max: f32::NEG_INFINITY, sum: 0.0, count: 0 };

    fn merged(self, other: Self) -> Self {
        let (min, max) = (self.min.min(other.min), self.max.max(other.max));
        Self { min, max, sum: self.sum + other.sum, count: self.count + other.count }
    }

    fn mean(self) -> f64 {
        self.sum / f64::from(self.count)
    }
}

/// A step of a curve.
#[derive(Debug, Clone, Copy)]
pub struct CurveStep<'a> {
    pub attempt: u32,
    pub step: u64,
    pub progress: Progress,
    pub point: &'a Point,
}

impl Series {
    /// Returns the least width at which steps 1 to `last` have at most 2,000 buckets.
    pub fn width_for(last: u64) -> u64 {
        last.div_ceil(BUCKETS).max(1).next_power_of_two()
    }

    /// Creates an empty series.
    pub fn new(width: u64) -> Self {
        Self { width, buckets: Vec::new() }
    }

    /// Adds a step. Steps of a bucket and an attempt must be adjacent.
    pub fn add(&mut self, curve: CurveStep<'_>) {
        let number = curve.step.saturating_sub(1) / self.width.max(1);
        let is_in = |bucket: &&mut Bucket| (bucket.number, bucket.attempt) == (number, curve.attempt);
        match self.buckets.last_mut().filter(is_in) {
            Some(bucket) => bucket.add(curve),
            None => {
                let (attempt, step, progress) = (curve.attempt, curve.step, curve.progress);
                let mut bucket = Bucket { attempt, number, step, progress, values: [Range::EMPTY; VALUE_COUNT] };
                bucket.add(curve);
                self.buckets.push(bucket);
            }
        }
    }

    /// Adds a bucket of a series with narrower ones.
    pub fn merge(&mut self, narrow: &Bucket, width: u64) {
        let number = narrow.number * width / self.width.max(1);
        match self.buckets.last_mut().filter(|bucket| (bucket.number, bucket.attempt) == (number, narrow.attempt)) {
            Some(bucket) => bucket.merge(narrow),
            None => self.buckets.push(Bucket { number, ..narrow.clone() }),
        }
    }

    /// Returns the index of the first bucket that differs in `other`, or that only one of them has; `None` if there is
    /// none.
    pub fn first_difference(&self, other: &Self) -> Option<usize> {
        if self.width != other.width {
            return Some(0);
        }
        let same = self.buckets.iter().zip(&other.buckets).take_while(|(one, other)| one == other).count();
        (same < self.buckets.len().max(other.buckets.len())).then_some(same)
    }

    /// Returns the columns from bucket `from` on. Those of minima and maxima are absent if a bucket has one step.
    pub fn columns(&self, from: usize) -> Value {
        let buckets = self.buckets.get(from..).unwrap_or_default();
        let column = |value: &dyn Fn(&Bucket) -> Value| Value::from_iter(buckets.iter().map(value));
        let total = |value: f64| number(value, TOTAL_DIGITS);
        let mut columns = Map::new();
        columns.insert("step".into(), column(&|bucket| bucket.step.into()));
        columns.insert("samples".into(), column(&|bucket| total(bucket.progress.samples)));
        columns.insert("tokens".into(), column(&|bucket| total(bucket.progress.tokens)));
        columns.insert("hours".into(), column(&|bucket| total(bucket.progress.seconds / 3600.0)));
        columns.insert("flops".into(), column(&|bucket| bucket.progress.flops.map_or(Value::Null, total)));
        for (index, name) in VALUES.iter().enumerate() {
            // Values of an empty range are not finite, so they become null.
            let of = |range: fn(Range) -> f64| column(&|bucket| number(range(bucket.values[index]), DIGITS));
            columns.insert((*name).into(), of(Range::mean));
            if self.width > 1 {
                columns.insert(format!("{name}_min"), of(|range| range.min.into()));
                columns.insert(format!("{name}_max"), of(|range| range.max.into()));
            }
        }
        json!({ "width": self.width, "from": from, "columns": columns })
    }

    /// Returns the means by attempt and step, for steps that were undone.
    pub fn means(&self) -> Value {
        let column = |value: &dyn Fn(&Bucket) -> Value| Value::from_iter(self.buckets.iter().map(value));
        let mut columns = Map::new();
        columns.insert("attempt".into(), column(&|bucket| bucket.attempt.into()));
        columns.insert("step".into(), column(&|bucket| bucket.step.into()));
        for (index, name) in VALUES.iter().enumerate() {
            columns.insert((*name).into(), column(&|bucket| number(bucket.values[index].mean(), DIGITS)));
        }
        columns.into()
    }
}

impl Bucket {
    fn merge(&mut self, next: &Self) {
        (self.step, self.progress) = (next.step, next.progress);
        for (range, other) in self.values.iter_mut().zip(next.values) {
            *range = range.merged(other);
        }
    }

    fn add(&mut self, curve: CurveStep<'_>) {
        (self.step, self.progress) = (curve.step, curve.progress);
        for (range, value) in self.values.iter_mut().zip(curve.point.values) {
            if !value.is_finite() {
                continue;
            }
            *range = range.merged(Range { min: value, max: value, sum: f64::from(value), count: 1 });
        }
    }
}

/// Rounds to `digits` significant digits; null if `value` is not finite.
pub fn number(value: f64, digits: usize) -> Value {
    let rounded = value.is_finite().then(|| format!("{value:.*e}", digits - 1).parse::<f64>().ok()).flatten();
    match rounded {
        // Whole numbers without a fraction are shorter.
        Some(whole) if whole.fract() == 0.0 && whole.abs() < 1e15 => json!(whole as i64),
        Some(rounded) => json!(rounded),
        None => Value::Null,
    }
}

#[cfg(test)]
mod tests {
    use super::super::point::tests::record;
    use super::*;

    fn series(width: u64, losses: &[(u64, f64)]) -> Series {
        let mut series = Series::new(width);
        for (step, loss) in losses {
            let point = Point::from(&record(*step, *loss));
            let progress = Progress { samples: *step as f64, flops: None, ..Progress::default() };
            series.add(CurveStep { attempt: 0, step: *step, progress, point: &point });
        }
        series
    }

    #[test]
    fn buckets_have_minimum_mean_and_maximum() {
        let losses = [(1, 5.0), (2, 4.0), (3, 9.0), (4, f64::NAN), (5, f64::INFINITY)];
        let columns = &series(2, &losses).columns(0)["columns"];
        assert_eq!(columns["step"], json!([2, 4, 5]));
        assert_eq!(columns["loss"], json!([4.5, 9, null]));
        assert_eq!((&columns["loss_min"], &columns["loss_max"]), (&json!([4, 9, null]), &json!([5, 9, null])));
        assert_eq!((&columns["samples"], &columns["flops"]), (&json!([2, 4, 5]), &json!([null, null, null])));
        let single = &series(1, &losses).columns(3)["columns"];
        assert_eq!((&single["step"], single.get("loss_min")), (&json!([4, 5]), None));
    }

    #[test]
    fn long_runs_have_at_most_2000_buckets() {
        assert_eq!([0, 1, 2000, 2001, 1_000_000].map(Series::width_for), [1, 1, 1, 2, 512]);
        for last in [1999, 4000, 4001, 999_999, 1 << 40] {
            let buckets = last / Series::width_for(last) + 1;
            assert!((1000..=2001).contains(&buckets), "{last}: {buckets}");
        }
    }

    #[test]
    fn differences_start_at_the_first_changed_bucket() {
        let one = series(1, &[(1, 5.0), (2, f64::NAN), (3, 4.0)]);
        assert_eq!(one.first_difference(&one.clone()), None);
        assert_eq!(one.first_difference(&series(1, &[(1, 5.0), (2, f64::NAN)])), Some(2));
        assert_eq!(one.first_difference(&series(1, &[(1, 5.0), (2, 3.0), (3, 4.0)])), Some(1));
        assert_eq!(one.first_difference(&series(2, &[(1, 5.0)])), Some(0));
    }

    #[test]
    fn numbers_have_few_digits() {
        let text = |value| number(value, 5).to_string();
        assert_eq!([1.0 / 3.0, 123_456.7, 1.5e-7, 4.0].map(text), ["0.33333", "123460", "1.5e-7", "4"]);
        assert_eq!(text(f64::NAN), "null");
    }
}
