//! Checkpoints: commit by manifest, verification before use, and fallback after damage.

use crate::common::{CollectingSink, OBJECTS, content, folder_store, manifest, path, save};
use bytes::Bytes;
use lambert_store::checkpoint::{self, CheckpointWriter, Manifest, Retention, VerifiedCheckpoint};
use lambert_store::{Error, Lease, Store};

fn newest(run: &Store) -> (Option<String>, Vec<String>) {
    let (newest, passed_over) = checkpoint::newest_verified(run).unwrap();
    (newest.map(|(name, _)| name), passed_over.into_iter().map(|over| format!("{}: {}", over.name, over.why)).collect())
}

fn names(run: &Store) -> Vec<String> {
    checkpoint::list(run).unwrap().into_iter().map(|listed| listed.name).collect()
}

#[test]
fn a_saved_checkpoint_is_selected_and_read() {
    let (_folder, run) = folder_store();
    assert_eq!(newest(&run), (None, vec![]));
    let lease = Lease::take(&run).unwrap();
    let name = save(&run, &lease, 50);
    assert_eq!(name, "step-000000050-a0001");
    let (found, _) = checkpoint::newest_verified(&run).unwrap();
    let (found, verified) = found.unwrap();
    let manifest = verified.manifest;
    assert_eq!((found, manifest.cursor[&"d".repeat(64)]), (name, 3200));
    for object in OBJECTS {
        assert_eq!(checkpoint::read_object(&run, &manifest, object).unwrap(), content(object, 50, 1));
    }
    assert!(checkpoint::read_object(&run, &manifest, "no-such").unwrap_err().is_not_found());
}

#[test]
fn without_a_manifest_there_is_no_checkpoint() {
    let (_folder, run) = folder_store();
    let lease = Lease::take(&run).unwrap();
    let first = save(&run, &lease, 50);
    manifest(&CheckpointWriter::new(&run, 100, 1), 100, 1);
    assert_eq!(newest(&run), (Some(first), vec![]));
}

#[test]
fn attempts_order_before_steps() {
    let (_folder, run) = folder_store();
    let first = Lease::take(&run).unwrap();
    save(&run, &first, 50);
    save(&run, &first, 200);
    let second = Lease::take(&run).unwrap();
    let late = save(&run, &second, 100);
    assert_eq!(names(&run), ["step-000000100-a0002", "step-000000200-a0001", "step-000000050-a0001"]);
    assert_eq!(newest(&run).0, Some(late));
}

#[test]
fn a_commit_fails_after_the_lease_is_lost() {
    let (_folder, run) = folder_store();
    let old = Lease::take(&run).unwrap();
    let writer = CheckpointWriter::new(&run, 50, old.attempt());
    let prepared = manifest(&writer, 50, old.attempt());
    Lease::take(&run).unwrap();
    assert!(matches!(writer.commit(&prepared, &old), Err(Error::LeaseLost { attempt: 1, newest: 2, .. })));
    assert_eq!(names(&run), [""; 0]);
}

#[test]
fn a_commit_checks_its_objects() {
    let (_folder, run) = folder_store();
    let lease = Lease::take(&run).unwrap();
    let writer = CheckpointWriter::new(&run, 50, 1);
    let good = manifest(&writer, 50, 1);
    let commit = |manifest: &Manifest| writer.commit(manifest, &lease).unwrap_err();

    let mut other_step = good.clone();
    other_step.step = 51;
    assert!(matches!(commit(&other_step), Error::Refused { .. }));
    let mut wrong_size = good.clone();
    wrong_size.objects[0].bytes += 1;
    assert!(commit(&wrong_size).is_damaged());
    let mut missing = good.clone();
    missing.objects[0].path = "missing".into();
    assert!(commit(&missing).is_damaged());
    let mut twice = good.clone();
    twice.objects.push(twice.objects[0].clone());
    assert!(matches!(commit(&twice), Error::Refused { .. }));

    writer.commit(&good, &lease).unwrap();
    writer.commit(&good, &lease).expect("the same commit again is no conflict");
    let mut other = good;
    other.state = serde_json::json!("other");
    assert!(matches!(commit(&other), Error::Exists { .. }));
}

