//! Runs that are derailed on purpose, by samples whose loss is falsified: what is not finite changes nothing, several such
//! steps or a loss above its band send the run back and around the samples, and it ends as if they had not been there.

#![allow(clippy::unwrap_used, reason = "a panic is how a test reports")]

mod support;

use std::ops::Range;
use std::path::Path;
use std::time::Duration;

use lambert::data::order::Order;
use lambert_config::control::StepRecord;
use lambert_data_prep::dataset::Dataset;
use lambert_data_prep::random::Key;
use serde_json::Value;
use support::{Ended, Place, Running, assert_same_bits, checkpoints};

const STEPS: u64 = 90;
/// Samples of a global batch, in support's configuration.
const BATCH: u64 = 16;
/// The loss has a band from this step on.
const WINDOW: u64 = 20;

/// Rows of the training data that are drawn as numbers `numbers`.
fn rows(place: &Place, numbers: &[u64]) -> String {
    let dataset = Dataset::open(&place.path("data/train")).unwrap();
    let sizes: Vec<u64> = dataset.row_groups().iter().map(|group| group.rows).collect();
    let order = Order::new(&sizes, 1, 0);
    let row = |number: &u64| {
        let drawn = order.at(*number);
        dataset.row_groups()[drawn.row_group].first_row + drawn.row as u64
    };
    format!("{:?}", numbers.iter().map(row).collect::<Vec<_>>())
}

/// A run on `ranks` ranks with faults `sets`.
fn start(place: &Place, name: &str, ranks: usize, sets: &[String]) -> Running {
    let window = format!("guard.loss_window={WINDOW}");
    let sets = [&["cluster.restarts=1000".to_owned(), window][..], sets].concat();
    let arguments: Vec<&str> = sets.iter().flat_map(|set| ["--set", set]).collect();
    Running::start_with(&place.config(STEPS, ranks), &place.path(name), &arguments)
}

fn train(place: &Place, name: &str, ranks: usize, sets: &[String]) -> Ended {
    let ended = start(place, name, ranks, sets).end();
    assert_eq!(ended.code, Some(0), "{}", ended.log);
    ended
}

