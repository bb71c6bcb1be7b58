//! Knowledge distillation with the real programs: teachers of each kind, the start from layers, world sizes, kills, refused teachers,
//! evaluation and export.

use std::path::Path;
use std::sync::OnceLock;

use lambert_config::RunConfig;
use lambert_plan::architecture::{Architecture, Tensor};
use lambert_plan::distillation::copied_tensors;
use safetensors::SafeTensors;
use serde_json::Value;

use crate::support::{
    Running, TestDir, assert_refused, assert_same_weights, checkpoints, copy, done, read_json, run,
    same_bits_after_kills,
};

const CANONICAL: [&str; 2] = ["--set", "cluster.all_reduce.canonical=true"];

/// Prepares a dataset without sentence pairs, unless it exists. Returns its folder.
fn data(dir: &TestDir) -> String {
    let data = dir.path("data-none");
    if !Path::new(&data).exists() {
        let sets = [
            format!("source.0.path={}", dir.path("corpus.txt")),
            format!("vocabulary.file={}", dir.path("vocab.txt")),
            "samples.pair=none".to_owned(),
            format!("output.url={data}"),
        ];
        let sets: Vec<&str> = sets.iter().flat_map(|set| ["--set", set]).collect();
        done(&[&["prep", "--config", &dir.path("prep.toml")], &sets[..]].concat());
    }
    data
}

/// Writes a configuration of a model of `layers` layers. `more` are further sections.
fn config(dir: &TestDir, name: &str, (family, layers): (&str, usize), steps: u64, more: &str) -> String {
    let data = data(dir);
    let text = format!(
        "[model]\nfamily = {family:?}\nlayers = {layers}\nhidden = 32\nheads = 2\nintermediate = 64\npositions = 64\n\
         [optimizer]\nkind = \"adamw\"\nweight_decay = 0.0\n[[stage]]\nname = \"one\"\ndata = \"{data}/train\"\nsteps = {steps}\n\
         global_batch = 16\nmicro_batch_tokens = 256\nlearning_rate = 5e-3\n[checkpoint]\nevery_steps = 7\nkeep = 3\n\
         [cluster]\nranks = 2\nall_reduce.backend = \"mpi\"\nrestart.limit = 100\n[device]\nkind = \"cpu\"\n\
         [objective]\npair = \"none\"\n{more}"
    );
    dir.file(&format!("{name}.toml"), text)
}

/// Copies the run of a teacher of four layers, which is trained once per test program. Returns the URL of the copy.
fn teacher(dir: &TestDir) -> String {
    static TRAINED: OnceLock<(TestDir, String)> = OnceLock::new();
    let (_, trained) = TRAINED.get_or_init(|| {
        let dir = TestDir::new();
        let (config, url) = (config(&dir, "teacher", ("bert", 4), 60, ""), dir.path("teacher"));
        done(&["run", "--config", &config, "--run", &url, "--set", "cluster.ranks=1"]);
        (dir, url)
    });
    let url = dir.path("teacher");
    copy(trained.as_ref(), url.as_ref());
    url
}

/// Writes the configuration of a student of the teacher `from`.
fn student(dir: &TestDir, from: &str, steps: u64) -> String {
    let data = data(dir);
    let more = format!(
        "[objective.teacher]\nfrom = {from:?}\nlayers = [0, 3]\n\
         [evaluation]\ndata = \"{data}/held-out\"\nevery_steps = 8\nsamples = 32\n"
    );
    config(dir, "student", ("distilbert", 2), steps, &more)
}

/// Architecture and configuration of a run.
fn model(url: &str) -> (Architecture, RunConfig) {
    let text = std::fs::read_to_string(format!("{url}/run.toml")).unwrap();
    let config: RunConfig = lambert_config::Layers::default().parse(&text, url).unwrap();
    let vocabulary = std::fs::read_to_string(format!("{url}/vocab.txt")).unwrap().lines().count();
    (Architecture::of_run(&config, config.model.layers, vocabulary), config)
}

fn newest_weights(url: &str) -> Vec<u8> {
    std::fs::read(format!("{url}/checkpoints/{}/model.safetensors", checkpoints(url)[0])).unwrap()
}