/// Damages the newer of two checkpoints. Selection must skip the damaged checkpoint and report the damage.
fn assert_skipped(damage: impl FnOnce(&Store, &str), why: &str) {
    let (_folder, run) = folder_store();
    let lease = Lease::take(&run).unwrap();
    let sound = save(&run, &lease, 50);
    let damaged = save(&run, &lease, 100);
    damage(&run, &damaged);
    let (found, passed_over) = newest(&run);
    assert_eq!(found, Some(sound));
    assert_eq!(passed_over.len(), 1, "{passed_over:?}");
    assert!(passed_over[0].starts_with(&damaged) && passed_over[0].contains(why), "{passed_over:?} lacks {why:?}");
}

fn change(run: &Store, path: &str, change: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = run.get(path).unwrap().to_vec();
    change(&mut bytes);
    run.put(path, Bytes::from(bytes)).unwrap();
}

#[test]
fn any_flipped_bit_is_detected() {
    for object in OBJECTS {
        let length = content(object, 100, 1).len();
        for position in [0, 1, 7, length / 2, length - 1] {
            assert_skipped(|run, name| change(run, &path(name, object), |bytes| bytes[position] ^= 0x10), "sha256");
        }
    }
    assert_skipped(|run, name| change(run, &path(name, "manifest.json"), |bytes| bytes[20] ^= 1), "manifest.json");
}

#[test]
fn truncated_missing_and_lengthened_objects_are_detected() {
    for object in OBJECTS {
        assert_skipped(|run, name| change(run, &path(name, object), |bytes| bytes.truncate(bytes.len() - 1)), "size");
        assert_skipped(|run, name| change(run, &path(name, object), Vec::clear), "size");
        assert_skipped(|run, name| change(run, &path(name, object), |bytes| bytes.push(0)), "size");
        assert_skipped(|run, name| run.delete(&path(name, object)).unwrap(), "no object");
    }
}

