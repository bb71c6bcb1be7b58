//! Tests of runs in which the losses of some samples are replaced by NaN or by a million. A step with a non-finite loss
//! or gradient leaves the weights unchanged. Several such steps in a row, or a loss above its limit, cause a rollback.
//! The run then skips the samples of these steps and must end as if these samples did not exist.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use std::time::Duration;

use crate::support::{self, Ended, Running, TestDir, assert_same_bits, checkpoints, final_state};
use lambert_control::StepRecord;
use lambert_dataset::Dataset;
use lambert_dataset::random::Key;
use lambert_store::Store;
use lambert_store::checkpoint::RollbackRecord;
use lambert_store::records::StepRecords;
use safetensors::SafeTensors;
use serde_json::Value;

const STEPS: u64 = 90;
/// Samples of a global batch in the configuration of `support`.
const BATCH: u64 = 16;
/// First step with a loss limit.
const WINDOW: u64 = 20;

/// Starts a run on `ranks` ranks with the settings `sets`.
fn start(dir: &TestDir, name: &str, ranks: usize, sets: &[String]) -> Running {
    let window = format!("guard.loss_window={WINDOW}");
    let sets = [&["cluster.restart.limit=1000".to_owned(), window][..], sets].concat();
    let arguments: Vec<&str> = sets.iter().flat_map(|set| ["--set", set]).collect();
    Running::start_with(&dir.config(STEPS, ranks), &dir.path(name), &arguments)
}

fn train(dir: &TestDir, name: &str, ranks: usize, sets: &[String]) -> Ended {
    let ended = start(dir, name, ranks, sets).end();
    assert_eq!(ended.code, Some(0), "{}", ended.log);
    ended
}

/// Manifest of the last checkpoint of a run.
fn manifest(dir: &TestDir, name: &str) -> Value {
    let run = dir.path(name);
    let path = format!("{run}/checkpoints/{}/manifest.json", checkpoints(&run)[0]);
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// Reads the last checkpoint of a run. Returns the skipped ranges of samples and the total number of skipped samples.
/// Asserts that every sample up to the cursor was trained on or skipped.
fn skipped_samples(dir: &TestDir, name: &str) -> (Vec<[u64; 2]>, u64) {
    let manifest = manifest(dir, name);
    let only = |value: &Value| value.as_object().unwrap().values().next().cloned().unwrap_or_default();
    let by_dataset = only(&manifest["state"]["skipped_by_dataset"]);
    let ranges: Vec<Range<u64>> = serde_json::from_value(by_dataset["samples"].clone()).unwrap_or_default();
    let skipped = manifest["state"]["skipped_samples"].as_u64().unwrap();
    assert_eq!(ranges.iter().map(|range| range.end - range.start).sum::<u64>(), skipped);
    let learnt = manifest["state"]["updates"]["bert.embeddings"].as_u64().unwrap() * BATCH;
    assert_eq!(only(&manifest["cursor"]).as_u64().unwrap(), learnt + skipped, "samples read twice or not at all");
    (ranges.iter().map(|range| [range.start, range.end]).collect(), skipped)
}

/// Trains an undisturbed run that skips `samples` from the beginning.
fn train_without(dir: &TestDir, name: &str, samples: Range<u64>) -> Ended {
    let mixture_id = Dataset::open(&dir.path("data/train")).unwrap().manifest_sha256().to_owned();
    let left_out =
        RollbackRecord { attempt: 0, last_kept: 0, mixture_id, samples, reason: "a test leaves them out".into() };
    std::fs::create_dir_all(dir.path(name)).unwrap();
    left_out.write(&Store::open(&dir.path(name)).unwrap()).unwrap();
    train(dir, name, 2, &[])
}

/// Final weights of a run.
fn weights(dir: &TestDir, name: &str) -> Vec<f32> {
    let files = final_state(&dir.path(name));
    let tensors = SafeTensors::deserialize(&files[Path::new("model.safetensors")]).unwrap();
    let by_name: BTreeMap<&str, &[u8]> = tensors.iter().map(|(name, tensor)| (name, tensor.data())).collect();
    let values = by_name.values().flat_map(|data| data.chunks_exact(4));
    values.map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap())).collect()
}

