//! Checkpoints of a run: retention, copies, and configuration changes between two checkpoints.

use std::path::Path;

use crate::support::{self, Running, TestDir, checkpoints, done, final_state, run, tree};
use lambert_store::{Store, checkpoint, hash};

fn steps(run: &str) -> Vec<u64> {
    let step = |name: String| name["step-".len()..][..9].parse().unwrap();
    checkpoints(run).into_iter().map(step).collect()
}

fn manifest(run: &str, name: &str) -> checkpoint::Manifest {
    checkpoint::verify(&Store::open(run).unwrap(), name).unwrap().manifest
}

/// Trains a run to the end with these settings. Returns the log.
fn train(config: &str, run_url: &str, more: &[&str]) -> String {
    let ran = run(&[&["run", "--config", config, "--run", run_url], more].concat());
    assert_eq!(ran.code, 0, "{}", ran.err);
    ran.err
}

#[test]
fn the_last_every_nth_and_the_best_are_retained() {
    let dir = TestDir::new();
    let (config, url, held_out) = (dir.config(40, 2), dir.path("run"), dir.path("data/held-out"));
    let evaluation = format!("evaluation.data={held_out}");
    // The loss rises, so one of the first evaluations determines the best checkpoint, long before the end.
    let sets = [
        &evaluation,
        "evaluation.every_steps=10",
        "checkpoint.keep_best=true",
        "checkpoint.keep_every_steps=14",
        "checkpoint.keep=1",
        "stage.0.learning_rate=0.3",
        "stage.0.warmup=0.5",
        "stage.0.decay=constant",
    ];
    let more: Vec<&str> = sets.iter().flat_map(|set| ["--set", set]).collect();
    let log = train(&config, &url, &more);
    let newest = manifest(&url, &checkpoints(&url)[0]);
    let best = newest.best.unwrap();
    let losses: Vec<f64> = evaluations(&url);
    assert_eq!(losses.len(), 4);
    assert!((best.loss - losses.iter().copied().fold(f64::INFINITY, f64::min)).abs() < 1e-9);
    // The last bit of a number may change when the number is written as JSON and read back.
    let same = |a: f64, b: f64| (a - b).abs() <= 1e-12 * a.abs();
    assert!(newest.step == 40 && same(newest.held_out_loss.unwrap(), losses[3]));
    let best_step = steps_of(&best.checkpoint);
    assert!(best_step < 40, "the best checkpoint is the last: {losses:?}");
    assert_eq!(manifest(&url, &best.checkpoint).held_out_loss, Some(best.loss));
    // A checkpoint that becomes due during a save is written after that save. On a slow disk this is some steps later.
    let saved: Vec<u64> = log.split("saved checkpoint ").skip(1).map(steps_of).collect();
    assert_eq!(saved.first(), Some(&7), "{log}");
    let milestones = [14..28, 28..40].map(|range| saved.iter().copied().find(|step| range.contains(step)));
    let mut kept: Vec<u64> = milestones.into_iter().flatten().chain([40, best_step]).collect();
    kept.sort_unstable_by(|a, b| b.cmp(a));
    kept.dedup();
    assert_eq!(steps(&url), kept);
    done(&["checkpoint", "prune", &url]);
    assert_eq!(steps(&url), kept, "prune and the run retain different checkpoints");
}

#[test]
fn the_best_checkpoint_is_chosen_anew_if_the_loss_measures_something_else() {
    let dir = TestDir::new();
    let (config, url, held_out) = (dir.config(10, 1), dir.path("run"), dir.path("data/held-out"));
    let evaluation = format!("evaluation.data={held_out}");
    // With this learning rate, the loss rises.
    let common = [
        &evaluation,
        "evaluation.every_steps=5",
        "checkpoint.keep_best=true",
        "stage.0.learning_rate=3.0",
        "stage.0.warmup=0",
        "stage.0.decay=constant",
    ];
    let common: Vec<&str> = common.iter().flat_map(|set| ["--set", set]).collect();
    train(&config, &url, &common);
    let best = || manifest(&url, &checkpoints(&url)[0]).best.unwrap();
    let first = best();
    let more = ["--set", "evaluation.mask_probability=0.9", "--set", "stage.0.steps=15", "--allow-change", "stage.0"];
    train(&config, &url, &[&common[..], &more].concat());
    let second = best();
    assert!(second.loss > first.loss && steps_of(&second.checkpoint) == 15, "{first:?} {second:?}");
    assert!(first.measured != second.measured && second.measured.unwrap().contains("probability 0.9,"));
}

