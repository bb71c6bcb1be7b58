//! Goodput: the wall-clock time of a run by category, in the categories of Google's ml-goodput-measurement.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Maximum number of checkpoints kept.
const MAX_CHECKPOINTS: usize = 32;

/// Category of wall-clock time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TimeCategory {
    /// Steps whose result the run still has, without their waiting for samples and checkpoints.
    ProductiveStep,
    /// Start of the coordinator and of workers, until the ranks have joined.
    Initialization,
    /// Opening datasets and building the model.
    TrainingPrep,
    /// From the start of training to the first step of an attempt.
    ProgramStartup,
    /// Steps' waiting for samples.
    DataLoading,
    /// Pauses of training for checkpoints, and the save at the end of an attempt.
    UnproductiveCheckpointSaveTime,
    /// Loading a checkpoint.
    UnproductiveCheckpointRestoreTime,
    /// Steps that were lost in a failure or undone by a rollback.
    WastedProgressFromDisruption,
    /// From the last step of an attempt that failed to the next start, and time between coordinators.
    InfrastructureRecoveryFromDisruption,
    /// Evaluations.
    Evaluation,
    /// Everything else.
    Other,
}

impl TimeCategory {
    pub const ALL: [Self; 11] = [
        Self::ProductiveStep,
        Self::Initialization,
        Self::TrainingPrep,
        Self::ProgramStartup,
        Self::DataLoading,
        Self::UnproductiveCheckpointSaveTime,
        Self::UnproductiveCheckpointRestoreTime,
        Self::WastedProgressFromDisruption,
        Self::InfrastructureRecoveryFromDisruption,
        Self::Evaluation,
        Self::Other,
    ];

    /// Name in JSON and in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::ProductiveStep => "productive_step",
            Self::Initialization => "initialization",
            Self::TrainingPrep => "training_prep",
            Self::ProgramStartup => "program_startup",
            Self::DataLoading => "data_loading",
            Self::UnproductiveCheckpointSaveTime => "unproductive_checkpoint_save_time",
            Self::UnproductiveCheckpointRestoreTime => "unproductive_checkpoint_restore_time",
            Self::WastedProgressFromDisruption => "wasted_progress_from_disruption",
            Self::InfrastructureRecoveryFromDisruption => "infrastructure_recovery_from_disruption",
            Self::Evaluation => "evaluation",
            Self::Other => "other",
        }
    }
}

/// Wall-clock time of a run since its first start.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Goodput {
    /// First start of the run, seconds since the Unix epoch; 0: not started.
    pub started: f64,
    /// End of the time accounted for, seconds since the Unix epoch.
    pub until: f64,
    /// Seconds of each category. Their sum is `until - started`.
    pub seconds: BTreeMap<TimeCategory, f64>,
    /// Completed steps of which the run has the result.
    pub step: u64,
    /// Productive seconds up to recent checkpoints, by step: what a restart from one loses.
    pub checkpoints: BTreeMap<u64, f64>,
}

impl Goodput {
    /// True before the first start.
    pub fn is_empty(&self) -> bool {
        self.started == 0.0
    }

    /// Seconds of a category.
    pub fn of(&self, category: TimeCategory) -> f64 {
        self.seconds.get(&category).copied().unwrap_or_default()
    }

    /// Seconds of all categories.
    pub fn total(&self) -> f64 {
        self.seconds.values().sum()
    }

    /// Productive share of the time; 0 before any time has passed.
    pub fn share(&self) -> f64 {
        let total = self.total();
        if total > 0.0 { self.of(TimeCategory::ProductiveStep) / total } else { 0.0 }
    }

    /// Categories that took time, with their seconds, the longest first.
    pub fn by_time(&self) -> Vec<(TimeCategory, f64)> {
        let mut categories: Vec<(TimeCategory, f64)> = self
            .seconds
            .iter()
            .map(|(category, seconds)| (*category, *seconds))
            .filter(|(_, seconds)| *seconds > 0.0)
            .collect();
        categories.sort_by(|(_, a), (_, b)| b.total_cmp(a));
        categories
    }

    /// Adds seconds to a category.
    pub fn add(&mut self, category: TimeCategory, seconds: f64) {
        *self.seconds.entry(category).or_default() += seconds;
    }

    /// Moves seconds from one category to another.
    pub fn shift(&mut self, from: TimeCategory, to: TimeCategory, seconds: f64) {
        self.add(from, -seconds);
        self.add(to, seconds);
    }

    /// Keeps the productive seconds up to a checkpoint.
    pub fn mark(&mut self, step: u64, productive: f64) {
        self.checkpoints.insert(step, productive);
        while self.checkpoints.len() > MAX_CHECKPOINTS {
            self.checkpoints.pop_first();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_json() {
        for category in TimeCategory::ALL {
            assert_eq!(serde_json::to_value(category).unwrap(), category.name());
        }
    }

    #[test]
    fn the_share_is_of_all_time() {
        let mut goodput = Goodput::default();
        assert_eq!((goodput.share(), goodput.is_empty()), (0.0, true));
        goodput.add(TimeCategory::ProductiveStep, 8.0);
        goodput.add(TimeCategory::Initialization, 2.0);
        goodput.shift(TimeCategory::ProductiveStep, TimeCategory::WastedProgressFromDisruption, 3.0);
        assert_eq!((goodput.share(), goodput.total()), (0.5, 10.0));
        (0..50).for_each(|step| goodput.mark(step, 1.0));
        assert_eq!(goodput.checkpoints.first_key_value(), Some((&18, &1.0)));
        let read: Goodput = serde_json::from_str(&serde_json::to_string(&goodput).unwrap()).unwrap();
        assert_eq!(read, goodput);
    }
}
