//! Compares whole runs bit for bit with stored references. The runs use one and two ranks, LAMB and AdamW, with
//! dropout, growth and a rollback. A change to the engine passes this test if it keeps all bits. A change that affects
//! rounding must update the references (`LAMBERT_WRITE_REFERENCE=1`). The commit message of such a change must state by
//! how much the losses changed.
//!
//! The stored bits are valid for one processor type. On another processor type, only the losses are compared.

use std::collections::BTreeMap;
use std::path::Path;

use crate::support::{self, Running, TestDir, checkpoints};
use serde::{Deserialize, Serialize};

const REFERENCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/reference.json");
/// Maximum difference between the losses on another processor type and the reference losses.
const NEAR: f64 = 1e-3;
/// Number of steps of the stage with one layer, and of the stage with two layers.
const STEPS: [u64; 2] = [25, 35];
const BATCH: u64 = 16;
/// Step in which one sample gets a wrong loss. This causes a rollback.
const FALSIFIED_STEP: u64 = 45;

#[derive(Debug, Default, Serialize, Deserialize)]
struct References {
    /// Processor type on which the references were computed.
    processor: String,
    /// References, keyed by optimizer and number of ranks, such as `lamb-2`.
    runs: BTreeMap<String, Reference>,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Reference {
    /// Loss of each step, nats.
    losses: Vec<f64>,
    /// SHA-256 of each object of the final checkpoint.
    objects: BTreeMap<String, String>,
}

fn processor() -> String {
    let facts = std::fs::read_to_string("/proc/cpuinfo").unwrap();
    let fact = |name: &str| facts.lines().find(|line| line.starts_with(name)).unwrap_or_default();
    let family = ["vendor_id", "cpu family", "model\t"].map(|name| fact(name).split(": ").nth(1).unwrap_or_default());
    let wide = if fact("flags").contains(" avx512f ") { "avx512" } else { "no avx512" };
    format!("{} {wide}", family.join(" "))
}

fn config(dir: &TestDir, optimizer: &str, ranks: usize) -> String {
    let data = dir.path("data/train");
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
        support::rows(dir, &[(FALSIFIED_STEP - 1) * BATCH + 3]),
    );
    dir.file(&format!("reference-{optimizer}-{ranks}.toml"), text)
}

/// SHA-256 of each object of the newest checkpoint of a run.
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

fn train(dir: &TestDir, optimizer: &str, ranks: usize) -> Reference {
    let run = dir.path(&format!("{optimizer}-{ranks}"));
    let ended = Running::start(&config(dir, optimizer, ranks), &run).end();
    assert_eq!(ended.code, Some(0), "{}", ended.log);
    let steps: u64 = STEPS.iter().sum();
    assert_eq!(ended.log.matches("is above the limit of").count(), 1, "{}", ended.log);
    let losses: BTreeMap<u64, f64> = ended.records.iter().map(|record| (record.step, record.loss)).collect();
    assert_eq!(losses.len() as u64, steps);
    Reference { losses: losses.into_values().collect(), objects: objects(&run) }
}

#[test]
fn whole_runs_match_the_references() {
    let dir = TestDir::new();
    let mut runs = BTreeMap::new();
    for optimizer in ["lamb", "adamw"] {
        for ranks in [1, 2] {
            runs.insert(format!("{optimizer}-{ranks}"), train(&dir, optimizer, ranks));
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
        let difference =
            is.losses.iter().zip(&was.losses).map(|(is, was)| (is - was).abs()).max_by(f64::total_cmp).unwrap();
        println!("{name}: losses differ by at most {difference:.1e}");
        if then.processor == now.processor {
            assert_eq!(is, was, "{name}");
        } else {
            eprintln!("SKIPPED bits of {name}: they are those of {}, this is {}", then.processor, now.processor);
            assert!(difference < NEAR, "{name}: losses differ by {difference:e}");
        }
    }
}
