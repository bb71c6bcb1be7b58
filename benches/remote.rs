//! Time from `lambert run` to the first step of a resumed run with a dataset in S3:
//! `cargo bench --workspace --bench remote`.
//!
//! The dataset has 64 shards on a local S3 server. The benchmark measures the time with an empty dataset cache and with
//! a complete dataset cache. It also prints the size of the cache at the first step. With `--remote-run`, the run is on
//! the server, too, so that the ranks load its checkpoint from there; `--hidden` determines the size of the checkpoint.

#![allow(clippy::unwrap_used, reason = "a panic is how a benchmark reports")]

#[path = "../cluster/store/tests/s3_server/mod.rs"]
mod s3_server;
#[path = "../tests/support/samples.rs"]
mod samples;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use clap::Parser;
use s3_server::{BUCKET, Server};
use samples::Shape;

#[derive(Parser)]
struct Arguments {
    /// Number of samples in the dataset
    #[arg(long, default_value_t = 800_000)]
    rows: u64,
    #[arg(long, default_value_t = 64)]
    shards: u64,
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    #[arg(long, default_value_t = 2)]
    ranks: usize,
    /// Width of the model of one layer
    #[arg(long, default_value_t = 32)]
    hidden: usize,
    /// Keep the run on the S3 server
    #[arg(long)]
    remote_run: bool,
    /// Path of the program `lambert`, which is beside lambert-worker; default: the program of this build
    #[arg(long)]
    program: Option<String>,
    /// Passed by cargo to every benchmark
    #[arg(long, hide = true)]
    bench: bool,
}

struct Bench {
    program: String,
    config: String,
    run: String,
    cache: String,
    environment: Vec<(&'static str, String)>,
}

fn main() {
    let arguments = Arguments::parse();
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let data = folder.path().join("s3").join(BUCKET).join("data");
    let Arguments { rows, shards, .. } = arguments;
    samples::write(&data, &Shape { rows, longest: 128, rows_per_group: 1024, shards, pieces: 30522 });
    let server = Server::start(&folder.path().join("s3"), 0);
    let own = Path::new(env!("CARGO_BIN_EXE_lambert-worker")).with_file_name("lambert");
    let config = format!(
        "[model]\nlayers = 1\nhidden = {}\nheads = 2\nintermediate = 64\npositions = 128\n[[stage]]\nname = \"one\"\n\
         data = \"s3://{BUCKET}/data\"\nsteps = 100000\nglobal_batch = 64\nmicro_batch_tokens = 2048\n\
         learning_rate = 1e-4\n[checkpoint]\nevery_steps = 100000\n[cluster]\nranks = {}\n[device]\nkind = \"cpu\"\n",
        arguments.hidden, arguments.ranks
    );
    std::fs::write(path("run.toml"), config).unwrap();
    let bench = Bench {
        program: arguments.program.clone().unwrap_or_else(|| own.to_str().unwrap().to_owned()),
        config: path("run.toml"),
        run: if arguments.remote_run { format!("s3://{BUCKET}/run") } else { path("run") },
        cache: path("cache"),
        environment: server.environment(),
    };
    bench.first_step();
    for name in ["without copies", "with all copies"] {
        let mut times = Vec::new();
        for _ in 0..arguments.rounds {
            if name == "without copies" {
                let _ = std::fs::remove_dir_all(&bench.cache);
            }
            times.push(bench.first_step());
        }
        times.sort_by(|one, other| one.0.total_cmp(&other.0));
        let (middle, there) = times[times.len() / 2];
        let (least, most) = (times[0].0, times[times.len() - 1].0);
        println!(
            "{name:16} {middle:5.2} s to the first step ({least:.2} to {most:.2}), {there:.0} MB in the cache by then"
        );
    }
}

impl Bench {
    /// Measures the seconds to the first step, and the MB in the cache at that time. When the cache stops growing,
    /// stops the run, which saves a checkpoint.
    fn first_step(&self) -> (f64, f64) {
        let start = Instant::now();
        let mut command = Command::new(&self.program);
        command.args(["run", "--config", &self.config, "--run", &self.run, "--json"]);
        command.args(["--set", &format!("cluster.dataset_cache.folder={}", self.cache)]);
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        let mut running = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let lines = BufReader::new(running.stdout.take().unwrap()).lines();
        let mut lines = lines.map(Result::unwrap).skip_while(|line| line.contains("\"event\""));
        assert!(lines.next().is_some(), "the run ended before its first step");
        let (seconds, there) = (start.elapsed().as_secs_f64(), self.held());
        let mut before = 0.0;
        while self.held() > before {
            before = self.held();
            std::thread::sleep(Duration::from_millis(1000));
        }
        assert!(Command::new("kill").args(["-TERM", &running.id().to_string()]).status().unwrap().success());
        lines.for_each(drop);
        running.wait().unwrap();
        (seconds, there)
    }

    /// Size of complete files in the cache, MB.
    fn held(&self) -> f64 {
        let entries = std::fs::read_dir(&self.cache).into_iter().flatten().flatten();
        let is_whole = |name: &str| name.ends_with(".parquet") || name.ends_with(".range");
        let whole = entries.filter(|entry| is_whole(entry.file_name().to_str().unwrap()));
        whole.filter_map(|entry| Some(entry.metadata().ok()?.len() as f64 / 1e6)).sum()
    }
}
