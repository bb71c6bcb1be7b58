//! `status.json`: the state of a run, for users and other programs.

pub mod attention;
pub mod goodput;
pub mod gpus;
pub mod stored;

use lambert_control::{Evaluation, GpuStatus, GradientNoise, StepRecord};
pub use lambert_store::run::STATUS as OBJECT;
use serde::{Deserialize, Serialize};

use crate::host;
use goodput::Goodput;

/// Run state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RunState {
    /// Workers are starting.
    #[default]
    Starting,
    Training,
    /// Workers failed. The coordinator waits before it restarts the workers.
    Restarting,
    /// Saving a checkpoint before stopping.
    Stopping,
    /// Stopped on request. The run can be resumed.
    Stopped,
    /// All steps are done.
    Finished,
    /// Failed permanently.
    Failed,
}

impl RunState {
    /// True if no coordinator works on a run in this state.
    pub fn is_over(self) -> bool {
        matches!(self, Self::Stopped | Self::Finished | Self::Failed)
    }
}

impl std::fmt::Display for RunState {
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

/// Run status. The nested parts are flattened into one JSON object. Missing keys take default values.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Status {
    /// Run state.
    pub state: RunState,
    /// Run name.
    pub name: String,
    /// Current attempt.
    pub attempt: u32,
    /// Progress and speed.
    #[serde(flatten)]
    pub progress: RunProgress,
    /// Newest committed checkpoint.
    pub checkpoint: Option<String>,
    /// Failed saves since the last successful one. Absent if the last save succeeded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failed_saves: Option<FailedSaves>,
    /// Restarts under this coordinator.
    #[serde(flatten)]
    pub restarts: Restarts,
    /// The last measurements.
    #[serde(flatten)]
    pub latest: LatestMetrics,
    /// Workers of the current attempt.
    #[serde(flatten)]
    pub workers: WorkerStatus,
    /// Wall-clock time since the first start, by category.
    #[serde(skip_serializing_if = "Goodput::is_empty")]
    pub goodput: Goodput,
    /// Coordinator of the run.
    pub coordinator: CoordinatorProcess,
    /// Last failure.
    pub error: Option<String>,
    /// Time of writing, seconds since the Unix epoch.
    pub updated: f64,
}

/// Completed steps and throughput.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RunProgress {
    /// Number of completed steps.
    pub step: u64,
    /// Total number of steps of all stages.
    pub steps: u64,
    /// Samples per second, averaged over recent steps.
    pub samples_per_second: f64,
    /// Estimated seconds until completion, if known.
    pub seconds_left: Option<f64>,
}

/// Saves of checkpoints that failed one after another.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FailedSaves {
    /// Time of the first failure, seconds since the Unix epoch.
    pub since: f64,
    /// Number of failures.
    pub count: u64,
    /// Error of the last failure.
    pub error: String,
}

/// Worker restarts under a coordinator.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Restarts {
    /// Number of restarts.
    #[serde(rename = "restarts")]
    pub count: u64,
    /// Downtime of each failure.
    #[serde(alias = "lost")]
    pub failures: Vec<Downtime>,
}

/// Latest measurements of a run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LatestMetrics {
    /// Record of the last step.
    pub record: Option<StepRecord>,
    /// The last held-out measurement.
    pub evaluation: Option<Evaluation>,
    /// Gradient noise averaged over recent measurements.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub noise: Option<NoiseScale>,
}

/// Workers of an attempt.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct WorkerStatus {
    /// Log directory of the attempt on each host.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logs: Option<String>,
    /// Status of each rank.
    pub ranks: Vec<RankStatus>,
    /// Number of connections and requests that the control server refused.
    pub refused: u64,
}

/// Weighted averages of [`GradientNoise`] estimates. Recent estimates have the largest weights.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct NoiseScale {
    /// Number of estimates.
    pub estimates: u64,
    /// Average of the estimates of |G|^2, the squared norm of the true gradient G.
    pub gradient: f64,
    /// Average of the estimates of tr(S), where S is the covariance of the gradients of single samples.
    pub variance: f64,
}

/// Weight of a new estimate, once there are at least 1 / `NEWEST` estimates. With fewer estimates, the average is the
/// plain mean.
const NEWEST: f64 = 0.05;

