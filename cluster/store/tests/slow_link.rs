//! Transfers over a link that is too slow for the request timeout.

use std::time::Duration;

use crate::s3_server::{SECRET_KEY, Server, fast_retries};
use bytes::Bytes;
use lambert_store::{RetryPolicy, Store};

fn slow_store() -> (tempfile::TempDir, Server, Store) {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), 0);
    let retry_policy = RetryPolicy {
        request_timeout: Duration::from_millis(800),
        total_timeout: Duration::from_secs(3),
        ..fast_retries()
    };
    let store = server.store_with("x", SECRET_KEY, retry_policy);
    (folder, server, store)
}

/// A read takes three times as long as the request timeout, but bytes arrive all the time.
#[test]
fn a_slow_download_is_not_ended() {
    let (_folder, server, store) = slow_store();
    let bytes = Bytes::from(vec![7; 1_200_000]);
    store.put("object", bytes.clone()).unwrap();
    server.limit_rate(500_000);
    server.requests();
    let mut read = Vec::new();
    store.read_pieces("object", bytes.len() as u64, |piece| read.extend_from_slice(piece)).unwrap();
    assert!(read == bytes && store.get("object").unwrap() == bytes);
    assert_eq!(server.requests().len(), 2, "no part was read twice");
}

/// Together, the parts take longer than the request timeout.
#[test]
fn a_slow_upload_succeeds_after_timeouts() {
    let (_folder, server, store) = slow_store();
    let bytes: Bytes = (0..40_000_003u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    server.limit_upload_rate(16 << 20);
    let sha256 = store.put_hashed("object", bytes.clone()).unwrap();
    assert_eq!(store.get_hashed("object", bytes.len() as u64).unwrap().1, sha256);
}
