//! Retention rules with damaged and with invalidated checkpoints.

use crate::common::{OBJECTS, folder_store, manifest, path, save};
use lambert_store::checkpoint::{self, Best, CheckpointWriter, Retention};
use lambert_store::{Lease, Store};

fn names(run: &Store) -> Vec<String> {
    checkpoint::list(run).unwrap().into_iter().map(|listed| listed.name).collect()
}

/// The run keeps two checkpoints, finds the newest one damaged, resumes from the other one, and saves.
#[test]
fn a_damaged_checkpoint_does_not_count_as_one_of_the_last() {
    let (_folder, run) = folder_store();
    let first = Lease::take(&run).unwrap();
    let [intact, damaged] = [30, 40].map(|step| save(&run, &first, step));
    run.put(&path(&damaged, OBJECTS[0]), "damaged".into()).unwrap();
    let second = Lease::take(&run).unwrap();
    let newest = save(&run, &second, 42);
    let known_intact = Some(newest.clone());
    let retention =
        Retention { last: 2, known_intact, known_damaged: [damaged.clone()].into(), ..Retention::default() };
    checkpoint::retain(&run, &retention).unwrap();
    assert_eq!(names(&run), [newest, damaged, intact]);
}

/// Saves a checkpoint whose manifest names `best`.
fn save_with_best(run: &Store, lease: &Lease, step: u64, best: &str) -> String {
    let writer = CheckpointWriter::new(run, step, lease.attempt());
    let mut manifest = manifest(&writer, step, lease.attempt());
    manifest.best = Some(Best { checkpoint: best.to_owned(), loss: 1.0, measured: None });
    writer.commit(&manifest, lease).unwrap();
    writer.name().to_owned()
}

/// The run diverged after step 60, so that the checkpoint of step 70 is no longer valid.
#[test]
fn the_best_checkpoint_is_that_of_a_valid_manifest() {
    let (_folder, run) = folder_store();
    let lease = Lease::take(&run).unwrap();
    assert_eq!(checkpoint::recorded_best(&run).unwrap(), None);
    save_with_best(&run, &lease, 50, "valid");
    let invalidated = save_with_best(&run, &lease, 70, "invalidated");
    assert_eq!(checkpoint::recorded_best(&run).unwrap().as_deref(), Some("invalidated"));
    let record =
        r#"{"attempt": 1, "steps": 60, "dataset": "d", "samples": {"start": 1, "end": 2}, "reason": "a test"}"#;
    run.put(&lambert_store::run::rollback(1), record.into()).unwrap();
    assert_eq!(checkpoint::recorded_best(&run).unwrap().as_deref(), Some("valid"));
    run.put(&path("step-000000050-a0001", "manifest.json"), "damaged".into()).unwrap();
    assert_eq!(checkpoint::recorded_best(&run).unwrap().as_deref(), Some("invalidated"), "{invalidated}");
}
