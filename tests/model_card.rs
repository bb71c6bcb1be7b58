//! Model cards that `lambert export` writes, read as the Hugging Face Hub and a Markdown renderer do.

use std::path::Path;
use std::process::Command;

use crate::support::{TestDir, cache, checkpoints, copy, done, observed, run};
use lambert_store::run::WEIGHTS;
use safetensors::SafeTensors;
use serde_json::{Value, json};

/// Reads the card in `folder`. Returns `None` if the packages that read it are missing.
fn read(folder: &str) -> Option<Value> {
    let packages = cache("LAMBERT_TEST_READERS", "readers-2")?;
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/readers/card.py");
    let output = Command::new("python3").env("PYTHONPATH", packages).args([script, folder]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(serde_json::from_slice(&output.stdout).unwrap())
}

fn card(folder: &str) -> String {
    std::fs::read_to_string(format!("{folder}/README.md")).unwrap()
}

fn assert_has(card: &str, rows: &[String]) {
    for row in rows {
        assert!(card.contains(row), "no {row:?} in {card}");
    }
}

/// Records of the run up to `step` that are not undone: those of steps, and the last evaluation.
fn records(run: &str, step: u64) -> (Vec<Value>, Option<Value>) {
    let lines = done(&["metrics", run]);
    let lines = lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let kept = lines.filter(|line| line["undone"] == false && line["step"].as_u64() <= Some(step));
    let (mut evaluations, mut steps): (Vec<Value>, Vec<Value>) = kept.partition(|line| line.get("event").is_some());
    steps.sort_by_key(|line| line["step"].as_u64());
    evaluations.sort_by_key(|line| line["step"].as_u64());
    (steps, evaluations.pop())
}

/// Rows of the card that follow from the records up to `step`.
fn rows_of_records(run: &str, step: u64) -> Vec<String> {
    let (steps, evaluation) = records(run, step);
    assert_eq!(steps.len() as u64, step);
    let sum = |key: &str| steps.iter().map(|line| line[key].as_u64().unwrap()).sum::<u64>();
    let mean = |key: &str| steps[steps.len() - 20..].iter().map(|line| line[key].as_f64().unwrap()).sum::<f64>() / 20.0;
    let evaluation = evaluation.unwrap();
    let held_out = |key: &str| evaluation[key].as_f64().unwrap();
    let row = |title: &str, name: &str| {
        let (loss, accuracy) = (format!("{name}_loss"), format!("{name}_accuracy"));
        format!(
            "| {title} | {:.4} nats | {:.1}% | {:.4} nats | {:.1}% |",
            mean(&loss),
            100.0 * mean(&accuracy),
            held_out(&loss),
            100.0 * held_out(&accuracy)
        )
    };
    vec![
        format!("| steps | {step} of {} planned |", observed::STEPS),
        format!("| samples | {} |", sum("samples")),
        format!("| tokens without padding | {} |", sum("tokens")),
        row("MLM", "mlm"),
        row("pair", "pair"),
        format!("Held-out figures are from 32 samples after step {}.", evaluation["step"]),
        format!("loss of {:.4} nats", held_out("unigram_entropy")),
    ]
}

/// Rows of the card that follow from the exported files.
fn rows_of_files(folder: &str) -> Vec<String> {
    let weights = std::fs::read(format!("{folder}/{WEIGHTS}")).unwrap();
    let weights = SafeTensors::deserialize(&weights).unwrap();
    let parameters: usize = weights.tensors().iter().map(|(_, view)| view.shape().iter().product::<usize>()).sum();
    let config: Value = serde_json::from_slice(&std::fs::read(format!("{folder}/config.json")).unwrap()).unwrap();
    vec![
        format!("| parameters | {parameters} |"),
        format!("| layers | {} |", config["num_hidden_layers"]),
        format!("| vocabulary | {} WordPiece tokens, uncased |", config["vocab_size"]),
    ]
}

#[test]
fn the_card_of_a_run_has_the_figures_of_its_records() {
    let (dir, url) = (TestDir::new(), observed::run().to_str().unwrap());
    let folder = dir.path("model");
    let labels = ["--license", "apache-2.0", "--language", "no", "--language", "en", "--base-model", "some/model"];
    done(&[&["export", url, "--output", &folder][..], &labels].concat());
    let text = card(&folder);
    assert_has(&text, &rows_of_records(url, observed::STEPS));
    assert_has(&text, &rows_of_files(&folder));
    let report: Value = serde_json::from_str(&done(&["report", url, "--format", "json"])).unwrap();
    let config = std::fs::read_to_string(format!("{url}/run.toml")).unwrap();
    let config: toml::Table = toml::from_str(&config).unwrap();
    let data = config["stage"][0]["data"].as_str().unwrap();
    let manifest = std::fs::read(format!("{data}/manifest.json")).unwrap();
    let counts: Value = serde_json::from_slice(&manifest).unwrap();
    let rows = [
        format!("| training FLOPs | {:.3e} |", report[0]["flops"].as_f64().unwrap()),
        format!("| SHA-256 of manifest.json | {} |", lambert_store::hash::sha256(&manifest)),
        format!("| SHA-256 of the corpus | {} |", counts["corpus"]["sha256"].as_str().unwrap()),
        format!("| samples | {} |", counts["counts"]["samples"]),
        format!("| tokens | {} |", counts["counts"]["tokens"]),
        "| skipped samples | 32 |".to_owned(),
        "| deep | 4 (grown from 2: stack) | 30 | 16 samples | 5e-3 |".to_owned(),
        "License: apache-2.0.".to_owned(),
        "starting from the weights of some/model.".to_owned(),
        "model = BertForPreTraining.from_pretrained(folder)".to_owned(),
        "micro_batch_tokens = 256".to_owned(),
    ];
    assert_has(&text, &rows);
    assert!(!text.contains("[cluster]"), "{text}");
    if let Some(read) = read(&folder) {
        let expected = json!({
            "library_name": "transformers", "pipeline_tag": "fill-mask", "license": "apache-2.0",
            "language": ["no", "en"], "base_model": "some/model",
            "tags": ["bert", "masked-language-modeling", "lambert"],
        });
        assert_eq!(read["data"], expected);
        let html = read["html"].as_str().unwrap();
        assert!(html.contains("<h1>observed</h1>") && html.contains("<details><summary>run.toml"), "{html}");
        assert!(html.matches("<table>").count() >= 5 && !html.contains("| steps |"), "{html}");
    }
}

#[test]
fn the_card_of_an_older_checkpoint_ends_at_its_step() {
    let (dir, url) = (TestDir::new(), observed::run().to_str().unwrap());
    let oldest = checkpoints(url).pop().unwrap();
    let step: u64 = oldest[5..14].parse().unwrap();
    assert!(step < observed::STEPS, "{oldest}");
    let folder = dir.path("model");
    done(&["export", &format!("{url}/checkpoints/{oldest}"), "--output", &folder]);
    assert_has(&card(&folder), &rows_of_records(url, step));
    assert_has(&card(&folder), &rows_of_files(&folder));
}

/// A copied checkpoint has no records. Facts that it does not have are left out. The checkpoint from which the run started
/// is named, but not in the front matter: the Hub accepts only names of its own models there.
#[test]
fn the_card_of_a_copied_checkpoint_has_no_unknown_facts() {
    let (dir, url) = (TestDir::new(), observed::run().to_str().unwrap());
    let newest = checkpoints(url).remove(0);
    let (copied, folder) = (dir.path("copied"), dir.path("model"));
    done(&["checkpoint", "copy", &format!("{url}/checkpoints/{newest}"), &copied]);
    let config = std::fs::read_to_string(format!("{copied}/run.toml")).unwrap();
    let from = "[run]\nfrom = \"/home/me/runs/base/checkpoints/step-000000007-a0001\"\n";
    let changed = config.replace("data/train", "data/gone").replace("[run]\n", from);
    std::fs::write(format!("{copied}/run.toml"), changed).unwrap();
    done(&["export", &copied, "--output", &folder]);
    let text = card(&folder);
    assert_has(&text, &rows_of_files(&folder));
    let start = "starting from the weights of checkpoint step-000000007-a0001 of runs/base.";
    assert_has(&text, &["| steps | 90 of 90 planned |", "The license is not stated", start].map(str::to_owned));
    for unknown in ["training loss", "accuracy", "FLOPs", "tokens without padding", "dataset |", "NaN", "null"] {
        assert!(!text.contains(unknown), "{unknown:?} in {text}");
    }
    if let Some(read) = read(&folder) {
        assert_eq!(read["data"].as_object().unwrap().len(), 3, "{}", read["data"]);
    }
}

#[test]
fn texts_of_a_run_are_escaped_and_secrets_left_out() {
    let dir = TestDir::new();
    let (copied, folder) = (dir.path("copied"), dir.path("model"));
    copy(observed::run(), Path::new(&copied));
    let config = std::fs::read_to_string(format!("{copied}/run.toml")).unwrap();
    let hostile =
        r##""a\n---\nlicense: evil\n# <script>alert(1)</script> *b* [c](javascript:d) | ``` </details><img src=x>""##;
    let named = config.replace("name = \"observed\"", &format!("name = {hostile}"));
    assert_ne!(named, config);
    let secret = "[notify]\ncommand = [\"curl\", \"https://example.org/SECRET\"]\n";
    std::fs::write(format!("{copied}/run.toml"), named + secret).unwrap();
    done(&["export", &copied, "--output", &folder]);
    let text = card(&folder);
    assert!(!text.contains("SECRET") && text.contains("\n# a --- license: evil \\# &lt;script&gt;"), "{text}");
    if let Some(read) = read(&folder) {
        assert_eq!(read["data"].as_object().unwrap().len(), 3, "{}", read["data"]);
        let html = read["html"].as_str().unwrap();
        for forbidden in ["<script", "<img", "<em>", "href="] {
            assert!(!html.contains(forbidden), "{forbidden} in {html}");
        }
        assert_eq!((html.matches("<h1>").count(), html.matches("</details>").count()), (1, 1), "{html}");
    }
}

#[test]
fn labels_are_checked() {
    let url = observed::run().to_str().unwrap();
    for (option, value) in [
        ("--license", "a: b"),
        ("--license", "MIT"),
        ("--language", "English"),
        ("--base-model", "runs/a/checkpoints/b"),
    ] {
        let refused = run(&["export", url, "--output", "/nonexistent/model", option, value]);
        assert!(refused.code == 2 && refused.err.contains("expected"), "{}", refused.err);
    }
}
