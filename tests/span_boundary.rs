//! The span boundary objective with real ranks: world sizes, kills, evaluations, export, other heads in `run.from`, and wrong
//! values.

use std::path::Path;

use lambert_control::StepRecord;
use safetensors::SafeTensors;
use serde_json::Value;

use crate::support::{
    Running, TestDir, assert_refused, assert_same_weights, checkpoints, done, run, same_bits_after_kills,
};

/// Prefix of the tensors of the head.
const HEAD: &str = "span_boundary";

/// Writes a configuration of `steps` steps. The model grows from two layers to four after half of them, and the second stage
/// recomputes activations and masks more tokens.
fn config(dir: &TestDir, steps: u64) -> String {
    let stage = |layers: usize, keys: &str| {
        format!(
            "[[stage]]\nname = \"{layers}\"\nlayers = {layers}\ndata = {:?}\nsteps = {}\nglobal_batch = 16\n\
             micro_batch_tokens = 256\nlearning_rate = 5e-3\n{keys}",
            dir.path("data/train"),
            steps / 2
        )
    };
    let text = format!(
        "[model]\nlayers = 4\nhidden = 32\nheads = 2\nintermediate = 64\npositions = 64\n\
         [objective]\nmask_unit = \"span\"\nspan_boundary_weight = 1.0\n{}{}\
         [evaluation]\ndata = {:?}\nevery_steps = {}\nsamples = 64\n\
         [checkpoint]\nevery_steps = 7\nkeep = 3\n[cluster]\nranks = 2\nall_reduce.backend = \"mpi\"\n\
         restart.limit = 100\n[device]\nkind = \"cpu\"\n",
        stage(2, ""),
        stage(4, "recompute = true\nobjective.mask_probability = 0.3\n"),
        dir.path("data/held-out"),
        steps / 2,
    );
    dir.file("spans.toml", text)
}

fn train(config: &str, run: &str, more: &[&str]) -> Vec<StepRecord> {
    let ended = Running::start_with(config, run, more).end();
    assert_eq!(ended.code, Some(0), "{}", ended.log);
    ended.records
}

/// Names of the tensors in a safetensors file.
fn tensors(path: &Path) -> Vec<String> {
    let bytes = std::fs::read(path).unwrap();
    SafeTensors::deserialize(&bytes).unwrap().names().into_iter().map(str::to_owned).collect()
}

/// Newest checkpoint of a run.
fn newest(run: &str) -> String {
    format!("{run}/checkpoints/{}", checkpoints(run)[0])
}

#[test]
fn every_world_has_the_same_losses() {
    let dir = TestDir::new();
    let config = config(&dir, 20);
    let runs = ["1", "2", "3"].map(|ranks| {
        let ranks = format!("cluster.ranks={ranks}");
        train(&config, &dir.path(&ranks), &["--set", &ranks])
    });
    let [one, others @ ..] = &runs;
    let mut worst: f64 = 0.0;
    for (one, other) in others.iter().flat_map(|other| one.iter().zip(other)) {
        assert_eq!((one.batch.digest, one.batch.masked_tokens), (other.batch.digest, other.batch.masked_tokens));
        let names: Vec<&str> = one.scores.iter().map(|score| &*score.name).collect();
        assert_eq!(names, ["mlm", "pair", "span_boundary"]);
        for (one, other) in one.scores.iter().zip(other.scores.iter()) {
            worst = worst.max((one.loss - other.loss).abs() / one.loss);
        }
        let sum: f64 = one.scores.iter().map(|score| score.loss).sum();
        assert!((one.loss - sum).abs() < 1e-9 * sum, "{} {sum}", one.loss);
    }
    eprintln!("losses of 2 and 3 ranks differ from one rank's by {worst:.1e} at most");
    assert!(worst < 1e-5, "{worst:e}");
    let of = |record: &StepRecord| record.scores.get(HEAD).unwrap().loss;
    assert!(of(&one[19]) < of(&one[0]) - 0.05, "{} {}", of(&one[0]), of(&one[19]));

    // With canonical sums, the bits are equal.
    let canonical = ["1", "3"].map(|ranks| {
        let (run, ranks) = (dir.path(&format!("canonical-{ranks}")), format!("cluster.ranks={ranks}"));
        train(&config, &run, &["--set", &ranks, "--set", "cluster.all_reduce.canonical=true"]);
        run
    });
    assert_same_weights(&canonical[0], &canonical[1]);
}

#[test]
fn spans_resume_with_the_same_bits() {
    let dir = TestDir::new();
    let config = config(&dir, 60);
    same_bits_after_kills(&dir, &config, 1, 60);
}

#[test]
#[ignore = "a minute: CONTRIBUTING.md"]
fn twenty_kills_of_spans_leave_the_same_bits() {
    let dir = TestDir::new();
    let config = config(&dir, 1200);
    same_bits_after_kills(&dir, &config, 20, 1200);
}

