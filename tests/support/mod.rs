//! What the end-to-end tests share: the two programs, a small dataset made by the real commands, a run that is watched.

pub mod hosts;
pub mod preload;
pub mod slurm;
mod tree;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, ChildStdout, Command, Output, Stdio};
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use lambert_control::StepRecord;
use lambert_dataset::Dataset;
use lambert_worker::data::order::EpochOrder;
use serde_json::Value;
pub use tree::tree;

/// Nothing here takes longer, even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// The program `lambert`, beside the worker that this test run built.
pub fn lambert() -> PathBuf {
    let program = Path::new(env!("CARGO_BIN_EXE_lambert-worker")).with_file_name("lambert");
    assert!(program.exists(), "{} is missing: `cargo build --release --workspace` first", program.display());
    program
}

/// The variables that put an Open MPI 5 into the place of the installed one: that of LAMBERT_TEST_OPENMPI5, or the one that
/// tests/setup.sh fetched.
pub fn open_mpi_5() -> Option<[(&'static str, String); 2]> {
    let fetched = || {
        let home = |name: &str| std::env::var(name).ok();
        let cache = home("XDG_CACHE_HOME").or_else(|| Some(home("HOME")? + "/.cache"))?;
        Some(cache + "/lambert/openmpi-5.0.11").filter(|folder| Path::new(folder).exists())
    };
    let Some(folder) = std::env::var("LAMBERT_TEST_OPENMPI5").ok().or_else(fetched) else {
        eprintln!("SKIPPED: there is no Open MPI 5; tests/setup.sh fetches one");
        return None;
    };
    let path = format!("{folder}/bin:{}", std::env::var("PATH").unwrap());
    Some([("PATH", path), ("LD_LIBRARY_PATH", format!("{folder}/lib"))])
}

/// How a command ended.
pub struct Ran {
    pub code: i32,
    pub out: String,
    pub err: String,
}

thread_local! {
    /// Variables for all programs that a test starts, where it sets them: the way to its S3 server.
    pub static ENVIRONMENT: RefCell<Vec<(&'static str, String)>> = const { RefCell::new(Vec::new()) };
}

/// `lambert` with these arguments.
fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(lambert());
    command.args(arguments).envs(ENVIRONMENT.with_borrow(Vec::clone));
    command
}

/// Runs `lambert` to its end.
pub fn run(arguments: &[&str]) -> Ran {
    run_in(arguments, &[])
}

/// The same with these variables.
pub fn run_in(arguments: &[&str], environment: &[(&'static str, String)]) -> Ran {
    let variables = environment.iter().map(|(name, value)| (name, value));
    let Output { status, stdout, stderr } = command(arguments).envs(variables).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    Ran { code: status.code().unwrap_or(-1), out: text(stdout), err: text(stderr) }
}

/// The same for a command that must succeed; gives its standard output.
pub fn done(arguments: &[&str]) -> String {
    let ran = run(arguments);
    assert_eq!(ran.code, 0, "lambert {}: {}", arguments.join(" "), ran.err);
    ran.out
}

/// A folder for a test, with a corpus, a vocabulary and datasets (`data/train`, `data/held-out`) from the real commands.
pub struct Place {
    folder: tempfile::TempDir,
}

/// The datasets are made once a test program and copied, so that a test may spoil its own.
fn prepared() -> &'static Path {
    static PREPARED: OnceLock<tempfile::TempDir> = OnceLock::new();
    let folder = PREPARED.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
        done(&["generate", "--documents", "400", "--seed", "1", "--output", &path("corpus.txt")]);
        done(&["vocab", "--input", &path("corpus.txt"), "--size", "300", "--output", &path("vocab.txt")]);
        let config = format!(
            "[[source]]\npath = {:?}\ndocuments = \"blank-line\"\n[output]\nurl = {:?}\nshards = 2\n\
             [vocabulary]\nfile = {:?}\n[samples]\nsequence_length = 64\nheld_out = 0.1\n",
            path("corpus.txt"),
            path("data"),
            path("vocab.txt")
        );
        std::fs::write(folder.path().join("prep.toml"), config).unwrap();
        done(&["prep", "--config", &path("prep.toml")]);
        folder
    });
    folder.path()
}

