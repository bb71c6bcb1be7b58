//! Steps of a run in bounded memory: the newest as they are, older ones in cells of 32 steps.

use std::collections::{BTreeMap, VecDeque};

use lambert_store::run::AttemptStep;

use super::point::Point;
use super::progress::{Progress, StepFlops};
use super::series::{CurveStep, Series};
use super::timeline::Timeline;

/// Steps of a cell. A series of a run that has cells has wider buckets, which are whole cells.
const CELL: u64 = 32;
/// Maximum number of single steps.
const SINGLE: usize = 16_384;
/// Single steps that are moved to cells at a time.
const MOVED: usize = 4_096;
/// Maximum number of undone steps; the newest are kept.
const UNDONE: usize = 4_096;

/// Error: an undone step was already merged into a cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooOld;

/// Steps of the effective history, and undone steps.
#[derive(Debug)]
pub struct Steps {
    cells: Series,
    /// Last step of each attempt in the cells.
    in_cells: BTreeMap<u32, u64>,
    single: VecDeque<Single>,
    undone: VecDeque<(AttemptStep, Point)>,
    timeline: Timeline,
}

#[derive(Debug, Clone)]
struct Single {
    position: AttemptStep,
    progress: Progress,
    point: Point,
}

impl Default for Steps {
    fn default() -> Self {
        let (in_cells, timeline) = (BTreeMap::new(), Timeline::default());
        Self { cells: Series::new(CELL), in_cells, single: VecDeque::new(), undone: VecDeque::new(), timeline }
    }
}

impl Steps {
    /// Adds a step: an undone one if it is after the last valid step of its attempt.
    pub fn add(&mut self, position: AttemptStep, point: Point, last_valid: u64, flops: &mut StepFlops<'_>) {
        if position.step > last_valid || position.step <= self.last() {
            self.undone.push_back((position, point));
            self.undone.drain(..self.undone.len().saturating_sub(UNDONE));
            return;
        }
        let (last, mut progress) = (self.last(), self.progress());
        progress.add(&point, position.step - last, flops);
        self.timeline.add(position.step, &point);
        self.single.push_back(Single { position, progress, point });
        if self.single.len() >= SINGLE + MOVED {
            for Single { position, progress, point } in self.single.drain(..MOVED) {
                self.cells.add(CurveStep { attempt: 0, step: position.step, progress, point: &point });
                self.in_cells.insert(position.attempt, position.step);
            }
        }
    }

    /// Removes the undone steps, those after the last valid one of their attempts.
    ///
    /// # Errors
    /// Such a step is in a cell: everything must be read again.
    pub fn remove_undone(&mut self, last_valid: &BTreeMap<u32, u64>) -> Result<(), TooOld> {
        let is_undone = |position: &AttemptStep| {
            last_valid.get(&position.attempt).is_some_and(|last_valid| position.step > *last_valid)
        };
        let mut in_cells = self.in_cells.iter().map(|(attempt, step)| AttemptStep { attempt: *attempt, step: *step });
        if in_cells.any(|position| is_undone(&position)) {
            return Err(TooOld);
        }
        // Attempts ascend, and a later one begins where earlier ones are cut: what is undone is at the end.
        if let Some(first) = self.single.iter().position(|single| is_undone(&single.position)) {
            self.undone.extend(self.single.drain(first..).map(|single| (single.position, single.point)));
            self.undone.drain(..self.undone.len().saturating_sub(UNDONE));
            let last = self.last();
            self.timeline.cut(last, self.single.back().map(|single| &single.point));
        }
        Ok(())
    }

    /// Last step of the effective history.
    pub fn last(&self) -> u64 {
        let in_cells = || self.cells.buckets.last().map(|cell| cell.step);
        self.single.back().map(|single| single.position.step).or_else(in_cells).unwrap_or_default()
    }

    fn progress(&self) -> Progress {
        let in_cells = || self.cells.buckets.last().map(|cell| cell.progress);
        self.single.back().map(|single| single.progress).or_else(in_cells).unwrap_or_default()
    }

