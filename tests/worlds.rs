//! Invariant 1: a global batch has the same samples and masks for every world size. Losses differ only by rounding,
//! because terms are summed in another order.

use crate::support::{Running, TestDir, assert_same_weights};
use lambert_control::StepRecord;

const STEPS: u64 = 20;

fn train(dir: &TestDir, ranks: usize, more: &[&str]) -> Vec<StepRecord> {
    train_for(STEPS, dir, ranks, more)
}

fn train_for(steps: u64, dir: &TestDir, ranks: usize, more: &[&str]) -> Vec<StepRecord> {
    let run = dir.path(&format!("world-{ranks}"));
    let ended = Running::start_with(&dir.config(steps, ranks), &run, more).end();
    assert_eq!(ended.code, Some(0), "{}", ended.log);
    assert_eq!(ended.records.len() as u64, steps);
    ended.records
}

/// Trains for `steps` steps. Asserts that the losses differ from the losses on one rank by at most the relative
/// `tolerance`. `others` contains world sizes, each with an upper bound of the imbalance. (The bound cannot be 1: with
/// three ranks and sixteen samples, one rank has at least six samples.)
fn assert_equal_losses(steps: u64, others: &[(usize, f64)], tolerance: f64) {
    let dir = TestDir::new();
    let one = train_for(steps, &dir, 1, &[]);
    assert!(one.windows(2).all(|pair| pair[0].batch.digest != pair[1].batch.digest), "two batches are equal");
    let padding = |records: &[StepRecord]| records.iter().map(|record| record.batch.padding).collect::<Vec<_>>();
    assert!(padding(&one).iter().any(|share| *share > 0.0));
    assert!(one.iter().all(|record| record.batch.imbalance == 1.0));
    for &(ranks, even) in others {
        let mut worst: f64 = 0.0;
        let others = train_for(steps, &dir, ranks, &[]);
        assert!(
            padding(&others).iter().all(|share| (0.0..0.03).contains(share)),
            "{ranks} ranks: {:?}",
            padding(&others)
        );
        let balance: Vec<f64> = others.iter().map(|record| record.batch.imbalance).collect();
        assert!(balance.iter().all(|balance| (1.0..even).contains(balance)), "{ranks} ranks: {balance:?}");
        for (one, other) in one.iter().zip(others) {
            let facts =
                |r: &StepRecord| (r.step, r.batch.digest, r.batch.samples, r.batch.tokens, r.batch.masked_tokens);
            assert_eq!(facts(one), facts(&other), "{ranks} ranks");
            assert_eq!(one.scores.iter().count(), 2, "MLM and pairs");
            for (one, other) in one.scores.iter().zip(other.scores.iter()) {
                assert_eq!(one.name, other.name);
                let difference = (one.loss - other.loss).abs() / one.loss.abs();
                assert!(difference <= tolerance, "{ranks} ranks: {} and {}", one.loss, other.loss);
                worst = worst.max(difference);
            }
        }
        eprintln!("losses of {ranks} ranks differ from one rank's by {worst:.1e} at most");
    }
}

#[test]
fn worlds_of_one_two_and_three_have_equal_losses() {
    assert_equal_losses(STEPS, &[(2, 1.05), (3, 1.25)], 1e-5);
}

#[test]
#[ignore = "a minute"]
fn worlds_of_one_to_four_have_equal_losses_for_two_hundred_steps() {
    assert_equal_losses(200, &[(2, 1.1), (3, 1.4), (4, 1.3)], 1e-4);
}

/// The measurements change only the order in which samples are processed. They must give the same values with every
/// world size.
#[test]
fn noise_and_trust_ratios_do_not_depend_on_the_world() {
    let dir = TestDir::new();
    let plain = train(&dir, 2, &[]);
    std::fs::remove_dir_all(dir.path("world-2")).unwrap();
    let every = ["metrics.noise_scale_every_steps=4", "metrics.trust_ratios_every_steps=10"];
    let more: Vec<&str> = every.iter().flat_map(|set| ["--set", set]).collect();
    let of = [1, 2, 3].map(|ranks| train(&dir, ranks, &more));
    for records in &of {
        for (record, plain) in records.iter().zip(&plain) {
            assert!((record.loss - plain.loss).abs() < 1e-4 * plain.loss, "step {}", record.step);
            assert_eq!(record.batch.digest, plain.batch.digest);
            assert_eq!(record.update.noise.is_some(), record.step % 4 == 0, "step {}", record.step);
            assert_eq!(!record.update.trust_ratios.is_empty(), record.step % 10 == 0, "step {}", record.step);
        }
    }
    let near = |one: f64, other: f64| (one - other).abs() <= 1e-3 * one.abs();
    for (one, other) in of[0].iter().zip(&of[1]).chain(of[0].iter().zip(&of[2])) {
        if let (Some(one), Some(other)) = (one.update.noise, other.update.noise) {
            assert!(one.variance > 0.0 && near(one.variance, other.variance), "{one:?} {other:?}");
            assert!((one.gradient - other.gradient).abs() <= 1e-3 * one.variance, "{one:?} {other:?}");
        }
        assert_eq!(one.update.trust_ratios.len(), other.update.trust_ratios.len());
        for ((name, one), (other_name, other)) in one.update.trust_ratios.iter().zip(&other.update.trust_ratios) {
            assert!(name == other_name && near(*one, *other), "{name}: {one} and {other}");
        }
    }
    let ratios = &of[0][9].update.trust_ratios;
    assert!(ratios.contains_key("bert.encoder.layer.1.attention.self.query.weight"), "{ratios:?}");
    assert!(
        !ratios.keys().any(|name| name.ends_with("bias")),
        "a parameter without weight decay has a trust ratio: {ratios:?}"
    );
    let status = crate::support::done(&["status", &dir.path("world-3"), "--json"]);
    let status: serde_json::Value = serde_json::from_str(&status).unwrap();
    assert_eq!(status["status"]["noise"]["estimates"], 5, "{status}");
}

#[test]
fn canonical_worlds_end_with_the_same_bits() {
    let dir = TestDir::new();
    let evaluation = format!("evaluation.data={:?}", dir.path("data/held-out"));
    let sets = [
        "cluster.all_reduce.canonical=true",
        &evaluation,
        "evaluation.every_steps=5",
        "metrics.noise_scale_every_steps=6",
    ];
    let more: Vec<&str> = sets.iter().flat_map(|set| ["--set", set]).collect();
    let noise =
        |record: &StepRecord| record.update.noise.map(|noise| (noise.gradient.to_bits(), noise.variance.to_bits()));
    let facts = |record: &StepRecord| {
        (
            record.loss.to_bits(),
            record.update.grad_norm.map(f64::to_bits),
            record.batch.padding.to_bits(),
            noise(record),
        )
    };
    let bits = |ranks: usize| train(&dir, ranks, &more).iter().map(facts).collect::<Vec<_>>();
    let one = bits(1);
    assert!(one.iter().any(|(.., noise)| noise.is_some()), "no step measured the noise scale");
    for ranks in [2, 3, 4] {
        assert_eq!(one, bits(ranks), "{ranks} ranks");
        assert_same_weights(&dir.path("world-1"), &dir.path(&format!("world-{ranks}")));
    }
}
