//! Bad input must cause exit code 1, 2 or 70, one clear message and no panic. Existing files must stay unchanged.

use std::io::Write;
use std::path::Path;

use crate::support::{self, CommandOutput, TestDir, checkpoints, done, run, tree};

/// Asserts that the command exited with `code` and printed a single error message, which contains all `words`.
fn refused(ran: &CommandOutput, code: i32, words: &[&str]) {
    assert_eq!(ran.code, code, "{}", ran.err);
    assert_eq!(ran.err.matches("error: ").count(), 1, "one message: {}", ran.err);
    for word in ["panicked", "RUST_BACKTRACE", "[1,0]", "mpirun noticed"] {
        assert!(!ran.err.contains(word), "{}", ran.err);
    }
    for word in words {
        assert!(ran.err.contains(word), "no {word:?} in: {}", ran.err);
    }
}

/// Runs `lambert prep` on one source. The output folder contains a file beforehand. The command must keep this file.
fn prep(dir: &TestDir, source: &str, format: &str, sets: &[&str]) -> CommandOutput {
    let output = format!("{source}-data");
    let keep = format!("{output}/keep.txt");
    let config = format!(
        "[[source]]\npath = {source:?}\nformat = {format:?}\n[output]\nurl = {:?}\n[vocabulary]\nfile = {:?}\n\
         [samples]\nsequence_length = 64\n",
        output,
        dir.path("vocab.txt")
    );
    let config = dir.file("bad.toml", config);
    std::fs::create_dir_all(&output).unwrap();
    std::fs::write(&keep, "this was here before").unwrap();
    let mut arguments = vec!["prep", "--config", config.as_str()];
    sets.iter().for_each(|set| arguments.extend(["--set", set]));
    let ran = run(&arguments);
    assert_eq!(std::fs::read(&keep).unwrap(), b"this was here before");
    for dataset in ["train", "held-out"] {
        assert!(!Path::new(&output).join(dataset).join("manifest.json").exists(), "a dataset was written");
    }
    ran
}

fn dump() -> Vec<u8> {
    let text = "Every page of this small dump has sentences of its own. They are read as they stream by. ".repeat(40);
    let page = |id: u32| {
        format!(
            "<page><title>Page {id}</title><ns>0</ns><id>{id}</id><revision><text>{id} {text}</text></revision></page>\n"
        )
    };
    let pages: String = (0..200).map(page).collect();
    let mut packed = bzip2::write::BzEncoder::new(Vec::new(), bzip2::Compression::fast());
    write!(packed, "<mediawiki>\n{pages}</mediawiki>\n").unwrap();
    packed.finish().unwrap()
}

#[test]
fn unreadable_corpora_are_rejected() {
    let dir = TestDir::new();
    let missing = dir.path("nothing.txt");
    refused(&prep(&dir, &missing, "text", &[]), 2, &["source.0.path", "nothing.txt"]);
    let vocab = run(&["vocab", "--input", &missing, "--output", &dir.path("new.txt")]);
    refused(&vocab, 2, &["--input ", "nothing.txt: No such file"]);
    let mut dump = dump();
    let whole = dir.file("whole.xml.bz2", &dump);
    dump.truncate(dump.len() / 2);
    let cut = dir.file("cut.xml.bz2", &dump);
    refused(&prep(&dir, &cut, "wikipedia", &[]), 1, &["cut.xml.bz2"]);
    let latin = dir.file("latin.txt", b"A sentence in an old encoding: caf\xe9 au lait. And another one.\n");
    refused(&prep(&dir, &latin, "text", &[]), 1, &["latin.txt", "invalid UTF-8 at byte 34"]);
    let vocabulary = [std::fs::read(dir.path("vocab.txt")).unwrap(), b"caf\xe9\n".to_vec()].concat();
    let vocabulary = format!("vocabulary.file={:?}", dir.file("latin-vocab.txt", vocabulary));
    let url = format!("output.url={:?}", dir.path("latin"));
    let refusal = run(&["prep", "--config", &dir.path("prep.toml"), "--set", &vocabulary, "--set", &url]);
    refused(
        &refusal,
        2,
        &["latin-vocab.txt: invalid UTF-8 at byte ", "; use a UTF-8 file, as `lambert vocab` writes it"],
    );
    let empty = dir.file("empty.txt", "");
    refused(&prep(&dir, &empty, "text", &[]), 1, &["the corpus is empty"]);
    let vocabulary = std::fs::read_to_string(dir.path("vocab.txt")).unwrap().replace("[MASK]", "[other]");
    let vocabulary = dir.file("maskless.txt", vocabulary);
    let set = format!("vocabulary.file={vocabulary}");
    refused(&prep(&dir, &whole, "wikipedia", &[&set]), 2, &["maskless.txt", "[MASK]"]);
    let words = ["vocabulary.file: /", "/none.txt does not exist; make it with `lambert vocab`"];
    refused(&prep(&dir, &whole, "wikipedia", &["vocabulary.file=none.txt"]), 2, &words);
}