/// Relative distance between the final weights of two runs: |a - b| / |b|.
fn distance(dir: &TestDir, one: &str, other: &str) -> f64 {
    let (one, other) = (weights(dir, one), weights(dir, other));
    assert_eq!(one.len(), other.len());
    let square = |value: f32| f64::from(value).powi(2);
    let difference: f64 = one.iter().zip(&other).map(|(a, b)| square(a - b)).sum();
    (difference / other.iter().map(|value| square(*value)).sum::<f64>()).sqrt()
}

/// Asserts that a run has the same weights, moments and counters as a run that never had the skipped samples.
fn assert_ends_like(dir: &TestDir, one: &str, other: &str) {
    assert_same_bits(&dir.path(one), &dir.path(other));
    let end = |name: &str| ["state", "cursor"].map(|part| manifest(dir, name)[part].clone());
    assert_eq!(end(one), end(other));
}

/// Returns the batch digest of each step. For a repeated step, returns the digest of the last repetition. (The speed of
/// the disk determines the first step that is repeated.)
fn digests(ended: &Ended) -> BTreeMap<u64, u64> {
    ended.records.iter().map(|record| (record.step, record.batch.digest)).collect()
}

#[test]
fn a_loss_above_its_limit_causes_a_rollback() {
    let dir = TestDir::new();
    let fault = [format!("test.million_samples={}", support::rows(&dir, &[50 * BATCH + 3]))];
    let faulty = train(&dir, "faulty", 2, &fault);
    let reported = faulty.log.lines().find(|line| line.contains("is above the limit of")).expect(&faulty.log);
    assert!(reported.contains("step 51: loss ") && reported.contains("rolled back to step 49"), "{reported}");
    assert_eq!(faulty.log.matches("restarting all workers in 0 s").count(), 1, "{}", faulty.log);
    assert_eq!(skipped_samples(&dir, "faulty"), (vec![[49 * BATCH, 51 * BATCH]], 2 * BATCH));
    let without = train_without(&dir, "without", 49 * BATCH..51 * BATCH);
    assert!(without.records.last().unwrap().loss < 0.97 * without.records[0].loss, "the loss did not fall");
    assert_ends_like(&dir, "faulty", "without");
    // The record of the step that was rolled back is kept, and so is the reason of the rollback.
    let run = dir.path("faulty");
    let records = StepRecords::<StepRecord>::read(&Store::open(&run).unwrap()).unwrap();
    let undone = records.all.iter().rfind(|recorded| recorded.position.attempt == 1).unwrap();
    assert!(undone.record.loss > 1000.0, "{undone:?}");
    let kept = records.effective();
    assert!(kept.iter().map(|recorded| recorded.position.step).eq(1..=STEPS), "{kept:?}");
    assert!(kept.iter().all(|recorded| recorded.record.loss < 1000.0), "{kept:?}");
    assert!(
        std::fs::read_to_string(format!("{run}/rollbacks/attempt-0001.json")).unwrap().contains("above the limit of")
    );
    // Without the guard, the bad sample affects the weights. A run on one rank skips the same samples and differs only
    // by rounding.
    let unguarded = train(&dir, "unguarded", 2, &[fault[0].clone(), "guard.loss_band=0".into()]);
    assert!(unguarded.records.iter().any(|record| record.loss > 1000.0 && record.step == 51));
    assert_eq!(skipped_samples(&dir, "unguarded").1, 0);
    let alone = train(&dir, "alone", 1, &fault);
    assert_eq!(skipped_samples(&dir, "alone"), skipped_samples(&dir, "faulty"));
    assert_eq!(digests(&alone), digests(&faulty));
    let [marked, rounded] = ["unguarded", "alone"].map(|name| distance(&dir, name, "without"));
    eprintln!("weights beside a run without the samples: {marked:.1e} without the guard, {rounded:.1e} on one rank");
    assert!(rounded < 1e-3 && marked > 100.0 * rounded, "{marked:.1e} without the guard, {rounded:.1e} on one rank");
    kill_around_the_rollback(&dir, &fault);
}