fn steps_of(name: &str) -> u64 {
    name["step-".len()..][..9].parse().unwrap()
}

/// Losses of the evaluations in the records of a run.
fn evaluations(url: &str) -> Vec<f64> {
    let lines = tree(&Path::new(url).join("metrics"))
        .into_values()
        .flat_map(|text| String::from_utf8(text).unwrap().lines().map(str::to_owned).collect::<Vec<_>>());
    let loss = |line: String| {
        let value: serde_json::Value = serde_json::from_str(&line).unwrap();
        (value["event"] == "evaluation")
            .then(|| value["mlm_loss"].as_f64().unwrap() + value["pair_loss"].as_f64().unwrap())
    };
    lines.filter_map(loss).collect()
}

#[test]
fn a_new_run_starts_from_the_weights_of_another() {
    let dir = TestDir::new();
    let (config, first) = (dir.config(14, 2), dir.path("first"));
    train(&config, &first, &[]);
    let from = format!("{first}/checkpoints/{}", checkpoints(&first)[0]);
    // The learning rate is close to zero, so the weights after one step are still those of the first run.
    let still = ["--set", "stage.0.learning_rate=1e-30", "--set", "stage.0.steps=1", "--from", &from];
    let weights = |run: &str| final_state(run)[Path::new("model.safetensors")].clone();
    let (bare, whole) = (dir.path("bare"), dir.path("whole"));
    train(&config, &bare, &still);
    train(&config, &whole, &[&still[..], &["--with-optimizer"]].concat());
    assert!(weights(&bare) == weights(&first) && weights(&whole) == weights(&first));
    let updates = |run: &str| manifest(run, &checkpoints(run)[0]).state["updates"]["bert.embeddings"].as_u64().unwrap();
    assert_eq!((updates(&bare), updates(&whole)), (1, 15));
    assert_eq!(manifest(&bare, &checkpoints(&bare)[0]).step, 1);
    // The same command must resume the run, also if --from is omitted.
    train(&config, &bare, &still);
    train(&config, &bare, &still[..4]);

    let refused = |more: &[&str], words: &[&str]| {
        let ran = run(&[&["run", "--config", &config, "--run", &dir.path("refused")], more].concat());
        assert_eq!(ran.code, 2, "{}", ran.err);
        words.iter().for_each(|word| assert!(ran.err.contains(word), "no {word:?} in {}", ran.err));
        assert!(!Path::new(&dir.path("refused")).exists(), "a rejected run left files");
    };
    refused(&["--from", &from, "--set", "model.hidden=64"], &["run.from", "hidden = 32, the configuration has 64"]);
    refused(&["--from", &first], &["run.from", "is not a checkpoint", "checkpoints/step-"]);
    refused(
        &["--from", &format!("{first}/checkpoints/step-000000099-a0001")],
        &["run.from: no checkpoint step-000000099-a0001 in"],
    );
    refused(&["--with-optimizer"], &["--from"]);
}