/// Trains students of the same teacher, named in three ways. Each has the same bits.
#[test]
fn each_kind_of_teacher_is_the_same_teacher() {
    let dir = TestDir::new();
    let of_teacher = teacher(&dir);
    let folder = dir.path("exported");
    done(&["export", &of_teacher, "--output", &folder]);
    let checkpoint = format!("{of_teacher}/checkpoints/{}", checkpoints(&of_teacher)[0]);
    let train = |name: &str, from: &str, more: &[&str]| {
        let (config, url) = (student(&dir, from, 16), dir.path(name));
        let ended = Running::start_with(&config, &url, &[&CANONICAL[..], more].concat()).end();
        assert_eq!(ended.code, Some(0), "{name}: {}", ended.log);
        (url, ended.records)
    };
    let (by_run, records) = train("by-run", &of_teacher, &[]);
    let losses = |name: &str| -> Vec<f64> { records.iter().map(|it| it.scores.get(name).unwrap().loss).collect() };
    for name in ["soft_targets", "cosine"] {
        let losses = losses(name);
        assert!(losses[15] < losses[0] && losses.iter().all(|loss| *loss > 0.0), "{name}: {losses:?}");
    }
    let [mlm, soft, cosine] = ["mlm", "soft_targets", "cosine"].map(|name| losses(name)[0]);
    let total = 2.0 * mlm + 5.0 * soft + cosine;
    assert!((records[0].loss / total - 1.0).abs() < 1e-6, "{} {total}", records[0].loss);

    // A later start has the same teacher, although the run of the teacher has a newer checkpoint now, and has lost the older ones.
    let kept = dir.path("kept");
    done(&["checkpoint", "copy", &checkpoint, &kept]);
    let later = config(&dir, "teacher", ("bert", 4), 64, "");
    let more = ["--set", "cluster.ranks=1", "--set", "checkpoint.keep=1", "--allow-change", "stage"];
    done(&[&["run", "--config", &later, "--run", &of_teacher], &more[..]].concat());
    assert!(!Path::new(&checkpoint).exists());
    let info = std::fs::read_to_string(format!("{by_run}/teacher.toml")).unwrap();
    let more = ["--set", "stage.0.steps=18", "--allow-change", "stage"];
    train("by-run", &of_teacher, &more);
    assert_eq!(std::fs::read_to_string(format!("{by_run}/teacher.toml")).unwrap(), info);
    assert!(info.contains(&format!("checkpoint = {checkpoint:?}")), "{info}");

    let name = checkpoints(&kept)[0].clone();
    let kept = format!("{kept}/checkpoints/{name}");
    let (by_checkpoint, _) = train("by-checkpoint", &kept, &[]);
    // The copy has no moments.
    let copied = format!("{by_checkpoint}/teacher/checkpoints/{name}");
    let mut objects: Vec<String> =
        std::fs::read_dir(&copied).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    objects.sort();
    assert_eq!(objects, ["manifest.json", "model.safetensors"]);
    let (by_folder, _) = train("by-folder", &format!("hf:{folder}"), &[]);
    assert_same_weights(&by_checkpoint, &by_folder);
    let manifest = |url: &str| read_json(url, &format!("checkpoints/{}/manifest.json", checkpoints(url)[0]));
    let recorded = manifest(&by_checkpoint)["state"]["teacher"]["weights_sha256"].clone();
    assert_eq!(manifest(&by_run)["state"]["teacher"]["weights_sha256"], recorded);
    assert!(info.contains(recorded.as_str().unwrap()), "{info} {recorded}");

    // The copy of the folder is sufficient.
    std::fs::remove_dir_all(&folder).unwrap();
    let (again, _) = train("by-folder", &format!("hf:{folder}"), &more);
    assert_same_weights(&again, &by_run);

    // Evaluation and export need no teacher.
    std::fs::remove_dir_all(&of_teacher).unwrap();
    let held_out = format!("{}/held-out", data(&dir));
    let evaluated = done(&["eval", "--data", &held_out, "--samples", "32", "--json", &by_run]);
    let evaluated: Value = serde_json::from_str(&evaluated).unwrap();
    assert!(evaluated["mlm_loss"].as_f64().unwrap() > 0.0 && evaluated["soft_targets_loss"].is_null(), "{evaluated}");
    done(&["export", &by_run, "--output", &dir.path("model")]);
    let description: Value =
        serde_json::from_str(&std::fs::read_to_string(dir.path("model/config.json")).unwrap()).unwrap();
    assert_eq!(description["architectures"], serde_json::json!(["DistilBertForMaskedLM"]));
}

