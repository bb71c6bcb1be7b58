//! `status.json`: where a run is, for people and programs on other machines.

pub mod stored;

use lambert_control::{Evaluation, GradientNoise, StepRecord};
pub use lambert_store::run::STATUS as OBJECT;
use serde::{Deserialize, Serialize};

use crate::host;

/// What a run is doing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// Workers are being started.
    #[default]
    Starting,
    /// Steps are being made.
    Training,
    /// Workers died; they are started again after a pause.
    Restarting,
    /// A checkpoint was asked for, after which the run stops.
    Stopping,
    /// It stopped on request and can go on.
    Stopped,
    /// All steps are done.
    Finished,
    /// It was given up.
    Failed,
}

impl State {
    /// Whether nobody works on the run in this state.
    pub fn is_over(self) -> bool {
        matches!(self, Self::Stopped | Self::Finished | Self::Failed)
    }
}

impl std::fmt::Display for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Starting => "starting",
            Self::Training => "training",
            Self::Restarting => "restarting",
            Self::Stopping => "stopping",
            Self::Stopped => "stopped",
            Self::Finished => "finished",
            Self::Failed => "failed",
        })
    }
}

/// Where a run is.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Status {
    /// What it is doing.
    pub state: State,
    /// Its name.
    pub name: String,
    /// The attempt that holds it.
    pub attempt: u32,
    /// Steps finished.
    pub step: u64,
    /// Steps of all stages.
    pub steps: u64,
    /// Samples a second, averaged over the last steps.
    pub samples_per_second: f64,
    /// Seconds to the end at that speed, if known.
    pub seconds_left: Option<f64>,
    /// The newest committed checkpoint.
    pub checkpoint: Option<String>,
    /// How often workers were started again under this coordinator.
    pub restarts: u64,
    /// What those restarts cost.
    pub lost: Vec<Lost>,
    /// The last step's record.
    pub record: Option<StepRecord>,
    /// The last held-out measurement.
    pub evaluation: Option<Evaluation>,
    /// How noisy gradients are, averaged over the last steps that measured it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub noise: Option<NoiseScale>,
    /// The folder on each host that has what the attempt's ranks there printed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logs: Option<String>,
    /// The workers.
    pub ranks: Vec<RankStatus>,
    /// Connections and requests that the current attempt's control channel has refused.
    pub refused: u64,
    /// Who watches them.
    pub coordinator: Coordinator,
    /// The last failure.
    pub error: Option<String>,
    /// When this was written, seconds since 1970.
    pub updated: f64,
}

/// The averages of the estimates of [`GradientNoise`], the latest with the most weight.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct NoiseScale {
    /// How many estimates there were.
    pub estimates: u64,
    /// Of |G|^2.
    pub gradient: f64,
    /// Of tr(S).
    pub variance: f64,
}

/// The weight of the newest estimate, once there are as many as its inverse; the mean of all before.
const NEWEST: f64 = 0.05;

impl NoiseScale {
    /// Takes in an estimate.
    pub fn add(&mut self, noise: GradientNoise) {
        self.estimates += 1;
        let weight = NEWEST.max(1.0 / self.estimates as f64);
        self.gradient += weight * (noise.gradient - self.gradient);
        self.variance += weight * (noise.variance - self.variance);
    }

    /// The noise scale, in samples; `None` while the averages still stray below zero.
    pub fn samples(self) -> Option<f64> {
        (self.gradient > 0.0 && self.variance > 0.0).then(|| self.variance / self.gradient)
    }
}

/// The coordinator.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Coordinator {
    /// Host name.
    pub host: String,
    /// Process id there.
    pub pid: u32,
    /// Since when that process is there (its start in the kernel's words), which tells it from a later one of the same number; empty
    /// if unknown.
    #[serde(default)]
    pub since: String,
}

impl Coordinator {
    /// This process.
    pub fn of_process() -> Self {
        let pid = std::process::id();
        Self { host: host::name(), pid, since: host::since(pid).unwrap_or_default() }
    }
}

/// A worker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RankStatus {
    /// Its rank.
    pub rank: usize,
    /// Host name.
    pub host: String,
    /// Process id there.
    pub pid: u32,
    /// Steps it has finished.
    pub step: u64,
    /// What its training thread is doing, in words.
    #[serde(default)]
    pub phase: String,
    /// Seconds since it last reported.
    pub silent: f64,
}

/// What a failure and the restart after it cost.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Lost {
    /// The attempt that failed.
    pub attempt: u32,
    /// Steps finished when it failed.
    pub step: u64,
    /// Seconds from the failure until as many steps were finished again; absent until then.
    pub seconds: Option<f64>,
    /// Which rank failed and how.
    pub cause: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_noise_scale_is_the_ratio_of_averages() {
        let mut noise = NoiseScale::default();
        assert_eq!(noise.samples(), None);
        for (gradient, variance) in [(-1.0, 30.0), (3.0, 50.0)] {
            noise.add(GradientNoise { gradient, variance });
        }
        assert_eq!((noise.estimates, noise.samples()), (2, Some(40.0)));
        (0..500).for_each(|_| noise.add(GradientNoise { gradient: 1.0, variance: 7.0 }));
        assert!((noise.samples().unwrap() - 7.0).abs() < 1e-6, "what was long ago is forgotten");
    }
}
