//! Local stores: killed writers, full disks, directories without permission.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::common::{folder_store, manifest, path, save};
use bytes::Bytes;
use lambert_store::checkpoint::{self, CheckpointWriter};
use lambert_store::{Error, Lease, Store};

/// Environment variable with the directory of the child process. The test that kills the child sets this variable.
const FOLDER: &str = "LAMBERT_TEST_FOLDER";
const SIZE: usize = 3 << 20;

/// Body of the child process. It does nothing if the variable is not set.
#[test]
fn child_that_writes_until_killed() {
    let Ok(folder) = std::env::var(FOLDER) else { return };
    let store = Store::open(&folder).unwrap();
    for i in 0.. {
        let bytes = Bytes::from(vec![i as u8; SIZE]);
        store.put("replaced", bytes.clone()).unwrap();
        store.put_new(&format!("checkpoints/step-{i:09}-a0001/model.safetensors"), bytes).unwrap();
    }
}

#[test]
fn a_killed_writer_leaves_whole_objects_or_none() {
    let (_folder, store) = folder_store();
    Lease::take(&store).unwrap();
    for round in 0..15u64 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "local::child_that_writes_until_killed"])
            .env(FOLDER, store.url())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_millis(30 + round * 7));
        child.kill().unwrap();
        child.wait().unwrap();
        for object in store.list("").unwrap().iter().filter(|object| !object.path.starts_with("lease")) {
            let bytes = store.get(&object.path).unwrap();
            assert!(bytes.len() == SIZE && bytes.iter().all(|byte| *byte == bytes[0]), "{} is torn", object.path);
        }
    }
    Lease::take(&store).unwrap();
    checkpoint::prune(&store, 1).unwrap();
    assert_eq!(files(&Path::new(store.url()).join("checkpoints")), [""; 0], "pruning removes what the killed left");
}

/// The error of a write must not say that an object is missing.
#[test]
fn a_file_in_place_of_a_folder_is_named() {
    let (_folder, store) = folder_store();
    store.put("checkpoints", Bytes::from_static(b"file")).unwrap();
    let refused = [
        store.put("checkpoints/a", Bytes::new()).unwrap_err(),
        store.put_new("checkpoints/a", Bytes::new()).unwrap_err(),
    ];
    for error in refused {
        let text = lambert_store::error::chain(&error);
        assert!(matches!(error, Error::Failed { .. }) && text.contains("(os error "), "{text}");
    }
    assert!(store.get("checkpoints/a").unwrap_err().is_not_found());
}

/// All files below `folder`, including temporary ones.
fn files(folder: &Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(folder) else { return vec![] };
    let entries = entries.map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path.display().to_string()] }).collect()
}

#[test]
fn temporary_files_are_removed_only_without_a_writer() {
    let (_folder, run) = folder_store();
    let lease = Lease::take(&run).unwrap();
    let finished = save(&run, &lease, 50);
    let under_way = CheckpointWriter::new(&run, 100, 1);
    manifest(&under_way, 100, 1);
    let half = |name: &str| {
        let file = run.local_path(name).unwrap().unwrap();
        let file = file.with_file_name(format!("{}#1", file.file_name().unwrap().to_str().unwrap()));
        std::fs::write(&file, "half").unwrap();
        file
    };
    let dead = half(&path(&finished, "manifest.json"));
    let alive = half(&path(under_way.name(), "model.safetensors"));
    let young = half("status.json");
    // An empty directory remains if a writer is killed before its first byte, or if a deletion is interrupted.
    let empty = run.local_path("checkpoints/step-000000010-a0001").unwrap().unwrap();
    std::fs::create_dir(&empty).unwrap();
    assert_eq!(checkpoint::prune(&run, 3).unwrap().half_written, 1);
    assert!(!dead.exists() && !empty.exists() && alive.exists() && young.exists());
    checkpoint::verify(&run, &finished).unwrap();
}

