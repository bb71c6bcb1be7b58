//! Evaluations on several held-out datasets: records, status, report, page, and the same figures after a kill.

use std::collections::BTreeMap;
use std::path::Path;

use crate::support::{Running, TestDir, assert_same_weights, checkpoints, copy, done, run};
use crate::watch::Watch;
use serde_json::Value;

const SAMPLES: &str = "48";

/// Settings of the evaluations. The extra dataset `general` is the training data.
fn settings(dir: &TestDir) -> Vec<String> {
    let general = format!("evaluation.extra=[{{name=\"general\",data={:?}}}]", dir.path("data/train"));
    let data = format!("evaluation.data={}", dir.path("data/held-out"));
    let samples = format!("evaluation.samples={SAMPLES}");
    let fixed = ["evaluation.every_steps=5", "evaluation.at_start=true", "checkpoint.every_steps=7"];
    let all = [data, general, samples].into_iter().chain(fixed.map(String::from));
    all.flat_map(|set| ["--set".to_owned(), set]).collect()
}

/// Evaluations that are not undone, by step.
fn evaluations(url: &str) -> BTreeMap<u64, Value> {
    let lines = done(&["metrics", url]);
    let lines = lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let effective = lines.filter(|line| line["event"] == "evaluation" && line["undone"] == false);
    effective
        .map(|mut line| {
            line.as_object_mut().unwrap().retain(|key, _| key != "attempt");
            (line["step"].as_u64().unwrap(), line)
        })
        .collect()
}

#[test]
fn losses_of_extra_datasets_are_recorded_and_change_nothing() {
    let dir = TestDir::new();
    let (config, plain, url) = (dir.config(20, 2), dir.path("plain"), dir.path("run"));
    let sets = settings(&dir);
    let more: Vec<&str> = sets.iter().map(String::as_str).collect();
    done(&["run", "--config", &config, "--run", &plain]);
    let ran = run(&[&["run", "--config", &config, "--run", &url], &*more].concat());
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert!(
        ran.err.contains("evaluation at step 0: mlm ") && ran.err.contains("evaluation at step 0 on general: mlm ")
    );
    assert_same_weights(&plain, &url);

    let found = evaluations(&url);
    assert_eq!(found.keys().copied().collect::<Vec<_>>(), [0, 5, 10, 15, 20]);
    let checkpoint = format!("{url}/checkpoints/{}", checkpoints(&url)[0]);
    for (data, expected) in [("data/held-out", &found[&20]), ("data/train", &found[&20]["extra"]["general"])] {
        let alone = done(&["eval", &checkpoint, "--data", &dir.path(data), "--samples", SAMPLES, "--json"]);
        let alone: Value = serde_json::from_str(&alone).unwrap();
        for key in ["mlm_loss", "pair_loss", "unigram_entropy"] {
            let (found, alone) = (expected[key].as_f64().unwrap(), alone[key].as_f64().unwrap());
            assert!((found - alone).abs() < 1e-4, "{data}, {key}: {found} and {alone}");
        }
        assert_eq!((&expected["samples"], &expected["masked_tokens"]), (&alone["samples"], &alone["masked_tokens"]));
    }
    let losses = |step: u64| {
        let evaluation = &found[&step];
        (evaluation["mlm_loss"].as_f64().unwrap(), evaluation["extra"]["general"]["mlm_loss"].as_f64().unwrap())
    };
    assert!(losses(0).0 != losses(0).1 && losses(20).1 < losses(0).1 - 0.05, "{:?} {:?}", losses(0), losses(20));

    let status = done(&["status", &url]);
    assert!(status.contains(" on general"), "{status}");
    let header = done(&["metrics", &url, "--format", "csv"]).lines().next().unwrap().to_owned();
    assert!(header.contains("held_out_extra.general.mlm_loss"), "{header}");
    let (markdown, svg) = (done(&["report", &url, "--format", "markdown"]), dir.path("curves.svg"));
    let (before, after) = (losses(0), losses(20));
    for row in [
        format!("| mlm loss, general | {:.4} nats |", after.1),
        format!("| change of the loss, general | {:+.4} nats since step 0 |", after.1 - before.1),
        format!("| change of the held-out loss | {:+.4} nats since step 0 |", after.0 - before.0),
    ] {
        assert!(markdown.contains(&row), "no {row} in {markdown}");
    }
    done(&["report", &url, "--format", "json", "--curves", &svg]);
    let svg = std::fs::read_to_string(svg).unwrap();
    assert!(svg.contains("held-out MLM loss: general"), "no label in the picture");
    let watch = Watch::start(&[&url], &[]);
    let data = watch.wait_for_steps();
    let shown = data["runs"][0]["evaluations"]["extra"]["general"]["loss"].as_array().unwrap();
    assert!(shown.len() == 5 && (shown[4].as_f64().unwrap() - after.1).abs() < 1e-5, "{shown:?}");
    if let Some(page) = watch.open_in_browser() {
        assert!(page["charts"][0]["readout"].as_str().unwrap().contains(", general "), "{}", page["charts"][0]);
        let heads = &page["tables"][0]["heads"];
        assert!(heads.as_array().unwrap().contains(&"held out: general".into()), "{heads}");
    }
    drop(watch);
    let card = dir.path("export");
    done(&["export", &checkpoint, "--output", &card]);
    let card = std::fs::read_to_string(format!("{card}/README.md")).unwrap();
    assert!(card.contains(&format!("(general) |  |  | {:.4} nats |", after.1)), "{card}");
}

