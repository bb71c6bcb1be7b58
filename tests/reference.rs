//! Whole runs against what they once were, bit for bit: worlds of one and two, LAMB and AdamW, with dropout, growth and a
//! rollback. A change to the engine that is to change no bit passes; one that moves roundings writes the references anew
//! (`LAMBERT_WRITE_REFERENCE=1`) and says by how much the losses moved.
//!
//! Bits are those of one type of processor: on another, the losses are compared instead.

use std::collections::BTreeMap;
use std::path::Path;

use crate::support::{self, Place, Running, checkpoints};
use lambert_dataset::Dataset;
use safetensors::SafeTensors;
use serde::{Deserialize, Serialize};

const REFERENCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/reference.json");
/// Losses on another type of processor differ by less than this.
const NEAR: f64 = 1e-3;
/// Steps of the stages with one and two layers.
const STEPS: [u64; 2] = [25, 35];
const BATCH: u64 = 16;
/// The step whose loss is falsified, so that the run rolls back.
const DERAILED: u64 = 45;

#[derive(Debug, Default, Serialize, Deserialize)]
struct References {
    /// The type of processor that they were computed on.
    processor: String,
    /// By optimizer and ranks, as `lamb-2`.
    runs: BTreeMap<String, Reference>,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Reference {
    /// The loss of each step, nats.
    losses: Vec<f64>,
    /// sha256 of each object of the final checkpoint.
    objects: BTreeMap<String, String>,
}

fn processor() -> String {
    let facts = std::fs::read_to_string("/proc/cpuinfo").unwrap();
    let fact = |name: &str| facts.lines().find(|line| line.starts_with(name)).unwrap_or_default();
    let family = ["vendor_id", "cpu family", "model\t"].map(|name| fact(name).split(": ").nth(1).unwrap_or_default());
    let wide = if fact("flags").contains(" avx512f ") { "avx512" } else { "no avx512" };
    format!("{} {wide}", family.join(" "))
}

fn config(place: &Place, optimizer: &str, ranks: usize) -> String {
    let data = place.path("data/train");
    let stage = |index: usize| {
        format!(
            "[[stage]]\nname = \"{index}\"\nlayers = {}\ndata = {data:?}\nsteps = {}\nglobal_batch = {BATCH}\n\
             micro_batch_tokens = 256\nlearning_rate = 5e-3\nwarmup = 0.1\ndecay = \"constant\"\n",
            index + 1,
            STEPS[index],
        )
    };
    let text = format!(
        "[model]\nhidden = 32\nheads = 2\nintermediate = 64\npositions = 64\ndropout = 0.1\n\
         {}{}[optimizer]\nkind = {optimizer:?}\n[guard]\nloss_window = 15\n\
         [test]\nmillion_samples = {}\n[checkpoint]\nevery_steps = 7\nkeep = 100\n\
         [cluster]\nranks = {ranks}\nall_reduce.backend = \"mpi\"\nrestart.limit = 1000\n[device]\nkind = \"cpu\"\n",
        stage(0),
        stage(1),
        support::rows(place, &[(DERAILED - 1) * BATCH + 3]),
    );
    place.file(&format!("reference-{optimizer}-{ranks}.toml"), text)
}

/// The sha256 of each object of a run's newest checkpoint.
fn objects(run: &str) -> BTreeMap<String, String> {
    let path = Path::new(run).join("checkpoints").join(&checkpoints(run)[0]).join("manifest.json");
    let manifest: serde_json::Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
    manifest["objects"]
        .as_array()
        .unwrap()
        .iter()
        .map(|object| (text(&object["path"]), text(&object["sha256"])))
        .collect()
}

fn train(place: &Place, optimizer: &str, ranks: usize) -> Reference {
    let run = place.path(&format!("{optimizer}-{ranks}"));
    let ended = Running::start(&config(place, optimizer, ranks), &run).end();
    assert_eq!(ended.code, Some(0), "{}", ended.log);
    let steps: u64 = STEPS.iter().sum();
    assert_eq!(ended.log.matches("is above the limit of").count(), 1, "{}", ended.log);
    let losses: BTreeMap<u64, f64> = ended.records.iter().map(|record| (record.step, record.loss)).collect();
    assert_eq!(losses.len() as u64, steps);
    Reference { losses: losses.into_values().collect(), objects: objects(&run) }
}

/// A run that an older version of lambert began: its run.toml, its checkpoint after 10 of 40 steps in format 2, and the weights
/// with which that version ended it. `LAMBERT_WRITE_OLD_RUN=1` makes it anew with the version at hand.
const OLD_RUN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/format-2");
/// Where the datasets of a test lie, in the stored run.toml.
const PLACE: &str = "PLACE";

fn old_config(place: &Place) -> String {
    let stage = |layers: usize| {
        format!(
            "[[stage]]\nname = \"{layers}\"\nlayers = {layers}\ndata = {:?}\nsteps = 20\nglobal_batch = 16\n\
             micro_batch_tokens = 256\nlearning_rate = 5e-3\nwarmup = 0.1\n",
            place.path("data/train")
        )
    };
    let text = format!(
        "[model]\nhidden = 16\nheads = 2\nintermediate = 32\npositions = 64\ndropout = 0.1\n{}{}\
         [checkpoint]\nevery_steps = 10\nkeep = 100\n[cluster]\nranks = 2\nall_reduce.backend = \"mpi\"\n[device]\nkind = \"cpu\"\n",
        stage(1),
        stage(2)
    );
    place.file("old.toml", text)
}

/// The file with the weights of a run's checkpoint after `step` steps.
fn weights(run: &str, step: u64) -> Vec<u8> {
    let name = checkpoints(run).into_iter().find(|name| name.starts_with(&format!("step-{step:09}"))).unwrap();
    std::fs::read(Path::new(run).join("checkpoints").join(name).join("model.safetensors")).unwrap()
}

fn write_old_run(place: &Place) {
    let run = place.path("old");
    let ended = Running::start(&old_config(place), &run).end();
    assert_eq!(ended.code, Some(0), "{}", ended.log);
    let old = Path::new(OLD_RUN);
    let name = checkpoints(&run).pop().unwrap();
    assert!(name.starts_with("step-000000010"), "{name}");
    support::copy(&Path::new(&run).join("checkpoints").join(&name), &old.join("checkpoints").join(&name));
    let config = std::fs::read_to_string(Path::new(&run).join("run.toml")).unwrap();
    std::fs::write(old.join("run.toml"), config.replace(&place.path(""), PLACE)).unwrap();
    std::fs::write(old.join("final.safetensors"), weights(&run, 40)).unwrap();
}

/// The greatest difference between two models' weights.
fn apart(one: &[u8], other: &[u8]) -> f32 {
    let (one, other) = (SafeTensors::deserialize(one).unwrap(), SafeTensors::deserialize(other).unwrap());
    let floats =
        |data: &[u8]| data.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect::<Vec<_>>();
    assert_eq!(one.len(), other.len());
    let differences = one.iter().flat_map(|(name, view)| {
        let pairs = floats(view.data()).into_iter().zip(floats(other.tensor(name).unwrap().data()));
        pairs.map(|(one, other)| (one - other).abs()).collect::<Vec<_>>()
    });
    differences.max_by(f32::total_cmp).unwrap()
}

/// Lets the stored checkpoint's cursor count in this test's dataset: its samples are the same, but its manifest, which says by
/// which version it was prepared, is not.
fn same_dataset(place: &Place, run: &str) {
    let path = Path::new(run).join("checkpoints").join(&checkpoints(run)[0]).join("manifest.json");
    let text = std::fs::read_to_string(&path).unwrap();
    let manifest: serde_json::Value = serde_json::from_str(&text).unwrap();
    let then = manifest["cursor"].as_object().unwrap().keys().next().unwrap();
    let now = Dataset::open(&place.path("data/train")).unwrap();
    std::fs::write(path, support::seal(&text.replace(then, now.manifest_sha256()))).unwrap();
}

#[test]
fn an_older_version_s_run_goes_on_to_what_that_version_made_of_it() {
    let place = Place::new();
    if std::env::var_os("LAMBERT_WRITE_OLD_RUN").is_some() {
        write_old_run(&place);
    }
    let run = place.path("resumed");
    support::copy(Path::new(OLD_RUN), Path::new(&run));
    let config = std::fs::read_to_string(Path::new(&run).join("run.toml")).unwrap();
    std::fs::write(Path::new(&run).join("run.toml"), config.replace(PLACE, &place.path(""))).unwrap();
    std::fs::copy(place.path("data/train/vocab.txt"), Path::new(&run).join("vocab.txt")).unwrap();
    same_dataset(&place, &run);
    let ended = Running::start(&old_config(&place), &run).end();
    assert_eq!(ended.code, Some(0), "{}", ended.log);
    assert!(ended.log.contains("resuming from step-000000010"), "{}", ended.log);
    let (is, was) = (weights(&run, 40), std::fs::read(Path::new(OLD_RUN).join("final.safetensors")).unwrap());
    let apart = apart(&is, &was);
    println!("the weights after 40 steps differ by at most {apart:.1e}");
    // Sums have been rounded in another order since; before that the bits were the same.
    assert!(apart < 1e-5, "{apart:e}");
}

#[test]
fn whole_runs_are_what_they_were() {
    let place = Place::new();
    let mut runs = BTreeMap::new();
    for optimizer in ["lamb", "adamw"] {
        for ranks in [1, 2] {
            runs.insert(format!("{optimizer}-{ranks}"), train(&place, optimizer, ranks));
        }
    }
    let now = References { processor: processor(), runs };
    if std::env::var_os("LAMBERT_WRITE_REFERENCE").is_some() {
        std::fs::write(REFERENCE, serde_json::to_string_pretty(&now).unwrap() + "\n").unwrap();
    }
    let then: References = serde_json::from_slice(&std::fs::read(REFERENCE).unwrap()).unwrap();
    assert_eq!(now.runs.keys().collect::<Vec<_>>(), then.runs.keys().collect::<Vec<_>>());
    for (name, was) in &then.runs {
        let is = &now.runs[name];
        let apart = is.losses.iter().zip(&was.losses).map(|(is, was)| (is - was).abs()).max_by(f64::total_cmp).unwrap();
        println!("{name}: losses differ by at most {apart:.1e}");
        if then.processor == now.processor {
            assert_eq!(is, was, "{name}");
        } else {
            eprintln!("SKIPPED bits of {name}: they are those of {}, this is {}", then.processor, now.processor);
            assert!(apart < NEAR, "{name}: losses differ by {apart:e}");
        }
    }
}
