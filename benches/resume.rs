//! Time from `lambert run` to the first step of BERT-base: `cargo bench --workspace --bench resume -- --vocabulary
//! FILE`. The vocabulary must have as many entries as the vocabulary of BERT.
//!
//! Compares three runs: a new run, a run resumed from step 10, and a run resumed from a copy of the same checkpoint
//! with step number 1,000,000. Each round starts all three. The benchmark needs about 5 GB for temporary files.

#![allow(clippy::unwrap_used, reason = "a panic is how a benchmark reports")]

#[allow(dead_code, unused_imports, reason = "tests use the rest")]
#[path = "../tests/support/mod.rs"]
mod support;

use std::path::Path;
use std::time::{Duration, Instant};

use clap::Parser;
use support::{Running, checkpoints, done};

#[derive(Parser)]
struct Arguments {
    /// WordPiece vocabulary
    #[arg(long)]
    vocabulary: String,
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    #[arg(long, default_value_t = 2)]
    ranks: usize,
    /// Passed by cargo to every benchmark
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() {
    let arguments = Arguments::parse();
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let config = prepare(&arguments, &path);
    let (new, early, late) = (path("new"), path("early"), path("late"));
    let mut running = Running::start(&config, &early);
    running.reach(11);
    while checkpoints(&early).is_empty() {
        std::thread::sleep(Duration::from_millis(100));
    }
    end(running, &early);
    support::copy(Path::new(&early), Path::new(&late));
    support::move_on(&late, 1_000_000);
    let mut contestants = [
        ("new", &new, 1, vec![]),
        ("from step 10", &early, 11, vec![]),
        ("from step 1,000,000", &late, 1_000_001, vec![]),
    ];
    for _ in 0..arguments.rounds {
        for (_, run, first, times) in &mut contestants {
            times.push(first_step(&config, run, *first));
        }
        std::fs::remove_dir_all(&new).unwrap();
    }
    for (name, _, _, mut times) in contestants {
        times.sort_by(f64::total_cmp);
        let (middle, least, most) = (times[times.len() / 2], times[0], times[times.len() - 1]);
        println!("{name:20} {middle:6.2} s to the first step ({least:.2} to {most:.2})");
    }
}

/// Measures the seconds until the coordinator prints the record of the first step, whose number must be `first`.
fn first_step(config: &str, run: &str, first: u64) -> f64 {
    let start = Instant::now();
    let mut running = Running::start_with(config, run, &["--set", "checkpoint.every_steps=0"]);
    let step = running.record().map(|record| record.step);
    let seconds = start.elapsed().as_secs_f64();
    assert_eq!(step, Some(first), "{}", running.end().log);
    end(running, run);
    seconds
}

fn end(running: Running, run: &str) {
    running.kill_coordinator("-9");
    running.end();
    support::wait_for_no_workers(run);
}

/// Prepares a dataset and a configuration of BERT-base with two samples per step.
/// Returns the path of the configuration.
fn prepare(arguments: &Arguments, path: &impl Fn(&str) -> String) -> String {
    done(&["generate", "--documents", "2000", "--seed", "1", "--output", &path("corpus.txt")]);
    let prep = format!(
        "[[source]]\npath = {:?}\ndocuments = \"blank-line\"\n[output]\nurl = {:?}\n[vocabulary]\nfile = {:?}\n\
         [samples]\nsequence_length = 128\n",
        path("corpus.txt"),
        path("data"),
        std::fs::canonicalize(&arguments.vocabulary).unwrap()
    );
    std::fs::write(path("prep.toml"), prep).unwrap();
    done(&["prep", "--config", &path("prep.toml")]);
    let run = format!(
        "[model]\nlayers = 12\nhidden = 768\nheads = 12\nintermediate = 3072\n[[stage]]\nname = \"one\"\ndata = {:?}\n\
         steps = 1000100\nglobal_batch = 2\nmicro_batch_tokens = 128\nlearning_rate = 1e-4\n\
         [checkpoint]\nevery_steps = 10\n[cluster]\nranks = {}\nall_reduce.backend = \"mpi\"\n[device]\nkind = \"cpu\"\n",
        path("data/train"),
        arguments.ranks
    );
    std::fs::write(path("run.toml"), run).unwrap();
    path("run.toml")
}
