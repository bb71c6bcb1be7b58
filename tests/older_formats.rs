//! Tests with runs that older versions of lambert began. These runs are stored in `tests/golden/format-N`, where N is
//! the format of their checkpoints. The current version must resume them and end with the same weights as the version
//! that wrote them.
//!
//! `LAMBERT_WRITE_OLD_RUN=1` stores a run in the current format. Do this before the format changes.

use std::path::{Path, PathBuf};

use crate::support::{self, Running, TestDir, checkpoints};
use lambert_dataset::Dataset;
use safetensors::SafeTensors;
use serde_json::Value;

const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden");
/// Placeholder for the folder of the datasets in the stored run.toml.
const PLACE: &str = "PLACE";
const BATCH: u64 = 16;
/// Step in which one sample gets a loss of a million, so that the run rolls back. The stored checkpoint is from a later
/// step.
const FALSIFIED: u64 = 8;

/// Writes the configuration of the stored run: 20 steps with one layer, then 20 steps with two layers. From format 3
/// on, the run rolls back before the stored checkpoint.
fn config(dir: &TestDir, format: u64) -> String {
    let stage = |layers: usize| {
        format!(
            "[[stage]]\nname = \"{layers}\"\nlayers = {layers}\ndata = {:?}\nsteps = 20\nglobal_batch = {BATCH}\n\
             micro_batch_tokens = 256\nlearning_rate = 5e-3\nwarmup = 0.1\n",
            dir.path("data/train")
        )
    };
    let guard = match format {
        2 => String::new(),
        _ => format!(
            "[guard]\nloss_window = 5\n[test]\nmillion_samples = {}\n",
            support::rows(dir, &[(FALSIFIED - 1) * BATCH + 3])
        ),
    };
    let text = format!(
        "[model]\nhidden = 16\nheads = 2\nintermediate = 32\npositions = 64\ndropout = 0.1\n{}{}{guard}\
         [checkpoint]\nevery_steps = 5\nkeep = 100\n[cluster]\nranks = 2\nall_reduce.backend = \"mpi\"\n\
         [device]\nkind = \"cpu\"\n",
        stage(1),
        stage(2)
    );
    dir.file("old.toml", text)
}

/// Returns the folder of the checkpoint after `step` steps.
fn checkpoint(run: &Path, step: u64) -> PathBuf {
    let names = checkpoints(run.to_str().unwrap());
    let name = names.into_iter().find(|name| name.starts_with(&format!("step-{step:09}"))).unwrap();
    run.join("checkpoints").join(name)
}

fn manifest(checkpoint: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(checkpoint.join("manifest.json")).unwrap()).unwrap()
}

/// Trains a run and stores it as it was after step 10.
fn write_old_run(dir: &TestDir) {
    let run = PathBuf::from(dir.path("old"));
    let ended = Running::start(&config(dir, 3), run.to_str().unwrap()).end();
    assert_eq!(ended.code, Some(0), "{}", ended.log);
    let middle = checkpoint(&run, 10);
    let old = Path::new(GOLDEN).join(format!("format-{}", manifest(&middle)["format"]));
    support::copy(&middle, &old.join("checkpoints").join(middle.file_name().unwrap()));
    support::copy(&run.join("rollbacks"), &old.join("rollbacks"));
    for name in ["coordinator.json", "status.json"] {
        std::fs::copy(run.join(name), old.join(name)).unwrap();
    }
    let config = std::fs::read_to_string(run.join("run.toml")).unwrap();
    std::fs::write(old.join("run.toml"), config.replace(&dir.path(""), PLACE)).unwrap();
    std::fs::copy(checkpoint(&run, 40).join("model.safetensors"), old.join("final.safetensors")).unwrap();
}

/// Largest difference between the weights of two models.
fn max_difference(one: &[u8], other: &[u8]) -> f32 {
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

/// Makes the stored run refer to the dataset of this test. The samples are the same. The manifest of the dataset
/// differs, because it contains the version of the program that wrote it.
fn replace_dataset(dir: &TestDir, run: &Path) {
    let path = checkpoint(run, 10).join("manifest.json");
    let text = std::fs::read_to_string(&path).unwrap();
    let manifest: Value = serde_json::from_str(&text).unwrap();
    let then = manifest["cursor"].as_object().unwrap().keys().next().unwrap();
    let dataset = Dataset::open(&dir.path("data/train")).unwrap();
    let now = dataset.manifest_sha256();
    std::fs::write(path, support::seal(&text.replace(then, now))).unwrap();
    for record in std::fs::read_dir(run.join("rollbacks")).into_iter().flatten() {
        let path = record.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(path, text.replace(then, now)).unwrap();
    }
    let config = std::fs::read_to_string(run.join("run.toml")).unwrap();
    std::fs::write(run.join("run.toml"), config.replace(PLACE, &dir.path(""))).unwrap();
    std::fs::copy(dir.path("data/train/vocab.txt"), run.join("vocab.txt")).unwrap();
}

#[test]
fn runs_of_older_versions_resume_with_the_same_result() {
    let dir = TestDir::new();
    if std::env::var_os("LAMBERT_WRITE_OLD_RUN").is_some() {
        write_old_run(&dir);
    }
    for format in [2, 3] {
        let old = Path::new(GOLDEN).join(format!("format-{format}"));
        let run = PathBuf::from(dir.path(&format!("resumed-{format}")));
        support::copy(&old, &run);
        replace_dataset(&dir, &run);
        assert_eq!(manifest(&checkpoint(&run, 10))["format"], format);
        let ended = Running::start(&config(&dir, format), run.to_str().unwrap()).end();
        assert_eq!(ended.code, Some(0), "{}", ended.log);
        assert!(ended.log.contains("resuming from step-000000010"), "{}", ended.log);
        let last = checkpoint(&run, 40);
        let (is, was) = (std::fs::read(last.join("model.safetensors")), std::fs::read(old.join("final.safetensors")));
        let difference = max_difference(&is.unwrap(), &was.unwrap());
        println!("format {format}: the weights after 40 steps differ by at most {difference:.1e}");
        // The order in which losses are summed has changed since format 2 was current.
        assert!(difference < 1e-5, "format {format}: {difference:e}");
        if format > 2 {
            // The stored state lists the skipped samples, so the run does not train on the sample that caused the
            // rollback.
            assert!(!ended.log.contains("rolled back"), "{}", ended.log);
            let manifest = manifest(&last);
            let skipped = manifest["state"]["skipped_by_dataset"].as_object().unwrap().values().next().unwrap();
            let step = serde_json::json!([{ "start": (FALSIFIED - 2) * BATCH, "end": FALSIFIED * BATCH }]);
            assert_eq!(skipped["samples"], step);
            let failures = std::fs::read_to_string(run.join("coordinator.json")).unwrap();
            assert!(failures.contains("counts_toward_limit") && !failures.contains("\"counts\""), "{failures}");
        }
    }
}
