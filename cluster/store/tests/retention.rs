//! Retention rules with damaged checkpoints.

use crate::common::{OBJECTS, folder_store, path, save};
use lambert_store::checkpoint::{self, Retention};
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
    let retention = Retention { last: 2, known_intact, known_damaged: [damaged].into(), ..Retention::default() };
    checkpoint::retain(&run, &retention).unwrap();
    assert_eq!(names(&run), [newest, intact]);
}