/// A rate near zero leaves the initial weights as they are.
#[test]
fn a_student_starts_from_the_tensors_of_its_teacher() {
    let dir = TestDir::new();
    let of_teacher = teacher(&dir);
    let (config, url) = (student(&dir, &of_teacher, 1), dir.path("student"));
    let still = ["--set", "stage.0.learning_rate=1e-30", "--set", "cluster.ranks=1"];
    done(&[&["run", "--config", &config, "--run", &url], &still[..]].concat());
    let ((ours, our_config), (theirs, their_config)) = (model(&url), model(&of_teacher));
    let copied = copied_tensors((&ours, &our_config.model), (&theirs, &their_config.model), &[0, 3]).unwrap();
    assert_eq!(copied.len(), ours.tensors().len());
    let (student, teacher) = (newest_weights(&url), newest_weights(&of_teacher));
    let [student, teacher] = [&student, &teacher].map(|bytes| SafeTensors::deserialize(bytes).unwrap());
    let floats = |file: &SafeTensors<'_>, name: &str| -> Vec<f32> {
        let tensor = file.tensor(name).unwrap();
        tensor.data().chunks_exact(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap())).collect()
    };
    for copied in copied {
        let is_source = |tensor: &Tensor| tensor.id == copied.from;
        let source = theirs.tensors().into_iter().find(is_source).unwrap();
        let (ours, theirs) = (floats(&student, &copied.to.name), floats(&teacher, &source.name));
        let is_equal = ours.iter().zip(&theirs).all(|(ours, theirs)| (ours - theirs).abs() < 1e-20);
        assert!(is_equal && ours.len() == theirs.len(), "{} from {}", copied.to.name, source.name);
    }
    // Without layers, the student starts from random weights.
    let random = dir.path("random");
    done(
        &[&["run", "--config", &config, "--run", &random, "--set", "objective.teacher.layers=[]"], &still[..]].concat(),
    );
    assert_ne!(newest_weights(&random), newest_weights(&url));
}

#[test]
fn every_world_has_the_same_weights() {
    let dir = TestDir::new();
    let config = student(&dir, &teacher(&dir), 12);
    let runs = ["1", "2", "3"].map(|ranks| {
        let (url, ranks) = (dir.path(ranks), format!("cluster.ranks={ranks}"));
        let ended = Running::start_with(&config, &url, &[&CANONICAL[..], &["--set", &ranks]].concat()).end();
        assert_eq!(ended.code, Some(0), "{}", ended.log);
        (url, ended.records.iter().map(|record| record.loss.to_bits()).collect::<Vec<_>>())
    });
    let [(one, records), others @ ..] = &runs;
    for (other, of_other) in others {
        assert_same_weights(one, other);
        assert_eq!(records, of_other, "{other}");
    }
    // The teacher adds to the FLOPs and the memory of the plan.
    let plan = |more: &[&str]| -> Value {
        serde_json::from_str(&done(&[&["plan", "--config", &config, "--json"], more].concat())).unwrap()
    };
    let with = plan(&[]);
    let without = plan(&["--set", "objective.teacher.soft_target_weight=0.0"]);
    let number = |plan: &Value, path: &str| plan.pointer(path).unwrap().as_f64().unwrap();
    let alone = self::config(&dir, "alone", ("distilbert", 2), 12, "");
    let alone: Value = serde_json::from_str(&done(&["plan", "--config", &alone, "--json"])).unwrap();
    for path in ["/total_flops", "/stages/0/memory/host_bytes"] {
        let [with, without, alone] = [&with, &without, &alone].map(|plan| number(plan, path));
        assert!(with > without && without > alone, "{path}: {with} {without} {alone}");
    }
    // Measured steps have a teacher.
    let measured = plan(&["--machine", "here"]);
    assert!(number(&measured, "/total_hours") > 0.0, "{measured}");
    let bench = |more: &[&str]| {
        let line = [&["bench", "--config", &config, "--steps", "3", "--warmup", "1", "--json"][..], more].concat();
        std::process::Command::new(env!("CARGO_BIN_EXE_lambert-worker")).args(line).output().unwrap()
    };
    let refused = bench(&[]);
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(refused.status.code() == Some(2) && said.contains("add --teacher with the file teacher.toml"), "{said}");
    // A teacher of 3 million more parameters takes more memory.
    let info = std::fs::read_to_string(format!("{}/teacher.toml", runs[0].0)).unwrap();
    let wide =
        info.replace("\nhidden = 32\n", "\nhidden = 512\n").replace("\nintermediate = 64\n", "\nintermediate = 1024\n");
    assert_ne!(info, wide);
    let peak = |name: &str, info: &str| {
        let file = dir.file(name, info);
        let output = bench(&["--teacher", &file, "--set", "objective.teacher.cosine_weight=0.0"]);
        let report: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        number(&report, "/peak_memory")
    };
    let (narrow, wide) = (peak("narrow.toml", &info), peak("wide.toml", &wide));
    assert!(wide > narrow + 12e6, "{narrow} {wide}");
    let refused = bench(&["--teacher", &dir.path("wide.toml")]);
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(refused.status.code() == Some(2) && said.contains("cosine_weight: needs equal hidden sizes"), "{said}");
}

