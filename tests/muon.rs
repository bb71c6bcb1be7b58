//! Muon with real ranks: world sizes, records, growth, kills, and wrong values.

use lambert_control::StepRecord;
use serde_json::Value;

use crate::support::{
    Running, TestDir, assert_refused, assert_same_weights, checkpoints, done, run, same_bits_after_kills,
};

/// Writes a configuration of `steps` steps. The model grows from two layers to four after half of them.
fn config(dir: &TestDir, steps: u64) -> String {
    let stage = |layers: usize| {
        format!(
            "[[stage]]\nname = \"{layers}\"\nlayers = {layers}\ndata = {:?}\nsteps = {}\nglobal_batch = 16\n\
             micro_batch_tokens = 256\nlearning_rate = 5e-3\n",
            dir.path("data/train"),
            steps / 2
        )
    };
    let text = format!(
        "[model]\nlayers = 4\nhidden = 32\nheads = 2\nintermediate = 64\npositions = 64\n\
         [optimizer]\nkind = \"muon\"\n[optimizer.muon]\nmomentum = 0.9\n{}{}\
         [metrics]\ntrust_ratios_every_steps = 4\n\
         [checkpoint]\nevery_steps = 7\nkeep = 3\n[cluster]\nranks = 2\nall_reduce.backend = \"mpi\"\n\
         restart.limit = 100\n[device]\nkind = \"cpu\"\n",
        stage(2),
        stage(4),
    );
    dir.file("muon.toml", text)
}

#[test]
fn every_world_has_the_same_weights() {
    let dir = TestDir::new();
    let config = config(&dir, 12);
    let runs = ["1", "2", "3"].map(|ranks| {
        let (url, ranks) = (dir.path(ranks), format!("cluster.ranks={ranks}"));
        let sets = ["--set", &ranks, "--set", "cluster.all_reduce.canonical=true"];
        let ended = Running::start_with(&config, &url, &sets).end();
        assert_eq!(ended.code, Some(0), "{}", ended.log);
        (url, ended.records)
    });
    let [(one, records), others @ ..] = &runs;
    for (other, others) in others {
        let facts = |record: &StepRecord| (record.batch.digest, record.update.trust_ratios.clone());
        assert!(records.iter().map(facts).eq(others.iter().map(facts)), "{other}");
        assert_same_weights(one, other);
    }
    // Six matrices of each layer have a ratio, at every fourth step.
    let counts: Vec<usize> = records.iter().map(|record| record.update.trust_ratios.len()).collect();
    assert_eq!(counts, [0, 0, 0, 12, 0, 0, 0, 24, 0, 0, 0, 24]);
    let losses: Vec<f64> = records.iter().map(|record| record.loss).collect();
    assert!(losses[11] < losses[0] - 0.3, "{losses:?}");
    done(&["export", "--output", &dir.path("model"), one]);
    let card = std::fs::read_to_string(dir.path("model/README.md")).unwrap();
    assert!(
        card.contains("| Muon for the matrices of the layers (momentum 0.9, 5 iterations in bf16), AdamW"),
        "{card}"
    );
    let plan = done(&["plan", "--config", &config, "--machine", "a100"]);
    assert!(plan.contains("of Muon"), "{plan}");
    let plan: Value = serde_json::from_str(&done(&["plan", "--config", &config, "--json"])).unwrap();
    // Per layer four matrices of 32 x 32 and two of 32 x 64, with five iterations.
    let layer = 4.0 * 6.0 * 32.0 * 32.0 * 32.0 + 2.0 * 32.0 * 32.0 * (4.0 * 64.0 + 2.0 * 32.0);
    assert_eq!(plan["stages"][0]["optimizer_flops"], 6.0 * 5.0 * 2.0 * layer);
}

#[test]
fn muon_resumes_with_the_same_bits() {
    let dir = TestDir::new();
    let config = config(&dir, 60);
    same_bits_after_kills(&dir, &config, 1, 60);
}

/// The moments of Muon fit no other optimizer, and the reverse.
#[test]
fn another_optimizer_is_refused() {
    let dir = TestDir::new();
    let (config, url) = (config(&dir, 8), dir.path("run"));
    done(&["run", "--config", &config, "--run", &url, "--set", "cluster.ranks=1"]);
    let adamw = ["--set", "optimizer.kind=adamw", "--set", "cluster.ranks=1"];
    let start = |more: &[&str]| run(&[&["run", "--config", &config], &adamw[..], more].concat());
    let changed = start(&["--run", &url, "--allow-change", "optimizer"]);
    assert!(changed.code == 2 && changed.err.contains("has checkpoints of another optimizer"), "{}", changed.err);
    let checkpoint = format!("{url}/checkpoints/{}", checkpoints(&url)[0]);
    let from = ["--run", &dir.path("from"), "--from", &checkpoint, "--set", "stage.0.layers=4"];
    let with = start(&[&from[..], &["--with-optimizer", "--check"]].concat());
    assert!(
        with.code == 2 && with.err.contains("run.from_optimizer: the optimizer state of Muon differs"),
        "{}",
        with.err
    );
    let without = start(&[&from[..], &["--check"]].concat());
    assert_eq!(without.code, 0, "{}", without.err);
}

#[test]
#[ignore = "a minute: CONTRIBUTING.md"]
fn twenty_kills_of_muon_leave_the_same_bits() {
    let dir = TestDir::new();
    let config = config(&dir, 1200);
    same_bits_after_kills(&dir, &config, 20, 1200);
}

#[test]
fn wrong_values_are_refused_by_name() {
    let dir = TestDir::new();
    let config = config(&dir, 8);
    assert_refused(
        &dir,
        &config,
        &[
            ("optimizer.muon.momentum=1.0", "optimizer.muon.momentum = 1: must"),
            ("optimizer.muon.iterations=0", "optimizer.muon.iterations = 0: must"),
            ("optimizer.muon.adamw_learning_rate_ratio=-1.0", "optimizer.muon.adamw_learning_rate_ratio = -1: must"),
            ("optimizer.muon.precision=fp16", "optimizer.muon.precision"),
            ("optimizer.trust_ratio=[0.1,10.0]", "trust_undecayed and trust_ratio require kind = \"lamb\""),
        ],
    );
}