/// Kills processes at random times around the rollback. The result must stay the same. `LAMBERT_TEST_KILLS` is the
/// number of kills. The default is two.
fn kill_around_the_rollback(dir: &TestDir, fault: &[String]) {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos() as u64;
    let seed = std::env::var("LAMBERT_TEST_SEED").map_or(now, |seed| seed.parse().unwrap());
    eprintln!("moments from LAMBERT_TEST_SEED={seed}");
    let mut moments = Key::new(seed).rng();
    let trials = std::env::var("LAMBERT_TEST_KILLS").map_or(2, |kills| kills.parse().unwrap());
    for trial in 0..trials {
        let name = format!("killed-{trial}");
        let mut running = start(dir, &name, 2, fault);
        running.reach(51);
        std::thread::sleep(Duration::from_millis(moments.below(60)));
        if trial % 2 == 0 {
            // These workers belong to the current attempt and may be exiting, or they belong to the next attempt.
            support::workers(&dir.path(&name)).into_values().for_each(support::kill_if_there);
        } else {
            running.kill_coordinator("-9");
            drop(running.end());
            support::wait_for_no_workers(&dir.path(&name));
            running = start(dir, &name, 2, fault);
        }
        let ended = running.end();
        assert_eq!(ended.code, Some(0), "{}", ended.log);
        assert_eq!(skipped_samples(dir, &name), skipped_samples(dir, "faulty"));
        assert_same_bits(&dir.path("faulty"), &dir.path(&name));
    }
}

#[test]
fn nonfinite_gradients_leave_the_weights_unchanged_and_several_cause_a_rollback() {
    let dir = TestDir::new();
    let clean = train(&dir, "clean", 2, &[]);
    let one = [format!("test.nan_samples={}", support::rows(&dir, &[30 * BATCH + 5]))];
    let skipped = train(&dir, "skipped", 2, &one);
    assert!(!skipped.log.contains("rolled back"), "{}", skipped.log);
    let counts: Vec<_> = skipped.records.iter().map(|r| (r.step, r.skipped.updates, r.skipped.samples)).collect();
    assert_eq!(counts[29..32], [(30, 0, 0), (31, 1, BATCH), (32, 1, BATCH)]);
    let record = &skipped.records[30];
    assert!(record.loss.is_nan() && record.update.grad_norm.is_none(), "{record:?}");
    assert_eq!(skipped_samples(&dir, "skipped"), (vec![[30 * BATCH, 31 * BATCH]], BATCH));
    assert_eq!(digests(&skipped), digests(&clean), "later steps have other samples");
    // A run that ends with the skipped step has the same weights and moments as a run that ends before this step.
    let constant = |steps: u64| [one[0].clone(), format!("stage.0.steps={steps}"), "stage.0.decay=constant".into()];
    train(&dir, "until-30", 2, &constant(30));
    train(&dir, "until-31", 2, &constant(31));
    assert_same_bits(&dir.path("until-30"), &dir.path("until-31"));

    // The faults hit steps 34 to 36. A checkpoint is due after step 35.
    let row = [format!("test.nan_samples={}", support::rows(&dir, &[33 * BATCH, 34 * BATCH + 1, 35 * BATCH + 2]))];
    let faulty = train(&dir, "row", 2, &row);
    let reported = faulty.log.lines().find(|line| line.contains("rolled back")).expect(&faulty.log);
    assert!(
        reported.contains("step 36: loss or gradient not finite in 3 consecutive steps")
            && reported.contains("rolled back to step 32"),
        "{reported}"
    );
    // On a slow disk there are fewer checkpoints. A checkpoint that was rolled back may be removed before the next
    // attempt lists the checkpoints.
    let saved = |step: &str| faulty.log.contains(&format!("saved checkpoint step-{step}-a0001"));
    let passed = "step-000000035-a0001: attempt 1 rolled back to step 32";
    assert!(!faulty.log.contains(passed) || saved("000000035"), "{}", faulty.log);
    let from = faulty.log.split("resuming from step-").nth(1).map_or(0, |name| name[..9].parse().unwrap());
    assert!(from == 28 || from < 28 && !saved("000000028"), "{}", faulty.log);
    assert_eq!(skipped_samples(&dir, "row"), (vec![[32 * BATCH, 36 * BATCH]], 4 * BATCH));
    train_without(&dir, "without", 32 * BATCH..36 * BATCH);
    assert_ends_like(&dir, "row", "without");
}

