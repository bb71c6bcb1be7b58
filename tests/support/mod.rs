//! Shared parts of the end-to-end tests: a small dataset that the real commands prepare, and access to the checkpoints
//! of a run.

pub mod hosts;
mod kills;
pub mod nvml;
pub mod observed;
pub mod preload;
mod programs;
mod running;
mod settings;
pub mod slurm;
mod tree;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use lambert_dataset::Dataset;
use lambert_worker::data::order::EpochOrder;
use serde_json::Value;

pub use kills::same_bits_after_kills;
pub use programs::{
    CommandOutput, ENVIRONMENT, cache, done, install, lambert, open_mpi_5, run, run_in, with_program, with_worker,
};
pub use running::{ENDLESS, Ended, Running, kill_if_there, read_json, seconds, signal, wait_for_no_workers, workers};
pub use settings::{assert_accepted, assert_refused};
pub use tree::tree;

/// Temporary folder of a test, with a corpus, a vocabulary and datasets (`data/train`, `data/held-out`).
pub struct TestDir {
    folder: tempfile::TempDir,
}

/// Folder with the datasets. They are prepared once per test program. Each test has a copy, which it may modify.
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

impl TestDir {
    pub fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        copy(prepared(), folder.path());
        Self { folder }
    }

    pub fn path(&self, name: &str) -> String {
        self.folder.path().join(name).to_str().unwrap().to_owned()
    }

    /// Writes a file atomically and returns its path.
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

    /// Writes the configuration of a run of a tiny model with `steps` steps on `ranks` ranks.
    pub fn config(&self, steps: u64, ranks: usize) -> String {
        let text = format!(
            "[model]\nlayers = 2\nhidden = 32\nheads = 2\nintermediate = 64\npositions = 64\n\
             [[stage]]\nname = \"one\"\ndata = {:?}\nsteps = {steps}\nglobal_batch = 16\nmicro_batch_tokens = 256\n\
             learning_rate = 5e-3\n[checkpoint]\nevery_steps = 7\nkeep = 3\n\
             [cluster]\nranks = {ranks}\nall_reduce.backend = \"mpi\"\n[device]\nkind = \"cpu\"\n",
            self.path("data/train")
        );
        self.file(&format!("run-{steps}-{ranks}.toml"), text)
    }
}

/// Returns the rows of the training data that are at the positions `numbers` of the sample order, as a TOML list.
pub fn rows(dir: &TestDir, numbers: &[u64]) -> String {
    let dataset = Dataset::open(&dir.path("data/train")).unwrap();
    let sizes: Vec<u64> = dataset.row_groups().iter().map(|group| group.rows).collect();
    let order = EpochOrder::new(&sizes, 1, 0);
    let row = |number: &u64| {
        let drawn = order.at(*number);
        dataset.row_groups()[drawn.row_group].first_row + drawn.row as u64
    };
    format!("{:?}", numbers.iter().map(row).collect::<Vec<_>>())
}

/// Copies a folder recursively.
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

/// Returns the names of the checkpoints of a run, newest first.
pub fn checkpoints(run: &str) -> Vec<String> {
    let listed = done(&["checkpoint", "list", run, "--json"]);
    let name = |line: &str| serde_json::from_str::<Value>(line).unwrap()["name"].as_str().unwrap().to_owned();
    listed.lines().map(name).collect()
}

/// Returns the files of the newest checkpoint without the manifest: weights and moments.
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

/// Asserts that two runs ended with bit-identical weights. Their world sizes may differ.
pub fn assert_same_weights(one: &str, other: &str) {
    let weights = |run: &str| final_state(run).remove(Path::new(lambert_store::run::WEIGHTS)).unwrap();
    assert!(weights(one) == weights(other), "the weights of {one} and {other} differ");
}

/// Changes the newest checkpoint of a run to another step, as if the run had been trained up to that step. Changes the
/// step, the cursors and the update counters.
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

/// Updates the checksum in the text of a manifest.
pub fn seal(text: &str) -> String {
    let at = text.rfind("\"manifest_sha256\": \"").unwrap() + "\"manifest_sha256\": \"".len();
    let with = |digits: &str| format!("{}{digits}{}", &text[..at], &text[at + 64..]);
    with(&lambert_store::hash::sha256(with(&"0".repeat(64)).as_bytes()))
}