#[test]
fn invalid_configurations_are_rejected() {
    let dir = TestDir::new();
    let config = dir.config(4, 2);
    let start = |arguments: &[&str]| run(&[&["run", "--run", &dir.path("run")], arguments].concat());
    refused(&start(&["--config", &dir.path("no.toml")]), 2, &["cannot read", "no.toml"]);
    refused(&start(&[]), 2, &["is not a run yet", "--config"]);
    let faults = ["model.heads=3", "stage.0.stps=3", "stage.0.learning_rate=-1", "cluster.ranks=two", "color=red"];
    let sets: Vec<&str> = faults.iter().flat_map(|fault| ["--set", fault]).collect();
    let keys = ["model.heads", "stage.0.stps", "stage.0.learning_rate", "cluster.ranks", "color"];
    refused(&start(&[&["--config", &config][..], &sets].concat()), 2, &keys);
    let exact = [
        "cluster.hosts=[4]",
        "cluster.all_reduce.canonical=true",
        "cluster.all_reduce.dtype=bf16",
        "cluster.all_reduce.overlap=true",
    ];
    let sets: Vec<&str> = exact.iter().chain(&faults[..1]).flat_map(|fault| ["--set", fault]).collect();
    let keys = [
        "has 4 errors",
        "cluster.hosts.0: invalid type: integer",
        "model.heads",
        "cluster.all_reduce.dtype",
        "cluster.all_reduce.overlap",
    ];
    refused(&start(&[&["--config", &config][..], &sets].concat()), 2, &keys);
    let sets = ["--set", "stage.0.data=no-data", "--set", "evaluation.data=none", "--set", "model.positions=32"];
    let keys = ["stage.0.data", "no-data", "evaluation.data", "model.positions is 32"];
    let ran = start(&[&["--config", &config][..], &sets[..4]].concat());
    refused(&ran, 2, &keys[..3]);
    refused(&start(&["--config", &config, sets[4], sets[5]]), 2, &keys[3..]);
    // A file of the other kind is one error.
    let prep = dir.path("prep.toml");
    refused(&start(&["--config", &prep]), 2, &["prep.toml is a configuration of a preparation"]);
    refused(&run(&["prep", "--config", &config]), 2, &["is a configuration of a run"]);
    let other = dir.file("not.toml", "[model\nlayers = 2");
    refused(&start(&["--config", &other]), 2, &["not.toml", "line 1"]);
    assert!(!Path::new(&dir.path("run")).exists(), "a rejected run left files");
}

