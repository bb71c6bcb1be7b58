//! Stages and skipped samples, collected step by step.

use lambert_config::RunConfig;

use super::marks::{ChartMark, MAX_MARKS, MarkKind, StageBand};
use super::point::Point;
use crate::text;

/// Stages and skipped samples up to a step.
#[derive(Debug, Clone, Default)]
pub struct Timeline {
    stages: Vec<StageBand>,
    skipped: Vec<ChartMark>,
    /// Samples skipped up to the last step.
    skipped_samples: Option<u64>,
}

impl Timeline {
    /// Adds a step.
    pub fn add(&mut self, step: u64, point: &Point) {
        match self.stages.last_mut().filter(|band| *band.name == *point.stage) {
            Some(band) => band.to = step,
            None => self.stages.push(StageBand { name: point.stage.to_string(), from: step, to: step, layers: None }),
        }
        let before = self.skipped_samples.replace(point.skipped_samples);
        if let Some(count) =
            before.and_then(|before| point.skipped_samples.checked_sub(before)).filter(|more| *more > 0)
        {
            let text = format!("{} skipped ({} so far)", text::counted(count, "sample"), point.skipped_samples);
            self.skipped.push(ChartMark { kind: MarkKind::Skipped, step, text });
            self.skipped.drain(..self.skipped.len().saturating_sub(MAX_MARKS));
        }
    }

    /// Removes the steps after `last`, which is the point of step `step`.
    pub fn cut(&mut self, step: u64, last: Option<&Point>) {
        self.stages.retain_mut(|band| {
            band.to = band.to.min(step);
            band.from <= step
        });
        self.skipped.retain(|mark| mark.step <= step);
        self.skipped_samples = last.map(|point| point.skipped_samples);
    }

    /// Stages with the layers of the model, if the configuration is known.
    pub fn stages(&self, config: Option<&RunConfig>) -> Vec<StageBand> {
        let layers = |name: &str| {
            let config = config?;
            let stage = config.stage.iter().position(|stage| stage.name == name)?;
            Some(config.depth(stage))
        };
        self.stages.iter().map(|band| StageBand { layers: layers(&band.name), ..band.clone() }).collect()
    }

    /// Steps at which samples were skipped; the newest.
    pub fn skipped(&self) -> &[ChartMark] {
        &self.skipped
    }
}

#[cfg(test)]
mod tests {
    use lambert_config::run::Stage;

    use super::super::marks::growth;
    use super::super::point::tests::record;
    use super::*;

    #[test]
    fn stages_growth_and_skipped_samples_are_found() {
        let point = |stage: &str, skipped| Point {
            stage: stage.into(),
            skipped_samples: skipped,
            ..Point::from(&record(1, 5.0))
        };
        let points = [point("short", 0), point("short", 16), point("deep", 16)];
        let mut timeline = Timeline::default();
        (1..).zip(&points).for_each(|(step, point)| timeline.add(step, point));
        let stage = |name: &str, layers| Stage { name: name.into(), layers: Some(layers), ..Stage::default() };
        let config = RunConfig { stage: vec![stage("short", 2), stage("deep", 4)], ..RunConfig::default() };
        let bands = timeline.stages(Some(&config));
        assert_eq!(bands[0], StageBand { name: "short".into(), from: 1, to: 2, layers: Some(2) });
        assert_eq!(growth(&bands)[0].text, "grown from 2 to 4 layers; stage deep begins");
        assert_eq!((growth(&bands)[0].step, growth(&timeline.stages(None))), (2, vec![]));
        let skipped = timeline.skipped();
        assert_eq!(
            (skipped[0].step, skipped[0].text.as_str(), skipped.len()),
            (2, "16 samples skipped (16 so far)", 1)
        );
        timeline.cut(1, points.first());
        assert_eq!((timeline.stages(None).len(), timeline.stages(None)[0].to, timeline.skipped().len()), (1, 1, 0));
        timeline.add(2, &points[2]);
        assert_eq!((timeline.stages(None).len(), timeline.skipped().len()), (2, 1));
    }
}