#[test]
fn configuration_changes_need_permission() {
    let dir = TestDir::new();
    let (config, url) = (dir.config(7, 2), dir.path("run"));
    train(&config, &url, &[]);
    let change = ["--set", "stage.0.steps=14", "--set", "model.dropout=0.2"];
    let refused = run(&[&["run", "--config", &config, "--run", &url], &change[..]].concat());
    assert_eq!(refused.code, 2);
    for word in ["stage.0.steps: 7 in the run, 14 now", "model.dropout", "--allow-change"] {
        assert!(refused.err.contains(word), "{}", refused.err);
    }
    let log =
        train(&config, &url, &[&change[..], &["--allow-change", "stage.0.steps", "--allow-change", "model"]].concat());
    assert!(log.contains("configuration changed: stage.0.steps: 7 in the run, 14 now"), "{log}");
    assert!(log.contains("resuming from step-000000007-a0001"), "{log}");
    // If no checkpoint has the new hidden size, the command must fail. It must not restart the run at step 0.
    let wide = ["--set", "stage.0.steps=14", "--set", "model.hidden=64", "--set", "model.dropout=0.2"];
    let incompatible =
        run(&[&["run", "--config", &config, "--run", &url, "--allow-change", "model"], &wide[..]].concat());
    assert_eq!(incompatible.code, 2, "{}", incompatible.err);
    assert!(incompatible.err.contains("model.hidden: 32 in the run, 64 now"), "{}", incompatible.err);
    assert_eq!(steps(&url)[0], 14);
    // A change of the micro-batch size needs no permission, but is reported.
    let small = ["--set", "stage.0.micro_batch_tokens=128", "--set", "stage.0.steps=14", "--set", "model.dropout=0.2"];
    let log = train(&config, &url, &small);
    assert!(log.contains("changes rounding"), "{log}");
}

/// A run skips intact checkpoints of another model. If it has no other checkpoint, it must not start from scratch.
#[test]
fn incompatible_checkpoints_are_skipped() {
    let dir = TestDir::new();
    let (config, wide, url) = (dir.config(7, 2), dir.path("wide"), dir.path("run"));
    train(&config, &wide, &["--set", "model.intermediate=128", "--set", "stage.0.steps=14"]);
    train(&config, &url, &[]);
    let (alien, longer) = (checkpoints(&wide).remove(0), ["--set", "stage.0.steps=8", "--allow-change", "stage"]);
    checkpoint::copy(&Store::open(&wide).unwrap(), &alien, &Store::open(&url).unwrap()).unwrap();
    let log = train(&config, &url, &longer);
    let why = format!("skipped checkpoint {alien}: it has 4096 elements of bert.encoder.layer.1.output.dense.weight");
    assert!(log.contains("resuming from step-000000007-a0001"), "{log}");
    assert!(log.contains(&why), "{log}");

    let empty = dir.path("empty");
    checkpoint::copy(&Store::open(&wide).unwrap(), &alien, &Store::open(&empty).unwrap()).unwrap();
    let ran = run(&["run", "--config", &config, "--run", &empty]);
    assert_eq!(ran.code, 2, "{}", ran.err);
    assert!(ran.err.contains("no checkpoint of") && ran.err.contains("fits the run's configuration"), "{}", ran.err);
}