#[test]
fn an_invalid_run_is_rejected_with_all_errors() {
    let dir = TestDir::new();
    let (config, run_url, other) = (dir.config(4, 2), dir.path("run"), dir.path("other"));
    let vocabulary = dir.path("other.txt");
    done(&["vocab", "--input", &dir.path("corpus.txt"), "--size", "200", "--output", &vocabulary]);
    let sets = [format!("vocabulary.file={vocabulary}"), format!("output.url={other}")];
    done(&["prep", "--config", &dir.path("prep.toml"), "--set", &sets[0], "--set", &sets[1]]);
    let held_out = format!("evaluation.data={other}/held-out");
    let objective = ["objective.pair=sop", "objective.static_masks=3"];
    let model = ["model.hidden=600000", "model.heads=7", "model.positions=32"];
    let faults = [&model[..], &objective, &[held_out.as_str()]].concat();
    let sets: Vec<&str> = faults.iter().flat_map(|fault| ["--set", fault]).collect();
    let start = [&["run", "--run", &run_url, "--config", &config][..], &sets].concat();
    let words = [
        "has 8 errors",
        "objective.static_masks: has no effect with dynamic masks",
        "model.heads: 7 heads do not divide hidden size 600000",
        "stage.0.data: has samples of up to 64 tokens, but model.positions is 32",
        "stage.0.data: was prepared with pair = \"nsp\", but objective.pair is \"sop\"",
        "evaluation.data: has samples of up to 64",
        "evaluation.data: was prepared with pair",
        "evaluation.data: its vocabulary differs from that of stage.0.data",
        "stage.0: needs about ",
        "on this host, which has ",
    ];
    refused(&run(&start), 2, &words);
    assert!(!Path::new(&run_url).exists(), "a rejected run left files");
    done(&["run", "--run", &run_url, "--config", &config]);
    let sets = ["--set", &format!("stage.0.data={other}/train"), "--allow-change", "stage.0.data"].map(str::to_owned);
    let start = [&["run", "--run", &run_url, "--config", &config][..], &sets.each_ref().map(String::as_str)].concat();
    refused(&run(&start), 2, &["stage.0.data: its vocabulary differs from that of the model"]);
}

/// The exit code must be 1, because a retry may find the dataset. Slurm requeues a job that exits with code 1.
#[test]
fn an_unreachable_dataset_is_not_a_configuration_error() {
    let dir = TestDir::new();
    let (config, run_url, away) = (dir.config(4, 1), dir.path("run"), dir.path("away"));
    // A symbolic link to itself: the dataset is inaccessible, not missing.
    std::os::unix::fs::symlink(&away, &away).unwrap();
    let set = format!("stage.0.data={away}");
    let start = ["run", "--run", &run_url, "--config", &config, "--set", &set];
    let alone = run(&start);
    assert_eq!(alone.code, 1, "{}", alone.err);
    assert!(alone.err.contains("stage.0.data: cannot read dataset"), "{}", alone.err);
    let wrong = run(&[&start[..], &["--set", "model.heads=7"]].concat());
    assert_eq!(wrong.code, 2, "{}", wrong.err);
    assert!(wrong.err.contains("has 2 errors"), "{}", wrong.err);
    assert!(!Path::new(&run_url).exists());
}

/// Limits the address space of all processes. The memory formula does not take this limit into account.
#[test]
fn out_of_memory_in_a_step_ends_the_run() {
    let dir = TestDir::new();
    let config = dir.config(4, 1);
    let sets = ["model.intermediate=65536", "stage.0.global_batch=512", "stage.0.micro_batch_tokens=6000"];
    let sets: String = sets.map(|set| format!(" --set {set}")).concat();
    let line = format!(
        "ulimit -v {}; exec {} run --config {config} --run {} --set cluster.all_reduce.backend=local{sets}",
        5 << 20,
        support::lambert().display(),
        dir.path("run")
    );
    let ended = std::process::Command::new("sh").args(["-c", &line]).output().unwrap();
    let ran = CommandOutput {
        code: ended.status.code().unwrap(),
        out: String::new(),
        err: String::from_utf8(ended.stderr).unwrap(),
    };
    let words = [
        "out of memory: cannot allocate ",
        " GiB in a step",
        "stage.0.micro_batch_tokens (6000 now)",
        "objective.max_predictions (20 now",
        "stage.0.recompute = true (false now)",
    ];
    refused(&ran, 70, &words);
    assert!(!ran.err.contains("attempt 2"), "retried, although the step needs the same memory: {}", ran.err);
}

