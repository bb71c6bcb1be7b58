//! `lambert init`: each combination of options gives valid files, and the printed commands work.

use std::collections::BTreeSet;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use lambert_config::run::DeviceKind;
use lambert_config::{Layers, RunConfig};
use lambert_data_prep::{prep, source};

use crate::support::{copy, done, lambert, run};

const SOURCES: [&str; 4] = ["books", "wikipedia", "text", "books,wikipedia,text"];
const PLACES: [&[&str]; 4] = [
    &["--gpus-per-node", "0"],
    &["--gpus-per-node", "4"],
    &["--place", "slurm", "--nodes", "2"],
    &["--place", "slurm", "--nodes", "2", "--gpus-per-node", "0"],
];
const MODELS: [&[&str]; 9] = [
    &["--size", "small"],
    &["--size", "base"],
    &["--size", "large"],
    &["--size", "base", "--recipe", "adam"],
    &["--size", "base", "--recipe", "lamb"],
    &["--size", "base", "--recipe", "stacked"],
    &["--size", "large", "--recipe", "adam"],
    &["--size", "large", "--recipe", "lamb"],
    &["--size", "large", "--recipe", "stacked"],
];

/// Runs `lambert init` for one combination. Returns the printed text.
fn init(source: &str, place: &[&str], model: &[&str], input: &str, output: &Path) -> String {
    let output = output.to_str().unwrap();
    let input: &[&str] = if source.contains("text") { &["--input", input] } else { &[] };
    done(&[&["init", "--source", source, "--output", output], place, model, input].concat())
}

/// Output folder of a combination.
fn named(folder: &Path, source: &str, place: &[&str], model: &[&str]) -> PathBuf {
    folder.join(format!("{source}{}{}", place.concat(), model.concat()))
}

/// Asserts that the file names an existing schema, and that each section and key has a comment of one line.
fn assert_commented(path: &Path) {
    let text = std::fs::read_to_string(path).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    let schema = lines[0].strip_prefix("#:schema ./").unwrap();
    assert!(path.with_file_name(schema).exists(), "{schema}");
    let is_entry = |line: &str| line.starts_with('[') || line.trim_start_matches("# ").contains(" = ");
    let mut entries = 0;
    for (number, pair) in lines.windows(2).enumerate().filter(|(_, pair)| is_entry(pair[1])) {
        assert!(pair[0].starts_with("# ") && !is_entry(pair[0]), "{}:{}: no comment", path.display(), number + 2);
        entries += 1;
    }
    assert!(entries > 10, "{text}");
}

/// Writes books, a Wikipedia dump and JSON lines. Returns the folder.
fn corpora() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    for name in ["corpus/books", "corpus/wiki"] {
        std::fs::create_dir_all(path(name)).unwrap();
    }
    let (mut pages, mut rows) = (String::from("<mediawiki>\n"), String::new());
    for (seed, kind) in (1..=60).zip(["book", "page", "row"].into_iter().cycle()) {
        let text = path("text");
        done(&["generate", "--documents", "20", "--seed", &seed.to_string(), "--output", text.to_str().unwrap()]);
        let text = std::fs::read_to_string(text).unwrap();
        match kind {
            "book" => std::fs::write(path(&format!("corpus/books/{seed}.txt")), text).unwrap(),
            "page" => {
                pages += &format!(
                    "<page><title>T{seed}</title><ns>0</ns><id>{seed}</id><revision><text>{text}</text></revision></page>\n"
                );
            }
            _ => rows += &(serde_json::json!({ "text": text }).to_string() + "\n"),
        }
    }
    let dump = std::fs::File::create(path("corpus/wiki/dump.xml.bz2")).unwrap();
    let mut dump = bzip2::write::BzEncoder::new(dump, bzip2::Compression::fast());
    dump.write_all((pages + "</mediawiki>\n").as_bytes()).unwrap();
    dump.finish().unwrap();
    std::fs::write(path("rows.jsonl"), rows).unwrap();
    std::fs::remove_file(path("text")).unwrap();
    folder
}

/// Returns the commands that `lambert init` printed, without comments and without the change of the folder.
fn steps(printed: &str) -> Vec<String> {
    let steps = printed.split_once("\nNext:\n").unwrap().1.lines().map(str::trim);
    let commands = steps.filter(|step| !step.starts_with(['#']) && !step.starts_with("cd "));
    commands.map(str::to_owned).collect()
}