#[test]
fn invalid_manifests_are_skipped() {
    let put = |text: &'static str| {
        move |run: &Store, name: &str| {
            run.put(&path(name, "manifest.json"), Bytes::from_static(text.as_bytes())).unwrap();
        }
    };
    assert_skipped(put(""), "manifest");
    assert_skipped(put("{}"), "manifest");
    assert_skipped(put(r#"{"format": 99, "anything": []}"#), "format");
    assert_skipped(put(r#"{"format": 1}"#), "checksum");
    assert_skipped(|run, name| change(run, &path(name, "manifest.json"), |bytes| bytes.truncate(100)), "manifest");
}

#[test]
fn a_manifest_under_another_name_is_skipped() {
    assert_skipped(
        |run, name| {
            let other = run.get(&path("step-000000050-a0001", "manifest.json")).unwrap();
            run.put(&path(name, "manifest.json"), other).unwrap();
        },
        "name",
    );
}

#[test]
fn prune_keeps_the_newest_and_the_selected() {
    let (_folder, run) = folder_store();
    let lease = Lease::take(&run).unwrap();
    // The save that was due at step 200 was delayed to step 230.
    let all = [50, 100, 150, 230, 260, 310, 320].map(|step| save(&run, &lease, step));
    let retention = Retention { last: 2, every_steps: 100, named: [all[0].clone()].into(), ..Retention::default() };
    let pruned = checkpoint::retain(&run, &retention).unwrap();
    assert_eq!(pruned.checkpoints, [all[2].clone(), all[4].clone()]);
    assert_eq!(pruned.objects, 6);
    // The first checkpoint at or after step 300 is kept although newer ones exist.
    save(&run, &lease, 330);
    save(&run, &lease, 340);
    let pruned = checkpoint::retain(&run, &Retention { named: [].into(), ..retention }).unwrap();
    assert_eq!(pruned.checkpoints, [all[0].clone(), all[6].clone()]);
    checkpoint::prune(&run, 0).unwrap();
    assert_eq!(names(&run), ["step-000000340-a0001"]);
}

#[test]
fn prune_never_removes_the_newest_that_verifies() {
    let (_folder, run) = folder_store();
    let lease = Lease::take(&run).unwrap();
    let all: Vec<_> = (1..=4).map(|i| save(&run, &lease, i * 50)).collect();
    for damaged in &all[2..] {
        change(&run, &path(damaged, OBJECTS[0]), |bytes| bytes[0] ^= 1);
    }
    checkpoint::prune(&run, 1).unwrap();
    assert_eq!(names(&run), [all[3].clone(), all[1].clone()]);
    assert_eq!(newest(&run).0, Some(all[1].clone()));
}

#[test]
fn invalidated_checkpoints_displace_no_valid_one() {
    let (_folder, run) = folder_store();
    let first = Lease::take(&run).unwrap();
    let before: Vec<_> = [50, 100, 150, 200].map(|step| save(&run, &first, step)).into();
    let undo = |attempt: u32, steps: u64| {
        let record =
            format!(r#"{{"attempt": {attempt}, "steps": {steps}, "dataset": "d", "samples": {{}}, "why": "a test"}}"#);
        run.put(&lambert_store::run::rollback(attempt), record.into()).unwrap();
    };
    // After a rollback to step 60, the checkpoint of step 50 must be kept. The next save must not become the only valid
    // checkpoint.
    undo(1, 60);
    let second = Lease::take(&run).unwrap();
    let after = save(&run, &second, 70);
    let retention = Retention { last: 2, known_intact: Some(after.clone()), ..Retention::default() };
    checkpoint::retain(&run, &Retention { named: [before[3].clone()].into(), ..retention.clone() }).unwrap();
    assert_eq!(names(&run), [after.clone(), before[3].clone(), before[0].clone()]);
    assert_eq!(newest(&run).0, Some(after.clone()));
    checkpoint::retain(&run, &retention).unwrap();
    assert_eq!(names(&run), [after.clone(), before[0].clone()]);
    // An export also skips invalidated checkpoints, as long as a valid one exists.
    undo(2, 60);
    assert_eq!(newest(&run).0, Some(before[0].clone()));
    // If all checkpoints are invalid, the newest ones are kept. The newest intact checkpoint is kept in any case.
    undo(2, 10);
    checkpoint::retain(&run, &Retention { last: 2, ..Retention::default() }).unwrap();
    assert_eq!(names(&run), [after.clone(), before[0].clone()]);
    let third = Lease::take(&run).unwrap();
    let damaged = save(&run, &third, 10);
    change(&run, &path(&damaged, OBJECTS[0]), |bytes| bytes[0] ^= 1);
    checkpoint::prune(&run, 1).unwrap();
    assert_eq!(names(&run), [damaged, after]);
}

#[test]
fn prune_removes_partial_saves_but_no_active_one() {
    let (_folder, run) = folder_store();
    let first = Lease::take(&run).unwrap();
    manifest(&CheckpointWriter::new(&run, 90, first.attempt()), 90, first.attempt());
    let second = Lease::take(&run).unwrap();
    manifest(&CheckpointWriter::new(&run, 40, second.attempt()), 40, second.attempt());
    save(&run, &second, 50);
    let under_way = CheckpointWriter::new(&run, 100, second.attempt());
    let prepared = manifest(&under_way, 100, second.attempt());
    let pruned = checkpoint::prune(&run, 5).unwrap();
    assert_eq!((pruned.checkpoints.len(), pruned.objects), (0, 4));
    under_way.commit(&prepared, &second).unwrap();
    assert_eq!(newest(&run), (Some("step-000000100-a0002".into()), vec![]));
}

#[test]
fn background_writes_yield_the_same_objects() {
    let (_folder, run) = folder_store();
    let writer = CheckpointWriter::new(&run, 50, 1);
    let bytes = Bytes::from_owner(vec![3u8; 20 << 20]);
    let mut pending: Vec<_> =
        (0..3).map(|i| writer.start_object(&format!("part-{i}"), bytes.clone()).unwrap()).collect();
    while !pending.iter_mut().all(|object| object.is_done()) {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    for (i, object) in pending.into_iter().enumerate() {
        let entry = object.wait().unwrap();
        assert_eq!((entry.path, entry.bytes), (format!("part-{i}"), 20 << 20));
        assert_eq!(entry.sha256, lambert_store::hash::sha256(&bytes));
        let (read, sha256) = run.get_hashed(&path(writer.name(), &format!("part-{i}")), 20 << 20).unwrap();
        assert!(read == bytes && sha256 == entry.sha256);
    }
    assert!(writer.start_object("../x", bytes).is_err());
}

/// Replaces an object of a checkpoint and its entry in the manifest, as an attacker with write access can.
fn forge(run: &Store, name: &str, object: &str, bytes: Vec<u8>) {
    let mut manifest = checkpoint::read_manifest(run, name).unwrap();
    let place = manifest.objects.iter().position(|entry| entry.path == object).unwrap();
    run.delete(&path(name, "manifest.json")).unwrap();
    let lease = Lease::attach(run, manifest.attempt).unwrap();
    let writer = CheckpointWriter::new(run, manifest.step, manifest.attempt);
    let entry = &mut manifest.objects[place];
    (entry.bytes, entry.sha256) = (bytes.len() as u64, lambert_store::hash::sha256(&bytes));
    run.put(&path(name, object), bytes.into()).unwrap();
    writer.commit(&manifest, &lease).unwrap();
}

/// A save rejects every tensor that a load would reject, whatever the size of the tensor.
#[test]
fn numbers_that_are_not_finite_are_not_written_as_a_checkpoint() {
    let (_folder, run) = folder_store();
    let writer = CheckpointWriter::new(&run, 100, 1);
    let file = |elements: usize, bad: usize| {
        let header = format!(r#"{{"x":{{"dtype":"F32","shape":[{elements}],"data_offsets":[0,{}]}}}}"#, 4 * elements);
        let mut numbers = vec![1.0_f32; elements];
        numbers[bad] = f32::INFINITY;
        let numbers: Vec<u8> = numbers.into_iter().flat_map(f32::to_le_bytes).collect();
        Bytes::from([&(header.len() as u64).to_le_bytes(), header.as_bytes(), &numbers].concat())
    };
    for (elements, bad) in [(1, 0), (300, 299), (3 << 20, 2_000_001)] {
        match writer.put_object(OBJECTS[0], file(elements, bad)) {
            Err(Error::NotFinite { tensor, element, .. }) => assert_eq!((&*tensor, element), ("x", bad as u64)),
            other => panic!("{other:?}"),
        }
    }
    // The elements of other objects are not checked.
    writer.put_object("x.bin", file(300, 7)).unwrap();
}

#[test]
fn checkpoints_with_invalid_tensors_are_skipped() {
    let with_first_number = |number: f32| {
        let mut bytes = content(OBJECTS[0], 100, 1).to_vec();
        let at = bytes.len() - 1200;
        bytes[at..at + 4].copy_from_slice(&number.to_le_bytes());
        bytes
    };
    let petabyte = [&(1u64 << 50).to_le_bytes()[..], b"{}"].concat();
    for (bytes, why) in [(with_first_number(f32::NAN), "finite"), (petabyte, "claims"), (vec![], "header")] {
        assert_skipped(|run, name| forge(run, name, OBJECTS[0], bytes), why);
    }
    let (_folder, run) = folder_store();
    let lease = Lease::take(&run).unwrap();
    let name = save(&run, &lease, 100);
    forge(&run, &name, OBJECTS[0], with_first_number(3.0));
    assert_eq!(newest(&run), (Some(name), vec![]), "a forgery without fault is no fault");
}

#[test]
fn sizes_that_only_the_manifest_claims_are_not_allocated() {
    let (_folder, run) = folder_store();
    let lease = Lease::take(&run).unwrap();
    let name = save(&run, &lease, 100);
    let mut manifest = checkpoint::read_manifest(&run, &name).unwrap();
    manifest.objects[0].bytes = 1 << 50;
    assert!(checkpoint::read_object(&run, &manifest, OBJECTS[0]).unwrap_err().is_damaged());
    assert!(run.get_hashed(&path(&name, OBJECTS[0]), 1 << 60).is_err());
}

#[test]
fn a_copy_is_the_same_checkpoint_and_a_damaged_one_is_not_copied() {
    let (_folder, run) = folder_store();
    let lease = Lease::take(&run).unwrap();
    let name = save(&run, &lease, 100);
    let archive = Store::open("memory://archive/run").unwrap();
    checkpoint::copy(&run, &name, &archive).unwrap();
    checkpoint::copy(&run, &name, &archive).unwrap();
    assert_eq!(checkpoint::verify(&archive, &name).unwrap(), checkpoint::verify(&run, &name).unwrap());
    forge(&run, &name, OBJECTS[0], content(OBJECTS[0], 7, 7).to_vec());
    assert!(matches!(checkpoint::copy(&run, &name, &archive), Err(Error::Exists { .. })));
    checkpoint::verify(&archive, &name).unwrap();

    change(&run, &path(&name, OBJECTS[1]), |bytes| bytes[50] ^= 1);
    let elsewhere = Store::open("memory://elsewhere/run").unwrap();
    assert!(checkpoint::copy(&run, &name, &elsewhere).unwrap_err().is_damaged());
    assert_eq!(names(&elsewhere), [""; 0]);
}

#[test]
fn changes_between_verification_and_loading_are_detected() {
    let (_folder, run) = folder_store();
    let lease = Lease::take(&run).unwrap();
    let name = save(&run, &lease, 100);
    let verified = checkpoint::verify(&run, &name).unwrap();
    let sent: VerifiedCheckpoint = serde_json::from_str(&serde_json::to_string(&verified).unwrap()).unwrap();
    assert_eq!(sent, verified);
    let size = content(OBJECTS[1], 100, 1).len();
    for at in [0, size / 2, size - 1] {
        let mut kept = CollectingSink::default();
        checkpoint::stream_object(&run, &sent, OBJECTS[1], &mut kept).unwrap();
        assert_eq!(kept.0, content(OBJECTS[1], 100, 1));
        change(&run, &path(&name, OBJECTS[1]), |bytes| bytes[at] ^= 1);
        let error = checkpoint::stream_object(&run, &sent, OBJECTS[1], &mut kept).unwrap_err();
        assert!(error.is_damaged() && error.to_string().contains("expected the verified bytes"), "{error}");
        change(&run, &path(&name, OBJECTS[1]), |bytes| bytes[at] ^= 1);
    }
}

/// Flips a bit in every byte of the manifest, in every byte of the headers and in every 29th byte of the data. Also
/// truncates the object before each of these bytes.
#[test]
fn any_changed_or_missing_byte_is_detected() {
    let (_folder, run) = folder_store();
    let lease = Lease::take(&run).unwrap();
    let name = save(&run, &lease, 100);
    for object in [&["manifest.json"], &OBJECTS[..]].concat() {
        let file = run.local_path(&path(&name, object)).unwrap().unwrap();
        let whole = std::fs::read(&file).unwrap();
        let noticed = |bytes: &[u8], what: &str, at: usize| {
            std::fs::write(&file, bytes).unwrap();
            let error = checkpoint::verify(&run, &name).expect_err("it verifies");
            assert!(error.is_damaged(), "{object}, {what} at {at}: {error}");
        };
        let head = if object == "manifest.json" { whole.len() } else { 100 };
        for at in (0..whole.len()).filter(|at| *at < head || at % 29 == 0 || at + 8 > whole.len()) {
            let mut flipped = whole.clone();
            flipped[at] ^= 1 << (at % 8);
            noticed(&flipped, "flipped", at);
            noticed(&whole[..at], "cut", at);
        }
        noticed(&[&whole[..], b" "].concat(), "lengthened", whole.len());
        std::fs::write(&file, whole).unwrap();
    }
    checkpoint::verify(&run, &name).unwrap();
}
