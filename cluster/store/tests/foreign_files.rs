//! Files and links of a user in the folder of a run.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use crate::common::{folder_store, path, save};
use lambert_store::checkpoint::{self, Retention};
use lambert_store::{Lease, Store};

fn names(store: &Store, prefix: &str) -> Vec<String> {
    store.list(prefix).unwrap().into_iter().map(|object| object.path).collect()
}

/// Creates entries that lambert never writes: names that no object has, and links that lead nowhere.
fn add_foreign_entries(folder: &Path) {
    for name in [OsStr::new("Icon\r"), OsStr::from_bytes(b"caf\xe9.txt")] {
        fs::write(folder.join(name), "x").unwrap();
    }
    fs::create_dir(folder.join(OsStr::from_bytes(b"\xff"))).unwrap();
    symlink("loop", folder.join("loop")).unwrap();
    symlink("missing", folder.join("broken")).unwrap();
    symlink(".", folder.join("here")).unwrap();
    symlink("..", folder.join("above")).unwrap();
}

#[test]
fn foreign_files_do_not_stop_a_run() {
    let (_folder, run) = folder_store();
    let lease = Lease::take(&run).unwrap();
    let first = save(&run, &lease, 50);
    let root = PathBuf::from(run.url());
    for folder in ["", "checkpoints", &format!("checkpoints/{first}")] {
        add_foreign_entries(&root.join(folder));
    }
    lease.check().unwrap();
    let second = save(&run, &lease, 100);
    assert_eq!(Lease::take(&run).unwrap().attempt(), 2);
    assert_eq!(checkpoint::newest_verified(&run).unwrap().0.unwrap().0, second);
    assert_eq!(checkpoint::list(&run).unwrap().len(), 2);
    assert_eq!(names(&run, "").len(), 2 + 2 * 3);
    assert_eq!(names(&run, &format!("checkpoints/{second}")).len(), 3);
    checkpoint::retain(&run, &Retention { last: 1, ..Retention::default() }).unwrap();
    assert_eq!(checkpoint::list(&run).unwrap().len(), 1);
}

/// A user moves the checkpoints, or one of them, to another disk. The run itself is a link, too.
#[test]
fn links_to_moved_folders_of_a_run_are_followed() {
    let (folder, run) = folder_store();
    let lease = Lease::take(&run).unwrap();
    let saved = [50, 100].map(|step| save(&run, &lease, step));
    let (root, disk) = (PathBuf::from(run.url()), folder.path().join("disk"));
    fs::create_dir(&disk).unwrap();
    let move_to_disk = |from: PathBuf, name: &str| {
        fs::rename(&from, disk.join(name)).unwrap();
        symlink(disk.join(name), from).unwrap();
    };
    move_to_disk(root.join("checkpoints").join(&saved[0]), "one");
    move_to_disk(root.join("checkpoints"), "all");
    // A link from the moved folder back to the run must not be followed in a circle.
    symlink(&root, disk.join("all/checkpoints")).unwrap();
    symlink(&root, folder.path().join("link")).unwrap();
    let run = Store::open(folder.path().join("link").to_str().unwrap()).unwrap();
    let listed: Vec<_> = checkpoint::list(&run).unwrap().into_iter().map(|listed| listed.name).collect();
    assert_eq!(listed, [saved[1].clone(), saved[0].clone()]);
    saved.iter().for_each(|name| drop(checkpoint::verify(&run, name).unwrap()));
    assert!(names(&run, "").contains(&path(&saved[0], "manifest.json")));
    assert_eq!(run.list_folders("").unwrap(), ["checkpoints"]);
}

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