#[test]
fn a_killed_student_has_the_same_bits() {
    let dir = TestDir::new();
    let config = student(&dir, &teacher(&dir), 60);
    same_bits_after_kills(&dir, &config, 1, 60);
}

#[test]
#[ignore = "a minute: CONTRIBUTING.md"]
fn twenty_kills_of_a_student_leave_the_same_bits() {
    let dir = TestDir::new();
    let config = student(&dir, &teacher(&dir), 1200);
    same_bits_after_kills(&dir, &config, 20, 1200);
}

/// Another teacher is refused, whether its weights differ or the configuration of its encoder.
#[test]
fn another_teacher_is_refused() {
    let dir = TestDir::new();
    let of_teacher = teacher(&dir);
    let (config, url) = (student(&dir, &of_teacher, 9), dir.path("run"));
    let one = ["--set", "cluster.ranks=1"];
    done(&[&["run", "--config", &config, "--run", &url], &one[..]].concat());
    let other = dir.path("other");
    let of_other = self::config(&dir, "other", ("bert", 4), 60, "");
    done(&[&["run", "--config", &of_other, "--run", &other, "--set", "run.seed=2"], &one[..]].concat());
    let start = |more: &[&str]| run(&[&["run", "--config", &config, "--run", &url], &one[..], more].concat());
    let from = format!("objective.teacher.from={other}");
    let refused = start(&["--set", &from]);
    assert!(refused.code == 2 && refused.err.contains("objective.teacher.from: "), "{}", refused.err);
    let refused = start(&["--set", &from, "--allow-change", "objective"]);
    assert!(refused.code == 2 && refused.err.contains("were trained with a different teacher"), "{}", refused.err);
    // The same weights with four heads are another teacher.
    let heads = dir.path("heads");
    copy(of_teacher.as_ref(), heads.as_ref());
    let text = std::fs::read_to_string(format!("{heads}/run.toml")).unwrap();
    assert!(text.contains("heads = 2\n"), "{text}");
    std::fs::write(format!("{heads}/run.toml"), text.replace("heads = 2\n", "heads = 4\n")).unwrap();
    let from = format!("objective.teacher.from={heads}");
    let refused = start(&["--set", &from, "--allow-change", "objective"]);
    assert!(refused.code == 2 && refused.err.contains("were trained with a different teacher"), "{}", refused.err);
    // Each checkpoint records the teacher.
    let manifest = read_json(&format!("{url}/checkpoints/{}", checkpoints(&url)[0]), "manifest.json");
    let record = &manifest["state"]["teacher"];
    assert!(record["weights_sha256"].is_string() && record["config_sha256"].is_string(), "{record}");
    assert_eq!((&record["model"]["heads"], &record["model"]["layers"]), (&Value::from(2), &Value::from(4)));
    // Another temperature is a change that can be allowed.
    let hotter = ["--set", "objective.teacher.temperature=3.0", "--set", "stage.0.steps=10"];
    let refused = start(&hotter);
    assert!(refused.err.contains("objective.teacher.temperature: 2.0 in the run, 3.0 now"), "{}", refused.err);
    let allowed = start(&[&hotter[..], &["--allow-change", "objective", "--allow-change", "stage"]].concat());
    assert_eq!(allowed.code, 0, "{}", allowed.err);
}