#[test]
fn a_copy_is_an_independent_run() {
    let dir = TestDir::new();
    let (config, url, copied) = (dir.config(14, 2), dir.path("run"), dir.path("copied"));
    train(&config, &url, &[]);
    train(&config, &url, &["--set", "stage.0.steps=21", "--allow-change", "stage"]);
    let newest = checkpoints(&url).remove(0);
    assert_eq!(newest, "step-000000021-a0002");
    done(&["checkpoint", "copy", &format!("{url}/checkpoints/{newest}"), &copied]);
    assert_eq!(final_state(&copied), final_state(&url));
    // The copied checkpoint has a higher attempt number than the first attempt of a new run would have. Later
    // checkpoints must still sort after the copied checkpoint.
    train(&config, &copied, &["--set", "stage.0.steps=28", "--allow-change", "stage"]);
    assert_eq!(checkpoints(&copied), ["step-000000028-a0003", newest.as_str()]);
    // A checkpoint of another model is rejected, because the program would load it into the model of this run.
    let other = dir.path("other");
    train(&config, &other, &["--set", "model.activation=gelu-tanh"]);
    let of_other = format!("{other}/checkpoints/{}", checkpoints(&other)[0]);
    let mixed = run(&["checkpoint", "copy", &of_other, &copied]);
    assert_eq!(mixed.code, 2, "{}", mixed.err);
    assert!(mixed.err.contains("model.activation is \"gelu\" and \"gelu-tanh\", respectively"), "{}", mixed.err);
    assert_eq!(checkpoints(&copied).len(), 2, "objects were copied");
    let deeper = dir.path("deeper");
    train(&config, &deeper, &["--set", "stage.0.layers=3"]);
    let mixed = run(&["checkpoint", "copy", &format!("{deeper}/checkpoints/{}", checkpoints(&deeper)[0]), &copied]);
    assert_eq!(mixed.code, 2, "{}", mixed.err);
    assert!(mixed.err.contains("stage.0.layers is"), "{}", mixed.err);
    // A copy to a trained run is rejected, because the run would resume from the copy.
    let other_step = format!("{url}/checkpoints/step-000000014-a0001");
    let refused = run(&["checkpoint", "copy", &other_step, &copied]);
    assert_eq!(refused.code, 2, "{}", refused.err);
    assert!(refused.err.contains("is a trained run") && refused.err.contains("lease-000003"), "{}", refused.err);
    assert_eq!(checkpoints(&copied).len(), 2, "objects were copied");
    // A copy that was interrupted after its first object can be repeated. Another checkpoint of the same run can be
    // added.
    let archive = dir.path("archive");
    done(&["checkpoint", "copy", &format!("{url}/checkpoints/{newest}"), &archive]);
    std::fs::remove_file(format!("{archive}/vocab.txt")).unwrap();
    done(&["checkpoint", "copy", &other_step, &archive]);
    assert!(std::fs::exists(format!("{archive}/vocab.txt")).unwrap());
    assert_eq!(checkpoints(&archive), [newest.as_str(), "step-000000014-a0001"]);
    let no_checkpoint = run(&["checkpoint", "copy", &url, &archive]);
    assert_eq!(no_checkpoint.code, 2, "{}", no_checkpoint.err);
}

#[test]
fn a_checkpoint_is_saved_on_request() {
    let dir = TestDir::new();
    let (config, url) = (dir.config(100_000, 2), dir.path("run"));
    let mut running = Running::start_with(&config, &url, &["--set", "checkpoint.every_steps=0"]);
    running.reach(1);
    done(&["checkpoint", "save", &url]);
    running.wait_until(|| !checkpoints(&url).is_empty());
    running.reach_now(50);
    assert_eq!(checkpoints(&url).len(), 1, "one request, one checkpoint");
    running.kill_coordinator("-TERM");
    let ended = running.end();
    assert_eq!(ended.code, Some(75), "{}", ended.log);
    let idle = run(&["checkpoint", "save", &url]);
    assert!(idle.code == 1 && idle.err.contains("is not running"), "{}", idle.err);
}

#[test]
fn checkpoints_are_saved_at_time_intervals() {
    let dir = TestDir::new();
    let (config, url) = (dir.config(100_000, 2), dir.path("run"));
    let sets = ["--set", "checkpoint.every_steps=0", "--set", "checkpoint.every_minutes=0.005"];
    let mut running = Running::start_with(&config, &url, &sets);
    running.wait_until(|| checkpoints(&url).len() >= 3);
    running.kill_coordinator("-TERM");
    assert_eq!(running.end().code, Some(75));
}

/// Replaces `from` by `to` in the manifest of a checkpoint and updates the checksum of the manifest. Anyone who knows
/// the format can do this.
fn forge(manifest: &Path, from: &str, to: &str) {
    let text = std::fs::read_to_string(manifest).unwrap();
    assert!(text.contains(from), "no {from} in {text}");
    std::fs::write(manifest, support::seal(&text.replacen(from, to, 1))).unwrap();
}

