//! Runs the conformance suite on the local and in-memory backends.

use crate::common::behaviour::run_all_checks;
use bytes::Bytes;
use lambert_store::Store;

#[test]
fn local_folders_pass_the_suite() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run #1 at 100% ü");
    let store = Store::open(path.to_str().unwrap()).unwrap();
    assert!(!path.exists(), "opening creates nothing");
    run_all_checks(&store);
    assert_eq!(std::fs::read(store.local_path("once").unwrap().unwrap()).unwrap(), b"first");
}

#[test]
fn file_urls_pass_the_suite() {
    let folder = tempfile::tempdir().unwrap();
    run_all_checks(&Store::open(&format!("file://{}/x", folder.path().display())).unwrap());
}

#[test]
fn memory_stores_pass_the_suite() {
    let store = Store::open("memory://conformance/prefix").unwrap();
    run_all_checks(&store);
    assert_eq!(store.local_path("once").unwrap(), None);
    assert_eq!(Store::open("memory://conformance").unwrap().get("prefix/once").unwrap(), "first");
}

#[test]
fn one_of_many_concurrent_creators_succeeds() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path().to_str().unwrap()).unwrap();
    let create = |i: usize| {
        let store = store.clone();
        std::thread::spawn(move || store.put_new("x/lease", Bytes::from(i.to_string())).unwrap())
    };
    let threads: Vec<_> = (0..16).map(create).collect();
    let winners = threads.into_iter().map(|thread| thread.join().unwrap()).filter(|&won| won).count();
    assert_eq!(winners, 1);
}