impl NoiseScale {
    /// Adds an estimate.
    pub fn add(&mut self, noise: GradientNoise) {
        self.estimates = self.estimates.saturating_add(1);
        let weight = NEWEST.max(1.0 / self.estimates as f64);
        self.gradient += weight * (noise.gradient - self.gradient);
        self.variance += weight * (noise.variance - self.variance);
    }

    /// Gradient noise scale tr(S) / |G|^2, in samples. `None` unless both averages are positive.
    pub fn samples(self) -> Option<f64> {
        (self.gradient > 0.0 && self.variance > 0.0).then(|| self.variance / self.gradient)
    }
}

/// Identity of the process of a coordinator.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct CoordinatorProcess {
    pub host: String,
    /// Process ID on that host.
    pub pid: u32,
    /// Boot ID and process start time, which reveal that a process ID was reused. Empty if unknown.
    #[serde(default)]
    pub since: String,
    /// PID namespace of the process ID. Empty if unknown.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub pid_namespace: String,
}

impl CoordinatorProcess {
    /// Identity of this process.
    pub fn of_process() -> Self {
        let pid = std::process::id();
        let (since, pid_namespace) = (host::since(pid).unwrap_or_default(), host::pid_namespace());
        Self { host: host::name(), pid, since, pid_namespace }
    }
}

/// Status of a worker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RankStatus {
    pub rank: usize,
    pub host: String,
    /// Process ID on that host.
    pub pid: u32,
    /// Number of completed steps.
    pub step: u64,
    /// Description of the training thread's phase.
    #[serde(default)]
    pub phase: String,
    /// Seconds since the last report.
    #[serde(alias = "silent")]
    pub seconds_since_heartbeat: f64,
    /// Absent without a GPU or without NVML.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<GpuStatus>,
}

/// Cost of a failure and of the restart that followed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Downtime {
    /// Failed attempt.
    pub attempt: u32,
    /// Number of completed steps at the time of the failure.
    pub step: u64,
    /// Seconds from the failure until the run reached `step` again. `None` if the run has not reached `step` again.
    pub seconds: Option<f64>,
    /// Cause of the failure.
    pub cause: String,
}

