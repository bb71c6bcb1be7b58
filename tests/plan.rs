//! `lambert plan`.

use serde_json::Value;

use crate::support::{TestDir, done, run};

fn plan(arguments: &[&str]) -> Value {
    serde_json::from_str(&done(&[&["plan", "--json", "--config"], arguments].concat())).unwrap()
}

#[test]
fn a_prepared_run_is_planned_for_a_gpu() {
    let place = TestDir::new();
    let data = format!("stage.0.data={}", place.path("data/train"));
    let config = concat!(env!("CARGO_MANIFEST_DIR"), "/configs/demo.toml");
    let planned = plan(&[config, "--set", &data, "--machine", "a100", "--failures-per-day", "2"]);
    let stage = &planned["stages"][0];
    assert_eq!((stage["samples"].as_u64(), stage["sequence_length_tokens"].as_u64()), (Some(76_800), Some(64)));
    assert!(stage["epochs"].as_f64().unwrap() > 1.0 && stage["time"]["hours"].as_f64().unwrap() > 0.0);
    let (save, best) = (&planned["checkpoint_save_seconds"], &planned["best_checkpoint_interval_seconds"]);
    let expected = (2.0 * save.as_f64().unwrap() * 43_200.0).sqrt();
    assert!((best.as_f64().unwrap() / expected - 1.0).abs() < 1e-9);
    assert_eq!((planned["shortages"].to_string(), planned["assumptions"].to_string()), ("[]".into(), "[]".into()));
}

#[test]
fn a_missing_dataset_is_assumed_and_a_large_micro_batch_does_not_fit() {
    let place = TestDir::new();
    let config = concat!(env!("CARGO_MANIFEST_DIR"), "/configs/bert-large-lamb.toml");
    let sets = ["stage.0.data=none", "stage.1.data=none", "stage.1.micro_batch_tokens=1000000"];
    let sets: Vec<&str> = sets.iter().flat_map(|set| ["--set", set]).collect();
    let options = ["--machine", "h100", "--tokens-per-sample", "128,512"];
    let planned = plan(&[&[config], &options[..], &sets].concat());
    assert_eq!(planned["stages"][0]["sequence_length_tokens"], 128);
    assert_eq!(planned["stages"][1]["epochs"], Value::Null);
    assert_eq!(planned["assumptions"].as_array().unwrap().len(), 2);
    assert!(planned["shortages"].to_string().contains("stage.1"), "{}", planned["shortages"]);
    assert_eq!(run(&["plan", "--config", &place.path("none.toml")]).code, 2);
    for (lengths, word) in [("128,256,512", "has 3 numbers"), ("128,513", "must be from 1 to model.positions (512)")] {
        let refused = run(&[&["plan", "--config", config, "--tokens-per-sample", lengths][..], &sets].concat());
        assert!(refused.code == 2 && refused.err.contains(word), "{} {}", refused.code, refused.err);
    }
}
