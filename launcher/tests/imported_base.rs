//! Tests of runs that start from a transformers folder, and of `lambert eval --text`, with a script in place of the worker.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use lambert_config::run::Model;
use lambert_plan::architecture::Architecture;
use lambert_store::Store;
use lambert_store::checkpoint::{self, Manifest};
use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use safetensors::serialize;
use safetensors::tensor::{Dtype, TensorView};
use serde_json::{Value, json};

/// Worker that cannot train. Its evaluation prints the manifest of the dataset, or waits if there is a file `wait`.
const WORKER: &str = r#"#!/bin/sh
cd "$(dirname "$0")" || exit 1
case "$1" in
  --version) echo "lambert-worker of a test" ;;
  eval) if [ -e wait ]; then echo $$ >started.part; mv started.part started; exec sleep 600; fi; cat "$3/manifest.json" ;;
  *) exit 1 ;;
esac
"#;

/// Temporary folder with `lambert`, a worker, uncased and cased datasets, and a model.
struct TestDir(tempfile::TempDir);

struct CommandOutput {
    code: i32,
    out: String,
    err: String,
}

impl TestDir {
    fn new() -> Self {
        let dir = Self(tempfile::tempdir().unwrap());
        std::fs::create_dir_all(dir.path("bin")).unwrap();
        std::fs::create_dir(dir.path("scratch")).unwrap();
        // lambert starts the worker beside it.
        let lambert = env!("CARGO_BIN_EXE_lambert");
        if std::fs::hard_link(lambert, dir.path("bin/lambert")).is_err() {
            std::fs::copy(lambert, dir.path("bin/lambert")).unwrap();
        }
        dir.file("bin/lambert-worker", WORKER);
        std::fs::set_permissions(dir.path("bin/lambert-worker"), std::fs::Permissions::from_mode(0o755)).unwrap();
        dir.done(&["generate", "--documents", "40", "--output", "corpus.txt"]);
        dir.done(&["vocab", "--input", "corpus.txt", "--size", "300", "--output", "vocab.txt"]);
        for (name, lowercase) in [("uncased", true), ("cased", false)] {
            let prep = format!(
                "[[source]]\npath = \"corpus.txt\"\ndocuments = \"blank-line\"\n[output]\nurl = {name:?}\n\
                 [vocabulary]\nfile = \"vocab.txt\"\nlowercase = {lowercase}\n[samples]\nsequence_length = 64\n"
            );
            dir.file(&format!("{name}.toml"), prep);
            dir.done(&["prep", "--config", &format!("{name}.toml")]);
        }
        let run = "[model]\nlayers = 1\nhidden = 16\nheads = 2\nintermediate = 32\npositions = 64\n\
                   [[stage]]\nname = \"a\"\ndata = \"uncased/train\"\nsteps = 2\nglobal_batch = 4\nlearning_rate = 1e-3\n\
                   [cluster]\nranks = 1\nrestart.limit = 0\n[device]\nkind = \"cpu\"\n";
        dir.file("run.toml", run);
        dir.model("model", 0.5);
        dir
    }

    fn path(&self, name: &str) -> PathBuf {
        // The temporary directory may be reached through a symbolic link.
        self.0.path().canonicalize().unwrap().join(name)
    }

    fn file(&self, name: &str, content: impl AsRef<[u8]>) {
        std::fs::write(self.path(name), content).unwrap();
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(self.path("bin/lambert"));
        command.args(arguments).current_dir(self.0.path()).stdin(Stdio::null()).env("TMPDIR", self.path("scratch"));
        command
    }

    fn ran(&self, arguments: &[&str]) -> CommandOutput {
        let Output { status, stdout, stderr } = self.command(arguments).output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        CommandOutput { code: status.code().unwrap(), out: text(stdout), err: text(stderr) }
    }

    fn done(&self, arguments: &[&str]) -> String {
        let ran = self.ran(arguments);
        assert_eq!(ran.code, 0, "{arguments:?}: {}", ran.err);
        ran.out
    }

    /// Starts the run `run`, which ends before its first step. With `--check` in `more`, only checks the start.
    fn start(&self, more: &[&str]) -> CommandOutput {
        self.ran(&[&["run", "--config", "run.toml", "--run", "run"], more].concat())
    }

    /// Creates the run `run` by its first start.
    fn created(&self, more: &[&str]) {
        let ran = self.start(more);
        assert!(ran.code == 1 && self.path("run/run.toml").exists(), "{} {}", ran.code, ran.err);
    }

    fn refused(&self, more: &[&str], message: &str) {
        let ran = self.start(more);
        assert!(ran.code == 2 && ran.err.contains(message), "{message}: {} {}", ran.code, ran.err);
    }

