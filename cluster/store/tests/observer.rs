//! Tests of the byte counts that a store reports to its observer.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::common::{folder_store, save};
use crate::s3_server::{Fault, Rule, Server};
use bytes::Bytes;
use lambert_store::records::StepRecords;
use lambert_store::{Lease, Store, TransferObserver, checkpoint, run};

#[derive(Debug, Default)]
struct Counts {
    expected: AtomicU64,
    transferred: AtomicU64,
    retracted: AtomicU64,
}

impl TransferObserver for Counts {
    fn expected(&self, bytes: u64) {
        self.expected.fetch_add(bytes, Ordering::SeqCst);
    }

    fn transferred(&self, bytes: u64) {
        self.transferred.fetch_add(bytes, Ordering::SeqCst);
    }

    fn retracted(&self, bytes: u64) {
        self.retracted.fetch_add(bytes, Ordering::SeqCst);
    }
}

impl Counts {
    /// Returns the expected, the transferred and the retracted bytes since the last call.
    fn take(&self) -> [u64; 3] {
        [&self.expected, &self.transferred, &self.retracted].map(|count| count.swap(0, Ordering::SeqCst))
    }
}

fn observed(store: &Store) -> (Store, Arc<Counts>) {
    let counts = Arc::new(Counts::default());
    (store.observed_by(counts.clone()), counts)
}

/// Asserts that each operation reports exactly its bytes.
fn counts_all_operations(store: &Store) {
    let (store, counts) = observed(store);
    let large: Bytes = (0..17_000_003u32).map(|i| (i >> 3) as u8).collect();
    let bytes = large.len() as u64;
    store.put("large", large.clone()).unwrap();
    assert_eq!(counts.take(), [0, bytes, 0], "put");
    store.put_hashed("small", Bytes::from_static(b"12345")).unwrap();
    assert!(store.put_new("new", Bytes::from_static(b"123")).unwrap());
    assert!(!store.put_new("new", Bytes::from_static(b"1234567")).unwrap());
    assert_eq!(counts.take(), [0, 8, 0], "small puts");
    assert_eq!(store.get("large").unwrap(), large);
    assert_eq!(counts.take(), [0, bytes, 0], "get");
    store.get_range("large", 7..19).unwrap();
    assert_eq!(counts.take(), [0, 12, 0], "range");
    store.get_all(&["small".to_owned(), "new".to_owned()], 10).unwrap();
    assert_eq!(counts.take(), [0, 8, 0], "several");
    store.read_pieces("large", bytes, |_| {}).unwrap();
    assert_eq!(counts.take(), [0, bytes, 0], "pieces");
    store.read_pieces_inline("large", bytes, |_| {}).unwrap();
    assert_eq!(counts.take(), [0, bytes, 0], "inline pieces");
    store.get_hashed("large", bytes).unwrap();
    assert_eq!(counts.take(), [0, bytes, 0], "hashed");
}

#[test]
fn all_operations_of_a_folder_are_counted() {
    counts_all_operations(&folder_store().1);
}

#[test]
fn all_operations_of_a_bucket_are_counted() {
    let folder = tempfile::tempdir().unwrap();
    counts_all_operations(&Server::start(folder.path(), 0).store("observed"));
}

#[test]
fn checkpoints_and_records_report_their_size_in_advance() {
    let ((_folder, run), (_other, to)) = (folder_store(), folder_store());
    let lease = Lease::take(&run).unwrap();
    save(&run, &lease, 50);
    let (name, total) = {
        let listed = checkpoint::list(&run).unwrap().remove(0);
        let manifest = checkpoint::read_manifest(&run, &listed.name).unwrap();
        (listed.name, manifest.bytes())
    };
    let ((run, read), (to, written)) = (observed(&run), observed(&to));
    let manifest = run.head(&run::in_checkpoint(&name, run::MANIFEST)).unwrap().unwrap();
    checkpoint::verify(&run, &name).unwrap();
    assert_eq!(read.take(), [total, total + manifest, 0], "verify");
    checkpoint::copy(&run, &name, &to).unwrap();
    assert_eq!(read.take(), [total, total + 2 * manifest, 0], "copy reads");
    assert_eq!(written.take(), [total, total + manifest, 0], "copy writes");
    run.put(&run::records(1, 0), "{\"step\":1}\n".into()).unwrap();
    read.take();
    StepRecords::<serde_json::Value>::read(&run).unwrap();
    assert_eq!(read.take(), [11, 11, 0], "records");
}

#[test]
fn bytes_of_failed_attempts_are_retracted() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), 0);
    let (store, counts) = observed(&server.store("x"));
    let bytes: Bytes = vec![7; 200_000].into();
    store.put("object", bytes.clone()).unwrap();
    counts.take();
    for fault in [Fault::CutBody, Fault::ShortBody] {
        server.fail(Rule { method: "GET".parse().unwrap(), contains: "object", after: 0, times: 1, fault });
        assert_eq!(store.get_range("object", 0..200_000).unwrap(), bytes);
        let [_, transferred, retracted] = counts.take();
        assert_eq!(transferred - retracted, 200_000, "{fault:?}");
        assert!(retracted > 0, "{fault:?} was not seen");
        server.clear();
    }
}
