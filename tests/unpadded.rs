//! Training on unpadded micro-batches with real ranks, on CPUs.

use serde_json::Value;

use crate::support::{Running, TestDir, assert_same_bits, done, run};

const STEPS: u64 = 24;

/// Options of a run without dropout of attention weights, whose draws depend on the micro-batches.
const UNPADDED: [&str; 6] =
    ["--set", "device.unpadded=always", "--set", "model.attention=fused", "--set", "model.attention_dropout=0.0"];

/// Losses of the steps of a finished run.
fn losses(config: &str, url: &str, options: &[&str]) -> Vec<f64> {
    let ended = Running::start_with(config, url, options).end();
    assert_eq!(ended.code, Some(0), "{}", ended.log);
    ended.records.iter().map(|record| record.loss).collect()
}

#[test]
fn losses_do_not_depend_on_padding_and_kills_do_not_change_the_bits() {
    let dir = TestDir::new();
    let config = dir.config(STEPS, 2);
    let (calm, killed, padded) = (dir.path("calm"), dir.path("killed"), dir.path("padded"));
    let unpadded = losses(&config, &calm, &UNPADDED);
    let padded = losses(&config, &padded, &[&UNPADDED[2..], &["--set", "device.unpadded=never"]].concat());
    assert_eq!((unpadded.len(), padded.len()), (STEPS as usize, STEPS as usize));
    for (unpadded, padded) in unpadded.iter().zip(&padded) {
        assert!((unpadded / padded - 1.0).abs() < 1e-4, "{unpadded} and {padded}");
    }

    let mut running = Running::start_with(&config, &killed, &UNPADDED);
    running.reach(9);
    running.kill_rank(1, "-9");
    let ended = running.end();
    assert_eq!(ended.code, Some(0), "{}", ended.log);
    assert_same_bits(&calm, &killed);
}

#[test]
fn losses_of_an_evaluation_do_not_depend_on_padding() {
    let dir = TestDir::new();
    let (config, held_out) = (dir.config(2, 1), dir.path("data/held-out"));
    let evaluation = format!("evaluation={{data={held_out:?},at_start=true,samples=48}}");
    let losses = |unpadded: &str| {
        let (url, layout) = (dir.path(unpadded), format!("device.unpadded={unpadded}"));
        let sets = ["--set", &layout, "--set", &evaluation];
        let arguments = [&["run", "--config", &config, "--run", &url], &UNPADDED[2..], &sets].concat();
        done(&arguments);
        let lines = done(&["metrics", &url]);
        let lines = lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let trained: Vec<f64> =
            lines.filter_map(|line| line["mlm_loss"].as_f64().filter(|_| line["event"] == "evaluation")).collect();
        let alone = done(&["eval", &url, "--data", &held_out, "--samples", "48", "--json"]);
        let alone: Value = serde_json::from_str(&alone).unwrap();
        (trained, alone["mlm_loss"].as_f64().unwrap())
    };
    // The first evaluation of both runs has the same weights.
    let (unpadded, alone) = losses("always");
    let (padded, _) = losses("never");
    assert!((unpadded[0] / padded[0] - 1.0).abs() < 1e-5, "{unpadded:?} and {padded:?}");
    assert_ne!(unpadded[0], padded[0], "the operations have other shapes, so other roundings");
    assert!((unpadded.last().unwrap() / alone - 1.0).abs() < 1e-5, "{unpadded:?} and {alone}");
}

#[test]
fn unpadded_micro_batches_are_fewer() {
    let dir = TestDir::new();
    let config = dir.config(2, 1);
    let padding = |unpadded: &str| {
        let url = dir.path(unpadded);
        let layout = format!("device.unpadded={unpadded}");
        let ended = Running::start_with(&config, &url, &[&UNPADDED[2..], &["--set", &layout]].concat()).end();
        assert_eq!(ended.code, Some(0), "{}", ended.log);
        ended.records[0].batch.padding
    };
    assert!(padding("always") < padding("never"), "{} and {}", padding("always"), padding("never"));
}

#[test]
fn models_that_need_padding_are_refused() {
    let dir = TestDir::new();
    let config = dir.config(2, 1);
    let refused = |sets: &[&str], message: &str| {
        let sets: Vec<&str> = sets.iter().flat_map(|set| ["--set", set]).collect();
        let found = run(&[&["run", "--config", &config, "--run", &dir.path("refused"), "--check"], &sets[..]].concat());
        assert_eq!(found.code, 2, "{}", found.err);
        assert!(found.err.contains(message), "no {message:?} in {}", found.err);
    };
    refused(&["device.unpadded=always"], "device.unpadded = \"always\": its attention dropout is not keyed");
    refused(
        &["device.unpadded=always", "model.attention=fused", "model.family=deberta-v2", "objective.pair=none"],
        "device.unpadded = \"always\": relative positions (model.position_buckets) need padded samples",
    );
    refused(
        &["device.unpadded=always", "model.attention=fused", "device.kind=cuda"],
        "device.unpadded = \"always\": a GPU needs model.precision = \"bf16\"",
    );
    assert!(done(&["plan", "--config", &config, "--machine", "a100"]).contains("parameters"));
}
