//! Tests of runs whose model grows. Kills around a growth boundary must leave the result unchanged. Also tests the
//! checkpoints on both sides of a boundary, and rejected configurations.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::time::Duration;

use crate::support::{self, Ended, Running, TestDir, assert_same_bits, checkpoints, done, run};
use lambert_control::StepRecord;
use lambert_dataset::random::Key;
use safetensors::SafeTensors;

/// Number of steps of each stage in the configuration. The three stages have one, two and four layers. The second stage
/// ends early at a plateau.
const STEPS: u64 = 20;
/// Step at which each stage ends.
const ENDS: [u64; 3] = [STEPS, STEPS + 12, STEPS + 12 + STEPS];

fn config(dir: &TestDir, ranks: usize) -> String {
    let (data, held_out) = (dir.path("data/train"), dir.path("data/held-out"));
    let stage = |layers: usize, more: &str| {
        format!(
            "[[stage]]\nname = \"{layers}\"\nlayers = {layers}\ndata = {data:?}\nsteps = {STEPS}\nglobal_batch = 16\n\
             micro_batch_tokens = 256\nlearning_rate = 5e-3\ndecay = \"constant\"\n{more}"
        )
    };
    let text = format!(
        "[model]\nhidden = 32\nheads = 2\nintermediate = 64\npositions = 64\n\
         {}{}{}[evaluation]\ndata = {held_out:?}\nevery_steps = 4\nsamples = 32\n[checkpoint]\nevery_steps = 7\nkeep = 100\n\
         [cluster]\nranks = {ranks}\nall_reduce.backend = \"mpi\"\n[device]\nkind = \"cpu\"\n",
        stage(1, ""),
        // The loss never falls by 10 nats, so the two evaluations after the first one are a plateau.
        stage(
            2,
            "growth.moments = \"zero\"\ngrowth.new_layers_only = 4\nplateau = { evaluations = 2, min_delta = 10.0 }\n",
        ),
        stage(4, "growth.order = \"interleave\"\ngrowth.identity = true\n"),
    );
    dir.file(&format!("growing-{ranks}.toml"), text)
}

fn finished(ended: Ended) -> Ended {
    assert_eq!(ended.code, Some(0), "{}", ended.log);
    ended
}

/// Tensors of the model of a checkpoint, by name.
fn model(run: &str, step: u64) -> BTreeMap<String, Vec<u8>> {
    model_among(run, step..=step)
}

