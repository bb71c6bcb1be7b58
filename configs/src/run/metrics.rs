//! What is measured on the way, by option.

use std::ops::Range;

use serde::{Deserialize, Serialize};

/// What a step's record holds now and then.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Metrics {
    /// Steps between estimates of the gradient noise scale; 0: none. Such a step computes its global batch in two halves, which
    /// are summed over the ranks one after the other: its roundings are others, and its gradients take their memory twice.
    pub noise_scale_every_steps: u64,
    /// Steps between records of LAMB's trust ratio of each tensor; 0: none.
    pub trust_ratios_every_steps: u64,
    /// How many steps each rank writes a trace of, for Perfetto or chrome://tracing; 0: none.
    pub trace_steps: u64,
    /// The first of them.
    pub trace_from_step: u64,
}

impl Default for Metrics {
    fn default() -> Self {
        Self { noise_scale_every_steps: 0, trust_ratios_every_steps: 0, trace_steps: 0, trace_from_step: 1 }
    }
}

impl Metrics {
    /// Whether the step after `done` of them measures how noisy its gradient is.
    pub fn measures_noise(&self, done: u64) -> bool {
        is_due(self.noise_scale_every_steps, done)
    }

    /// The steps that are traced, by their numbers in the records; `None` for none.
    pub fn traced(&self) -> Option<Range<u64>> {
        (self.trace_steps > 0).then(|| self.trace_from_step..self.trace_from_step.saturating_add(self.trace_steps))
    }

    /// Whether the step after `done` of them records trust ratios.
    pub fn records_trust_ratios(&self, done: u64) -> bool {
        is_due(self.trust_ratios_every_steps, done)
    }
}

fn is_due(every: u64, done: u64) -> bool {
    every > 0 && (done + 1).is_multiple_of(every)
}