/// Steps of the checkpoints from which the attempts of a run resumed.
fn resumed_steps(ended: &Ended) -> Vec<u64> {
    let steps = ended.log.split("resuming from step-").skip(1);
    steps.map(|name| name[..9].parse().unwrap()).collect()
}

/// The last checkpoint before a divergence may already contain the cause of the divergence. Regression test: older
/// versions loaded this checkpoint again and again.
#[test]
fn a_run_that_diverges_again_resumes_one_checkpoint_earlier() {
    let dir = TestDir::new();
    // The faults hit step 51 of the first attempt and step 53 of the second, between two checkpoints.
    let fault = [format!("test.million_samples={}", support::rows(&dir, &[50 * BATCH + 3, 54 * BATCH + 3]))];
    let further = train(&dir, "further", 2, &fault);
    let [first, second] = resumed_steps(&further)[..] else { panic!("{}", further.log) };
    let name = format!("step-{first:09}-a0001");
    let reported = format!(
        "the run has already diverged after {name}; the next attempt starts one checkpoint earlier, from step-"
    );
    assert!(second < first && further.log.contains(&reported), "{}", further.log);
    let record = |name: &str| std::fs::read(format!("{}/rollbacks/attempt-0002.json", dir.path(name))).unwrap();
    let steps = |name: &str| serde_json::from_slice::<Value>(&record(name)).unwrap()["steps"].clone();
    assert_eq!(steps("further"), first - 1, "the rollback record has another step");
    let ranges = vec![[49 * BATCH, 51 * BATCH], [53 * BATCH, 55 * BATCH]];
    assert_eq!(skipped_samples(&dir, "further"), (ranges.clone(), 4 * BATCH));

    let only = train(&dir, "only", 2, &[fault[0].clone(), "checkpoint.keep=1".into()]);
    let [first, second] = resumed_steps(&only)[..] else { panic!("{}", only.log) };
    assert_eq!(first, second);
    assert!(only.log.contains("and no earlier checkpoint is left (checkpoint.keep = 1)"), "{}", only.log);
    assert_eq!(skipped_samples(&dir, "only"), (ranges, 4 * BATCH));
    assert_same_bits(&dir.path("further"), &dir.path("only"));
}

#[test]
fn a_run_without_progress_after_rollbacks_fails() {
    let dir = TestDir::new();
    let all = format!("test.nan_samples={:?}", (0..2000).collect::<Vec<u64>>());
    let ended = start(&dir, "hopeless", 1, &[all, "guard.rollbacks=2".into()]).end();
    assert_eq!(ended.code, Some(65), "{}", ended.log);
    assert!(ended.log.contains("giving up after 2 rollbacks without progress"), "{}", ended.log);
}

/// Every model diverges at the learning rate of this test. The held-out loss is NaN and must still be reported.
#[test]
fn a_nonfinite_held_out_loss_is_reported() {
    let dir = TestDir::new();
    let held_out = format!("evaluation.data={}", dir.path("data/held-out"));
    let sets = [
        "optimizer.kind=adamw",
        "stage.0.learning_rate=1e30",
        "guard.loss_band=0",
        "guard.nonfinite_steps=1000",
        "evaluation.every_steps=2",
        "checkpoint.keep_best=true",
        held_out.as_str(),
    ];
    let sets: Vec<&str> = sets.iter().flat_map(|set| ["--set", set]).collect();
    let (config, run) = (dir.config(6, 2), dir.path("run"));
    let ran = support::run(&[&["run", "--config", &config, "--run", &run, "--json"][..], &sets].concat());
    assert_eq!(ran.code, 0, "{}", ran.err);
    let lines: Vec<Value> = ran.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let of = |event: &str| lines.iter().filter(|line| line["event"] == *event).collect::<Vec<_>>();
    assert_eq!(of("evaluation").len(), 3, "{}", ran.out);
    assert!(of("evaluation").iter().all(|line| line["mlm_loss"].is_null() && line["masked_tokens"].as_u64() > Some(0)));
    assert_eq!(of("end")[0]["state"], "finished");
    let status: Value = serde_json::from_str(&support::done(&["status", &run, "--json"])).unwrap();
    assert_eq!((&status["status"]["step"], &status["status"]["evaluation"]["mlm_loss"]), (&6.into(), &Value::Null));
    assert!(manifest(&dir, "run")["best"].is_null(), "a non-finite loss is the best");
}
