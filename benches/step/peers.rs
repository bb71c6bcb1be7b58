//! Training steps of transformers, in a Python process.

use std::io::{BufRead, BufReader, Write};
use std::ops::Range;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use lambert_config::run::Model;
use lambert_worker::data::{GlobalBatch, MicroBatch};

/// Python process that runs the programs to compare with. Each input line has the index of a program and a range of
/// batches. Each output line has the time that the program took, in seconds.
pub struct Peers {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    names: Vec<String>,
}

impl Peers {
    /// Starts the process for a model with a vocabulary of the given size.
    pub fn start(
        python: &str,
        threads: usize,
        folder: &Path,
        (model, vocabulary): (&Model, usize),
        batches: &[GlobalBatch],
    ) -> Self {
        let plain = |micro: &MicroBatch| {
            serde_json::json!({
                "ids": micro.ids, "segments": segments(micro), "lengths": micro.lengths, "width": micro.seq_len,
                "positions": micro.positions, "labels": micro.labels, "pair_labels": micro.pair_labels,
            })
        };
        let micro_batches = |batch: &GlobalBatch| batch.micro_batches.iter().map(plain).collect::<Vec<_>>();
        let batches: Vec<_> = batches.iter().map(micro_batches).collect();
        let task =
            serde_json::json!({ "threads": threads, "vocabulary": vocabulary, "model": model, "batches": batches });
        let file = folder.join("task.json");
        std::fs::write(&file, serde_json::to_vec(&task).unwrap()).unwrap();
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/step_peers.py");
        let mut child = Command::new(python)
            .arg(script)
            .arg(file)
            .env("MALLOC_MMAP_THRESHOLD_", "8589934592")
            .env("MALLOC_TRIM_THRESHOLD_", "17179869184")
            .env("MALLOC_TOP_PAD_", "67108864")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (input, mut output) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        let names = serde_json::from_str(&line(&mut output)).unwrap();
        Self { child, input, output, names }
    }

    /// Names of the programs.
    pub fn names(&self) -> Vec<String> {
        self.names.clone()
    }

    /// Returns the time of a program for a range of batches, seconds.
    pub fn steps(&mut self, program: usize, range: Range<usize>) -> f64 {
        writeln!(self.input, "{program} {} {}", range.start, range.end).unwrap();
        line(&mut self.output).trim().parse().unwrap()
    }

    pub fn end(self) {
        let Self { mut child, input, .. } = self;
        drop(input);
        child.wait().unwrap();
    }
}

fn line(output: &mut BufReader<ChildStdout>) -> String {
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    line
}

/// Returns the segment of each token, in row-major order.
fn segments(batch: &MicroBatch) -> Vec<u8> {
    let row = |(second, length): (&i32, &i32)| {
        (0..batch.seq_len as i32)
            .map(|position| u8::from(position >= *second && position < *length))
            .collect::<Vec<_>>()
    };
    batch.segment_b_starts.iter().zip(&batch.lengths).flat_map(row).collect()
}
