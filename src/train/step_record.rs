//! Step records.

use std::collections::BTreeMap;

use lambert_control::{
    BatchStats, GpuRanges, GpuSample, GradientNoise, RankTimes, SkipCounts, StepRecord, StepTimes, Throughput,
    UpdateStats,
};

use crate::state::TrainState;
use crate::train::outcome::StepOutcome;
use crate::worker::agreement::RankStats;

/// Measurements of a step.
pub struct StepMeasurements<'a> {
    /// Times on this rank, without the distribution over the ranks.
    pub times: StepTimes,
    /// Measurements of each rank.
    pub ranks: &'a [RankStats],
    /// Floating-point operations of the step.
    pub flops: f64,
    /// Measured matmul peak of all ranks together, FLOP/s.
    pub peak: f64,
    /// Gradient noise, if it was measured.
    pub noise: Option<GradientNoise>,
    /// Trust ratios by parameter; empty if they are not recorded.
    pub trust_ratios: BTreeMap<String, f64>,
}

/// Creates the record of a step. `state` is the state after the step.
pub fn record(outcome: &StepOutcome, state: &TrainState, measured: StepMeasurements<'_>) -> StepRecord {
    let StepMeasurements { times, ranks, flops, peak, noise, trust_ratios } = measured;
    let batch = BatchStats {
        samples: outcome.samples,
        tokens: outcome.tokens,
        padding: outcome.padding as f64 / outcome.tokens.max(1) as f64,
        imbalance: outcome.imbalance,
        masked_tokens: outcome.totals.masked_tokens(),
        digest: outcome.totals.digest as u64,
        drawn_digest: Some(outcome.totals.drawn_digest as u64).filter(|digest| *digest > 0),
    };
    let busy: Vec<f64> = ranks.iter().map(|rank| rank.busy).collect();
    let gpus: Vec<GpuSample> = ranks.iter().map(|rank| rank.gpu).collect();
    StepRecord {
        step: outcome.steps_before + 1,
        stage: outcome.stage.clone(),
        epoch: outcome.epoch,
        mixture: outcome.drawn.datasets.clone(),
        throughput: throughput(&batch, times.seconds, flops, peak),
        batch,
        loss: outcome.loss(),
        scores: outcome.totals.scores(),
        update: UpdateStats {
            learning_rate: outcome.learning_rate,
            grad_norm: outcome.finite_norm(),
            spike_score: state.stages.spikes.score(),
            noise,
            trust_ratios,
        },
        skipped: SkipCounts { updates: state.skipped.updates, samples: state.skipped.samples },
        times: StepTimes { ranks: RankTimes::of(&busy), ..times },
        peak_memory: ranks.iter().map(|rank| rank.peak_memory as u64).max().filter(|peak| *peak > 0),
        gpu: GpuRanges::of(&gpus),
    }
}

/// Throughput of a step that took `seconds`.
fn throughput(batch: &BatchStats, seconds: f64, flops: f64, peak: f64) -> Throughput {
    Throughput {
        samples_per_second: batch.samples as f64 / seconds,
        tokens_per_second: batch.tokens as f64 / seconds,
        flops_utilization: flops / seconds / peak,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn throughput_is_per_second_of_the_step() {
        let batch = BatchStats { samples: 256, tokens: 1024, ..BatchStats::default() };
        let expected = Throughput { samples_per_second: 128.0, tokens_per_second: 512.0, flops_utilization: 0.25 };
        assert_eq!(throughput(&batch, 2.0, 2e9, 4e9), expected);
    }
}
