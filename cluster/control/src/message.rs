//! Messages between a worker and the coordinator.

use crate::{Directive, EventKind, GpuStatus, StepRecord};
use serde::{Deserialize, Serialize};

use crate::Versions;

/// Activity of the training thread of a worker.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WorkerPhase {
    /// Connecting to the other ranks.
    #[default]
    Join,
    /// Opening datasets and loading the checkpoint.
    Load,
    /// Training step: waiting for samples.
    Read,
    /// Training step: forward and backward passes, update.
    Step,
    /// Training step: collective communication.
    AllReduce,
    /// Evaluating on the held-out dataset.
    Evaluate,
    /// Waiting for a checkpoint to be copied or written.
    Save,
    /// Shutting down after the last step.
    Stop,
}

impl WorkerPhase {
    /// All phases, in the order of their codes.
    pub const ALL: [Self; 8] =
        [Self::Join, Self::Load, Self::Read, Self::Step, Self::AllReduce, Self::Evaluate, Self::Save, Self::Stop];

    /// True if the phase is part of a training step.
    pub fn is_step(self) -> bool {
        matches!(self, Self::Read | Self::Step | Self::AllReduce)
    }
}

impl std::fmt::Display for WorkerPhase {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Join => "joining the other ranks",
            Self::Load => "loading",
            Self::Read => "waiting for samples",
            Self::Step => "computing a step",
            Self::AllReduce => "all-reducing gradients",
            Self::Evaluate => "evaluating",
            Self::Save => "saving a checkpoint",
            Self::Stop => "leaving",
        })
    }
}

/// Report of a worker to the coordinator. It is sent at startup, after each event, and as a heartbeat every few
/// seconds.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct WorkerReport {
    /// Rank, from 0.
    pub rank: usize,
    /// Process ID on `host`.
    pub pid: u32,
    /// Host name.
    pub host: String,
    /// Completed steps of the run.
    pub step: u64,
    /// Phase of the training thread.
    pub phase: WorkerPhase,
    /// Seconds since the phase began or the last step finished, whichever is later.
    #[serde(alias = "in_phase")]
    pub seconds_in_phase: f64,
    /// True if the worker has received SIGTERM and has left the reaction to the coordinator. Slurm sends SIGTERM before
    /// preemption, for example.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub has_received_sigterm: bool,
    /// Number of the last acknowledged command, or 0 if none was acknowledged.
    #[serde(default)]
    pub acknowledged_command: u64,
    /// GPU of the rank. Absent without a GPU or without NVML.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<Box<GpuStatus>>,
    /// Software versions of the worker. Reports contain them until the first reply arrives.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub versions: Option<Versions>,
    /// Unacknowledged messages, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub messages: Vec<SequencedMessage>,
}

/// Message with its sequence number.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SequencedMessage {
    /// Sequence number among the messages of this worker in this attempt, from 1.
    pub number: u64,
    /// Content.
    #[serde(flatten)]
    pub message: Message,
}

/// Content of a message from a worker. Each message must reach the coordinator exactly once.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Message {
    /// Record of a completed step. Only rank 0 sends records.
    Record(Box<StepRecord>),
    /// Event of the run.
    Event(EventKind),
}

/// Numbered directive of the coordinator. Rank 0 forwards it to the other ranks, so that all ranks act after the same
/// step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct CoordinatorCommand {
    /// Sequence number in this attempt, from 1.
    pub number: u64,
    /// Requested action.
    pub directive: Directive,
}

/// Reply of the coordinator to a [`WorkerReport`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReportReply {
    /// Sequence number of the last message received in order.
    pub acknowledged: u64,
    /// Newest command, if the worker has not acknowledged it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<CoordinatorCommand>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FailureKind;

    /// These names are part of the protocol, so they must not change within a protocol version.
    #[test]
    fn reports_and_replies_keep_their_json_fields() {
        let failed = |kind| EventKind::Failed { message: "m".into(), kind, missing: Vec::new() };
        let message = Message::Event(failed(FailureKind::Permanent));
        let report = WorkerReport {
            rank: 1,
            pid: 7,
            host: "h".into(),
            step: 3,
            phase: WorkerPhase::AllReduce,
            seconds_in_phase: 0.5,
            has_received_sigterm: true,
            acknowledged_command: 2,
            gpu: Some(Box::new(GpuStatus { index: 3, uuid: "u".into(), ..GpuStatus::default() })),
            versions: None,
            messages: vec![SequencedMessage { number: 4, message }],
        };
        let text = r#"{"rank":1,"pid":7,"host":"h","step":3,"phase":"all-reduce","seconds_in_phase":0.5,"has_received_sigterm":true,"acknowledged_command":2,"gpu":{"index":3,"uuid":"u"},"messages":[{"number":4,"event":{"event":"failed","message":"m","kind":"permanent"}}]}"#;
        assert_eq!(serde_json::to_string(&report).unwrap(), text);
        assert_eq!(serde_json::from_str::<WorkerReport>(text).unwrap(), report);
        let command = Some(CoordinatorCommand { number: 2, directive: Directive::CheckpointAndStop });
        let text = r#"{"acknowledged":4,"command":{"number":2,"directive":"checkpoint-and-stop"}}"#;
        assert_eq!(serde_json::to_string(&ReportReply { acknowledged: 4, command }).unwrap(), text);
        let skipped_checkpoints = vec!["step-000000001: damaged".to_owned()];
        let started = EventKind::Started { step: 0, steps: 9, checkpoint: None, skipped_checkpoints };
        let text = r#"{"event":"started","step":0,"steps":9,"checkpoint":null,"skipped_checkpoints":["step-000000001: damaged"]}"#;
        assert_eq!(serde_json::to_string(&started).unwrap(), text);
        let kinds = [FailureKind::RetryLater, FailureKind::Usage, FailureKind::Transient, FailureKind::Host];
        let names = kinds.map(|kind| serde_json::to_value(kind).unwrap());
        assert_eq!(names, ["retry-later", "usage", "transient", "host"]);
    }
}
