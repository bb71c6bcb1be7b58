//! Stages of a run, and what happened at single steps.

use lambert_store::checkpoint::{AttemptStep, Rollbacks};
use serde::Serialize;

use crate::status::Downtime;

/// Maximum number of marks of a kind; the newest are kept.
pub const MAX_MARKS: usize = 200;

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
pub struct ChartMark {
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

/// Returns the growth of the model between stages.
pub fn growth(stages: &[StageBand]) -> Vec<ChartMark> {
    let grown = |pair: &[StageBand]| {
        let (from, to) = (pair[0].layers?, pair[1].layers?);
        let text = format!("grown from {from} to {to} layers; stage {} begins", pair[1].name);
        (to > from).then(|| ChartMark { kind: MarkKind::Growth, step: pair[0].to, text })
    };
    newest(stages.windows(2).filter_map(grown).collect())
}

/// Returns the checkpoints of the run, kept or pruned.
pub fn checkpoints(saves: &[AttemptStep], rollbacks: &Rollbacks) -> Vec<ChartMark> {
    let mark = |save: &AttemptStep| {
        let text = format!("{}{}", save.name(), if rollbacks.invalidate(*save) { " (rolled back)" } else { "" });
        ChartMark { kind: MarkKind::Checkpoint, step: save.step, text }
    };
    saves[saves.len().saturating_sub(MAX_MARKS)..].iter().map(mark).collect()
}

/// A failure and its recovery, for users.
pub type DescribedFailure = (Downtime, String);

/// Returns failures and rollbacks with their causes.
pub fn failures(failures: &[DescribedFailure], rollbacks: &Rollbacks) -> Vec<ChartMark> {
    let mark = |(failure, recovery): &DescribedFailure| {
        let is_rollback = rollbacks.points().iter().any(|rollback| rollback.attempt == failure.attempt);
        let kind = if is_rollback { MarkKind::Rollback } else { MarkKind::Restart };
        let text = format!("attempt {}: {}; {recovery}", failure.attempt, failure.cause);
        ChartMark { kind, step: failure.step, text }
    };
    newest(failures.iter().map(mark).collect())
}

fn newest(mut marks: Vec<ChartMark>) -> Vec<ChartMark> {
    marks.drain(..marks.len().saturating_sub(MAX_MARKS));
    marks
}

#[cfg(test)]
mod tests {
    use lambert_store::checkpoint::RollbackPoint;

    use super::*;

    #[test]
    fn rollbacks_are_failures_of_attempts_with_a_rollback() {
        let failure = |attempt, cause: &str| {
            (Downtime { attempt, step: 9, seconds: None, cause: cause.into() }, "not recovered yet".to_owned())
        };
        let rollbacks: Rollbacks = [RollbackPoint { attempt: 2, last_kept: 7 }].into_iter().collect();
        let marks = failures(&[failure(1, "killed"), failure(2, "diverged")], &rollbacks);
        assert_eq!((marks[0].kind, marks[1].kind), (MarkKind::Restart, MarkKind::Rollback));
        assert_eq!(marks[1].text, "attempt 2: diverged; not recovered yet");
        let saves = [AttemptStep { attempt: 1, step: 7 }, AttemptStep { attempt: 2, step: 9 }];
        let texts: Vec<String> = checkpoints(&saves, &rollbacks).into_iter().map(|mark| mark.text).collect();
        assert_eq!(texts, ["step-000000007-a0001", "step-000000009-a0002 (rolled back)"]);
    }
}
