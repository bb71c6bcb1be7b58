//! Compares the gradient noise estimates of a run with the gradients of single samples.

use crate::support::{Running, TestDir};
use lambert_control::StepRecord;

/// Trains on 256 samples with `batch` samples per step and returns the step records. The samples and the weights are
/// the same for every value of `batch`.
fn records(dir: &TestDir, batch: u64, more: &str) -> Vec<StepRecord> {
    let sets = [&format!("stage.0.global_batch={batch}"), "stage.0.learning_rate=1e-30", "model.dropout=0", more];
    let more: Vec<&str> = sets.iter().flat_map(|set| ["--set", set]).collect();
    let steps = 256 / batch;
    let ended = Running::start_with(&dir.config(steps, 1), &dir.path(&format!("run-{batch}")), &more).end();
    assert_eq!(ended.code, Some(0), "{}", ended.log);
    assert_eq!(ended.records.len() as u64, steps);
    ended.records
}

fn mean(values: impl ExactSizeIterator<Item = f64>) -> f64 {
    let count = values.len() as f64;
    values.sum::<f64>() / count
}

/// Let g_B be the mean gradient of B samples and G the gradient of the expected loss. Let S be the covariance of the
/// gradient of one sample. Then `E|g_B|^2 = |G|^2 + tr(S) / B`. Measurements with B = 1 and with B = 16 therefore
/// determine tr(S) and |G|^2. They need no half batches.
#[test]
fn the_estimate_from_half_batches_matches_single_samples() {
    let dir = TestDir::new();
    let square = |record: &StepRecord| record.update.grad_norm.unwrap().powi(2);
    let single = mean(records(&dir, 1, "metrics.noise_scale_every_steps=0").iter().map(square));
    let batches = records(&dir, 16, "metrics.noise_scale_every_steps=1");
    let sixteen = mean(batches.iter().map(square));
    let expected = (single - sixteen) / (1.0 - 1.0 / 16.0);
    let measured = mean(batches.iter().map(|record| record.update.noise.unwrap().variance));
    eprintln!("tr(S) of single samples {expected:.4}, of halves {measured:.4}; |g|^2 {single:.4} and {sixteen:.4}");
    assert!((measured / expected - 1.0).abs() < 0.1, "{measured} for {expected}");
    let (expected, slack) = (sixteen - expected / 16.0, 0.1 * expected / 16.0);
    let measured = mean(batches.iter().map(|record| record.update.noise.unwrap().gradient));
    eprintln!("|G|^2 of single samples {expected:.4}, of halves {measured:.4}, give or take {slack:.4}");
    assert!((measured - expected).abs() < slack, "{measured} for {expected}");
}
