//! What a rank and the coordinator send each other.

use crate::{Directive, EventKind, StepRecord};
use serde::{Deserialize, Serialize};

use crate::Versions;

/// What the training thread of a rank is doing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    /// It finds the other ranks.
    #[default]
    Join,
    /// It opens datasets and loads the checkpoint.
    Load,
    /// A step: it waits for its samples.
    Read,
    /// A step: it computes.
    Step,
    /// A step: it exchanges numbers with the other ranks.
    Exchange,
    /// It measures the held-out loss.
    Evaluate,
    /// It waits for a checkpoint to be copied or written.
    Save,
    /// It is done, and leaves.
    Stop,
}

impl Phase {
    /// All of them, in the order of their codes.
    pub const ALL: [Self; 8] =
        [Self::Join, Self::Load, Self::Read, Self::Step, Self::Exchange, Self::Evaluate, Self::Save, Self::Stop];

    /// Whether it is part of a training step.
    pub fn is_step(self) -> bool {
        matches!(self, Self::Read | Self::Step | Self::Exchange)
    }
}

impl std::fmt::Display for Phase {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Join => "joining the other ranks",
            Self::Load => "loading",
            Self::Read => "waiting for samples",
            Self::Step => "computing a step",
            Self::Exchange => "exchanging gradients",
            Self::Evaluate => "evaluating",
            Self::Save => "saving a checkpoint",
            Self::Stop => "leaving",
        })
    }
}

/// A rank's report; sent at its start, when something happens, and at least every few seconds.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// The rank, from 0.
    pub rank: usize,
    /// Process id on `host`.
    pub pid: u32,
    /// Host name.
    pub host: String,
    /// Steps finished since the run's first start.
    pub step: u64,
    /// What the training thread is doing.
    pub phase: Phase,
    /// Seconds since it began that, or since it finished a step.
    pub in_phase: f64,
    /// Whether Slurm has asked this rank to end, which it leaves to the coordinator.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub terminated: bool,
    /// Number of the last order that was taken to heart; 0 for none.
    #[serde(default)]
    pub taken: u64,
    /// What it runs; in reports that were not yet answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub versions: Option<Versions>,
    /// What happened, in order; repeated until it is acknowledged.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub said: Vec<Numbered>,
}

/// Something that a rank says once.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Numbered {
    /// Its number among the sayings of the rank in this attempt, from 1.
    pub number: u64,
    /// What it says.
    #[serde(flatten)]
    pub saying: Saying,
}

/// What a rank says once.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Saying {
    /// A finished step's record; from rank 0 only.
    Record(Box<StepRecord>),
    /// Something happened.
    Event(EventKind),
}

/// Something that the coordinator wants of the ranks. Rank 0 passes it on, so that all act at the same step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Order {
    /// Its number in this attempt, from 1.
    pub number: u64,
    /// What to do.
    pub directive: Directive,
}

/// The coordinator's answer to a [`Report`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    /// Everything that the rank has said up to this number has arrived.
    pub acknowledged: u64,
    /// The newest order that the rank has not taken yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub order: Option<Order>,
}
