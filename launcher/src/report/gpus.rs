//! GPU values and Xid errors of a run.

use lambert_control::{GpuRanges, GpuSample, GpuStatus, StepRecord, ValueRange, xid_text};
use serde::Serialize;

use crate::status::RankStatus;
use crate::status::gpus::{GIB, range};

/// Row of a table: name and text of a value.
type Row = (&'static str, fn(&GpuReport) -> Option<String>);

/// Values of a table.
pub const ROWS: [Row; 4] = [
    ("GPU utilization", |gpu| gpu.text(|ranges| ranges.utilization, |share| range(share, 100.0, 0) + "%")),
    ("GPU memory in use", |gpu| {
        let capacity =
            gpu.range.memory_total.map(|bytes| format!("/{}", range(bytes, 1.0 / GIB, 1))).unwrap_or_default();
        gpu.text(|ranges| ranges.memory_used, |bytes| format!("{}{capacity} GiB", range(bytes, 1.0 / GIB, 1)))
    }),
    ("GPU power", |gpu| gpu.text(|ranges| ranges.power, |watts| range(watts, 1.0, 0) + " W")),
    ("GPU temperature", |gpu| gpu.text(|ranges| ranges.temperature, |degrees| range(degrees, 1.0, 0) + " C")),
];

/// Values of the GPUs over all steps, undone steps included. A value is absent if no step has it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct GpuReport {
    /// Means over time of the smallest and of the largest value over the GPUs.
    pub mean: GpuRanges,
    /// Smallest and largest value over the GPUs and the steps.
    pub range: GpuRanges,
}

impl GpuReport {
    /// Values in `records`. `None` if there are none.
    pub fn of<'a>(records: impl Iterator<Item = &'a StepRecord>) -> Option<Self> {
        let steps = records.filter_map(|record| Some((record.gpu?, record.times.seconds)));
        let steps: Vec<(GpuRanges, f64)> = steps.collect();
        let report = Self { mean: combine(&steps, mean), range: combine(&steps, total_range) };
        (report.range != GpuRanges::default()).then_some(report)
    }

    /// Formats the mean and the range of a value: `mean 96-97%, range 12-98%`.
    fn text(
        &self,
        value: fn(&GpuRanges) -> Option<ValueRange>,
        format: impl Fn(ValueRange) -> String,
    ) -> Option<String> {
        Some(format!("mean {}, range {}", format(value(&self.mean)?), format(value(&self.range)?)))
    }
}

/// Combines the ranges of each value over the steps. `steps` has the seconds of each step.
fn combine(steps: &[(GpuRanges, f64)], of: fn(&[(ValueRange, f64)]) -> Option<ValueRange>) -> GpuRanges {
    let combined = |value: fn(&GpuRanges) -> Option<ValueRange>| {
        of(&steps.iter().filter_map(|(ranges, seconds)| Some((value(ranges)?, *seconds))).collect::<Vec<_>>())
    };
    GpuRanges {
        utilization: combined(|ranges| ranges.utilization),
        memory_used: combined(|ranges| ranges.memory_used),
        memory_total: combined(|ranges| ranges.memory_total),
        power: combined(|ranges| ranges.power),
        temperature: combined(|ranges| ranges.temperature),
    }
}

/// Means of both ends, weighted by the seconds of the steps.
fn mean(steps: &[(ValueRange, f64)]) -> Option<ValueRange> {
    // The weights must not add up to 0.
    let weighted = steps.iter().map(|(range, seconds)| (range, seconds.max(1e-9)));
    let (min, max, total) = weighted.fold((0.0, 0.0, 0.0), |(min, max, total), (range, weight)| {
        (min + weight * range.min, max + weight * range.max, total + weight)
    });
    (!steps.is_empty()).then(|| ValueRange { min: min / total, max: max / total })
}

fn total_range(steps: &[(ValueRange, f64)]) -> Option<ValueRange> {
    ValueRange::of(steps.iter().flat_map(|(range, _)| [range.min, range.max]))
}

/// GPU of a rank with Xid errors.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct XidReport {
    pub rank: usize,
    pub host: String,
    /// The GPU and its Xid errors, without values.
    pub gpu: GpuStatus,
}

impl XidReport {
    /// Xid errors in the last status of `ranks`.
    pub fn of(ranks: &[RankStatus]) -> Vec<Self> {
        let report = |rank: &RankStatus| {
            let gpu = rank.gpu.as_ref().filter(|gpu| !gpu.xids.is_empty())?;
            let gpu = GpuStatus { sample: GpuSample::default(), ..gpu.clone() };
            Some(Self { rank: rank.rank, host: rank.host.clone(), gpu })
        };
        ranks.iter().filter_map(report).collect()
    }

    /// Rank, host, GPU and Xid errors as cells of a table.
    pub fn cells(&self) -> Vec<String> {
        let errors: Vec<String> = self.gpu.xids.iter().map(|xid| xid_text(*xid)).collect();
        vec![self.rank.to_string(), self.host.clone(), self.gpu.name(), errors.join(", ")]
    }
}

#[cfg(test)]
mod tests {
    use lambert_control::StepTimes;

    use super::*;

    fn record(seconds: f64, utilization: (f64, f64), temperature: Option<f64>) -> StepRecord {
        let (min, max) = utilization;
        let temperature = temperature.map(|degrees| ValueRange { min: degrees, max: degrees });
        let gpu = GpuRanges { utilization: Some(ValueRange { min, max }), temperature, ..GpuRanges::default() };
        let times = StepTimes { seconds, ..StepTimes::default() };
        StepRecord { gpu: Some(gpu), times, ..StepRecord::default() }
    }

    fn rows(records: &[StepRecord]) -> Vec<(&'static str, String)> {
        let report = GpuReport::of(records.iter()).unwrap();
        ROWS.into_iter().filter_map(|(name, text)| Some((name, text(&report)?))).collect()
    }

    #[test]
    fn long_steps_weigh_more_and_absent_values_do_not_count() {
        let records = [
            record(1.0, (0.2, 0.3), None),
            StepRecord::default(),
            record(3.0, (0.9, 1.0), Some(61.0)),
            record(1.0, (0.7, 0.8), Some(65.0)),
        ];
        let expected = [
            ("GPU utilization", "mean 72-82%, range 20-100%".to_owned()),
            ("GPU temperature", "mean 62 C, range 61-65 C".to_owned()),
        ];
        assert_eq!(rows(&records), expected);
        assert_eq!(GpuReport::of(records[1..2].iter()), None);
        assert_eq!(rows(&[record(0.0, (0.5, 0.5), None)])[0].1, "mean 50%, range 50%");
    }

    #[test]
    fn memory_is_shown_with_that_of_the_gpu() {
        let bytes = |gib: f64| Some(ValueRange { min: gib * GIB, max: gib * GIB });
        let gpu = GpuRanges { memory_used: bytes(71.5), memory_total: bytes(80.0), ..GpuRanges::default() };
        let mut record = StepRecord { gpu: Some(gpu), ..StepRecord::default() };
        let expected = ("GPU memory in use", "mean 71.5/80.0 GiB, range 71.5/80.0 GiB".to_owned());
        assert_eq!(rows(&[record.clone()]), [expected]);
        record.gpu = Some(GpuRanges { memory_total: None, ..gpu });
        assert_eq!(rows(&[record])[0].1, "mean 71.5 GiB, range 71.5 GiB");
    }
}