/// The head is trained, but not exported. Evaluations score it. The total FLOPs of the plan have its products.
#[test]
fn the_head_is_trained_and_left_out_of_the_export() {
    let dir = TestDir::new();
    let (config, url) = (config(&dir, 16), dir.path("run"));
    train(&config, &url, &["--set", "cluster.ranks=1"]);
    let own = |names: &[String]| names.iter().filter(|name| name.starts_with(HEAD)).count();
    let (saved, model) = (tensors(&Path::new(&newest(&url)).join("model.safetensors")), dir.path("model"));
    done(&["export", "--output", &model, &url]);
    let exported = tensors(&Path::new(&model).join("model.safetensors"));
    assert_eq!((own(&saved), own(&exported), exported.len()), (10, 0, saved.len() - 10));
    let config_json = std::fs::read_to_string(format!("{model}/config.json")).unwrap();
    assert!(config_json.contains("BertForPreTraining"), "{config_json}");
    let card = std::fs::read_to_string(format!("{model}/README.md")).unwrap();
    for text in
        ["masked language modeling with the span boundary objective and next sentence", "spans of words", "| SBO |"]
    {
        assert!(card.contains(text), "{text}: {card}");
    }

    let evaluated = done(&["eval", &url, "--data", &dir.path("data/held-out"), "--samples", "64"]);
    assert!(evaluated.contains("SBO loss"), "{evaluated}");
    let status: Value = serde_json::from_str(&done(&["status", &url, "--json"])).unwrap();
    assert!(status["status"]["evaluation"]["span_boundary_loss"].is_number(), "{status}");

    let flops = |weight: &str| {
        let plan = done(&[
            "plan",
            "--config",
            &config,
            "--json",
            "--set",
            &format!("objective.span_boundary_weight={weight}"),
        ]);
        let plan: Value = serde_json::from_str(&plan).unwrap();
        plan["stages"][0]["flops"].as_f64().unwrap()
    };
    assert!(flops("1.0") > 1.05 * flops("0.0"), "{} {}", flops("1.0"), flops("0.0"));
    // Runs without the objective do not store its key, so older versions of lambert can read them.
    train(&config, &dir.path("without"), &["--set", "cluster.ranks=1", "--set", "objective.span_boundary_weight=0.0"]);
    assert!(
        !std::fs::read_to_string(Path::new(&dir.path("without")).join(lambert_store::run::CONFIG))
            .unwrap()
            .contains(HEAD)
    );
}

#[test]
fn a_run_can_start_from_a_model_with_other_heads() {
    let dir = TestDir::new();
    let config = config(&dir, 16);
    let (with, without) = (dir.path("with"), dir.path("without"));
    let set = ["--set", "objective.span_boundary_weight=0.0"];
    let one = ["--set", "cluster.ranks=1"];
    let first = train(&config, &with, &one).remove(0);
    train(&config, &without, &[&one[..], &set].concat());
    for (from, more, message) in
        [(&without, &[][..], "initialized the span boundary head"), (&with, &set, "left out the span boundary head")]
    {
        let (url, checkpoint) = (format!("{from}-other"), newest(from));
        let base = ["--from", &checkpoint, "--set", "stage.0.layers=4", "--set", "evaluation.at_start=true"];
        let ended = Running::start_with(&config, &url, &[&one[..], &base, more].concat()).end();
        assert_eq!(ended.code, Some(0), "{}", ended.log);
        assert!(ended.log.contains(message), "{}", ended.log);
        // The weights are those of the checkpoint: its loss is that of a trained model.
        let records = &ended.records;
        let mlm = |record: &StepRecord| record.scores.get("mlm").unwrap().loss;
        assert!(mlm(&records[0]) < mlm(&first) - 0.03, "{} {}", mlm(&records[0]), mlm(&first));
        assert_eq!(records[0].scores.get(HEAD).is_some(), more.is_empty());

        let moments = dir.path("moments");
        let start = ["run", "--config", &config, "--run", &moments, "--with-optimizer", "--check"];
        let refused = run(&[&start[..], &one, &base, more].concat());
        assert!(
            refused.code == 2
                && refused.err.contains("run.from_optimizer: only one of the two models has a span boundary head"),
            "{}",
            refused.err
        );
    }
    // A run keeps its heads.
    let changed =
        [&["run", "--config", &config, "--run", &with], &one[..], &set, &["--allow-change", "objective"]].concat();
    let refused = run(&changed);
    let message = "has checkpoints of a different model; use another --run for different tensor shapes. \
                   Differences:\n  \
                   objective.span_boundary_weight: 1.0 in the run, nothing now";
    assert!(refused.code == 2 && refused.err.contains(message), "{}", refused.err);
    // A configuration that does not fit, and that an earlier version stored, can be corrected.
    let stored = format!("{with}/run.toml");
    let text = std::fs::read_to_string(&stored).unwrap();
    let key = text.lines().find(|line| line.starts_with("span_boundary_weight")).unwrap();
    std::fs::write(&stored, text.replace(key, "")).unwrap();
    let corrected =
        run(&[&["run", "--config", &config, "--run", &with], &one[..], &["--allow-change", "objective"]].concat());
    assert_eq!(corrected.code, 0, "{}", corrected.err);
    // The refused configuration was not stored.
    let again = run(&["run", "--run", &with]);
    assert_eq!(again.code, 0, "{}", again.err);
}

#[test]
fn wrong_values_are_refused_by_name() {
    let dir = TestDir::new();
    let config = config(&dir, 8);
    let key = "objective.span_boundary_weight";
    for (set, message) in [
        ("objective.mask_unit=word", ": needs objective.mask_unit = \"span\""),
        ("objective.span_boundary_weight=-1.0", " = -1: must be 0 or above"),
        ("objective.span_boundary_weight=inf", " = inf: must be 0 or above"),
        ("objective.span_boundary_weight=nan", " = NaN: must be 0 or above"),
        ("model.family=modernbert", ": must be 0: a model of family modernbert has no span boundary head"),
        ("model.family=deberta-v2", ": must be 0: a model of family deberta-v2 has no span boundary head"),
    ] {
        assert_refused(&dir, &config, &[(set, &format!("{key}{message}"))]);
    }
}
