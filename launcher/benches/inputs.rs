//! Benchmark of the rate at which a preparation reads an object from a local S3 server. For comparison, the benchmark
//! also downloads the object in other ways. To run it: `cargo bench --workspace --bench inputs [-- MEBIBYTES]`. Each
//! round measures all ways of reading, and each output line shows the median over the rounds. The server reads the
//! whole object for each request, so the object is small and each round reads it several times.

#![allow(clippy::unwrap_used, reason = "a panic is how a benchmark reports")]

#[path = "../../cluster/store/tests/s3_server/mod.rs"]
mod s3_server;

use std::io::Read;
use std::process::Command;
use std::sync::Arc;
use std::time::Instant;

use clap::Parser;
use lambert_config::prep::Source;
use lambert_data_prep::source::{self, StoredReader};
use object_store::ObjectStoreExt;
use object_store::aws::{AmazonS3, AmazonS3Builder};
use s3_server::{BUCKET, Server};
use tokio::task::JoinSet;

const OBJECT: &str = "corpus/text.txt";
/// Number of times that a round reads the object in each way.
const TIMES: u64 = 4;

#[derive(Parser)]
struct Arguments {
    /// Size of the object
    #[arg(default_value_t = 32)]
    mebibytes: u64,
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Bytes of the object on the server from the environment
    #[arg(long, hide = true)]
    measure: Option<u64>,
    /// Passed by cargo to every benchmark
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() {
    let arguments = Arguments::parse();
    if let Some(bytes) = arguments.measure {
        return measure(bytes, arguments.rounds);
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(BUCKET).join(OBJECT);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    let bytes = arguments.mebibytes << 20;
    let line = "The boat that the king saw went down the river before the old men had come home.\n";
    let lines = line.repeat((bytes / line.len() as u64) as usize);
    std::fs::write(&path, &lines).unwrap();
    let server = Server::start(folder.path(), 0);
    // The child process gets the address of the server from its environment, as every preparation does.
    let mut measuring = Command::new(std::env::current_exe().unwrap());
    measuring.args(["--rounds", &arguments.rounds.to_string(), "--measure", &lines.len().to_string()]);
    measuring.envs(server.environment()).env("AWS_ALLOW_HTTP", "true");
    assert!(measuring.status().unwrap().success());
}

fn measure(bytes: u64, rounds: usize) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let client = Arc::new(AmazonS3Builder::from_env().with_bucket_name(BUCKET).build().unwrap());
    let source = Source { path: format!("s3://{BUCKET}/{OBJECT}"), format: "text".into(), ..Source::default() };
    let file = source::find_files(std::slice::from_ref(&source), 1).unwrap().remove(0);
    assert_eq!(file.bytes, bytes);
    let mut contestants: [(&str, &mut dyn FnMut() -> u64); 5] = [
        ("one request", &mut || runtime.block_on(whole(&client))),
        ("6 requests of 4 MiB at a time", &mut || runtime.block_on(download(&client, bytes, 4 << 20, 6))),
        ("8 requests of 16 MiB at a time", &mut || runtime.block_on(download(&client, bytes, 16 << 20, 8))),
        ("lambert: bytes, hashed", &mut || {
            let mut stored = StoredReader::open(&file, Arc::default(), 1 << 30).unwrap();
            let mut buffer = vec![0; 128 << 10];
            std::iter::from_fn(|| Some(stored.read(&mut buffer).unwrap()).filter(|&count| count > 0)).sum::<usize>()
                as u64
        }),
        ("lambert: documents", &mut || {
            let mut reader = source::open_reader(&source, &file, Arc::default()).unwrap();
            std::iter::from_fn(|| reader.next().unwrap()).map(|document| document.bytes.len() as u64).sum()
        }),
    ];
    let mut times = vec![Vec::new(); contestants.len()];
    for _ in 0..rounds {
        for ((_, once), times) in contestants.iter_mut().zip(&mut times) {
            let start = Instant::now();
            (0..TIMES).for_each(|_| assert_eq!(once(), bytes));
            times.push(start.elapsed().as_secs_f64());
        }
    }
    for ((name, _), times) in contestants.iter().zip(&mut times) {
        times.sort_by(f64::total_cmp);
        let rate = |seconds: f64| (TIMES * bytes) as f64 / 1e6 / seconds;
        let (fastest, slowest) = (rate(times[0]), rate(times[times.len() - 1]));
        println!("{name:32} {:6.0} MB/s ({slowest:.0} to {fastest:.0})", rate(times[times.len() / 2]));
    }
}

async fn whole(client: &AmazonS3) -> u64 {
    client.get(&OBJECT.into()).await.unwrap().bytes().await.unwrap().len() as u64
}

/// Downloads all ranges of the object, `parallel` at a time, and discards the data.
async fn download(client: &Arc<AmazonS3>, bytes: u64, part: u64, parallel: usize) -> u64 {
    let (mut under_way, mut sum) = (JoinSet::new(), 0);
    for start in (0..bytes).step_by(part as usize) {
        if under_way.len() == parallel {
            sum += under_way.join_next().await.unwrap().unwrap();
        }
        let client = client.clone();
        let range = start..(start + part).min(bytes);
        under_way.spawn(async move { client.get_range(&OBJECT.into(), range).await.unwrap().len() as u64 });
    }
    sum + under_way.join_all().await.into_iter().sum::<u64>()
}
