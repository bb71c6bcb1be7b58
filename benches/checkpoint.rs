//! Time to save and load a checkpoint of BERT-base with LAMB moments (1.3 GB):
//! `cargo bench --workspace --bench checkpoint [-- [--layers N] [--folder DIR] [--python PYTHON]]`.
//!
//! Baselines are a memcpy, a plain write, and plain reads with a warm and a cold page cache. With `--python`,
//! torch and safetensors are baselines too. All variants run in each round, so that other load on the host affects
//! all of them. The benchmark prints medians.

#![allow(clippy::unwrap_used, reason = "a panic is how a benchmark reports")]

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Instant;

use clap::Parser;
use lambert_config::RunConfig;
use lambert_plan::architecture::Architecture;
use lambert_store::checkpoint::{CheckpointWriter, FORMAT, Manifest, verify};
use lambert_store::{Lease, Store};
use lambert_worker::checkpoint::snapshot::{Snapshot, SnapshotObject};
use lambert_worker::checkpoint::{ReadMode, read_state};
use lambert_worker::kernels::Host;
use lambert_worker::state::{Buffer, Parameters, TrainState};

const VOCABULARY: usize = 30_522;

const LOAD: &str = "lambert: load";
const READ: &str = "plain read";
const COLD_LOAD: &str = "lambert: load, from the disk";
const COLD_READ: &str = "plain read, from the disk";

#[derive(Parser)]
struct Arguments {
    /// Number of encoder layers; the width is that of BERT-base
    #[arg(long, default_value_t = 12)]
    layers: usize,
    /// Number of rounds; each printed time is the median over the rounds
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Folder to write to; default: the system's temporary folder
    #[arg(long)]
    folder: Option<String>,
    /// Python interpreter with torch and safetensors, for the comparison
    #[arg(long)]
    python: Option<String>,
    /// Passed by cargo to every benchmark
    #[arg(long, hide = true)]
    bench: bool,
}

/// Measured times of each variant, in seconds.
type Times = Vec<(&'static str, Vec<f64>)>;

fn note(times: &mut Times, name: &'static str, seconds: f64) {
    match times.iter_mut().find(|(known, _)| *known == name) {
        Some((_, all)) => all.push(seconds),
        None => times.push((name, vec![seconds])),
    }
}

fn timed<T>(times: &mut Times, name: &'static str, once: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let value = once();
    note(times, name, start.elapsed().as_secs_f64());
    value
}

fn main() {
    let arguments = Arguments::parse();
    let parent = arguments.folder.clone().map_or_else(std::env::temp_dir, Into::into);
    let folder = tempfile::tempdir_in(parent).unwrap();
    let mut state = state(arguments.layers);
    let mut snapshot = Snapshot::new(&state.parameters, 0, 1).unwrap();
    let size = 12 * state.elements();
    let store = Store::open(folder.path().join("run").to_str().unwrap()).unwrap();
    let lease = Lease::take(&store).unwrap();
    let (source, mut target) = (vec![1u8; size], vec![2u8; size]);
    let mut peers = arguments.python.as_deref().map(|python| Peers::start(python, size / 12, folder.path()));
    let mut times = Times::new();
    for round in 0..arguments.rounds as u64 {
        timed(&mut times, "memcpy", || target.copy_from_slice(&source));
        std::hint::black_box(&target);
        state.step = round;
        save(&mut times, &store, &lease, &mut snapshot, &state);
        let plain = folder.path().join("plain");
        timed(&mut times, "plain write + fsync", || plain_write(&plain, &source));
        let verified = timed(&mut times, "lambert: verify", || verify(&store, &name(&state)).unwrap());
        timed(&mut times, LOAD, || read_state(&store, &verified, &mut state, ReadMode::Alone).unwrap());
        timed(&mut times, READ, || plain_read(&plain, &mut target));
        forget(folder.path());
        timed(&mut times, COLD_LOAD, || read_state(&store, &verified, &mut state, ReadMode::Alone).unwrap());
        timed(&mut times, COLD_READ, || plain_read(&plain, &mut target));
        if let Some(peers) = &mut peers {
            peers.round(&mut times);
        }
        std::fs::remove_dir_all(folder.path().join("run/checkpoints")).unwrap();
    }
    show(times, size);
}

fn state(layers: usize) -> TrainState {
    let config = RunConfig::default();
    let specs = Architecture::new(&config.model, layers, VOCABULARY);
    let mut state = TrainState::new(Parameters::initialize(Arc::new(Host), specs, 1, 0.02));
    for (moment, scale) in [(Buffer::First, 1e-3), (Buffer::Second, 1e-6)] {
        let values: Vec<f32> = (0..state.elements()).map(|i| (i % 1013) as f32 * scale).collect();
        state.write(moment, 0, &values);
    }
    state
}

/// Measures the time of the whole save, and the part of this time during which the training loop waits.
fn save(times: &mut Times, store: &Store, lease: &Lease, snapshot: &mut Snapshot, state: &TrainState) {
    let start = Instant::now();
    let writer = CheckpointWriter::new(store, state.step, lease.attempt());
    let begin = |object: SnapshotObject| (writer.start_object(&object.name, object.bytes).unwrap(), object.slices);
    let copying = snapshot.begin(state);
    let pending: Vec<_> = snapshot.finish(copying).into_iter().map(begin).collect();
    note(times, "lambert: training waits", start.elapsed().as_secs_f64());
    let objects = pending.into_iter().map(|(object, slices)| {
        let mut entry = object.wait().unwrap();
        entry.slices = slices;
        entry
    });
    let manifest = Manifest {
        format: FORMAT,
        step: state.step,
        attempt: lease.attempt(),
        parent: None,
        stage: 0,
        cursor: Default::default(),
        config_sha256: "0".repeat(64),
        world: 1,
        held_out_loss: None,
        best: None,
        averaged: Vec::new(),
        state: serde_json::json!({ "updates": 1, "skipped_updates": 0, "vocabulary": VOCABULARY, "lowercase": true }),
        objects: objects.collect(),
    };
    writer.commit(&manifest, lease).unwrap();
    note(times, "lambert: save, committed", start.elapsed().as_secs_f64());
}

fn name(state: &TrainState) -> String {
    format!("step-{:09}-a0001", state.step)
}

/// Evicts all files below `folder` from the page cache.
fn forget(folder: &Path) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => forget(&path),
            false => {
                let file = File::open(&path).unwrap();
                rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
            }
        }
    }
}

