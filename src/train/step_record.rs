//! Step records.

use lambert_control::{BatchStats, GpuRanges, GpuSample, RankTimes, SkipCounts, StepRecord, Throughput, UpdateStats};

use crate::state::TrainState;
use crate::train::outcome::StepOutcome;
use crate::worker::agreement::RankStats;

/// Creates the record of a step, without times and throughput. `state` is the state after the step.
pub fn record(outcome: &StepOutcome, state: &TrainState) -> StepRecord {
    StepRecord {
        step: outcome.before + 1,
        stage: outcome.stage.clone(),
        epoch: outcome.epoch,
        mixture: outcome.drawn.datasets.clone(),
        batch: BatchStats {
            samples: outcome.samples,
            tokens: outcome.tokens,
            padding: outcome.padding as f64 / outcome.tokens.max(1) as f64,
            imbalance: outcome.imbalance,
            masked_tokens: outcome.totals.masked_tokens(),
            digest: outcome.totals.digest as u64,
            drawn_digest: Some(outcome.totals.drawn_digest as u64).filter(|digest| *digest > 0),
        },
        loss: outcome.loss(),
        scores: outcome.totals.scores(),
        update: UpdateStats {
            learning_rate: outcome.learning_rate,
            grad_norm: outcome.finite_norm(),
            spike_score: state.stages.spikes.score(),
            ..UpdateStats::default()
        },
        skipped: SkipCounts { updates: state.skipped.updates, samples: state.skipped.samples },
        ..StepRecord::default()
    }
}

/// Sets the throughput. `record.times.seconds` must be set before. `flops` is the number of floating-point operations
/// of the step. `peak` is the measured matmul peak of all ranks together, FLOP/s.
pub fn set_throughput(record: &mut StepRecord, flops: f64, peak: f64) {
    let (batch, seconds) = (&record.batch, record.times.seconds);
    record.throughput = Throughput {
        samples_per_second: batch.samples as f64 / seconds,
        tokens_per_second: batch.tokens as f64 / seconds,
        flops_utilization: flops / seconds / peak,
    };
}

/// Sets the times, the peak memory and the GPU values of the ranks.
pub fn set_rank_stats(record: &mut StepRecord, ranks: &[RankStats]) {
    let busy: Vec<f64> = ranks.iter().map(|stats| stats.busy).collect();
    let gpus: Vec<GpuSample> = ranks.iter().map(|stats| stats.gpu).collect();
    record.times.ranks = RankTimes::of(&busy);
    record.peak_memory = ranks.iter().map(|stats| stats.peak_memory as u64).max().filter(|peak| *peak > 0);
    record.gpu = GpuRanges::of(&gpus);
}

#[cfg(test)]
mod tests {
    use lambert_control::StepTimes;

    use super::*;

    #[test]
    fn throughput_is_per_second_of_the_step() {
        let batch = BatchStats { samples: 256, tokens: 1024, ..BatchStats::default() };
        let times = StepTimes { seconds: 2.0, ..StepTimes::default() };
        let mut record = StepRecord { batch, times, ..StepRecord::default() };
        set_throughput(&mut record, 2e9, 4e9);
        let expected = Throughput { samples_per_second: 128.0, tokens_per_second: 512.0, flops_utilization: 0.25 };
        assert_eq!(record.throughput, expected);
    }
}