/// Tensors of the newest checkpoint whose step is in `steps`. On a slow disk a checkpoint is saved a few steps later
/// than it is due.
fn model_among(run: &str, steps: RangeInclusive<u64>) -> BTreeMap<String, Vec<u8>> {
    let name = checkpoints(run).into_iter().find(|name| steps.contains(&name[5..14].parse().unwrap())).unwrap();
    let bytes = std::fs::read(format!("{run}/checkpoints/{name}/model.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    tensors.iter().map(|(name, view)| (name.to_owned(), view.data().to_vec())).collect()
}

fn layers(model: &BTreeMap<String, Vec<u8>>) -> usize {
    let layer = |name: &String| name.strip_prefix("bert.encoder.layer.")?.split('.').next()?.parse::<usize>().ok();
    model.keys().filter_map(layer).max().unwrap() + 1
}

#[test]
fn kills_leave_a_growing_model_unchanged() {
    let dir = TestDir::new();
    let reference = dir.path("reference");
    let whole = finished(Running::start(&config(&dir, 2), &reference).end());
    assert!(whole.log.contains("growing the model from 1 to 2 layers after step 20"), "{}", whole.log);
    let flat = "held-out loss plateau: stage 2 ends after 12 steps, at step 32 (total now 52)";
    assert!(whole.log.contains(flat), "{}", whole.log);
    assert!(whole.log.contains("growing the model from 2 to 4 layers after step 32"), "{}", whole.log);
    let steps = |stage: &str| whole.records.iter().filter(|record| record.stage == stage).count() as u64;
    assert_eq!(["1", "2", "4"].map(steps), [STEPS, 12, STEPS]);
    let (first, last) = (&whole.records[0], whole.records.last().unwrap());
    assert!(last.loss < 0.97 * first.loss, "the loss did not fall: {} to {}", first.loss, last.loss);
    assert_boundary_checkpoints(&dir, &reference);

    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos() as u64;
    let seed = std::env::var("LAMBERT_TEST_SEED").map_or(now, |seed| seed.parse().unwrap());
    eprintln!("moments from LAMBERT_TEST_SEED={seed}");
    let mut moments = Key::new(seed).rng();
    // Kills the ranks around one boundary and the coordinator around the other boundary.
    let turn = moments.below(2) as usize;
    for (trial, boundary) in [ENDS[turn], ENDS[1 - turn]].into_iter().enumerate() {
        let name = dir.path(&format!("killed-{trial}"));
        let mut running = Running::start(&config(&dir, 2), &name);
        running.reach(boundary - moments.below(2));
        std::thread::sleep(Duration::from_millis(moments.below(60)));
        if trial == 0 {
            support::workers(&name).into_values().for_each(support::kill_if_there);
        } else {
            running.kill_coordinator("-9");
            drop(running.end());
            support::wait_for_no_workers(&name);
            running = Running::start(&config(&dir, 2), &name);
        }
        finished(running.end());
        assert_same_bits(&reference, &name);
    }

    // With a different world size after the boundary, the samples must be the same.
    let moved = dir.path("moved");
    let mut running = Running::start(&config(&dir, 2), &moved);
    running.reach(STEPS - 3);
    running.kill_coordinator("-TERM");
    let stopped = running.end();
    assert_eq!(stopped.code, Some(75), "{}", stopped.log);
    let rest = finished(Running::start(&config(&dir, 1), &moved).end());
    for record in &rest.records {
        let other = &whole.records[record.step as usize - 1];
        assert_eq!((record.batch.digest, &record.stage), (other.batch.digest, &other.stage), "step {}", record.step);
    }
    assert_eq!(rest.records.last().unwrap().step, ENDS[2]);
}

/// Checks the checkpoints around the boundaries. A checkpoint at a boundary has the old depth. After the first
/// boundary, only the new layers are trained at first.
fn assert_boundary_checkpoints(dir: &TestDir, run: &str) {
    let [before, frozen, after, end] = [20..=20, 21..=24, 25..=31, 52..=52].map(|steps| model_among(run, steps));
    assert_eq!([&before, &frozen, &after, &end].map(layers), [1, 2, 2, 4]);
    assert_eq!(layers(&model(run, 32)), 2, "no checkpoint at the boundary");
    let old = |name: &String| !name.starts_with("bert.encoder.layer.1.");
    assert!(before.iter().all(|(name, data)| *data == frozen[name]), "an old layer was trained");
    assert!(
        frozen
            .iter()
            .filter(|(name, _)| !old(name))
            .any(|(name, data)| { *data != before[&name.replace("layer.1.", "layer.0.")] })
    );
    assert!(before.iter().any(|(name, data)| *data != after[name]), "old layers stayed frozen");
    // The exported configuration has the depth of the checkpoint.
    for (step, layers) in [(20, 1), (32, 2), (52, 4)] {
        let name = checkpoints(run).into_iter().find(|name| name.starts_with(&format!("step-{step:09}"))).unwrap();
        let folder = dir.path(&format!("export-{layers}"));
        done(&["export", &format!("{run}/checkpoints/{name}"), "--output", &folder]);
        let config = std::fs::read(format!("{folder}/config.json")).unwrap();
        let config: serde_json::Value = serde_json::from_slice(&config).unwrap();
        assert_eq!(config["num_hidden_layers"], layers);
    }
}

/// A run with two layers starts from the weights of a checkpoint with one layer.
#[test]
fn a_model_grows_from_the_checkpoint_of_another_run() {
    let dir = TestDir::new();
    let config = config(&dir, 1);
    let first = dir.path("first");
    finished(Running::start_with(&config, &first, &["--set", "stage.0.steps=10", "--set", "stage.0.name=other"]).end());
    let checkpoint = |step: u64| {
        let name = checkpoints(&first).into_iter().find(|name| name.starts_with(&format!("step-{step:09}"))).unwrap();
        format!("{first}/checkpoints/{name}")
    };
    let (shallow, deep) = (checkpoint(10), checkpoint(40));
    let set = ["--set", "stage.0.layers=2", "--set", "stage.0.growth.new_layers_only=12"];
    let more =
        [&set[..], &["--set", "stage.1.growth.moments=zero", "--set", "stage.1.layers=4", "--set", "stage.2.layers=8"]]
            .concat();
    let from = |from: &str, more: &[&str]| {
        [&["--from", from][..], more].concat().into_iter().map(str::to_owned).collect::<Vec<_>>()
    };

    let with = [&more[..], &["--with-optimizer"]].concat();
    let arguments = from(&shallow, &with);
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let (whole, killed) = (dir.path("whole"), dir.path("killed"));
    let ended = finished(Running::start_with(&config, &whole, &arguments).end());
    assert!(ended.log.contains("growing the model from 1 to 2 layers after step 0"), "{}", ended.log);
    // Only the new layer is trained until step 12.
    let [start, frozen, freed] =
        [(&first, 10..=10), (&whole, 1..=12), (&whole, 13..=19)].map(|(run, steps)| model_among(run, steps));
    assert!(start.iter().all(|(name, data)| *data == frozen[name]), "an old layer was trained");
    assert!(start.iter().any(|(name, data)| *data != freed[name]), "old layers stayed frozen");
    let mut running = Running::start_with(&config, &killed, &arguments);
    running.reach(9);
    support::workers(&killed).into_values().for_each(support::kill_if_there);
    finished(running.end());
    assert_same_bits(&whole, &killed);

    let refused = |checkpoint: &str, more: &[&str], word: &str| {
        let url = dir.path("refused");
        let arguments = from(checkpoint, more);
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let ran = run(&[&["run", "--config", &config, "--run", &url][..], &arguments].concat());
        assert_eq!(ran.code, 2, "{}", ran.err);
        assert!(ran.err.contains(word), "no {word:?} in {}", ran.err);
        assert!(!std::path::Path::new(&url).exists(), "a rejected run left files");
    };
    refused(&deep, &[], "stage.0.layers: 1 layers after 4: the number of layers cannot decrease");
    let moments = [&more[..], &["--set", "stage.0.growth.moments=scale"]].concat();
    refused(&shallow, &moments, "stage.0.growth.moments: needs the optimizer moments of run.from");
    refused(&shallow, &[&more[..], &["--set", "model.hidden=64"]].concat(), "run.from: its model has hidden = 32");
    let manifest = format!("{shallow}/manifest.json");
    let text = std::fs::read_to_string(&manifest).unwrap();
    let mut value: serde_json::Value = serde_json::from_str(&text).unwrap();
    value["objects"].as_array_mut().unwrap().retain(|object| object["path"] == "model.safetensors");
    std::fs::write(&manifest, support::seal(&(serde_json::to_string_pretty(&value).unwrap() + "\n"))).unwrap();
    refused(&shallow, &with, "run.from_optimizer: ");
}

/// Runs the shipped configuration of BERT-base with a smaller hidden size and fewer steps. Its first three stages have
/// increasing depths, and the last stage has longer samples.
#[test]
fn a_shipped_configuration_runs_from_end_to_end() {
    let dir = TestDir::new();
    let (short, long) = (dir.path("data/train"), dir.path("long/train"));
    let prep = format!(
        "[[source]]\npath = {:?}\ndocuments = \"blank-line\"\n[output]\nurl = {:?}\n[vocabulary]\nfile = {:?}\n\
         [samples]\nsequence_length = 128\nheld_out = 0.1\n",
        dir.path("corpus.txt"),
        dir.path("long"),
        dir.path("vocab.txt")
    );
    done(&["prep", "--config", &dir.file("long.toml", prep)]);
    let mut sets: Vec<String> = vec!["model.hidden=32".into(), "model.heads=2".into(), "model.intermediate=64".into()];
    sets.extend([
        "cluster.ranks=2".into(),
        "checkpoint.keep=9".into(),
        format!("evaluation.data={}", dir.path("data/held-out")),
    ]);
    for (stage, data) in [&short, &short, &short, &long].into_iter().enumerate() {
        let few = [("steps", "3"), ("global_batch", "16"), ("micro_batch_tokens", "512"), ("data", data)];
        sets.extend(few.map(|(key, value)| format!("stage.{stage}.{key}={value}")));
    }
    let sets: Vec<&str> = sets.iter().flat_map(|set| ["--set", set]).collect();
    let shipped = format!("{}/configs/bert-base-stacked.toml", env!("CARGO_MANIFEST_DIR"));
    let url = dir.path("shipped");
    let ended = finished(Running::start_with(&shipped, &url, &sets).end());
    for output in [
        "growing the model from 3 to 6 layers after step 3: stage 6-layers begins",
        "growing the model from 6 to 12 layers after step 6: stage 12-layers begins",
        "% less than with 12 layers in all stages",
    ] {
        assert!(ended.log.contains(output), "no {output:?} in {}", ended.log);
    }
    let stages: Vec<&str> = ended.records.iter().map(|record| record.stage.as_str()).collect();
    let expected = ["3-layers", "6-layers", "12-layers", "512-tokens"].map(|name| [name; 3]).concat();
    assert_eq!(stages, expected);
    let longest =
        |records: &[StepRecord]| records.iter().map(|record| record.batch.tokens / record.batch.samples).max().unwrap();
    assert!(
        longest(&ended.records[..9]) <= 64 && longest(&ended.records[9..]) > 64,
        "the last stage has longer samples"
    );
    assert_eq!([3, 6, 9, 12].map(|step| layers(&model(&url, step))), [3, 6, 12, 12]);
}

/// The previous stage is shortened so that it ends before the current step of the run. The transition into the next
/// stage must still take place.
#[test]
fn a_stage_shortened_below_the_current_step_still_ends_with_growth() {
    let dir = TestDir::new();
    let (config, url) = (config(&dir, 1), dir.path("cut"));
    let mut running = Running::start(&config, &url);
    running.reach(15);
    running.kill_coordinator("-TERM");
    let stopped = running.end();
    assert_eq!(stopped.code, Some(75), "{}", stopped.log);
    let step = checkpoints(&url)[0][5..14].parse::<u64>().unwrap();
    let cut = ["--set", "stage.0.steps=10", "--allow-change", "stage"];
    let ended = finished(Running::start_with(&config, &url, &cut).end());
    assert!(ended.log.contains(&format!("growing the model from 1 to 2 layers after step {step}")), "{}", ended.log);
    assert_eq!(ended.records[0].stage, "2");
}

#[test]
fn invalid_growth_is_rejected() {
    let dir = TestDir::new();
    let config = config(&dir, 1);
    let url = dir.path("refused");
    let refused = |sets: &[&str], words: &[&str]| {
        let sets: Vec<&str> = sets.iter().flat_map(|set| ["--set", set]).collect();
        let ran = run(&[&["run", "--config", &config, "--run", &url][..], &sets].concat());
        assert_eq!(ran.code, 2, "{}", ran.err);
        words.iter().for_each(|word| assert!(ran.err.contains(word), "no {word:?} in {}", ran.err));
        assert!(!std::path::Path::new(&url).exists(), "a rejected run left files");
    };
    refused(&["stage.2.layers=1"], &["stage.2.layers: 1 layers after 2: the number of layers cannot decrease"]);
    refused(&["stage.2.layers=3"], &["stage.2.growth.order: 3 layers after 2: interleave requires a multiple of 2"]);
    refused(&["stage.2.layers=2"], &["stage.2.growth: has no effect: the stage does not add layers"]);
    refused(&["stage.1.growth.new_layers_only=21", "stage.2.hidden=64"], &["stage.2.hidden"]);
    refused(
        &["stage.1.growth.new_layers_only=21"],
        &["stage.1.growth.new_layers_only = 21: must be at most the 20 steps of the stage"],
    );
    refused(&["stage.0.growth.identity=true"], &["stage.0.growth: has no effect: the stage does not add layers"]);
    refused(
        &["stage.1.growth.identity=true", "model.family=deberta-v2", "objective.pair=none"],
        &["stage.1.growth.identity: would change the outputs"],
    );
    refused(&["stage.1.growth.moments=half"], &["stage.1.growth.moments", "copy"]);
    refused(&["stage.1.restart_optimizer=true"], &["stage.1.growth.moments: has no effect with restart_optimizer"]);
    refused(&["stage.1.plateau.evaluations=0"], &["stage.1.plateau.evaluations = 0"]);
    refused(&["evaluation.data="], &["stage.1.plateau: needs evaluation.data"]);
}