impl Place {
    pub fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        copy(prepared(), folder.path());
        Self { folder }
    }

    pub fn path(&self, name: &str) -> String {
        self.folder.path().join(name).to_str().unwrap().to_owned()
    }

    /// Writes a file and gives its path. Whoever reads it meanwhile, on another thread, finds it whole.
    pub fn file(&self, name: &str, content: impl AsRef<[u8]>) -> String {
        let path = self.path(name);
        let folder = Path::new(&path).parent().unwrap();
        std::fs::create_dir_all(folder).unwrap();
        let readable = std::os::unix::fs::PermissionsExt::from_mode(0o644);
        let beside = tempfile::Builder::new().permissions(readable).tempfile_in(folder).unwrap();
        std::fs::write(beside.path(), content).unwrap();
        beside.persist(&path).unwrap();
        path
    }

    /// A run of `steps` steps of a tiny model on `ranks` ranks.
    pub fn config(&self, steps: u64, ranks: usize) -> String {
        let text = format!(
            "[model]\nlayers = 2\nhidden = 32\nheads = 2\nintermediate = 64\npositions = 64\n\
             [[stage]]\nname = \"one\"\ndata = {:?}\nsteps = {steps}\nglobal_batch = 16\nmicro_batch_tokens = 256\n\
             learning_rate = 5e-3\n[checkpoint]\nevery_steps = 7\nkeep = 3\n\
             [cluster]\nranks = {ranks}\nbackend = \"mpi\"\ndevice = \"cpu\"\n",
            self.path("data/train")
        );
        self.file(&format!("run-{steps}-{ranks}.toml"), text)
    }
}

/// Rows of the training data that are drawn as numbers `numbers`, as a list in TOML.
pub fn rows(place: &Place, numbers: &[u64]) -> String {
    let dataset = Dataset::open(&place.path("data/train")).unwrap();
    let sizes: Vec<u64> = dataset.row_groups().iter().map(|group| group.rows).collect();
    let order = EpochOrder::new(&sizes, 1, 0);
    let row = |number: &u64| {
        let drawn = order.at(*number);
        dataset.row_groups()[drawn.row_group].first_row + drawn.row as u64
    };
    format!("{:?}", numbers.iter().map(row).collect::<Vec<_>>())
}

/// Copies a folder with all that is in it.
pub fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let (entry, name) = (entry.as_ref().unwrap().path(), entry.as_ref().unwrap().file_name());
        match entry.is_dir() {
            true => copy(&entry, &to.join(name)),
            false => drop(std::fs::copy(&entry, to.join(name)).unwrap()),
        }
    }
}

/// A `lambert run` under way, whose step records are read.
pub struct Running {
    coordinator: Child,
    records: Receiver<StepRecord>,
    log: Option<std::thread::JoinHandle<String>>,
    run: String,
}

/// Reads the step records on a thread of its own, so that a test that does not wait for them keeps no run waiting.
fn read_records(output: ChildStdout) -> Receiver<StepRecord> {
    let (sender, records) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let lines = BufReader::new(output).lines().map(|line| serde_json::from_str::<Value>(&line.unwrap()).unwrap());
        // Lines of other things than steps say of what; the test may have ended.
        let records = lines.filter(|line| line.get("event").is_none());
        records.for_each(|record| drop(sender.send(serde_json::from_value(record).unwrap())));
    });
    records
}

/// A `lambert run` that has ended.
pub struct Ended {
    /// `None` if it was killed.
    pub code: Option<i32>,
    /// Its standard error.
    pub log: String,
    /// The records that had not been read yet.
    pub records: Vec<StepRecord>,
}

impl Running {
    /// Starts or resumes the run at `run`.
    pub fn start(config: &str, run: &str) -> Self {
        Self::start_with(config, run, &[])
    }

    /// The same, with more arguments.
    pub fn start_with(config: &str, run: &str, more: &[&str]) -> Self {
        Self::start_in(config, run, more, &[])
    }