#[test]
fn damaged_datasets_are_rejected() {
    let dir = TestDir::new();
    let (config, run_url) = (dir.config(4, 2), dir.path("run"));
    let shard = dir.path("data/train/shard-00001-of-00002.parquet");
    let good = std::fs::read(&shard).unwrap();
    let mut flipped = good.clone();
    flipped[good.len() / 2] ^= 1;
    std::fs::write(&shard, &flipped).unwrap();
    let words = ["shard-00001-of-00002.parquet is damaged", "sha256"];
    refused(&run(&["inspect", &dir.path("data/train"), "--verify"]), 1, &words);
    let ran = run(&["run", "--config", &config, "--run", &run_url]);
    refused(&ran, 70, &words);
    assert!(!ran.err.contains("attempt 2"), "retried with a damaged dataset: {}", ran.err);
    std::fs::write(&shard, &good[..good.len() - 1]).unwrap();
    let ran = run(&["run", "--config", &config, "--run", &run_url]);
    refused(&ran, 2, &["shard-00001-of-00002.parquet", "bytes"]);
    std::fs::write(&shard, good).unwrap();
    done(&["run", "--config", &config, "--run", &run_url]);
}

/// Nothing is written until the checkpoint is verified.
#[test]
fn a_missing_or_damaged_checkpoint_is_not_copied() {
    let dir = TestDir::new();
    let url = dir.path("run");
    done(&["run", "--config", &dir.config(2, 1), "--run", &url]);
    let newest = format!("{url}/checkpoints/{}", checkpoints(&url)[0]);
    let copied = |from: &str, code: i32, words: &[&str]| {
        refused(&run(&["checkpoint", "copy", from, &dir.path("copy")]), code, words);
        assert!(!Path::new(&dir.path("copy")).exists(), "files are left");
    };
    let absent = format!("{url}/checkpoints/step-000000099-a0001");
    copied(&absent, 2, &["no checkpoint step-000000099-a0001 in ", "`lambert checkpoint list "]);
    let weights = format!("{newest}/model.safetensors");
    let mut bytes = std::fs::read(&weights).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&weights, bytes).unwrap();
    copied(&newest, 1, &["model.safetensors"]);
}

#[test]
fn options_that_name_nothing_are_named() {
    let dir = TestDir::new();
    let (url, nothing) = (dir.path("run"), dir.path("nothing"));
    done(&["run", "--config", &dir.config(2, 1), "--run", &url]);
    let ran = run(&["eval", &url]);
    assert!(ran.code == 2 && ran.err.contains("--data <DATASET>|--text <URL>"), "{}", ran.err);
    let ran = run(&["eval", &url, "--data", &nothing, "--text", &nothing]);
    assert!(ran.code == 2 && ran.err.contains("cannot be used with"), "{}", ran.err);
    refused(&run(&["eval", &url, "--text", &nothing]), 2, &[&format!("--text {nothing}: ")]);
    for command in [&["eval", &url, "--data", &nothing][..], &["inspect", &nothing], &["inspect", &nothing, "--verify"]]
    {
        let ran = run(command);
        assert!(ran.code == 2 && ran.err.contains("is not a dataset: manifest.json not found"), "{}", ran.err);
    }
}

#[test]
fn a_run_with_another_configuration_is_rejected() {
    let dir = TestDir::new();
    let (config, run_url) = (dir.config(4, 2), dir.path("run"));
    done(&["run", "--config", &config, "--run", &run_url]);
    let before = tree(Path::new(&run_url));
    let ran = run(&["run", "--config", &config, "--run", &run_url, "--set", "model.hidden=64", "--set", "run.seed=2"]);
    refused(&ran, 2, &["model.hidden: 32 in the run, 64 now", "run.seed: 1 in the run, 2 now"]);
    assert_eq!(tree(Path::new(&run_url)), before);
    let full = dir.file("full/file", "mine");
    refused(&run(&["export", &run_url, "--output", &dir.path("full")]), 2, &["is not empty"]);
    assert_eq!(std::fs::read(full).unwrap(), b"mine");
}