/// A store that requires its directory does not recreate the directory after a move.
#[test]
fn a_required_folder_is_not_recreated() {
    let (folder, run) = folder_store();
    let lease = Lease::take(&run).unwrap();
    let store = run.require_folder();
    store.put("status.json", "1".into()).unwrap();
    std::fs::rename(run.url(), folder.path().join("moved")).unwrap();
    let checkpoints = store.join("checkpoints").unwrap();
    let errors = [
        store.put("status.json", "2".into()).unwrap_err(),
        store.put_new("lease-000002", "2".into()).unwrap_err(),
        checkpoints.put_hashed("step-000000010-a0001/model.safetensors", "2".into()).unwrap_err(),
        Lease::take(&store).unwrap_err(),
    ];
    for error in errors {
        assert!(matches!(error, Error::FolderGone { .. }) && error.to_string().contains(run.url()), "{error}");
    }
    assert!(!Path::new(run.url()).exists() && lease.check().unwrap_err().is_lease_lost());
    run.put("status.json", "2".into()).expect("a store that was not told so makes its folder");
    let error = store.put("status.json", "3".into()).unwrap_err();
    assert!(matches!(error, Error::FolderGone { .. }), "another folder in its place: {error}");
}

/// A mounted tmpfs of 1 MiB.
struct Small(tempfile::TempDir);

impl Small {
    fn mount() -> Option<Self> {
        let small = Self(tempfile::tempdir().unwrap());
        let mounted = mount(&["-t", "tmpfs", "-o", "size=1m", "tmpfs"], small.0.path());
        if !mounted {
            eprintln!("SKIPPED: this process may not mount a file system");
        }
        mounted.then_some(small)
    }

    fn store(&self) -> Store {
        Store::open(self.0.path().to_str().unwrap()).unwrap()
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.0.path()).stderr(Stdio::null()).status();
    }
}

fn mount(arguments: &[&str], on: &Path) -> bool {
    Command::new("mount").args(arguments).arg(on).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
}

#[test]
fn a_full_disk_is_reported_and_keeps_earlier_checkpoints() {
    let Some(small) = Small::mount() else { return };
    let run = small.store();
    let lease = Lease::take(&run).unwrap();
    let sound = save(&run, &lease, 50);
    let before = files(small.0.path());
    for bytes in [2 << 20, 20 << 20] {
        let error =
            CheckpointWriter::new(&run, 100, 1).put_object("model.safetensors", vec![1; bytes].into()).unwrap_err();
        let text = format!("{error}: {}", std::error::Error::source(&error).unwrap());
        assert!(text.contains("No space left") && text.contains("step-000000100-a0001/model.safetensors"), "{text}");
    }
    assert_eq!(files(small.0.path()), before, "nothing half-written stays on a full disk");
    let (found, passed_over) = checkpoint::newest_verified(&run).unwrap();
    assert_eq!((found.unwrap().0, passed_over), (sound, vec![]));
}

#[test]
fn a_read_only_folder_is_reported_and_can_be_read() {
    let Some(small) = Small::mount() else { return };
    let run = small.store();
    let lease = Lease::take(&run).unwrap();
    let sound = save(&run, &lease, 50);
    assert!(mount(&["-o", "remount,ro"], small.0.path()));
    for error in [run.put("x", Bytes::new()).unwrap_err(), Lease::take(&run).unwrap_err()] {
        assert!(matches!(error, Error::Denied { .. }), "{error:?}");
    }
    checkpoint::verify(&run, &sound).unwrap();
}

#[test]
fn a_file_in_place_of_a_folder_is_reported() {
    let (folder, _) = folder_store();
    let file = folder.path().join("file");
    std::fs::write(&file, "x").unwrap();
    let store = Store::open(file.to_str().unwrap()).unwrap();
    let error = store.put("object", Bytes::new()).unwrap_err();
    assert!(error.to_string().contains("file/object"), "{error}");
    assert!(store.get("object").is_err());
}