/// A forged checkpoint with valid checksums is rejected because of its content.
#[test]
fn a_forged_checkpoint_is_skipped() {
    let dir = TestDir::new();
    let (config, url) = (dir.config(14, 1), dir.path("run"));
    train(&config, &url, &[]);
    let newest = checkpoints(&url).remove(0);
    let folder = Path::new(&url).join("checkpoints").join(&newest);
    let (weights, whole) = (folder.join("model.safetensors"), tree(&folder));
    let entry = |bytes: &[u8]| (format!("\"bytes\": {}", bytes.len()), hash::sha256(bytes));
    let before = entry(&whole[Path::new("model.safetensors")]);
    let replace = |bytes: Vec<u8>| {
        let after = entry(&bytes);
        std::fs::write(&weights, bytes).unwrap();
        forge(&folder.join("manifest.json"), &before.0, &after.0);
        forge(&folder.join("manifest.json"), &before.1, &after.1);
    };
    let name = |to: &str| forge(&folder.join("manifest.json"), "\"model.safetensors\"", &format!("{to:?}"));
    let mut not_a_number = whole[Path::new("model.safetensors")].clone();
    let end = not_a_number.len();
    not_a_number[end - 4..].copy_from_slice(&f32::NAN.to_le_bytes());
    let petabyte = [&(1u64 << 50).to_le_bytes()[..], b"{}"].concat();
    let tricks: [(&dyn Fn(), &str); 7] = [
        (&|| name("../../../../etc/passwd"), "not an object name"),
        (&|| name("s3://elsewhere/model.safetensors"), "not an object name"),
        (&|| name("/etc/passwd"), "not an object name"),
        (&|| name("optimizer-00000-of-00001.safetensors"), "listed twice"),
        (&|| forge(&folder.join("manifest.json"), &before.0, "\"bytes\": 1125899906842624"), "1125899906842624 bytes"),
        (&|| replace(petabyte.clone()), "claims a header of 1125899906842624 bytes"),
        (&|| replace(not_a_number.clone()), "finite"),
    ];
    for (trick, word) in tricks {
        trick();
        let ran = run(&["run", "--config", &config, "--run", &url]);
        assert_eq!(ran.code, 0, "{}", ran.err);
        let line = ran.err.lines().find(|line| line.contains(&format!("skipped checkpoint {newest}")));
        assert!(line.is_some_and(|line| line.contains(word)), "no {word:?} in {}", ran.err);
        assert!(ran.err.contains("resuming from step-000000007-a0001"), "{}", ran.err);
        // Restores the checkpoint for the next case.
        let later = checkpoints(&url).into_iter().filter(|name| *name != newest && !name.ends_with("a0001"));
        later.for_each(|name| std::fs::remove_dir_all(Path::new(&url).join("checkpoints").join(name)).unwrap());
        whole.iter().for_each(|(name, bytes)| std::fs::write(folder.join(name), bytes).unwrap());
    }
    assert_eq!(train(&config, &url, &[]).matches("skipped checkpoint").count(), 0);
}

/// A run whose checkpoints were removed, or are not mounted, must not silently start at step 0.
#[test]
fn a_run_without_its_checkpoints_is_refused() {
    let dir = TestDir::new();
    let (config, url) = (dir.config(14, 2), dir.path("run"));
    train(&config, &url, &[]);
    let (folder, away) = (format!("{url}/checkpoints"), dir.path("away"));
    std::fs::rename(&folder, &away).unwrap();
    for is_empty in [false, true] {
        if is_empty {
            std::fs::create_dir(&folder).unwrap();
        }
        let refused = run(&["run", "--run", &url, "--set", "stage.0.steps=21", "--allow-change", "stage.0.steps"]);
        assert_eq!(refused.code, 70, "{}", refused.err);
        let cause = format!("no checkpoint in {url}, but {url}/coordinator.json records one of step 14");
        assert!(refused.err.contains(&cause) && !refused.err.contains("starting at step 0"), "{}", refused.err);
    }
    std::fs::remove_dir(&folder).unwrap();
    std::fs::rename(&away, &folder).unwrap();
    let resumed = done(&["run", "--run", &url, "--json"]);
    assert!(resumed.contains("step-000000014"), "{resumed}");
    // On purpose.
    std::fs::remove_dir_all(&folder).unwrap();
    std::fs::remove_file(format!("{url}/coordinator.json")).unwrap();
    let again = run(&["run", "--run", &url]);
    assert!(again.code == 0 && again.err.contains("starting at step 0"), "{}", again.err);
}