#[test]
fn damaged_checkpoints_are_skipped() {
    let dir = TestDir::new();
    // Enough steps for three checkpoints even on a slow disk.
    let (config, run_url) = (dir.config(200, 2), dir.path("run"));
    done(&["run", "--config", &config, "--run", &run_url]);
    let [newest, second, third] = checkpoints(&run_url).try_into().unwrap();
    let object = |name: &str, object: &str| format!("{run_url}/checkpoints/{name}/{object}");
    let weights = object(&newest, "model.safetensors");
    let whole = std::fs::read(&weights).unwrap();
    std::fs::write(&weights, &whole[..whole.len() - 1]).unwrap();
    let moments = object(&second, "optimizer-00001-of-00002.safetensors");
    let mut flipped = std::fs::read(&moments).unwrap();
    let middle = flipped.len() / 2;
    flipped[middle] ^= 1;
    std::fs::write(&moments, flipped).unwrap();

    refused(&run(&["checkpoint", "verify", &run_url]), 1, &["2 of 3 checkpoints"]);
    let exported = run(&["export", &run_url, "--output", &dir.path("exported")]);
    assert_eq!(exported.code, 0, "{}", exported.err);
    // With checkpoint.keep = 9, the run does not prune the damaged checkpoints.
    let resumed = run(&["run", "--config", &config, "--run", &run_url, "--set", "checkpoint.keep=9"]);
    assert_eq!(resumed.code, 0, "{}", resumed.err);
    for log in [&exported.err, &resumed.err] {
        for name in [&newest, &second] {
            let warned = log
                .lines()
                .any(|line| line.contains("WARN") && line.contains("skipped checkpoint") && line.contains(name));
            assert!(warned, "{name} is not skipped in {log}");
        }
    }
    assert!(resumed.err.contains(&format!("resuming from {third}")), "{}", resumed.err);
    assert_eq!(checkpoints(&run_url)[0], "step-000000200-a0002");
    let named = run(&["export", &format!("{run_url}/checkpoints/{newest}"), "--output", &dir.path("x")]);
    refused(&named, 1, &[&newest, "model.safetensors"]);

    // Without a usable checkpoint the run must not start from scratch, because that would prune the damaged
    // checkpoints. Here the newest checkpoint gets a higher format number, as if a later version of the program had
    // written it.
    let manifest = object("step-000000200-a0002", "manifest.json");
    let newer = std::fs::read_to_string(&manifest).unwrap().replacen("\"format\": ", "\"format\": 9", 1);
    std::fs::write(&manifest, newer).unwrap();
    let before = checkpoints(&run_url);
    before[1..].iter().for_each(|name| std::fs::write(object(name, "model.safetensors"), "").unwrap());
    let again = run(&["run", "--config", &config, "--run", &run_url]);
    refused(
        &again,
        70,
        &[
            "no usable checkpoint in",
            "refusing to start from scratch",
            &third,
            "step-000000200-a0002/manifest.json",
            "format",
        ],
    );
    assert_eq!(checkpoints(&run_url), before);
    let model = ["fill-mask", &run_url, "the [MASK]"];
    let ran = run(&model);
    assert_eq!(ran.code, 1, "{}", ran.err);
    for word in [" checkpoints, but none that verifies", "lambert checkpoint verify"] {
        assert!(ran.err.contains(word), "{}", ran.err);
    }
}

/// Without a check, programs that start in a removed directory would fail in different ways.
#[test]
fn a_removed_working_directory_is_rejected() {
    let dir = TestDir::new();
    for ranks in [1, 2] {
        let script = format!("mkdir {0} && cd {0} && rmdir {0} && exec \"$@\"", dir.path("gone"));
        let mut command = std::process::Command::new("sh");
        command.args(["-c", &script, "sh"]).arg(support::lambert());
        let arguments = ["run", "--config", &dir.config(3, ranks), "--run", &dir.path("run")];
        let output = command.args(arguments).output().unwrap();
        let (code, err) = (output.status.code().unwrap(), String::from_utf8_lossy(&output.stderr).into_owned());
        refused(&CommandOutput { code, out: String::new(), err }, 2, &["the working directory was deleted"]);
    }
}
