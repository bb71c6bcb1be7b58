//! A finished run with everything that an observer has to show: a killed worker, a rollback, growth and evaluations.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use super::{Running, TestDir, rows};

/// Number of steps of the run. The model grows after step [`GROWTH`].
pub const STEPS: u64 = 90;
/// Last step of the first stage. This stage has two layers, the second stage has four.
pub const GROWTH: u64 = 60;
/// Step in which one sample gets a wrong loss, so that the step is rolled back.
pub const FALSIFIED: u64 = 41;
/// The worker of rank 1 is killed after this step.
pub const KILLED: u64 = 15;
/// Folder with the event files that the coordinator writes, beside the run.
const EVENTS: &str = "tensorboard";
/// Samples of a global batch.
const BATCH: u64 = 16;

/// Configuration file of the run in `dir`.
pub fn config(dir: &TestDir) -> String {
    let stage = |name: &str, layers: u64, steps: u64| {
        format!(
            "[[stage]]\nname = {name:?}\nlayers = {layers}\ndata = {:?}\nsteps = {steps}\nglobal_batch = {BATCH}\n\
             micro_batch_tokens = 256\nlearning_rate = 5e-3\n",
            dir.path("data/train")
        )
    };
    let text = format!(
        "[run]\nname = \"observed\"\n[model]\nlayers = 4\nhidden = 32\nheads = 2\nintermediate = 64\npositions = 64\n{}{}\
         [evaluation]\ndata = {:?}\nevery_steps = 10\nsamples = 32\n[checkpoint]\nevery_steps = 7\nkeep = 3\n\
         [cluster]\nranks = 2\nall_reduce.backend = \"mpi\"\nrestart.limit = 100\n[guard]\nloss_window = 20\n\
         [device]\nkind = \"cpu\"\n[metrics]\ntensorboard = {:?}\n[test]\nmillion_samples = {}\n",
        stage("short", 2, GROWTH),
        stage("deep", 4, STEPS - GROWTH),
        dir.path("data/held-out"),
        dir.path(EVENTS),
        rows(dir, &[(FALSIFIED - 1) * BATCH + 3]),
    );
    dir.file("observed.toml", text)
}

/// Trains the run in `dir` and returns its folder.
pub fn train(dir: &TestDir, name: &str) -> String {
    let run = dir.path(name);
    let mut running = Running::start(&config(dir), &run);
    running.reach(KILLED);
    running.kill_rank(1, "-9");
    let ended = running.end();
    assert_eq!(ended.code, Some(0), "{}", ended.log);
    for text in ["rolled back", "restarting all workers"] {
        assert!(ended.log.contains(text), "no {text:?} in {}", ended.log);
    }
    run
}

/// Folder of a run that is trained once per test program. Tests must not change it.
pub fn run() -> &'static Path {
    static TRAINED: OnceLock<(TestDir, PathBuf)> = OnceLock::new();
    let (_, run) = TRAINED.get_or_init(|| {
        let dir = TestDir::new();
        let run = train(&dir, "observed").into();
        (dir, run)
    });
    run
}

/// Folder with the event files that the coordinator wrote during [`run`].
pub fn events() -> PathBuf {
    run().with_file_name(EVENTS)
}
