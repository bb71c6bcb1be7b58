//! A shard turns out to be damaged during training. The run names the shard and stops with a checkpoint, or skips the
//! samples of the shard.

use std::collections::BTreeMap;

use crate::support::{Ended, Running, TestDir, assert_same_bits, checkpoints, done};
use lambert_dataset::ranges::CHECKSUMS;
use lambert_dataset::{Dataset, RowGroup};
use lambert_worker::data::order::EpochOrder;
use serde_json::Value;

const STEPS: u64 = 60;
const BATCH: u64 = 16;

/// Prepares a dataset of many small shards. Returns its URL, a shard whose first row group is needed late in the run, and
/// the first step that needs this row group.
fn prepare(dir: &TestDir) -> (String, usize, u64) {
    let url = dir.path("small");
    let sets = [format!("output.url={url}"), "output.shards=60".into(), "output.rows_per_group=16".into()];
    let sets: Vec<&str> = sets.iter().flat_map(|set| ["--set", set]).collect();
    done(&[&["prep", "--config", &dir.path("prep.toml")][..], &sets].concat());
    let dataset = Dataset::open(&format!("{url}/train")).unwrap();
    let groups = dataset.row_groups();
    let order = EpochOrder::new(&groups.iter().map(|group| group.rows).collect::<Vec<_>>(), 1, 0);
    let is_first = |group: &RowGroup, shard: usize| group.shard == shard && group.index == 0;
    let first = |shard| (0..dataset.rows()).find(|n| is_first(&groups[order.at(*n).row_group], shard)).unwrap();
    let needed = |shard: usize| first(shard) / BATCH + 1;
    // Only one rank reads the row group in this step.
    let alone = |shard: usize| {
        let step = (needed(shard) - 1) * BATCH..needed(shard) * BATCH;
        step.filter(|n| is_first(&groups[order.at(*n).row_group], shard)).count() == 1
    };
    let late = (0..60).filter(|shard| needed(*shard) < STEPS - 10 && alone(*shard));
    let shard = late.max_by_key(|shard| needed(*shard)).unwrap();
    (url, shard, needed(shard))
}

fn start(dir: &TestDir, name: &str, data: &str, ranks: usize, more: &[&str]) -> Running {
    let data = format!("stage.0.data={data}/train");
    let arguments = [&["--set", &data][..], more].concat();
    Running::start_with(&dir.config(STEPS, ranks), &dir.path(name), &arguments)
}

fn finished(ended: Ended) -> Ended {
    assert_eq!(ended.code, Some(0), "{}", ended.log);
    ended
}

/// Checksums do not detect this damage. The bytes match the manifest but cannot be decoded.
#[test]
fn an_undecodable_shard_is_named_and_skipped() {
    let dir = TestDir::new();
    let (data, shard, step) = prepare(&dir);
    let name = format!("shard-{shard:05}-of-00060.parquet");
    let path = format!("{data}/train/{name}");
    let mut bad = std::fs::read(&path).unwrap();
    let manifest = format!("{data}/train/manifest.json");
    let mut value: Value = serde_json::from_slice(&std::fs::read(&manifest).unwrap()).unwrap();
    let checksums = format!("{data}/train/{CHECKSUMS}");
    let mut ranges: Value = serde_json::from_slice(&std::fs::read(&checksums).unwrap()).unwrap();
    let entry = &mut ranges["shards"][shard];
    // Overwrite token ids of the first row group, but not the magic number at the start.
    let end = entry["range_bytes"][0].as_u64().unwrap() as usize;
    bad[4..end / 2].fill(0xee);
    std::fs::write(&path, &bad).unwrap();
    entry["range_sha256"][0] = lambert_store::hash::sha256(&bad[..end]).into();
    entry["shard_sha256"] = lambert_store::hash::sha256(&bad).into();
    value["shards"][shard]["sha256"] = entry["shard_sha256"].clone();
    std::fs::write(&checksums, serde_json::to_vec(&ranges).unwrap()).unwrap();
    std::fs::write(&manifest, serde_json::to_vec(&value).unwrap()).unwrap();

    let stopped = start(&dir, "stopped", &data, 2, &[]).end();
    assert_eq!(stopped.code, Some(70), "{}", stopped.log);
    assert!(stopped.log.contains(&name), "{}", stopped.log);
    let advice = "; restore the file and rerun the command to resume, or add --set guard.damaged_shard=skip";
    assert!(stopped.log.contains(advice), "{}", stopped.log);
    assert!(
        stopped.log.contains("another rank could not read its samples"),
        "both ranks read the shard: {}",
        stopped.log
    );
    assert_eq!(stopped.records.len() as u64, step - 1, "{}", stopped.log);
    let around = start(&dir, "around", &data, 2, &["--set", "guard.damaged_shard=skip"]).end();
    let around = finished(around);
    assert!(around.log.contains(&name) && around.log.contains("skipping its samples from now on"), "{}", around.log);
    assert!(around.records[step as usize - 1].skipped.samples > 0);
}

/// Returns the MLM losses of the evaluations in the records of a run, by step.
fn evaluations(run: &str) -> BTreeMap<u64, f64> {
    let files = std::fs::read_dir(format!("{run}/metrics")).unwrap().map(|entry| entry.unwrap().path());
    let lines: String = files.map(|path| std::fs::read_to_string(path).unwrap()).collect();
    let records = lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let evaluations = records.filter(|record| record["event"] == "evaluation");
    evaluations.map(|record| (record["step"].as_u64().unwrap(), record["mlm_loss"].as_f64().unwrap())).collect()
}