impl Downtime {
    /// Describes the recovery, with the last status of the run: `2.6 s lost`, `not recovered yet`.
    pub fn recovery(&self, status: &Status) -> String {
        let has_recovered = status.attempt > self.attempt && status.progress.step >= self.step;
        match self.seconds {
            Some(seconds) => format!("{seconds:.1} s lost"),
            // The coordinator of the failure ended before the run had reached this step again.
            None if has_recovered => "recovered, time lost unknown".to_owned(),
            None => "not recovered yet".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use lambert_control::Scores;

    use super::*;

    /// Serialized status with every field set.
    const FULL: &str = concat!(
        r#"{"state":"training","name":"demo","attempt":3,"step":70,"steps":120,"samples_per_second":64.0,"#,
        r#""seconds_left":25.5,"checkpoint":"step-000000060-a0002","#,
        r#""failed_saves":{"since":1740000000.0,"count":3,"error":"disk full"},"restarts":1,"failures":[{"attempt":2,"step":64,"#,
        r#""seconds":null,"cause":"rank 1: signal 9"}],"record":{"step":70,"stage":"","epoch":0,"samples":0,"#,
        r#""tokens":0,"padding":0.0,"imbalance":0.0,"masked_tokens":0,"batch_digest":0,"loss":7.25,"#,
        r#""learning_rate":0.0,"skipped_updates":0,"skipped_samples":0,"seconds":0.0,"data_wait":0.0,"#,
        r#""forward_backward":0.0,"communication":0.0,"optimizer":0.0,"checkpoint":0.0,"samples_per_second":0.0,"#,
        r#""tokens_per_second":0.0,"flops_utilization":0.0},"evaluation":{"step":60,"samples":8,"masked_tokens":9,"#,
        r#""unigram_entropy":3.5},"noise":{"estimates":2,"gradient":1.0,"variance":40.0},"logs":"/scratch/logs","#,
        r#""ranks":[{"rank":0,"host":"node1","pid":4711,"step":70,"phase":"computing a step","seconds_since_heartbeat":0.5,"gpu":{"index":1,"uuid":"u"}}],"#,
        r#""refused":2,"coordinator":{"host":"node0","pid":42,"since":"99","pid_namespace":"pid:[1]"},"error":"rank 1: signal 9","#,
        r#""updated":1750000000.0}"#,
    );

    /// Serialized default status.
    const EMPTY: &str = concat!(
        r#"{"state":"starting","name":"","attempt":0,"step":0,"steps":0,"samples_per_second":0.0,"#,
        r#""seconds_left":null,"checkpoint":null,"restarts":0,"failures":[],"record":null,"evaluation":null,"ranks":[],"#,
        r#""refused":0,"coordinator":{"host":"","pid":0,"since":""},"error":null,"updated":0.0}"#,
    );

    /// The status of [`FULL`].
    fn full() -> Status {
        Status {
            state: RunState::Training,
            name: "demo".to_owned(),
            attempt: 3,
            progress: RunProgress { step: 70, steps: 120, samples_per_second: 64.0, seconds_left: Some(25.5) },
            checkpoint: Some("step-000000060-a0002".to_owned()),
            failed_saves: Some(FailedSaves { since: 1.74e9, count: 3, error: "disk full".to_owned() }),
            restarts: Restarts {
                count: 1,
                failures: vec![Downtime { attempt: 2, step: 64, seconds: None, cause: "rank 1: signal 9".to_owned() }],
            },
            latest: LatestMetrics {
                record: Some(StepRecord { step: 70, loss: 7.25, ..StepRecord::default() }),
                evaluation: Some(Evaluation {
                    step: 60,
                    samples: 8,
                    masked_tokens: 9,
                    loss: None,
                    scores: Scores::default(),
                    unigram_entropy: 3.5,
                    extra: BTreeMap::new(),
                }),
                noise: Some(NoiseScale { estimates: 2, gradient: 1.0, variance: 40.0 }),
            },
            workers: WorkerStatus {
                logs: Some("/scratch/logs".to_owned()),
                ranks: vec![RankStatus {
                    rank: 0,
                    host: "node1".to_owned(),
                    pid: 4711,
                    step: 70,
                    phase: "computing a step".to_owned(),
                    seconds_since_heartbeat: 0.5,
                    gpu: Some(GpuStatus { index: 1, uuid: "u".to_owned(), ..GpuStatus::default() }),
                }],
                refused: 2,
            },
            coordinator: CoordinatorProcess {
                host: "node0".to_owned(),
                pid: 42,
                since: "99".to_owned(),
                pid_namespace: "pid:[1]".to_owned(),
            },
            goodput: Goodput::default(),
            error: Some("rank 1: signal 9".to_owned()),
            updated: 1.75e9,
        }
    }

    #[test]
    fn a_status_keeps_its_keys_and_their_order() {
        let text = |status: &Status| serde_json::to_string(status).unwrap();
        let read = |text: &str| serde_json::from_str::<Status>(text).unwrap();
        assert_eq!(text(&full()), FULL);
        assert_eq!(text(&Status::default()), EMPTY);
        assert_eq!((read(FULL), read(EMPTY)), (full(), Status::default()));
    }

    /// Versions up to 0.1 write these keys.
    #[test]
    fn old_keys_are_read() {
        let old = FULL.replace("failures", "lost").replace("seconds_since_heartbeat", "silent");
        assert!(old != FULL && serde_json::from_str::<Status>(&old).unwrap() == full(), "{old}");
    }

    #[test]
    fn a_status_of_another_version_is_read() {
        let read = |text: &str| serde_json::from_str::<Status>(text).unwrap();
        assert_eq!(read("{}"), Status::default());
        let other = read(
            r#"{"step":5,"samples_per_second":4,"seconds_left":9,"failures":[],"refused":1,"unknown":{"step":1}}"#,
        );
        let expected = Status {
            progress: RunProgress { step: 5, steps: 0, samples_per_second: 4.0, seconds_left: Some(9.0) },
            workers: WorkerStatus { refused: 1, ..WorkerStatus::default() },
            ..Status::default()
        };
        assert_eq!(other, expected);
        let damaged = serde_json::from_str::<Status>(r#"{"steps":"many"}"#).unwrap_err().to_string();
        assert!(damaged.contains("expected u64"), "{damaged}");
    }

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
