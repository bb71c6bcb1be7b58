//! Throughput of the store on a checkpoint-sized object, compared with the raw disk and object_store: `cargo bench
//! --workspace --bench throughput [-- MEBIBYTES [FOLDER]]`. Each line is a median of five.

#![allow(clippy::unwrap_used, reason = "a panic is how a benchmark reports")]

#[path = "../tests/s3_server/mod.rs"]
mod s3_server;

use std::fs::File;
use std::io::{Read, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use bytes::Bytes;
use lambert_store::{RetryPolicy, Store, hash};
use object_store::aws::AmazonS3Builder;
use object_store::{ObjectStoreExt, WriteMultipart};

const ROUNDS: usize = 5;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with("--")).collect();
    let mebibytes: usize = arguments.first().map_or(1024, |number| number.parse().unwrap());
    let parent = arguments.get(1).map_or_else(std::env::temp_dir, PathBuf::from);
    let folder = tempfile::tempdir_in(parent).unwrap();
    let numbers = (0..mebibytes << 17).map(|i| (i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let bytes: Bytes = numbers.flat_map(u64::to_le_bytes).collect();
    println!("folder of this machine, {mebibytes} MiB");
    local(&folder.path().join("local"), &bytes);
    let part = bytes.slice(..bytes.len() / 4);
    println!("S3 server of the tests, {} MiB", part.len() >> 20);
    s3(&folder.path().join("s3"), &part);
}

/// Runs all candidates in turn, so that other load on the machine affects all of them equally.
fn contest(bytes: usize, contestants: &mut [(&str, &mut dyn FnMut())]) {
    let mut times = vec![Vec::new(); contestants.len()];
    for _ in 0..ROUNDS {
        for (i, (_, once)) in contestants.iter_mut().enumerate() {
            let start = Instant::now();
            once();
            times[i].push(start.elapsed());
        }
    }
    for ((name, _), times) in contestants.iter().zip(&mut times) {
        times.sort();
        let rate = |time: Duration| bytes as f64 / time.as_secs_f64() / 1e6;
        let (slowest, median, fastest) = (rate(times[ROUNDS - 1]), rate(times[ROUNDS / 2]), rate(times[0]));
        println!("{name:30} {median:7.0} MB/s  ({slowest:.0} to {fastest:.0})");
    }
}

fn local(folder: &std::path::Path, bytes: &Bytes) {
    std::fs::create_dir_all(folder).unwrap();
    let (plain, size) = (folder.join("plain"), bytes.len() as u64);
    let store = Store::open(folder.to_str().unwrap()).unwrap();
    let mut contestants: [(&str, &mut dyn FnMut()); 7] = [
        ("sha256, one thread", &mut || drop(hash::sha256(bytes))),
        ("plain write + fsync", &mut || {
            let mut file = File::create(&plain).unwrap();
            file.write_all(bytes).unwrap();
            file.sync_all().unwrap();
        }),
        ("put", &mut || store.put("object", bytes.clone()).unwrap()),
        ("put_hashed", &mut || drop(store.put_hashed("object", bytes.clone()).unwrap())),
        ("plain read", &mut || {
            let mut read = Vec::with_capacity(bytes.len());
            File::open(&plain).unwrap().read_to_end(&mut read).unwrap();
        }),
        ("get_hashed", &mut || drop(store.get_hashed("object", size).unwrap())),
        ("read_pieces, hashed only", &mut || {
            let mut hasher = hash::Hasher::new();
            store.read_pieces("object", size, |piece| hasher.update(piece)).unwrap();
        }),
    ];
    contest(bytes.len(), &mut contestants);
}

fn s3(folder: &std::path::Path, bytes: &Bytes) {
    let server = s3_server::Server::start(folder, 0);
    let store = server.store_with("bench", s3_server::SECRET_KEY, RetryPolicy::default());
    let size = bytes.len() as u64;
    let mut contestants: [(&str, &mut dyn FnMut()); 5] = [
        ("plain multipart put", &mut || plain_multipart(&server, bytes)),
        ("put", &mut || store.put("object", bytes.clone()).unwrap()),
        ("put_hashed", &mut || drop(store.put_hashed("object", bytes.clone()).unwrap())),
        ("plain get", &mut || plain_get(&server)),
        ("get_hashed", &mut || drop(store.get_hashed("object", size).unwrap())),
    ];
    contest(bytes.len(), &mut contestants);
}

fn client(server: &s3_server::Server) -> object_store::aws::AmazonS3 {
    AmazonS3Builder::new()
        .with_bucket_name(s3_server::BUCKET)
        .with_endpoint(server.endpoint())
        .with_allow_http(true)
        .with_region("us-east-1")
        .with_access_key_id(s3_server::ACCESS_KEY)
        .with_secret_access_key(s3_server::SECRET_KEY)
        .build()
        .unwrap()
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap().block_on(future)
}

/// The multipart writer of object_store with its default concurrency.
fn plain_multipart(server: &s3_server::Server, bytes: &Bytes) {
    let client = client(server);
    block_on(async {
        let upload = client.put_multipart(&"bench/plain".into()).await.unwrap();
        let mut writer = WriteMultipart::new_with_chunk_size(upload, 16 << 20);
        writer.put(bytes.clone());
        writer.finish().await.unwrap();
    });
}

fn plain_get(server: &s3_server::Server) {
    let client = client(server);
    block_on(async { client.get(&"bench/plain".into()).await.unwrap().bytes().await.unwrap() });
}
