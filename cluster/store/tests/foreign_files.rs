//! Files of a user in the folder of a run.

use std::fs;
use std::path::PathBuf;

use crate::common::{folder_store, save};
use lambert_store::{Lease, checkpoint};

/// The names of some files look like those of temporary files, which are NAME#NUMBER.
#[test]
fn pruning_keeps_files_of_a_user() {
    let (_folder, run) = folder_store();
    let lease = Lease::take(&run).unwrap();
    let name = save(&run, &lease, 50);
    let root = PathBuf::from(run.url());
    let write = |path: &str| {
        fs::create_dir_all(root.join(path).parent().unwrap()).unwrap();
        let file = fs::File::create(root.join(path)).unwrap();
        file.set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
        root.join(path)
    };
    let own = ["plot #2", "analysis/plot #2", "metrics/run#3", "analysis/status.json#1"].map(write);
    let in_checkpoint = format!("checkpoints/{name}/notes#1");
    let left_over = ["status.json#1", "metrics/attempt-0001-from-000000000.jsonl#2", "lease-000002#1"].map(write);
    let own = own.into_iter().chain([write(&in_checkpoint)]);
    assert_eq!(checkpoint::prune(&run, 1).unwrap().half_written, left_over.len());
    left_over.iter().for_each(|path| assert!(!path.exists(), "{}", path.display()));
    own.for_each(|path| assert!(path.exists(), "{}", path.display()));
}