    /// The same with these variables, too.
    pub fn start_in(config: &str, run: &str, more: &[&str], environment: &[(&'static str, String)]) -> Self {
        let mut program = command(&[]);
        program.envs(environment.iter().map(|(name, value)| (name, value)));
        Self::start_by(program, config, run, more)
    }

    /// The same by a command that begins in its own way.
    pub fn start_by(mut program: Command, config: &str, run: &str, more: &[&str]) -> Self {
        program.args(["run", "--config", config, "--run", run, "--json"]).args(more);
        let mut coordinator = program.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let records = read_records(coordinator.stdout.take().unwrap());
        let stderr: ChildStderr = coordinator.stderr.take().unwrap();
        let log = std::thread::spawn(move || std::io::read_to_string(stderr).unwrap_or_default());
        Self { coordinator, records, log: Some(log), run: run.to_owned() }
    }

    /// The next step's record; `None` when the coordinator has gone.
    pub fn record(&mut self) -> Option<StepRecord> {
        match self.records.recv_timeout(5 * PATIENCE) {
            Ok(record) => Some(record),
            Err(RecvTimeoutError::Disconnected) => None,
            Err(RecvTimeoutError::Timeout) => panic!("no step in {:?}", 5 * PATIENCE),
        }
    }

    /// The newest step's record that has not been read; the next one, if all have been.
    pub fn latest(&mut self) -> Option<StepRecord> {
        self.records.try_iter().last().or_else(|| self.record())
    }

    /// Waits until `step` is finished, or the run is.
    pub fn reach(&mut self, step: u64) {
        while self.record().is_some_and(|record| record.step < step) {}
    }

    /// Waits for `steps` steps more.
    pub fn reach_now(&mut self, steps: u64) {
        for _ in 0..steps {
            assert!(self.record().is_some(), "the run has ended");
        }
    }

    /// Sends signal `number` to the worker of this rank.
    pub fn kill_rank(&self, rank: usize, number: &str) {
        let workers = workers(&self.run);
        let pid = workers.get(&rank).unwrap_or_else(|| panic!("rank {rank} is not among {workers:?}"));
        signal(*pid, number);
    }

    /// The process that was started: the coordinator, where nothing begins before it.
    pub fn pid(&self) -> u32 {
        self.coordinator.id()
    }

    /// Sends signal `number` to the coordinator.
    pub fn kill_coordinator(&self, number: &str) {
        signal(self.coordinator.id(), number);
    }

    /// What it said, if it has ended.
    pub fn last_words(&mut self) -> Option<String> {
        let code = self.coordinator.try_wait().unwrap()?;
        Some(format!("{code}: {}", self.log.take()?.join().unwrap()))
    }

    /// Waits for the end, which must come within `limit`: what should have ended a run may let it make steps for ever.
    pub fn end_within(mut self, limit: Duration) -> Ended {
        let (begun, mut records) = (Instant::now(), Vec::new());
        while let Some(record) = self.record() {
            records.push(record);
            assert!(begun.elapsed() < limit, "the run goes on after {limit:?}");
        }
        Ended { records, ..self.end() }
    }

    /// Waits for the end.
    pub fn end(mut self) -> Ended {
        let records = std::iter::from_fn(|| self.record()).collect();
        let code = self.coordinator.wait().unwrap().code();
        Ended { code, log: self.log.take().unwrap().join().unwrap(), records }
    }
}

/// A test that fails leaves no run behind that goes on for ever.
impl Drop for Running {
    fn drop(&mut self) {
        if matches!(self.coordinator.try_wait(), Ok(None)) {
            let _ = self.coordinator.kill();
            let _ = self.coordinator.wait();
        }
    }
}

/// Sends a signal.
pub fn signal(pid: u32, number: &str) {
    assert!(Command::new("kill").args([number, &pid.to_string()]).status().unwrap().success());
}

/// Kills a process, should it still be there.
pub fn kill_if_there(pid: u32) {
    let _ = Command::new("kill").args(["-9", &pid.to_string()]).stderr(Stdio::null()).status().unwrap();
}

/// The workers of a run on this machine: process ids by rank.
pub fn workers(run: &str) -> BTreeMap<usize, u32> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        let read = |name: &str| std::fs::read(entry.path().join(name)).unwrap_or_default();
        let (line, environment) = (read("cmdline"), read("environ"));
        let words: Vec<&[u8]> = line.split(|byte| *byte == 0).collect();
        // mpirun's own command line has the same words, but does not begin with the worker.
        if !words[0].ends_with(b"lambert-worker") || !words.contains(&run.as_bytes()) {
            continue;
        }
        let rank = environment.split(|byte| *byte == 0).find_map(|variable| {
            std::str::from_utf8(variable.strip_prefix(b"OMPI_COMM_WORLD_RANK=")?).ok()?.parse().ok()
        });
        found.insert(rank.unwrap_or(0), pid);
    }
    found
}