    /// Writes a BERT with one layer, whose elements all have the same value.
    fn model(&self, name: &str, value: f32) {
        std::fs::create_dir_all(self.path(name)).unwrap();
        let vocabulary = std::fs::read_to_string(self.path("vocab.txt")).unwrap();
        let (tokens, value) = (vocabulary.lines().count(), value.to_le_bytes());
        let model = Model { layers: 1, hidden: 16, heads: 2, intermediate: 32, positions: 64, ..Model::default() };
        let mut tensors = BTreeMap::new();
        for tensor in Architecture::new(&model, 1, tokens).tensors() {
            let mut shape = tensor.shape.clone();
            if tensor.padding.is_some() {
                shape[0] = tokens;
            }
            let bytes = value.repeat(shape.iter().product());
            tensors.insert(tensor.name.clone(), (shape, bytes));
        }
        let views = tensors
            .iter()
            .map(|(name, (shape, bytes))| (name, TensorView::new(Dtype::F32, shape.clone(), bytes).unwrap()));
        self.file(&format!("{name}/model.safetensors"), serialize(views, None).unwrap());
        self.file(&format!("{name}/vocab.txt"), &vocabulary);
        self.file(&format!("{name}/tokenizer_config.json"), r#"{"do_lower_case": true}"#);
        let config = json!({
            "model_type": "bert", "architectures": ["BertForPreTraining"], "vocab_size": tokens, "hidden_size": 16,
            "num_attention_heads": 2, "intermediate_size": 32, "num_hidden_layers": 1, "max_position_embeddings": 64,
        });
        self.file(&format!("{name}/config.json"), config.to_string());
    }

    /// Manifest of the model that the run has imported.
    fn imported(&self) -> Manifest {
        let store = Store::open(self.path("run/imported").to_str().unwrap()).unwrap();
        checkpoint::read_manifest(&store, "step-000000000-a0001").unwrap()
    }
}

#[test]
fn a_base_must_fit_the_run_and_its_data() {
    let dir = TestDir::new();
    let checkpoint = dir.done(&["import", "model", "--output", "base"]);
    for from in ["hf:model", checkpoint.trim()] {
        let from = ["--from", from, "--check"];
        let check = |more: &[&str], message: &str| dir.refused(&[&from, more].concat(), message);
        let ran = dir.start(&from);
        assert_eq!(ran.code, 0, "{}", ran.err);
        check(&["--set", "model.hidden=32"], "run.from: its model has hidden = 16, the configuration has 32");
        check(&["--with-optimizer"], "has no optimizer moments");
        let cased = ["--set", "stage.0.data=cased/train"];
        check(&cased, "lowercases text, that of ");
        check(&cased, "cased/train keeps the case of text; prepare the dataset with vocabulary.lowercase = true");
    }
    assert!(!dir.path("run").exists());
}

#[test]
fn a_restart_names_the_folder_of_its_import() {
    let dir = TestDir::new();
    dir.model("other", 0.25);
    dir.created(&["--from", "hf:model"]);
    let folder = dir.path("model");
    assert_eq!(dir.imported().state["source"], folder.to_str().unwrap());
    // The folder is not needed any more, and its name can be written in another way.
    std::fs::rename(&folder, dir.path("moved")).unwrap();
    for from in ["hf:model", "hf:./model/", &format!("hf:{}", folder.display())] {
        let ran = dir.start(&["--from", from, "--check"]);
        assert_eq!(ran.code, 0, "{from}: {}", ran.err);
    }
    assert_eq!(dir.start(&["--check"]).code, 0);
    let message =
        format!("run.from: \"hf:{}\" in the run, \"hf:{}\" now", folder.display(), dir.path("other").display());
    dir.refused(&["--from", "hf:other", "--check"], &message);
    let ran = dir.start(&["--from", "hf:other", "--check", "--allow-change", "run.from"]);
    let kept = format!("the run keeps the model that it imported from \"hf:{}\"", folder.display());
    assert!(ran.code == 0 && ran.err.contains(&kept), "{}", ran.err);
    // An import of an earlier version does not name its folder.
    let store = Store::open(dir.path("run/imported").to_str().unwrap()).unwrap();
    let mut manifest = dir.imported();
    manifest.state.as_object_mut().unwrap().remove("source");
    manifest.objects.clear();
    let weights = store.get("checkpoints/step-000000000-a0001/model.safetensors").unwrap();
    store.delete("checkpoints/step-000000000-a0001/manifest.json").unwrap();
    checkpoint::write_single(&store, manifest, vec![("model.safetensors".to_owned(), weights)]).unwrap();
    assert_eq!(dir.start(&["--from", "hf:other", "--check"]).code, 0);
    // A run without its import.
    dir.file("run/imported/checkpoints/step-000000000-a0001/manifest.json", "{}");
    assert_eq!(dir.start(&["--from", "hf:model", "--check"]).code, 0);
    std::fs::remove_dir_all(dir.path("run/imported")).unwrap();
    assert_eq!(dir.start(&["--from", "hf:model", "--check"]).code, 0);
}

#[test]
fn a_run_that_began_without_an_import_refuses_one() {
    let dir = TestDir::new();
    dir.created(&[]);
    let before = std::fs::read(dir.path("run/run.toml")).unwrap();
    for more in [&["--from", "hf:model"][..], &["--set", "run.from=hf:model", "--allow-change", "run.from"]] {
        dir.refused(
            more,
            "was started without hf:model, and only the first start of a run imports a model; use another --run",
        );
    }
    assert_eq!(std::fs::read(dir.path("run/run.toml")).unwrap(), before);
}

#[test]
fn an_interrupted_first_start_can_be_repeated_from_another_model() {
    let dir = TestDir::new();
    dir.created(&["--from", "hf:model"]);
    let first = dir.imported();
    // The run was not created: only the import was written. A changed folder.
    std::fs::remove_file(dir.path("run/run.toml")).unwrap();
    dir.file("run/imported/tokenizer.json", "{}");
    dir.model("model", 0.25);
    dir.created(&["--from", "hf:model"]);
    let second = dir.imported();
    assert_ne!(first.objects, second.objects);
    assert!(!dir.path("run/imported/tokenizer.json").exists());
    // Another folder, after an interruption before the configuration of the import.
    std::fs::remove_file(dir.path("run/run.toml")).unwrap();
    std::fs::remove_file(dir.path("run/imported/run.toml")).unwrap();
    dir.model("other", 0.125);
    dir.created(&["--from", "hf:other"]);
    let third = dir.imported();
    assert_ne!(second.objects, third.objects);
    assert_eq!(third.state["source"], dir.path("other").to_str().unwrap());
    let store = Store::open(dir.path("run/imported").to_str().unwrap()).unwrap();
    checkpoint::verify(&store, &third.name()).unwrap();
    // A directory that was not imported completely.
    std::fs::create_dir(dir.path("half")).unwrap();
    dir.file("half/vocab.txt", "[PAD]\n");
    let ran = dir.ran(&["import", "model", "--output", "half"]);
    assert!(
        ran.code == 2 && ran.err.contains("half has vocab.txt but no run.toml, as after an interrupted import"),
        "{}",
        ran.err
    );
}

#[test]
fn text_is_read_as_the_newest_usable_checkpoint_reads_it() {
    let dir = TestDir::new();
    dir.done(&["import", "model", "--output", "base"]);
    let eval = || {
        let manifest: Value = serde_json::from_str(&dir.done(&["eval", "base", "--text", "corpus.txt"])).unwrap();
        assert_eq!(std::fs::read_dir(dir.path("scratch")).unwrap().count(), 0, "the scratch data is left");
        manifest["lowercase"].as_bool().unwrap()
    };
    assert!(eval());
    let store = Store::open(dir.path("base").to_str().unwrap()).unwrap();
    let first = checkpoint::read_manifest(&store, "step-000000000-a0001").unwrap();
    let weights = store.get("checkpoints/step-000000000-a0001/model.safetensors").unwrap();
    let write = |step: u64, lowercase: bool| {
        let mut manifest = Manifest { step, objects: Vec::new(), ..first.clone() };
        manifest.state["lowercase"] = json!(lowercase);
        checkpoint::write_single(&store, manifest, vec![("model.safetensors".to_owned(), weights.clone())]).unwrap();
    };
    write(1, false);
    write(2, true);
    // The newest checkpoint is damaged.
    let damaged = weights.iter().map(|byte| byte ^ 1).collect::<Vec<u8>>();
    store.put("checkpoints/step-000000002-a0001/model.safetensors", damaged.into()).unwrap();
    assert!(!eval());
}

#[test]
fn a_signal_leaves_neither_scratch_data_nor_a_worker() {
    let dir = TestDir::new();
    dir.done(&["import", "model", "--output", "base"]);
    dir.file("bin/wait", "");
    // A shell may start tests in the background with an ignored SIGINT, which the program keeps.
    let signals = [Signal::TERM, Signal::INT].into_iter();
    for signal in signals.filter(|signal| !lambert_progress::signals::ignores(signal.as_raw())) {
        let mut child = dir
            .command(&["eval", "base", "--text", "corpus.txt"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let started = dir.path("bin/started");
        wait(|| started.exists());
        let worker: i32 = std::fs::read_to_string(&started).unwrap().trim().parse().unwrap();
        let worker = Pid::from_raw(worker).unwrap();
        assert!(test_kill_process(worker).is_ok() && !is_empty(&dir.path("scratch")));
        kill_process(Pid::from_child(&child), signal).unwrap();
        assert_eq!(child.wait().unwrap().signal(), Some(signal.as_raw()));
        assert!(test_kill_process(worker).is_err(), "the worker is left");
        assert!(is_empty(&dir.path("scratch")), "the scratch data is left");
        std::fs::remove_file(started).unwrap();
    }
}

fn is_empty(folder: &Path) -> bool {
    std::fs::read_dir(folder).unwrap().next().is_none()
}

fn wait(mut is_done: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !is_done() {
        assert!(Instant::now() < deadline);
        std::thread::sleep(Duration::from_millis(20));
    }
}