/// Damages the copy of the teacher in several ways. A start makes it again, if the teacher is still there.
#[test]
fn a_copy_that_is_not_complete_is_made_again() {
    let dir = TestDir::new();
    let of_teacher = teacher(&dir);
    std::fs::create_dir(dir.path("beside")).unwrap();
    let (config, url) = (student(&dir, &dir.path("beside/../teacher/"), 9), dir.path("run"));
    let mut steps = 9;
    let mut start = |more: &[&str]| {
        steps += 1;
        let steps = format!("stage.0.steps={steps}");
        let line = [
            "run",
            "--config",
            &config,
            "--run",
            &url,
            "--set",
            "cluster.ranks=1",
            "--allow-change",
            "stage",
            "--set",
            &steps,
        ];
        run(&[&line[..], more].concat())
    };
    let first = start(&[]);
    assert!(first.code == 0 && !first.err.contains("copying it again"), "{}", first.err);
    let (copy, kept) = (format!("{url}/teacher"), dir.path("kept"));
    let name = checkpoints(&copy)[0].clone();
    let weights = || std::fs::read(format!("{copy}/checkpoints/{name}/model.safetensors")).unwrap();
    let expected = weights();
    std::fs::rename(&copy, &kept).unwrap();
    let copied = start(&[]);
    assert!(
        copied.code == 0 && copied.err.contains("is not a complete copy of the teacher; copying it again from "),
        "{}",
        copied.err
    );
    for part in
        ["run.toml", &format!("checkpoints/{name}/manifest.json"), &format!("checkpoints/{name}/model.safetensors")]
    {
        std::fs::remove_file(format!("{copy}/{part}")).unwrap();
        let copied = start(&[]);
        assert!(copied.code == 0 && copied.err.contains("copying it again"), "{part}: {}", copied.err);
        assert!(weights() == expected, "{part}");
    }
    // The copy of another teacher.
    let (other, of_other) = (dir.path("other"), self::config(&dir, "other", ("bert", 4), 60, ""));
    done(&["run", "--config", &of_other, "--run", &other, "--set", "run.seed=2", "--set", "cluster.ranks=1"]);
    let more = format!("objective.teacher.from={other}");
    done(&["run", "--config", &config, "--run", &dir.path("of-other"), "--set", &more, "--set", "cluster.ranks=1"]);
    std::fs::remove_dir_all(&copy).unwrap();
    std::fs::rename(format!("{}/teacher", dir.path("of-other")), &copy).unwrap();
    let copied = start(&[]);
    assert!(copied.code == 0 && copied.err.contains("copying it again") && weights() == expected, "{}", copied.err);

    // A copy of a checkpoint has the teacher too, so that it can be resumed.
    let copied_to = dir.path("copied-to");
    let checkpoint = format!("{url}/checkpoints/{}", checkpoints(&url).pop().unwrap());
    for _ in 0..2 {
        done(&["checkpoint", "copy", &checkpoint, &copied_to]);
    }
    let info = format!("{copied_to}/teacher.toml");
    let kept = std::fs::read_to_string(&info).unwrap();
    let hash = kept.lines().find(|line| line.starts_with("weights_sha256")).unwrap();
    std::fs::write(&info, kept.replace(hash, "weights_sha256 = \"other\"")).unwrap();
    let refused = run(&["checkpoint", "copy", &checkpoint, &copied_to]);
    assert!(refused.code == 2 && refused.err.contains("the teacher differs"), "{}", refused.err);
    std::fs::write(&info, kept).unwrap();
    // Without the teacher, the copy is used. It may even be named.
    std::fs::rename(&of_teacher, dir.path("away")).unwrap();
    let alone = start(&[]);
    assert!(alone.code == 0 && !alone.err.contains("copying it again"), "{}", alone.err);
    let steps = ["--set", "stage.0.steps=40", "--set", "cluster.ranks=1", "--allow-change", "stage"];
    done(&[&["run", "--run", &copied_to][..], &steps].concat());
    let own = format!("objective.teacher.from={copy}");
    let named = start(&["--set", &own, "--allow-change", "objective"]);
    assert!(named.code == 0 && weights() == expected, "{}", named.err);
    // Neither the teacher nor a complete copy.
    std::fs::remove_file(format!("{copy}/run.toml")).unwrap();
    let refused = start(&["--set", &own]);
    assert!(refused.code == 2 && refused.err.contains("objective.teacher.from: "), "{}", refused.err);
    assert!(weights() == expected);
    // Another teacher in its place.
    std::fs::rename(&other, &of_teacher).unwrap();
    let refused = start(&["--allow-change", "objective"]);
    assert!(refused.code == 2 && refused.err.contains("were trained with a different teacher"), "{}", refused.err);
    assert!(weights() == expected);
}