/// f32 values of the weights file of a checkpoint.
fn weights(run: &str, name: &str) -> Vec<f32> {
    let file = std::fs::read(format!("{run}/checkpoints/{name}/model.safetensors")).unwrap();
    let head = 8 + u64::from_le_bytes(*file.first_chunk().unwrap()) as usize;
    file[head..].as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

#[test]
fn checkpoints_are_averaged_into_a_run_and_for_an_evaluation() {
    let dir = TestDir::new();
    let (config, url, averaged) = (dir.config(40, 2), dir.path("run"), dir.path("averaged"));
    train(&config, &url, &["--set", "checkpoint.every_steps=10", "--set", "checkpoint.keep=9"]);
    let names = checkpoints(&url);
    let written = done(&["checkpoint", "average", "--last", "3", &url, &averaged]);
    assert_eq!(written.trim(), format!("{averaged}/checkpoints/{}", names[0]));
    let mean = weights(&averaged, &names[0]);
    let models: Vec<Vec<f32>> = names[..3].iter().map(|name| weights(&url, name)).collect();
    for (index, mean) in mean.iter().enumerate() {
        let expected = models.iter().map(|model| f64::from(model[index])).sum::<f64>() / 3.0;
        assert_eq!(*mean, expected as f32, "element {index}");
    }
    assert_ne!(mean, models[0]);
    let manifest = manifest(&averaged, &names[0]);
    assert_eq!((manifest.averaged, manifest.held_out_loss), (names[..3].to_vec(), None));
    // The evaluation of the average has the same bits, and the average is a run that can be exported.
    let held_out = dir.path("data/held-out");
    let eval = |more: &[&str]| done(&[&["eval", "--data", &held_out, "--device", "cpu", "--json"], more].concat());
    assert_eq!(eval(&["--average", "3", &url]), eval(&[&averaged]));
    assert_ne!(eval(&[&url]), eval(&[&averaged]));
    done(&["export", "--output", &dir.path("model"), &averaged]);
    let card = std::fs::read_to_string(dir.path("model/README.md")).unwrap();
    assert!(card.contains(&format!("weights averaged over | {}", names[..3].join(", "))), "{card}");
    // A repeated average is the same, another one is refused.
    done(&["checkpoint", "average", "--last", "3", &url, &averaged]);
    let refused = |arguments: &[&str], cause: &str| {
        let refused = run(arguments);
        assert!(refused.code != 0 && refused.err.contains(cause), "{}", refused.err);
    };
    refused(&["checkpoint", "average", "--last", "2", &url, &averaged], "already exists");
    refused(&["checkpoint", "average", "--last", "99", &url, &dir.path("none")], "usable checkpoints, expected 99");
    assert!(!Path::new(&dir.path("none/run.toml")).exists());
    let one = format!("{url}/checkpoints/{}", names[0]);
    refused(&["eval", "--data", &held_out, "--average", "3", &one], "is one checkpoint");
    // Damage of any of the checkpoints is found.
    let damaged = Path::new(&url).join("checkpoints").join(&names[1]).join("model.safetensors");
    let mut bytes = std::fs::read(&damaged).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    std::fs::write(&damaged, bytes).unwrap();
    refused(&["checkpoint", "average", "--last", "3", &url, &dir.path("other")], "is damaged: sha256");
}