/// The checkpoint must contain the earlier steps, and no rank may block. After the repair, the run must repeat the
/// missed evaluation. This evaluation determines the end of the stage here.
#[test]
fn a_damaged_held_out_shard_stops_the_run_with_a_checkpoint() {
    let dir = TestDir::new();
    let (data, _, _) = prepare(&dir);
    let held_out = format!("evaluation.data={data}/held-out");
    // The loss never falls by 10 nats, so the stage ends with the fifth evaluation.
    let plateau = "stage.0.plateau={ evaluations = 4, min_delta = 10.0 }";
    let sets =
        [&held_out, plateau, "evaluation.every_steps=10", "checkpoint.every_steps=0", "checkpoint.keep_best=true"];
    let more = sets.map(|set| ["--set", set]).concat();
    finished(start(&dir, "good", &data, 2, &more).end());
    let shards = std::fs::read_dir(format!("{data}/held-out")).unwrap().map(|entry| entry.unwrap().path());
    let path = shards.filter(|path| path.extension().is_some_and(|end| end == "parquet")).min().unwrap();
    let name = path.file_name().unwrap().to_str().unwrap().to_owned();
    let good = std::fs::read(&path).unwrap();
    let (mut bad, middle) = (good.clone(), good.len() / 2);
    bad[middle] ^= 4;
    std::fs::write(&path, &bad).unwrap();
    for attempt in [1, 2] {
        let ended = start(&dir, "run", &data, 2, &more).end();
        assert_eq!(ended.code, Some(70), "{}", ended.log);
        assert!(ended.log.contains(&format!("{name} is damaged: sha256 of bytes ")), "{}", ended.log);
        assert_eq!(checkpoints(&dir.path("run")), ["step-000000010-a0001"], "{}", ended.log);
        assert!(!ended.log.contains(&format!("attempt {}", attempt + 1)), "{}", ended.log);
    }

    std::fs::write(&path, good).unwrap();
    finished(start(&dir, "run", &data, 2, &more).end());
    let (run, undisturbed) = (dir.path("run"), dir.path("good"));
    assert_eq!(evaluations(&run), evaluations(&undisturbed));
    assert_eq!(evaluations(&run).into_keys().collect::<Vec<_>>(), [10, 20, 30, 40, 50]);
    assert_same_bits(&undisturbed, &run);
}

#[test]
fn a_damaged_shard_stops_the_run_or_is_skipped() {
    let dir = TestDir::new();
    let (data, shard, step) = prepare(&dir);
    let path = format!("{data}/train/shard-{shard:05}-of-00060.parquet");
    let good = std::fs::read(&path).unwrap();
    finished(start(&dir, "good", &data, 2, &[]).end());

    let mut bad = good.clone();
    bad[40] ^= 4;
    std::fs::write(&path, &bad).unwrap();
    let stopped = start(&dir, "stopped", &data, 2, &[]).end();
    assert_eq!(stopped.code, Some(70), "{}", stopped.log);
    let named = format!("shard-{shard:05}-of-00060.parquet is damaged: sha256 of bytes 0 to ");
    assert!(stopped.log.contains(&named), "{}", stopped.log);
    assert!(!stopped.log.contains("attempt 2"), "retried with a damaged shard: {}", stopped.log);
    assert_eq!(stopped.records.len() as u64, step - 1);
    let newest = checkpoints(&dir.path("stopped")).remove(0);
    assert_eq!(newest, format!("step-{:09}-a0001", step - 1), "no checkpoint of the last step");

    let skip = ["--set", "guard.damaged_shard=skip"];
    let around = finished(start(&dir, "around", &data, 2, &skip).end());
    assert!(around.log.contains(&named) && around.log.contains("skipping its samples from now on"), "{}", around.log);
    let skipped: Vec<u64> = around.records.iter().map(|record| record.skipped.samples).collect();
    assert!(skipped[step as usize - 2] == 0 && skipped[step as usize - 1] > 0, "{skipped:?}");
    let manifest = format!("{}/checkpoints/step-{STEPS:09}-a0001/manifest.json", dir.path("around"));
    let manifest: Value = serde_json::from_slice(&std::fs::read(manifest).unwrap()).unwrap();
    assert_eq!(manifest["state"]["skipped_samples"].as_u64(), skipped.last().copied());
    let cursor = manifest["cursor"].as_object().unwrap().values().next().unwrap().as_u64().unwrap();
    assert_eq!(cursor, STEPS * BATCH + skipped.last().unwrap(), "samples read twice or not at all");

    // A run is stopped after it has found the damage. It is resumed after the shard has been restored. The run must
    // skip the same samples as a run that was not stopped.
    let mut running = start(&dir, "resumed", &data, 2, &skip);
    running.reach(step + 2);
    running.kill_coordinator("-TERM");
    assert_eq!(running.end().code, Some(75));
    std::fs::write(&path, &good).unwrap();
    finished(start(&dir, "resumed", &data, 2, &skip).end());
    assert_same_bits(&dir.path("around"), &dir.path("resumed"));
    // With another world size, the batches must have the same samples.
    std::fs::write(&path, &bad).unwrap();
    let alone = finished(start(&dir, "alone", &data, 1, &skip).end());
    let digests = |ended: &Ended| ended.records.iter().map(|record| record.batch.digest).collect::<Vec<_>>();
    assert_eq!(digests(&alone), digests(&around));

    // With the restored shard, the stopped run must resume and end like an undisturbed run.
    std::fs::write(&path, &good).unwrap();
    finished(start(&dir, "stopped", &data, 2, &[]).end());
    assert_same_bits(&dir.path("good"), &dir.path("stopped"));
}