#[test]
fn a_teacher_that_does_not_fit_is_refused_by_name() {
    let dir = TestDir::new();
    let of_teacher = teacher(&dir);
    let config = student(&dir, &of_teacher, 8);
    let nothing = format!("objective.teacher.from={}", dir.path("nothing"));
    let no_checkpoint = format!("objective.teacher.from={of_teacher}/checkpoints/step-000000001-a0001");
    assert_refused(
        &dir,
        &config,
        &[
            (&nothing, "objective.teacher.from: "),
            (&no_checkpoint, "objective.teacher.from: "),
            ("objective.teacher.from=hf:/no/such", "/no/such"),
            ("objective.teacher.layers=[0,4]", "objective.teacher.layers: layer 4 does not exist"),
            ("objective.teacher.layers=[0]", "objective.teacher.layers: 1 layers for model.layers = 2"),
            ("model.hidden=64", "objective.teacher.cosine_weight: needs equal hidden sizes, but model.hidden is 64"),
            ("model.intermediate=32", "objective.teacher.layers: model.intermediate is 32, that of the teacher is 64"),
            ("stage.0.layers=1", "stage.0.layers = 1: must be model.layers (2), because"),
            ("run.from=hf:/no/such", "objective.teacher.layers: conflicts with run.from"),
            ("objective.teacher.temperature=0.0", "objective.teacher.temperature = 0: must be above 0"),
        ],
    );
    let from = format!("{of_teacher}/checkpoints/{}", checkpoints(&of_teacher)[0]);
    let arguments = ["run", "--check", "--config", &config, "--run", &dir.path("none"), "--from", &from];
    let refused = run(&[&arguments[..], &["--set", "objective.teacher.layers=[]"]].concat());
    assert!(refused.code == 2 && refused.err.contains("a model with a teacher cannot grow"), "{}", refused.err);
    // A dataset whose text keeps its case.
    let cased = dir.path("cased");
    copy(format!("{}/train", data(&dir)).as_ref(), cased.as_ref());
    let manifest = format!("{cased}/manifest.json");
    let text = std::fs::read_to_string(&manifest).unwrap();
    std::fs::write(&manifest, text.replace("\"lowercase\": true", "\"lowercase\": false")).unwrap();
    let message = format!(
        "objective.teacher.from: the tokenizer of {of_teacher} lowercases text, that of {cased} keeps the case of text; prepare \
         the dataset with vocabulary.lowercase = true"
    );
    let (none, train) = (dir.path("none"), format!("stage.0.data={cased}"));
    let start = ["run", "--check", "--config", &config, "--run", &none, "--set", "evaluation.data=", "--set", &train];
    let refused = run(&start);
    assert!(refused.code == 2 && refused.err.contains(&message), "{}", refused.err);
    // A dataset with another vocabulary.
    let vocabulary = dir.path("small.txt");
    done(&["vocab", "--input", &dir.path("corpus.txt"), "--size", "200", "--output", &vocabulary]);
    let sets = [
        format!("source.0.path={}", dir.path("corpus.txt")),
        format!("vocabulary.file={vocabulary}"),
        "samples.pair=none".to_owned(),
        format!("output.url={}", dir.path("other-data")),
    ];
    let sets: Vec<&str> = sets.iter().flat_map(|set| ["--set", set]).collect();
    done(&[&["prep", "--config", &dir.path("prep.toml")], &sets[..]].concat());
    let train = format!("stage.0.data={}/train", dir.path("other-data"));
    let refused = run(&[
        "run",
        "--check",
        "--config",
        &config,
        "--run",
        &dir.path("none"),
        "--set",
        &train,
        "--set",
        "evaluation.data=",
    ]);
    assert!(refused.code == 2, "{}", refused.err);
    assert!(refused.err.contains("objective.teacher.from: the vocabulary of "), "{}", refused.err);
}

/// The weights of a layer have the same meaning in the model only if the layer computes the same from them.
#[test]
fn layers_that_would_compute_something_else_are_refused() {
    let dir = TestDir::new();
    let config = student(&dir, &teacher(&dir), 8);
    let check = |family: &str, sets: &[&str]| {
        let family = format!("model.family={family:?}");
        let sets = [&[family.as_str()], sets].concat();
        let sets: Vec<&str> = sets.iter().flat_map(|set| ["--set", *set]).collect();
        run(&[&["run", "--check", "--config", &config, "--run", &dir.path("none")], &sets[..]].concat())
    };
    let same = check("bert", &["model.dropout=0.3", "model.precision=\"bf16\""]);
    assert_eq!(same.code, 0, "{}", same.err);
    let refused = check("bert", &["model.layer_norm_eps=1e-5"]);
    let message = "objective.teacher.layers: model.layer_norm_eps is 0.00001, that of the teacher is 1e-12";
    assert!(refused.code == 2 && refused.err.contains(message), "{}", refused.err);
}