/// Runs a printed command in `folder`. `environment` overrides keys of the configuration.
fn perform(step: &str, folder: &Path, environment: &[(&str, &str)]) -> String {
    let programs = lambert().parent().unwrap().to_owned();
    let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap());
    let variables = environment.iter().copied();
    let output =
        Command::new("sh").args(["-c", step]).current_dir(folder).env("PATH", path).envs(variables).output().unwrap();
    assert!(output.status.success(), "{step}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn every_combination_is_valid() {
    let folder = corpora();
    let rows = folder.path().join("rows.jsonl");
    let mut shown = BTreeSet::new();
    for source in SOURCES {
        for place in PLACES {
            for model in MODELS {
                let output = named(folder.path(), source, place, model);
                let printed = init(source, place, model, rows.to_str().unwrap(), &output);
                shown.extend(steps(&printed));
                let files = ["prep.toml", "run.toml"].map(|name| output.join(name));
                files.iter().for_each(|path| assert_commented(path));
                let config = prep::load(&Layers::default(), &files[..1]).unwrap_or_else(|error| panic!("{error}"));
                assert_eq!(source::unused_settings(&config), [], "{}", files[0].display());
                let run: RunConfig = Layers::default().load(&files[1..2]).unwrap_or_else(|error| panic!("{error}"));
                assert_eq!(config.source.len(), source.split(',').count());
                let on_gpus = run.device.kind == DeviceKind::Cuda;
                assert_eq!(on_gpus, !place.contains(&"0"), "{}", files[1].display());
                assert_eq!(run.slurm.nodes, if place.contains(&"slurm") { 2 } else { 1 });
                done(&["plan", "--config", files[1].to_str().unwrap()]);
            }
        }
    }
    for command in ["prep", "submit --prep", "plan", "run --check", "run", "submit --dry-run", "submit", "vocab"] {
        let start = format!("lambert {command} --config ");
        assert!(shown.iter().any(|step| step.starts_with(&start)), "no {command} in {shown:#?}");
    }
}

/// Prepares the datasets of each source with the printed commands. Then checks the start of each run with real data.
#[test]
fn every_source_is_prepared_and_every_run_could_start() {
    let folder = corpora();
    let rows = folder.path().join("rows.jsonl");
    for source in SOURCES {
        let mut prepared: Option<PathBuf> = None;
        // The datasets of BERT-base are also those of the small model.
        let models = [MODELS[1], MODELS[0]];
        for (model, place) in models.iter().flat_map(|model| PLACES.map(|place| (model, place))) {
            let output = named(folder.path(), source, place, model);
            let printed = init(source, place, model, rows.to_str().unwrap(), &output);
            match &prepared {
                Some(data) => copy(&data.join("data"), &output.join("data")),
                None => copy(&folder.path().join("corpus"), &output.join("corpus")),
            }
            // Four ranks of BERT-base need more memory than some test machines have.
            let checks_memory = place == PLACES[1] && model != &MODELS[0];
            for step in steps(&printed) {
                let is_preparation = step.starts_with("lambert vocab") || step.starts_with("lambert prep");
                let is_check = step.contains(" --check") || step.contains(" --dry-run");
                if (is_check && !checks_memory) || (is_preparation && prepared.is_none()) {
                    perform(&step, &output, &[]);
                }
            }
            prepared.get_or_insert(output);
        }
    }
}

