//! Runs that start again with another configuration or other data: what is refused, and what the training state forgets.

use lambert_store::Store;
use lambert_store::checkpoint::{self, Manifest};

use crate::support::{Ended, Running, TestDir, checkpoints, done};

/// Starts the run with `sets`, which may change stages. Returns its end.
fn start(config: &str, url: &str, sets: &[&str]) -> Ended {
    let sets: Vec<&str> = sets.iter().flat_map(|set| ["--set", set]).collect();
    Running::start_with(config, url, &[&sets[..], &["--allow-change", "stage"]].concat()).end()
}

fn finished(ended: &Ended, step: u64) {
    assert_eq!(ended.code, Some(0), "{}", ended.log);
    assert_eq!(ended.records.last().map(|record| record.step), Some(step), "{}", ended.log);
}

/// Manifest of the newest checkpoint.
fn manifest(url: &str) -> Manifest {
    checkpoint::verify(&Store::open(url).unwrap(), &checkpoints(url)[0]).unwrap().manifest
}

/// A longer first stage would be entered again: the model would lose its last layers.
#[test]
fn a_stage_that_has_ended_cannot_become_longer() {
    let dir = TestDir::new();
    let (config, url, data) = (dir.config(5, 1), dir.path("run"), dir.path("data/train"));
    let text = std::fs::read_to_string(&config).unwrap().replace("name = \"one\"\n", "name = \"one\"\nlayers = 1\n");
    let more =
        format!("\n[[stage]]\nname = \"two\"\ndata = {data:?}\nsteps = 4\nglobal_batch = 16\nlearning_rate = 5e-3\n");
    let config = dir.file("grows.toml", text + &more);
    finished(&start(&config, &url, &[]), 9);
    let kept = checkpoints(&url);
    let refused = start(&config, &url, &["stage.0.steps=12"]);
    assert_eq!(refused.code, Some(2), "{}", refused.log);
    let message = "stage.0.steps: step-000000009-a0001 was saved in stage 1, but with this number of steps, step 9 is in stage 0; \
                   a stage cannot become longer once a later stage has begun";
    assert!(refused.log.contains(message), "{}", refused.log);
    assert_eq!(checkpoints(&url), kept);
    // The stored configuration has not changed.
    let stored = Running::start_with(&config, &url, &[]).end();
    assert_eq!(stored.code, Some(0), "{}", stored.log);
    finished(&start(&config, &url, &["stage.1.steps=6"]), 11);
}

#[test]
fn a_stage_continues_after_its_plateau_if_the_plateau_is_removed() {
    let dir = TestDir::new();
    let (config, url) = (dir.config(30, 1), dir.path("run"));
    let held_out = format!("evaluation.data={}", dir.path("data/held-out"));
    // The loss never falls by 10 nats, so the stage ends with the third evaluation.
    let plateau = "stage.0.plateau={ evaluations = 2, min_delta = 10.0 }";
    finished(&start(&config, &url, &[&held_out, "evaluation.every_steps=3", plateau]), 9);
    assert_eq!(manifest(&url).state["early_stops"]["0"], 9);
    let continued = start(&config, &url, &[&held_out, "evaluation.every_steps=3", "stage.0.steps=14"]);
    finished(&continued, 14);
    assert!(continued.log.contains("(step 9 of 14)"), "{}", continued.log);
}

/// The numbers of the samples before belong to other data. A rollback would skip the wrong samples.
#[test]
fn data_that_were_prepared_again_reset_the_loss_statistics() {
    let dir = TestDir::new();
    let (config, url) = (dir.config(40, 1), dir.path("run"));
    finished(&start(&config, &url, &[]), 40);
    let before = manifest(&url);
    assert_eq!(before.state["history"]["losses"], 40);
    std::fs::remove_dir_all(dir.path("data")).unwrap();
    let output = format!("output.url={}", dir.path("data"));
    done(&["prep", "--config", &dir.path("prep.toml"), "--set", &output, "--set", "samples.seed=7"]);
    let continued = start(&config, &url, &["stage.0.steps=44"]);
    finished(&continued, 44);
    let warning = format!("stage.0: its data have changed since {}: ", before.name());
    assert!(continued.log.contains(&warning), "{}", continued.log);
    let after = manifest(&url);
    assert_eq!((&after.state["history"]["losses"], after.cursor.len()), (&4.into(), 2), "{:?}", after.cursor);
    // The same data again: no warning.
    assert!(!start(&config, &url, &["stage.0.steps=45"]).log.contains("its data have changed"));
    // A dataset that the run has used before, in place of the current one.
    let held_out = format!("stage.0.data={}", dir.path("data/held-out"));
    assert!(start(&config, &url, &[&held_out, "stage.0.steps=46"]).log.contains("its data have changed"));
    let back = start(&config, &url, &["stage.0.steps=47"]);
    finished(&back, 47);
    assert!(back.log.contains("its data have changed"), "{}", back.log);
}

/// A best checkpoint that no longer exists must not be better than all later ones.
#[test]
fn a_best_checkpoint_that_was_pruned_does_not_count() {
    let dir = TestDir::new();
    let (config, url) = (dir.config(10, 1), dir.path("run"));
    let held_out = format!("evaluation.data={}", dir.path("data/held-out"));
    // With this learning rate, the loss rises after the first evaluations.
    let common = [
        &held_out,
        "evaluation.every_steps=1",
        "checkpoint.every_steps=1",
        "checkpoint.keep=1",
        "stage.0.learning_rate=3.0",
        "stage.0.warmup=0",
        "stage.0.decay=constant",
    ];
    finished(&start(&config, &url, &common), 10);
    let lost = manifest(&url).best.unwrap();
    assert!(!checkpoints(&url).contains(&lost.checkpoint), "the last evaluation is the best: {lost:?}");
    finished(&start(&config, &url, &[&common[..], &["checkpoint.keep_best=true", "stage.0.steps=14"]].concat()), 14);
    let best = manifest(&url).best.unwrap();
    assert!(checkpoints(&url).contains(&best.checkpoint), "{best:?} is not kept");
    assert!(best.loss > lost.loss);
}
