//! Optional metrics.

use std::ops::Range;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Optional metrics in step records.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Metrics {
    /// Steps between estimates of the gradient noise scale. 0: no estimates.
    ///
    /// A step with an estimate computes its global batch in two halves, with one all-reduce for each half. Therefore
    /// the rounding differs, and gradients take twice the memory.
    pub noise_scale_every_steps: u64,
    /// Steps between records of the factor of each tensor (LAMB, StableAdamW and Muon). 0: no records.
    ///
    /// The factor is the trust ratio of LAMB, the reduction of the rate of StableAdamW, or the norm of the update divided by the
    /// norm of the momentum of Muon.
    pub trust_ratios_every_steps: u64,
    /// Number of steps that each rank traces, for Perfetto or chrome://tracing. 0: no trace.
    pub trace_steps: u64,
    /// First step to trace.
    pub trace_from_step: u64,
    /// Local folder in which the coordinator writes event files for TensorBoard; empty: none.
    ///
    /// The files grow at each checkpoint. Earlier event files of lambert in the folder are replaced.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schemars(!skip_serializing_if)]
    pub tensorboard: String,
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            noise_scale_every_steps: 0,
            trust_ratios_every_steps: 0,
            trace_steps: 0,
            trace_from_step: 1,
            tensorboard: String::new(),
        }
    }
}

impl Metrics {
    /// True if the step after `done` steps measures the gradient noise scale.
    pub fn measures_noise(&self, done: u64) -> bool {
        is_due(self.noise_scale_every_steps, done)
    }

    /// Returns the step numbers to trace, if any.
    pub fn traced(&self) -> Option<Range<u64>> {
        (self.trace_steps > 0).then(|| self.trace_from_step..self.trace_from_step.saturating_add(self.trace_steps))
    }

    /// True if the step after `done` steps records trust ratios.
    pub fn records_trust_ratios(&self, done: u64) -> bool {
        is_due(self.trust_ratios_every_steps, done)
    }
}

fn is_due(every: u64, done: u64) -> bool {
    every > 0 && (done + 1).is_multiple_of(every)
}
