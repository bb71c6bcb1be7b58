//! Small runs with checkpoints for tests.
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]
#![allow(dead_code, reason = "each test program uses a part")]

pub mod behaviour;

use bytes::Bytes;
use lambert_store::checkpoint::{CheckpointWriter, FORMAT, Manifest, ObjectSink};
use lambert_store::{Lease, Store};

/// Names of the two objects of a test checkpoint. Their contents depend on step and attempt.
pub const OBJECTS: [&str; 2] = ["model.safetensors", "optimizer-00000-of-00001.safetensors"];

pub fn folder_store() -> (tempfile::TempDir, Store) {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path().join("run").to_str().unwrap()).unwrap();
    (folder, store)
}

/// A sink that collects the bytes.
#[derive(Default)]
pub struct CollectingSink(pub Vec<u8>);

impl ObjectSink for CollectingSink {
    fn restart(&mut self) {
        self.0.clear();
    }

    fn update(&mut self, piece: &[u8]) {
        self.0.extend_from_slice(piece);
    }
}

/// A small safetensors file.
pub fn content(object: &str, step: u64, attempt: u32) -> Bytes {
    let seed = object.len() as f32 + step as f32 * 0.5 + attempt as f32;
    let numbers: Vec<u8> = (0..300).flat_map(|i| (seed + i as f32).to_le_bytes()).collect();
    let header = format!(r#"{{"x":{{"dtype":"F32","shape":[300],"data_offsets":[0,{}]}}}}"#, numbers.len());
    [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &numbers].concat().into()
}

pub fn manifest(writer: &CheckpointWriter, step: u64, attempt: u32) -> Manifest {
    let put = |object: &&str| writer.put_object(object, content(object, step, attempt)).unwrap();
    Manifest {
        format: FORMAT,
        step,
        attempt,
        parent: None,
        stage: 0,
        cursor: [("d".repeat(64), step * 64)].into(),
        config_sha256: "c".repeat(64),
        world: 1,
        held_out_loss: None,
        best: None,
        averaged: Vec::new(),
        state: serde_json::json!({ "updates": step }),
        objects: OBJECTS.iter().map(put).collect(),
    }
}

/// Writes and commits the checkpoint of `step`. Returns its name.
pub fn save(run: &Store, lease: &Lease, step: u64) -> String {
    let writer = CheckpointWriter::new(run, step, lease.attempt());
    writer.commit(&manifest(&writer, step, lease.attempt()), lease).unwrap();
    writer.name().to_string()
}

pub fn path(checkpoint: &str, object: &str) -> String {
    format!("checkpoints/{checkpoint}/{object}")
}