/// The manifest of a run's last checkpoint.
fn manifest(place: &Place, name: &str) -> Value {
    let run = place.path(name);
    let path = format!("{run}/checkpoints/{}/manifest.json", checkpoints(&run)[0]);
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// What the run's last checkpoint says was left out, and that every sample up to its cursor was learnt or left out.
fn left_out(place: &Place, name: &str) -> (Vec<[u64; 2]>, u64) {
    let manifest = manifest(place, name);
    let only = |value: &Value| value.as_object().unwrap().values().next().cloned().unwrap_or_default();
    let detours = only(&manifest["state"]["detours"]);
    let ranges: Vec<Range<u64>> = serde_json::from_value(detours["samples"].clone()).unwrap_or_default();
    let skipped = manifest["state"]["skipped_samples"].as_u64().unwrap();
    assert_eq!(ranges.iter().map(|range| range.end - range.start).sum::<u64>(), skipped);
    let learnt = manifest["state"]["updates"].as_u64().unwrap() * BATCH;
    assert_eq!(only(&manifest["cursor"]).as_u64().unwrap(), learnt + skipped, "exactly once");
    (ranges.iter().map(|range| [range.start, range.end]).collect(), skipped)
}

/// The mean loss of the last ten steps.
fn final_loss(records: &[StepRecord]) -> f64 {
    records.iter().rev().take(10).map(|record| record.loss).sum::<f64>() / 10.0
}

fn ends_like(one: &Ended, other: &Ended) {
    assert!(one.records.last().unwrap().loss < 0.97 * other.records[0].loss, "nothing was learnt");
    let (one, other) = (final_loss(&one.records), final_loss(&other.records));
    eprintln!("final losses {one:.4} and {other:.4}");
    assert!((one - other).abs() < 0.01 * other, "{one} is not like {other}");
}

#[test]
fn a_loss_above_its_band_is_gone_around() {
    let place = Place::new();
    let clean = train(&place, "clean", 2, &[]);
    assert_eq!(left_out(&place, "clean"), (Vec::new(), 0));
    let fault = [format!("test.million_samples={}", rows(&place, &[50 * BATCH + 3]))];
    let faulty = train(&place, "faulty", 2, &fault);
    let told = faulty.log.lines().find(|line| line.contains("is above its band")).expect(&faulty.log);
    assert!(told.contains("step 51: the loss of ") && told.contains("goes back to its first 49 steps"), "{told}");
    assert_eq!(faulty.log.matches("the workers are started again in 0 s").count(), 1, "{}", faulty.log);
    assert_eq!(left_out(&place, "faulty"), (vec![[49 * BATCH, 51 * BATCH]], 2 * BATCH));
    ends_like(&faulty, &clean);
    // The record of the step that was undone is kept, and so is the reason.
    let run = place.path("faulty");
    let metrics = support::tree(&Path::new(&run).join("metrics"));
    let of_the_first = |name: &Path| name.to_str().unwrap().starts_with("attempt-0001-");
    let (_, undone) = metrics.iter().rfind(|(name, _)| of_the_first(name)).unwrap();
    let undone = std::str::from_utf8(undone).unwrap();
    assert!(serde_json::from_str::<StepRecord>(undone.lines().last().unwrap()).unwrap().loss > 1000.0, "{undone}");
    assert!(std::fs::read_to_string(format!("{run}/rollbacks/attempt-0001.json")).unwrap().contains("above its band"));
    // Without the guard the same sample leaves its mark.
    let unguarded = train(&place, "unguarded", 2, &[fault[0].clone(), "guard.loss_band=0".into()]);
    assert!(unguarded.records.iter().any(|record| record.loss > 1000.0 && record.step == 51));
    assert_eq!(left_out(&place, "unguarded").1, 0);
    eprintln!("unguarded: final loss {:.4}", final_loss(&unguarded.records));
    // Another world goes around the same samples.
    let alone = train(&place, "alone", 1, &fault);
    assert_eq!(left_out(&place, "alone"), left_out(&place, "faulty"));
    let digests = |ended: &Ended| ended.records.iter().map(|record| record.batch_digest).collect::<Vec<_>>();
    assert_eq!(digests(&alone), digests(&faulty));
    kills_on_the_way_back(&place, &fault);
}

/// Kills at any moment around the retreat change no bit.
fn kills_on_the_way_back(place: &Place, fault: &[String]) {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos() as u64;
    let seed = std::env::var("LAMBERT_TEST_SEED").map_or(now, |seed| seed.parse().unwrap());
    eprintln!("moments from LAMBERT_TEST_SEED={seed}");
    let mut moments = Key::new(seed).rng();
    for trial in 0..4 {
        let name = format!("killed-{trial}");
        let mut running = start(place, &name, 2, fault);
        running.reach(51);
        std::thread::sleep(Duration::from_millis(moments.below(60)));
        if trial % 2 == 0 {
            // The workers that are there now: those that leave, or the next.
            support::workers(&place.path(&name)).into_values().for_each(support::kill_if_there);
        } else {
            running.kill_coordinator("-9");
            drop(running.end());
            support::wait_for_no_workers(&place.path(&name));
            running = start(place, &name, 2, fault);
        }
        let ended = running.end();
        assert_eq!(ended.code, Some(0), "{}", ended.log);
        assert_eq!(left_out(place, &name), left_out(place, "faulty"));
        assert_same_bits(&place.path("faulty"), &place.path(&name));
    }
}

#[test]
fn what_is_not_finite_changes_nothing_and_several_in_a_row_go_back() {
    let place = Place::new();
    let clean = train(&place, "clean", 2, &[]);
    let one = [format!("test.nan_samples={}", rows(&place, &[30 * BATCH + 5]))];
    let skipped = train(&place, "skipped", 2, &one);
    assert!(!skipped.log.contains("goes back"), "{}", skipped.log);
    let counts: Vec<_> = skipped.records.iter().map(|r| (r.step, r.skipped_updates, r.skipped_samples)).collect();
    assert_eq!(counts[29..32], [(30, 0, 0), (31, 1, BATCH), (32, 1, BATCH)]);
    let record = &skipped.records[30];
    assert!(record.loss.is_nan() && record.grad_norm.is_none(), "{record:?}");
    assert_eq!(left_out(&place, "skipped"), (vec![[30 * BATCH, 31 * BATCH]], BATCH));
    ends_like(&skipped, &clean);

    // Steps 34 to 36, with a checkpoint after the second of them.
    let row = [format!("test.nan_samples={}", rows(&place, &[33 * BATCH, 34 * BATCH + 1, 35 * BATCH + 2]))];
    let faulty = train(&place, "row", 2, &row);
    let told = faulty.log.lines().find(|line| line.contains("goes back")).expect(&faulty.log);
    assert!(told.contains("step 36: 3 step(s) in a row") && told.contains("its first 32 steps"), "{told}");
    // On a slow disk there are fewer of them.
    let saved = |step: &str| faulty.log.contains(&format!("saved checkpoint step-{step}-a0001"));
    let passed = "step-000000035-a0001: attempt 1 went back to the first 32 steps";
    assert_eq!(faulty.log.contains(passed), saved("000000035"), "{}", faulty.log);
    let from = faulty.log.split("goes on from step-").nth(1).map_or(0, |name| name[..9].parse().unwrap());
    assert!(from == 28 || from < 28 && !saved("000000028"), "{}", faulty.log);
    assert_eq!(left_out(&place, "row"), (vec![[32 * BATCH, 36 * BATCH]], 4 * BATCH));
    ends_like(&faulty, &clean);
}

#[test]
fn a_run_that_goes_back_in_vain_is_given_up() {
    let place = Place::new();
    let all = format!("test.nan_samples={:?}", (0..2000).collect::<Vec<u64>>());
    let ended = start(&place, "hopeless", 1, &[all, "guard.rollbacks=2".into()]).end();
    assert_eq!(ended.code, Some(1), "{}", ended.log);
    assert!(ended.log.contains("given up after 2 rollbacks without progress"), "{}", ended.log);
}