/// The first day of a user: every printed command, in order, with a shorter run.
#[test]
fn own_text_becomes_a_model() {
    let folder = tempfile::tempdir().unwrap();
    let text = folder.path().join("notes.txt");
    done(&["generate", "--documents", "400", "--output", text.to_str().unwrap()]);
    let output = folder.path().join("first run");
    let printed = init("text", PLACES[0], MODELS[0], text.to_str().unwrap(), &output);
    assert!(printed.contains("cd '"), "{printed}");
    let shorter = [
        ("LAMBERT__STAGE__0__STEPS", "3"),
        ("LAMBERT__STAGE__0__GLOBAL_BATCH", "8"),
        ("LAMBERT__EVALUATION__SAMPLES", "8"),
        ("LAMBERT__CLUSTER__RANKS", "1"),
        ("LAMBERT__DEVICE__THREADS", "1"),
    ];
    let commands = steps(&printed);
    assert_eq!(commands.len(), 6, "{commands:#?}");
    for step in &commands {
        let is_run = ["lambert plan", "lambert run"].iter().any(|start| step.starts_with(start));
        let shown = perform(step, &output, if is_run { &shorter } else { &[] });
        let (word, expected) = match step {
            _ if step.starts_with("lambert vocab") => ("wrote", "vocab.txt"),
            _ if step.starts_with("lambert prep") => ("wrote data/128/train", "held out"),
            _ if step.starts_with("lambert plan") => ("phase-1", "hours"),
            _ if step.contains("--check") => ("total: 3 steps", "all checks passed"),
            _ if step.starts_with("lambert status") => ("3/3", "finished"),
            _ => ("", ""),
        };
        assert!(shown.contains(word) && shown.contains(expected), "{step}: {shown}");
    }
}

/// The folder of the files is not a run, although it has a run.toml.
#[test]
fn a_folder_of_files_is_not_a_run() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("files");
    init("books", PLACES[0], MODELS[0], "", &output);
    let (place, file) = (output.to_str().unwrap(), output.join("run.toml"));
    let before = std::fs::read_to_string(&file).unwrap();
    let message = format!("{place} holds a configuration, not a run; use --config {place}/run.toml and another --run");
    for config in [&[][..], &["--config", file.to_str().unwrap()]] {
        let refused = run(&[&["run", "--run", place], config].concat());
        assert!(refused.code == 2 && refused.err.contains(&message), "{} {}", refused.code, refused.err);
    }
    let tune = ["tune", "--config", file.to_str().unwrap(), "--runs", place, "--grid", "run.seed=1,2"];
    let refused = run(&tune);
    assert!(
        refused.code == 2 && refused.err.contains("is itself a run (run.toml exists)"),
        "{} {}",
        refused.code,
        refused.err
    );
    assert_eq!(std::fs::read_to_string(&file).unwrap(), before);
    assert!(!output.join("tune.toml").exists());
}

#[test]
fn existing_files_and_missing_inputs_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("files");
    init("books", PLACES[0], MODELS[0], "", &output);
    let before = std::fs::read_to_string(output.join("run.toml")).unwrap();
    std::fs::remove_file(output.join("prep.toml")).unwrap();
    let place = output.to_str().unwrap();
    let again = ["init", "--source", "books", "--size", "large", "--output", place];
    let refused = run(&again);
    assert_eq!((refused.code, refused.out.as_str()), (2, ""), "{}", refused.err);
    assert!(refused.err.contains(&format!("files exist already: {place}/run.toml, ")), "{}", refused.err);
    assert!(!output.join("prep.toml").exists(), "a refused command wrote a file");
    assert_eq!(std::fs::read_to_string(output.join("run.toml")).unwrap(), before);
    done(&[&again[..], &["--force"]].concat());
    assert_ne!(std::fs::read_to_string(output.join("run.toml")).unwrap(), before);

    let new = folder.path().join("new");
    let refused = |options: &[&str], expected: &str| {
        let ran = run(&[&["init", "--output", new.to_str().unwrap()], options].concat());
        assert_eq!(ran.code, 2, "{options:?}");
        assert!(ran.err.contains(expected), "{options:?}: {}", ran.err);
        assert!(!new.exists(), "{options:?} wrote files");
    };
    refused(&["--source", "text", "--input", "no/notes.jsonl"], "--input no/notes.jsonl: No such file or directory");
    refused(&["--source", "text", "--input", "no/*.txt"], "--input no/*.txt: no file found");
    refused(&["--source", "books", "--books", "no/books"], "--books no/books: No such file");
    refused(&["--source", "wikipedia", "--wikipedia", "no/*.bz2"], "--wikipedia no/*.bz2: no file found");
    refused(&["--source", "text"], "--input <PATH>");
    refused(&["--source", "books", "--input", "a.txt"], "--input needs --source text");
    refused(&["--source", "books", "--recipe", "lamb"], "--recipe needs --size base or --size large");
    refused(&["--source", "books", "--nodes", "2"], "--nodes needs --place slurm");
    let many = ["--source", "books", "--place", "slurm", "--nodes", "9", "--gpus-per-node", "8"];
    refused(&many, "72 ranks, but only 64 samples per step");
}