/// Waits until a run has no worker left.
pub fn wait_for_no_workers(run: &str) {
    let start = Instant::now();
    while !workers(run).is_empty() {
        assert!(start.elapsed() < PATIENCE, "workers of {run} did not end: {:?}", workers(run));
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The run's checkpoints, newest first.
pub fn checkpoints(run: &str) -> Vec<String> {
    let listed = done(&["checkpoint", "list", run, "--json"]);
    let name = |line: &str| serde_json::from_str::<Value>(line).unwrap()["name"].as_str().unwrap().to_owned();
    listed.lines().map(name).collect()
}

/// The files of the newest checkpoint but the manifest: weights and moments.
pub fn final_state(run: &str) -> BTreeMap<PathBuf, Vec<u8>> {
    let newest = checkpoints(run).remove(0);
    let mut files = tree(&Path::new(run).join("checkpoints").join(newest));
    files.remove(Path::new("manifest.json"));
    assert!(files.len() >= 2, "weights and moments expected, found {:?}", files.keys());
    files
}

/// Asserts that two runs ended with the same bits.
pub fn assert_same_bits(one: &str, other: &str) {
    let (one, other) = (final_state(one), final_state(other));
    assert_eq!(one.keys().collect::<Vec<_>>(), other.keys().collect::<Vec<_>>());
    for (name, bytes) in &one {
        assert!(bytes == &other[name], "{} differs", name.display());
    }
}

/// Asserts that two runs, whatever their worlds, ended with the same weights, bit by bit.
pub fn assert_same_weights(one: &str, other: &str) {
    let weights = |run: &str| final_state(run).remove(Path::new(lambert_store::run::WEIGHTS)).unwrap();
    assert!(weights(one) == weights(other), "the weights of {one} and {other} differ");
}

/// Moves the newest checkpoint of a run to another step, as if it had trained until then: step, cursors and updates.
pub fn move_on(run: &str, step: u64) {
    let (name, folder) = (checkpoints(run).remove(0), Path::new(run).join("checkpoints"));
    let path = folder.join(&name).join("manifest.json");
    let mut manifest: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    let was = manifest["step"].as_u64().unwrap();
    let moved = |value: &mut Value| *value = (value.as_u64().unwrap() / was * step).into();
    moved(&mut manifest["step"]);
    for counts in ["/state/updates", "/cursor"] {
        manifest.pointer_mut(counts).unwrap().as_object_mut().unwrap().values_mut().for_each(moved);
    }
    let text = serde_json::to_string_pretty(&manifest).unwrap() + "\n";
    std::fs::write(path, seal(&text)).unwrap();
    let new = name.replacen(&format!("step-{was:09}"), &format!("step-{step:09}"), 1);
    std::fs::rename(folder.join(&name), folder.join(new)).unwrap();
}

/// A manifest's text with the checksum that belongs to it, as its writer seals it.
pub fn seal(text: &str) -> String {
    let at = text.rfind("\"manifest_sha256\": \"").unwrap() + "\"manifest_sha256\": \"".len();
    let with = |digits: &str| format!("{}{digits}{}", &text[..at], &text[at + 64..]);
    with(&lambert_store::hash::sha256(with(&"0".repeat(64)).as_bytes()))
}
