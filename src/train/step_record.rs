//! The record of a step.

use lambert_control::StepRecord;

use crate::state::TrainState;
use crate::train::outcome::StepOutcome;

/// The record of a step after which the state is `state`; without times and rates.
pub fn record(outcome: &StepOutcome, state: &TrainState) -> StepRecord {
    StepRecord {
        step: outcome.before + 1,
        stage: outcome.stage.clone(),
        epoch: outcome.epoch,
        samples: outcome.samples,
        tokens: outcome.tokens,
        padding: outcome.padding as f64 / outcome.tokens.max(1) as f64,
        balance: outcome.balance,
        masked_tokens: outcome.totals.masked_tokens(),
        batch_digest: outcome.totals.digest as u64,
        loss: outcome.loss(),
        scores: outcome.totals.scores(),
        learning_rate: outcome.learning_rate,
        grad_norm: outcome.finite_norm(),
        skipped_updates: state.skipped.updates,
        skipped_samples: state.skipped.samples,
        ..StepRecord::default()
    }
}

/// Fills in the rates, once all seconds are known. `flops` are the step's useful operations, `peak` what all ranks
/// together reach in a matrix product, per second.
pub fn put_rates(record: &mut StepRecord, flops: f64, peak: f64) {
    record.samples_per_second = record.samples as f64 / record.seconds;
    record.tokens_per_second = record.tokens as f64 / record.seconds;
    record.flops_utilization = flops / record.seconds / peak;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_over_the_seconds_of_the_step() {
        let mut record = StepRecord { samples: 256, tokens: 1024, seconds: 2.0, ..StepRecord::default() };
        put_rates(&mut record, 2e9, 4e9);
        assert_eq!((record.samples_per_second, record.tokens_per_second), (128.0, 512.0));
        assert_eq!(record.flops_utilization, 0.25);
    }
}