#[test]
fn a_killed_run_has_the_same_losses() {
    let dir = TestDir::new();
    let (config, url, killed) = (dir.config(24, 2), dir.path("run"), dir.path("killed"));
    let sets = settings(&dir);
    let more: Vec<&str> = sets.iter().map(String::as_str).collect();
    done(&[&["run", "--config", &config, "--run", &url], &*more].concat());
    // The first kill is before the first checkpoint, so the losses before the first step are measured again.
    let mut running = Running::start_with(&config, &killed, &more);
    running.reach(3);
    running.kill_rank(1, "-9");
    running.reach(17);
    running.kill_rank(0, "-9");
    assert_eq!(running.end().code, Some(0));
    assert_eq!(evaluations(&url), evaluations(&killed));
    assert_eq!(evaluations(&url).len(), 6);
}

/// Training continues, because an extra dataset affects neither the best checkpoint nor plateaus.
#[test]
fn a_damaged_extra_dataset_causes_a_warning() {
    let dir = TestDir::new();
    let extra = dir.path("extra");
    copy(Path::new(&dir.path("data/train")), Path::new(&extra));
    for entry in std::fs::read_dir(&extra).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "parquet") {
            let mut bytes = std::fs::read(&path).unwrap();
            let middle = bytes.len() / 3;
            bytes[middle..middle + 64].fill(0xa5);
            std::fs::write(&path, bytes).unwrap();
        }
    }
    let (config, url) = (dir.config(10, 2), dir.path("run"));
    let data = format!("evaluation.data={}", dir.path("data/held-out"));
    let general = format!("evaluation.extra=[{{name=\"general\",data={extra:?}}}]");
    let sets = ["--set", &data, "--set", &general, "--set", "evaluation.every_steps=5"];
    let ran = run(&[&["run", "--config", &config, "--run", &url], &sets[..]].concat());
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert!(ran.err.contains("step 5: no loss on general: ") && ran.err.contains(&extra), "{}", ran.err);
    let found = evaluations(&url);
    assert_eq!(found.keys().copied().collect::<Vec<_>>(), [5, 10]);
    assert!(found.values().all(|line| line["mlm_loss"].is_number() && line.get("extra").is_none()), "{found:?}");
}

#[test]
fn extra_datasets_are_checked_before_the_start() {
    let dir = TestDir::new();
    let config = dir.config(2, 1);
    let data = format!("evaluation.data={}", dir.path("data/held-out"));
    for (extra, expected) in [
        (r#"[{name="a",data="none"}]"#, "evaluation.extra.0.data"),
        (r#"[{name="a b",data="none"}]"#, "evaluation.extra.0.name"),
    ] {
        let extra = format!("evaluation.extra={extra}");
        let sets = ["--set", &data, "--set", &extra];
        let ran = run(&[&["run", "--config", &config, "--run", &dir.path("run")], &sets[..]].concat());
        assert!(ran.code == 2 && ran.err.contains(expected), "{}", ran.err);
        assert!(!Path::new(&dir.path("run")).exists());
    }
    let ran = run(&["run", "--config", &config, "--run", &dir.path("run"), "--set", "evaluation.at_start=true"]);
    assert!(ran.code == 2 && ran.err.contains("evaluation.at_start: needs evaluation.data"), "{}", ran.err);
}
