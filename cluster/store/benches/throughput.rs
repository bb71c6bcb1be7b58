//! What the store reaches on a checkpoint-sized object, beside what the machine reaches without it:
//! `cargo bench -p lambert-store [-- MEBIBYTES [FOLDER]]`. Each line is the median of five.

#![allow(clippy::unwrap_used, reason = "a panic is how a benchmark reports")]

#[path = "../tests/s3_server/mod.rs"]
mod s3_server;

use std::fs::File;
use std::io::{Read, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use bytes::Bytes;
use lambert_store::{Patience, Store, hash};
use object_store::aws::AmazonS3Builder;
use object_store::{ObjectStoreExt, WriteMultipart};

const ROUNDS: usize = 5;

fn main() {
    let numbers: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with("--")).collect();
    let mebibytes: usize = numbers.first().map_or(1024, |number| number.parse().unwrap());
    let parent = numbers.get(1).map_or_else(std::env::temp_dir, PathBuf::from);
    let folder = tempfile::tempdir_in(parent).unwrap();
    let bytes: Bytes =
        (0..mebibytes << 17).flat_map(|i| (i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes()).collect();
    println!("{mebibytes} MiB, median of {ROUNDS}");
    println!("sha256, one thread            {}", rate(&bytes, || drop(hash::sha256(&bytes))));
    local(&folder.path().join("local"), &bytes);
    s3(&folder.path().join("s3"), &bytes.slice(..bytes.len() / 4));
}

fn local(folder: &std::path::Path, bytes: &Bytes) {
    std::fs::create_dir_all(folder).unwrap();
    let plain = folder.join("plain");
    println!(
        "folder: plain write + fsync   {}",
        rate(bytes, || {
            let mut file = File::create(&plain).unwrap();
            file.write_all(bytes).unwrap();
            file.sync_all().unwrap();
        })
    );
    let store = Store::open(folder.to_str().unwrap()).unwrap();
    println!("folder: put                   {}", rate(bytes, || store.put("object", bytes.clone()).unwrap()));
    println!(
        "folder: put_hashed            {}",
        rate(bytes, || drop(store.put_hashed("object", bytes.clone()).unwrap()))
    );
    println!(
        "folder: plain read            {}",
        rate(bytes, || {
            let mut read = Vec::with_capacity(bytes.len());
            File::open(&plain).unwrap().read_to_end(&mut read).unwrap();
        })
    );
    let size = bytes.len() as u64;
    println!("folder: get_hashed            {}", rate(bytes, || drop(store.get_hashed("object", size).unwrap())));
    println!(
        "folder: hash without keeping  {}",
        rate(bytes, || {
            let mut hasher = hash::Hasher::new();
            store.read_pieces("object", size, |piece| hasher.update(piece)).unwrap();
        })
    );
}

fn s3(folder: &std::path::Path, bytes: &Bytes) {
    let server = s3_server::Server::start(folder, 0);
    let store = server.store_with("bench", s3_server::SECRET_KEY, Patience::default());
    println!("S3 server of the tests, {} MiB", bytes.len() >> 20);
    println!("s3: plain multipart put       {}", rate(bytes, || plain_multipart(&server, bytes)));
    println!("s3: put                       {}", rate(bytes, || store.put("object", bytes.clone()).unwrap()));
    println!(
        "s3: put_hashed                {}",
        rate(bytes, || drop(store.put_hashed("object", bytes.clone()).unwrap()))
    );
    println!("s3: plain get                 {}", rate(bytes, || plain_get(&server)));
    let size = bytes.len() as u64;
    println!("s3: get_hashed                {}", rate(bytes, || drop(store.get_hashed("object", size).unwrap())));
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

/// object_store's own writer, with its default of parallel parts.
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

fn rate(bytes: &Bytes, mut once: impl FnMut()) -> String {
    let mut times: Vec<Duration> = (0..ROUNDS).map(|_| time(&mut once)).collect();
    times.sort();
    let rates = |time: Duration| bytes.len() as f64 / time.as_secs_f64() / 1e6;
    format!("{:7.0} MB/s  ({:.0} to {:.0})", rates(times[ROUNDS / 2]), rates(times[ROUNDS - 1]), rates(times[0]))
}

fn time(once: &mut impl FnMut()) -> Duration {
    let start = Instant::now();
    once();
    start.elapsed()
}
