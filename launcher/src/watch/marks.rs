//! Stages of a run, and what happened at single steps.

use lambert_config::RunConfig;
use lambert_store::checkpoint::{AttemptStep, RollbackPoint};
use serde::Serialize;

use super::series::CurveStep;
use crate::status::Downtime;

/// Maximum number of marks of a kind; the newest are kept.
const MOST: usize = 200;

/// Steps of a stage.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct StageBand {
    pub name: String,
    /// First step.
    pub from: u64,
    /// Last step.
    pub to: u64,
    /// Layers of the model, if the run's configuration is known.
    pub layers: Option<usize>,
}

/// Something that happened after a step.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Mark {
    pub kind: MarkKind,
    pub step: u64,
    pub text: String,
}

/// Kind of a mark.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum MarkKind {
    Checkpoint,
    Restart,
    Rollback,
    Skipped,
    Growth,
}

/// Returns the stages in the order of their steps.
pub fn stages(steps: &[CurveStep<'_>], config: Option<&RunConfig>) -> Vec<StageBand> {
    let layers = |name: &str| {
        let config = config?;
        let stage = config.stage.iter().position(|stage| stage.name == name)?;
        Some(config.depth(stage))
    };
    let bands = steps.chunk_by(|one, next| one.point.stage == next.point.stage).map(|steps| {
        let (name, from, to) = (steps[0].point.stage.to_string(), steps[0].step, steps[steps.len() - 1].step);
        StageBand { layers: layers(&name), name, from, to }
    });
    bands.collect()
}

/// Returns the growth of the model between stages.
pub fn growth(stages: &[StageBand]) -> Vec<Mark> {
    let grown = |pair: &[StageBand]| {
        let (from, to) = (pair[0].layers?, pair[1].layers?);
        let text = format!("grown from {from} to {to} layers; stage {} begins", pair[1].name);
        (to > from).then(|| Mark { kind: MarkKind::Growth, step: pair[0].to, text })
    };
    newest(stages.windows(2).filter_map(grown).collect())
}

/// Returns steps at which samples were skipped.
pub fn skipped(steps: &[CurveStep<'_>]) -> Vec<Mark> {
    let more = |pair: &[CurveStep<'_>]| {
        let count =
            pair[1].point.skipped_samples.checked_sub(pair[0].point.skipped_samples).filter(|more| *more > 0)?;
        let text = format!("{} skipped ({} so far)", samples(count), pair[1].point.skipped_samples);
        Some(Mark { kind: MarkKind::Skipped, step: pair[1].step, text })
    };
    newest(steps.windows(2).filter_map(more).collect())
}

fn samples(count: u64) -> String {
    crate::text::counted(count, "sample")
}

/// Returns the checkpoints of the run, kept or pruned.
pub fn checkpoints(saves: &[AttemptStep], rollbacks: &[RollbackPoint]) -> Vec<Mark> {
    let mark = |save: &AttemptStep| {
        let is_undone = rollbacks.iter().any(|rollback| rollback.invalidates(*save));
        let text = format!("{}{}", save.name(), if is_undone { " (rolled back)" } else { "" });
        Mark { kind: MarkKind::Checkpoint, step: save.step, text }
    };
    saves[saves.len().saturating_sub(MOST)..].iter().map(mark).collect()
}

/// Returns failures and rollbacks with their causes.
pub fn failures(failures: &[Downtime], rollbacks: &[RollbackPoint]) -> Vec<Mark> {
    let mark = |failure: &Downtime| {
        let is_rollback = rollbacks.iter().any(|rollback| rollback.attempt == failure.attempt);
        let kind = if is_rollback { MarkKind::Rollback } else { MarkKind::Restart };
        let lost = failure.seconds.map_or("not recovered yet".to_owned(), |seconds| format!("{seconds:.1} s lost"));
        Mark { kind, step: failure.step, text: format!("attempt {}: {}; {lost}", failure.attempt, failure.cause) }
    };
    newest(failures.iter().map(mark).collect())
}

fn newest(mut marks: Vec<Mark>) -> Vec<Mark> {
    marks.drain(..marks.len().saturating_sub(MOST));
    marks
}

#[cfg(test)]
mod tests {
    use lambert_config::run::Stage;

    use super::super::point::Point;
    use super::super::point::tests::record;
    use super::super::progress::Progress;
    use super::*;

    #[test]
    fn stages_growth_and_skipped_samples_are_found() {
        let point = |stage: &str, skipped| Point {
            stage: stage.into(),
            skipped_samples: skipped,
            ..Point::from(&record(1, 5.0))
        };
        let points = [point("short", 0), point("short", 16), point("deep", 16)];
        let curve =
            |(index, point)| CurveStep { attempt: 1, step: index as u64 + 1, progress: Progress::default(), point };
        let steps: Vec<CurveStep<'_>> = points.iter().enumerate().map(curve).collect();
        let stage = |name: &str, layers| Stage { name: name.into(), layers: Some(layers), ..Stage::default() };
        let config = RunConfig { stage: vec![stage("short", 2), stage("deep", 4)], ..RunConfig::default() };
        let bands = stages(&steps, Some(&config));
        assert_eq!(bands[0], StageBand { name: "short".into(), from: 1, to: 2, layers: Some(2) });
        assert_eq!(growth(&bands)[0].text, "grown from 2 to 4 layers; stage deep begins");
        assert_eq!((growth(&bands)[0].step, growth(&stages(&steps, None))), (2, vec![]));
        assert_eq!(skipped(&steps)[0].text, "16 samples skipped (16 so far)");
        assert_eq!((skipped(&steps)[0].step, skipped(&steps).len()), (2, 1));
    }

    #[test]
    fn rollbacks_are_failures_of_attempts_with_a_rollback() {
        let failure = |attempt, cause: &str| Downtime { attempt, step: 9, seconds: None, cause: cause.into() };
        let rollbacks = [RollbackPoint { attempt: 2, steps: 7 }];
        let marks = failures(&[failure(1, "killed"), failure(2, "diverged")], &rollbacks);
        assert_eq!((marks[0].kind, marks[1].kind), (MarkKind::Restart, MarkKind::Rollback));
        assert_eq!(marks[1].text, "attempt 2: diverged; not recovered yet");
        let saves = [AttemptStep { attempt: 1, step: 7 }, AttemptStep { attempt: 2, step: 9 }];
        let texts: Vec<String> = checkpoints(&saves, &rollbacks).into_iter().map(|mark| mark.text).collect();
        assert_eq!(texts, ["step-000000007-a0001", "step-000000009-a0002 (rolled back)"]);
    }
}