    /// Returns the effective history and then the steps `live`, and stages and skipped samples.
    pub fn effective(&self, live: &[(AttemptStep, Point)], flops: &mut StepFlops<'_>) -> (Series, Timeline) {
        let mut series = Series::new(self.width(live));
        self.cells.buckets.iter().for_each(|cell| series.merge(cell, CELL));
        for Single { position, progress, point } in &self.single {
            series.add(CurveStep { attempt: 0, step: position.step, progress: *progress, point });
        }
        let (mut last, mut progress, mut timeline) = (self.last(), self.progress(), self.timeline.clone());
        for (position, point) in live {
            if position.step > last {
                progress.add(point, position.step - last, flops);
                last = position.step;
                timeline.add(last, point);
                series.add(CurveStep { attempt: 0, step: last, progress, point });
            }
        }
        (series, timeline)
    }

    /// Returns the undone steps.
    pub fn undone(&self, live: &[(AttemptStep, Point)]) -> Series {
        let mut series = Series::new(self.width(live));
        for (AttemptStep { attempt, step }, point) in &self.undone {
            series.add(CurveStep { attempt: *attempt, step: *step, progress: Progress::default(), point });
        }
        series
    }

    fn width(&self, live: &[(AttemptStep, Point)]) -> u64 {
        let steps = self.undone.iter().chain(live).map(|(position, _)| position.step);
        let width = Series::width_for(steps.max().unwrap_or_default().max(self.last()));
        if self.cells.buckets.is_empty() { width } else { width.max(CELL) }
    }
}

#[cfg(test)]
mod tests {
    use super::super::point::tests::record;
    use super::*;

    fn steps(count: u64) -> Steps {
        let (mut steps, mut flops) = (Steps::default(), StepFlops::new(None, None));
        for step in 1..=count {
            let point = Point::from(&record(step, step as f64));
            steps.add(AttemptStep { attempt: 1, step }, point, u64::MAX, &mut flops);
        }
        steps
    }

    #[test]
    fn old_steps_are_in_cells_and_the_series_is_the_same() {
        let count = (SINGLE + 12 * MOVED) as u64 + 5;
        let steps = steps(count);
        assert!(steps.single.len() < SINGLE + MOVED && steps.cells.buckets.len() >= MOVED / CELL as usize);
        let (series, timeline) = steps.effective(&[], &mut StepFlops::new(None, None));
        assert_eq!((series.width, series.buckets.len() as u64), (64, count.div_ceil(64)));
        let columns = &series.columns(0)["columns"];
        assert_eq!(
            (&columns["loss_min"][0], &columns["loss_max"][0], &columns["loss"][0]),
            (&1.into(), &64.into(), &32.5.into())
        );
        let samples = columns["samples"].as_array().unwrap().last().unwrap().as_u64();
        assert_eq!((samples, timeline.stages(None)[0].to), (Some(16 * count), count));
    }

    #[test]
    fn steps_are_taken_back_unless_they_are_in_cells() {
        let mut steps = steps((SINGLE + MOVED) as u64);
        steps.remove_undone(&[(1, 19_000)].into()).unwrap();
        assert_eq!((steps.last(), steps.progress().samples), (19_000, 16.0 * 19_000.0));
        assert_eq!((steps.undone.len(), steps.timeline.stages(None)[0].to), (1_480, 19_000));
        let point = Point::from(&record(19_001, 1.0));
        steps.add(AttemptStep { attempt: 2, step: 19_001 }, point.clone(), u64::MAX, &mut StepFlops::new(None, None));
        // An attempt that was superseded before it was read.
        steps.add(AttemptStep { attempt: 3, step: 19_002 }, point, 19_001, &mut StepFlops::new(None, None));
        assert_eq!((steps.last(), steps.undone.len()), (19_001, 1_481));
        assert_eq!(steps.remove_undone(&[(1, MOVED as u64 - 1)].into()), Err(TooOld));
    }
}
