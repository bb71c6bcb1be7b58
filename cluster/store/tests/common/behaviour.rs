//! Conformance suite that every backend must pass.

use bytes::Bytes;
use lambert_store::{Error, Store};

/// Runs all checks in `store`, which must be empty.
pub fn run_all_checks(store: &Store) {
    reads_back_what_it_wrote(store);
    creates_only_once(store);
    lists_and_deletes(store);
    rejects_invalid_names(store);
}

fn reads_back_what_it_wrote(store: &Store) {
    store.put("a/b.bin", Bytes::from_static(b"0123456789")).unwrap();
    assert_eq!(store.get("a/b.bin").unwrap(), "0123456789");
    assert_eq!(store.get_range("a/b.bin", 2..5).unwrap(), "234");
    assert_eq!(store.get_range("a/b.bin", 5..5).unwrap(), "");
    // These ranges end after the object. Some backends truncate such a range, others reject it. A retry cannot succeed.
    for beyond in [8..12, 10..11, 12..14] {
        let read = store.get_range("a/b.bin", beyond.clone());
        assert!(matches!(read, Err(Error::Failed { attempts: 1, .. })), "{beyond:?}: {read:?}");
    }
    assert_eq!(store.head("a/b.bin").unwrap(), Some(10));
    store.put("a/b.bin", Bytes::from_static(b"new")).unwrap();
    assert_eq!(store.get("a/b.bin").unwrap(), "new");
    store.put("empty", Bytes::new()).unwrap();
    assert_eq!(store.get("empty").unwrap(), "");
    assert_eq!(store.head("no such").unwrap(), None);
    assert!(store.get("no such").unwrap_err().is_not_found());
    assert!(matches!(store.get_at_most("a/b.bin", 2), Err(Error::TooLarge { bytes: 3, limit: 2, .. })));
    assert_eq!(store.join("a").unwrap().get("b.bin").unwrap(), "new");
}

fn creates_only_once(store: &Store) {
    assert!(store.put_new("once", Bytes::from_static(b"first")).unwrap());
    assert!(!store.put_new("once", Bytes::from_static(b"second")).unwrap());
    assert!(!store.put_new("once", Bytes::from_static(b"first")).unwrap());
    assert_eq!(store.get("once").unwrap(), "first");
}

fn lists_and_deletes(store: &Store) {
    let store = store.join("listing").unwrap();
    assert_eq!(store.list("").unwrap(), []);
    assert_eq!(store.list("nothing/here").unwrap(), []);
    for name in ["b/2", "a", "b/1", "b/c/3"] {
        store.put(name, Bytes::from(name)).unwrap();
    }
    let names = |prefix: &str| store.list(prefix).unwrap().into_iter().map(|object| object.path).collect::<Vec<_>>();
    assert_eq!(names(""), ["a", "b/1", "b/2", "b/c/3"]);
    assert_eq!(names("b"), ["b/1", "b/2", "b/c/3"]);
    assert_eq!(store.list("b/c").unwrap()[0].bytes, 5);
    assert_eq!(store.list_folders("").unwrap(), ["b"]);
    assert_eq!(store.list_folders("b").unwrap(), ["c"]);
    assert_eq!(store.list_folders("nothing").unwrap(), [""; 0]);
    store.delete("b/1").unwrap();
    store.delete("b/1").unwrap();
    assert_eq!(names("b"), ["b/2", "b/c/3"]);
    store.delete_all(&["b/2", "no such", "b/c/3"].map(String::from)).unwrap();
    store.delete_all(&[]).unwrap();
    assert_eq!(names(""), ["a"]);
    let small = store.get_all(&["a".to_owned(), "a".to_owned()], 1).unwrap();
    assert_eq!(small, ["a", "a"]);
    assert!(matches!(store.get_all(&["a".to_owned()], 0), Err(Error::TooLarge { .. })));
    assert!(store.get_all(&["a".to_owned(), "no such".to_owned()], 1).unwrap_err().is_not_found());
}

fn rejects_invalid_names(store: &Store) {
    for name in ["../x", "/etc/passwd", "a/../../x", "s3://other/x"] {
        assert!(matches!(store.get(name), Err(Error::Name { .. })), "{name}");
        assert!(matches!(store.put(name, Bytes::new()), Err(Error::Name { .. })), "{name}");
        assert!(store.join(name).is_err() && store.local_path(name).is_err(), "{name}");
    }
}