fn plain_write(file: &Path, bytes: &[u8]) {
    let mut file = File::create(file).unwrap();
    file.write_all(bytes).unwrap();
    file.sync_all().unwrap();
}

fn plain_read(file: &Path, into: &mut [u8]) {
    File::open(file).unwrap().read_exact(into).unwrap();
}

/// Python process that saves a state of the same size with torch and safetensors.
struct Peers {
    process: Child,
    answers: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

const WAYS: [&str; 4] = ["torch.save", "safetensors save_file", "torch dcp save", "torch dcp async_save"];

impl Peers {
    fn start(python: &str, elements: usize, folder: &Path) -> Self {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/checkpoint_peers.py");
        let mut process = Command::new(python)
            .args([script, &elements.to_string(), folder.join("peers").to_str().unwrap()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let answers = BufReader::new(process.stdout.take().unwrap()).lines();
        Self { process, answers }
    }

    fn round(&mut self, times: &mut Times) {
        for way in WAYS {
            writeln!(self.process.stdin.as_mut().unwrap(), "{way}").unwrap();
            let answer = self.answers.next().unwrap().unwrap();
            let (waits, whole) = answer.split_once(' ').unwrap();
            if way == "torch dcp async_save" {
                note(times, "torch dcp async_save: training waits", waits.parse().unwrap());
            }
            note(times, way, whole.parse().unwrap());
        }
    }
}

impl Drop for Peers {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn show(times: Times, size: usize) {
    println!("{:.2} GB of state", size as f64 / 1e9);
    let medians: Vec<_> = times
        .into_iter()
        .map(|(name, mut all)| {
            all.sort_by(f64::total_cmp);
            (name, all[all.len() / 2], all[0], all[all.len() - 1])
        })
        .collect();
    let median = |wanted: &str| medians.iter().find(|(name, ..)| *name == wanted).map_or(f64::NAN, |found| found.1);
    for (name, middle, fastest, slowest) in &medians {
        let rate = size as f64 / middle / 1e6;
        println!("{name:38} {middle:7.3} s ({fastest:.3} to {slowest:.3})  {rate:6.0} MB/s");
    }
    println!("waiting / memcpy     {:.2}", median("lambert: training waits") / median("memcpy"));
    println!("rate of save / plain {:.2}", median("plain write + fsync") / median("lambert: save, committed"));
    println!(
        "rate of load / plain {:.2}, from the disk {:.2}",
        median(READ) / median(LOAD),
        median(COLD_READ) / median(COLD_LOAD)
    );
}
