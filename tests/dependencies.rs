//! Checks the dependency rules of docs/design/architecture.md against the dependency graph of cargo and the sources.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::modules::CRATES;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// Returns the dependencies of a workspace crate. Each one is listed twice: by name, and by name and version as in
/// `bzip2 0.6`.
fn linked(name: &str) -> BTreeSet<String> {
    let tree = cargo(&["tree", "--package", name, "--edges", "normal", "--prefix", "none", "--locked", "--offline"]);
    let mut names = BTreeSet::new();
    for line in tree.lines() {
        let mut words = line.split_whitespace();
        let (Some(other), Some(version)) = (words.next(), words.next()) else { continue };
        let version: Vec<&str> = version.trim_start_matches('v').split('.').take(2).collect();
        if other != name {
            names.extend([other.to_owned(), format!("{other} {}", version.join("."))]);
        }
    }
    names
}

/// Names of the crates of the workspace.
fn members() -> BTreeSet<String> {
    let metadata: Value =
        serde_json::from_str(&cargo(&["metadata", "--format-version", "1", "--no-deps", "--offline"])).unwrap();
    metadata["packages"]
        .as_array()
        .unwrap()
        .iter()
        .map(|package| package["name"].as_str().unwrap().to_owned())
        .collect()
}

fn cargo(arguments: &[&str]) -> String {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let output = Command::new(cargo).args(arguments).current_dir(ROOT).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn crates_depend_in_one_direction() {
    const TENSORS: &[&str] = &["tch", "torch-sys"];
    const MPI: &[&str] = &["mpi", "mpi-sys"];
    // Text parsers and segmenters that only data preparation needs. (tch depends on another version of bzip2.)
    const TEXT: &[&str] = &["bzip2 0.6", "lzma-rust2", "icu_segmenter", "html-escape", "infer", "encoding_rs"];
    const PROGRAMS: &[&str] = &["lambert", "lambert-worker"];
    const DATA: &[&str] = &["lambert-data-prep", "lambert-dataset"];
    const CLUSTER: &[&str] = &["lambert-collective", "lambert-store", "tokio"];
    let rules: [(&str, &[&[&str]]); 10] = [
        ("lambert-config", &[PROGRAMS, DATA, CLUSTER, &["lambert-control", "lambert-plan"], TENSORS, MPI]),
        ("lambert-plan", &[PROGRAMS, DATA, CLUSTER, &["lambert-control"], TENSORS, MPI]),
        ("lambert-dataset", &[PROGRAMS, &["lambert-data-prep", "lambert-collective"], TENSORS, MPI, TEXT]),
        ("lambert-data-prep", &[PROGRAMS, &["lambert-collective"], TENSORS, MPI]),
        ("lambert-control", &[PROGRAMS, DATA, CLUSTER, &["lambert-config", "lambert-plan"], TENSORS, MPI]),
        ("lambert-collective", &[PROGRAMS, DATA, &["lambert-config", "lambert-plan"], TENSORS]),
        ("lambert-store", &[PROGRAMS, DATA, &["lambert-config", "lambert-plan"], TENSORS, MPI]),
        (
            "lambert-progress",
            &[
                PROGRAMS,
                DATA,
                &["lambert-collective", "lambert-config", "lambert-control", "lambert-plan"],
                TENSORS,
                MPI,
            ],
        ),
        ("lambert", &[&["lambert-worker", "lambert-collective"], TENSORS, MPI]),
        ("lambert-worker", &[&["lambert", "lambert-data-prep"], TEXT]),
    ];
    let reached: BTreeMap<String, BTreeSet<String>> =
        members().into_iter().map(|name| (name.clone(), linked(&name))).collect();
    assert_eq!(reached.len(), rules.len(), "a crate without a rule: {:?}", reached.keys());
    let mut broken = Vec::new();
    for (name, forbidden) in rules {
        let found = forbidden.iter().flat_map(|group| group.iter()).filter(|other| reached[name].contains(**other));
        broken.extend(found.map(|other| format!("{name} -> {other}")));
    }
    assert!(broken.is_empty(), "{broken:?}");
    // These edges prove that the graph was read.
    assert!(reached["lambert-worker"].contains("tch") && reached["lambert-worker"].contains("mpi"));
    assert!(reached["lambert"].contains("lambert-store"));
    assert!(TEXT.iter().all(|name| reached["lambert-data-prep"].contains(*name)));
}

/// All text files below `folder` (or the file itself), with their text.
fn files_below(folder: &str) -> Vec<(String, String)> {
    let path = Path::new(ROOT).join(folder);
    if path.is_file() {
        // Pictures are not text.
        return String::from_utf8(std::fs::read(&path).unwrap()).map_or(vec![], |text| vec![(folder.to_owned(), text)]);
    }
    let mut files = Vec::new();
    for entry in std::fs::read_dir(&path).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        files.extend(files_below(&format!("{folder}/{name}")));
    }
    files
}

/// All source files below `folder` of src/.
fn sources(folder: &str) -> Vec<(String, String)> {
    let files = files_below(&format!("src/{folder}")).into_iter();
    files.map(|(name, text)| (name.strip_prefix("src/").unwrap().to_owned(), text)).collect()
}

/// Text of a source file without comments and tests.
fn code(text: &str) -> String {
    let tests = ["#[cfg(test)]\nmod tests {", "#[cfg(test)]\npub(crate) mod tests {"];
    let before_tests = tests.iter().fold(text, |text, tests| text.split(tests).next().unwrap_or_default());
    let lines = before_tests.lines().filter(|line| !line.trim_start().starts_with("//"));
    lines.map(|line| format!("{line}\n")).collect()
}

/// Returns the files below `folders`, but outside `home`, whose code contains one of `words`. Also returns each word
/// that `home` itself lacks.
fn violations(folders: &[&str], home: &str, words: &[&str]) -> Vec<String> {
    let mut found = Vec::new();
    let at_home: String = files_below(home).iter().map(|(_, text)| code(text)).collect();
    for word in words {
        if !at_home.contains(word) {
            found.push(format!("{home} does not have {word}: nothing is proved"));
        }
        for (file, text) in folders.iter().flat_map(|folder| files_below(folder)) {
            if !file.starts_with(home) && !file.ends_with("/tests.rs") && code(&text).contains(word) {
                found.push(format!("{file} has {word}, which belongs into {home}"));
            }
        }
    }
    found
}

/// Otherwise `cargo test` would compile again what `cargo build` has compiled, for a feature that only a dependency of the tests needs.
#[test]
fn builds_and_tests_have_the_same_features() {
    // Without the dependencies of build scripts, which may have other features of a package than programs.
    let features = |edges: &str| -> BTreeSet<String> {
        let format = ["--prefix", "none", "--format", "{p} {f}", "--locked", "--offline"];
        let tree = cargo(&[&["tree", "--workspace", "--edges", edges], &format[..]].concat());
        tree.lines().map(|line| line.trim_end_matches(" (*)").to_owned()).collect()
    };
    let (build, test) = (features("normal"), features("normal,dev"));
    assert!(build.len() > 300 && test.len() > build.len(), "{} and {} packages", build.len(), test.len());
    let other: Vec<&String> = build.difference(&test).collect();
    assert!(
        other.is_empty(),
        "tests need more features; add them to the section for it in Cargo.toml or cluster/store/Cargo.toml: {other:?}"
    );
}

#[test]
fn each_name_is_defined_in_one_module() {
    // Object names of a run. (Datasets have a separate vocab.txt and manifest.json.)
    let of_runs = [
        "\"run.toml\"",
        "\"vocab.txt\"",
        "status.json",
        "coordinator.json",
        "control/stop",
        "control/checkpoint\"",
        "\"manifest.json\"",
        "model.safetensors",
        "\"optimizer-",
        "\"rollbacks\"",
        "\"metrics\"",
        "\"lease-",
        "\"step-",
    ];
    let mut broken = violations(&["src", "launcher/src", "cluster/store/src"], "cluster/store/src/run.rs", &of_runs);
    // File names of a run on its hosts.
    let on_hosts = ["lambert-logs-", "lambert-mpirun-", "/var/tmp/lambert", "\"attempt-", "\"rank-{"];
    let folders = ["src", "launcher/src", "data-prep/dataset/src", "cluster/store/src"];
    broken.extend(violations(&folders, "cluster/store/src/host_paths.rs", &on_hosts));
    const SEARCHED: [&str; 5] = ["src", "launcher/src", "configs/src", "configs/plan/src", "cluster/control/src"];
    // Tensor names of a model.
    let of_models = ["\"bert.", "\"cls.", "attention.self", ".word_embeddings", "LayerNorm\"", "\"ln\""];
    broken.extend(violations(&SEARCHED, "configs/plan/src/architecture/", &of_models));
    // Names of the objectives.
    let of_objectives = ["\"mlm\"", "\"pair\"", "\"MLM\""];
    broken.extend(violations(&SEARCHED, "configs/plan/src/objectives.rs", &of_objectives));
    // Input formats. (`text` and `sentences` are also ordinary words.)
    let of_formats = ["\"wikipedia\"", "\"jsonl\"", "\"parquet\""];
    let folders = ["data-prep/src", "configs/src", "launcher/src"];
    broken.extend(violations(&folders, "data-prep/src/source/formats/", &of_formats));
    for folder in ["src/train", "src/objective/totals.rs", "cluster/control/src"] {
        let known = |(file, text): (String, String)| {
            let text = code(&text).to_lowercase();
            let names_one = ["mlm", "masked_language", "pair_"].iter().any(|word| text.contains(word));
            (names_one && !file.ends_with("/tests.rs")).then_some(file)
        };
        broken
            .extend(files_below(folder).into_iter().filter_map(known).map(|file| format!("{file} knows an objective")));
    }
    assert!(broken.is_empty(), "{broken:#?}");
    for (file, text) in ["src", "launcher/src", "cluster/store/src"].iter().flat_map(|folder| files_below(folder)) {
        let difference = code(&text).contains("/checkpoints/");
        // Help texts show such URLs.
        let is_allowed = file == "cluster/store/src/run.rs" || file.starts_with("launcher/src/cli/");
        assert!(!difference || is_allowed, "{file} parses checkpoint URLs");
    }
}

#[test]
fn unsafe_code_of_the_collectives_is_in_the_lowest_layers() {
    const LOWEST_LAYERS: [&str; 6] =
        ["bucket.rs", "mpi/library.rs", "nccl/communicator.rs", "nccl/library.rs", "nccl/reducer.rs", "reducer.rs"];
    let has_unsafe = |(file, text): (String, String)| {
        let found = UNSAFE.iter().any(|form| code(&text).contains(form));
        found.then(|| file.strip_prefix("cluster/collective/src/").unwrap().to_owned())
    };
    let mut found: Vec<String> = files_below("cluster/collective/src").into_iter().filter_map(has_unsafe).collect();
    found.sort();
    assert_eq!(found, LOWEST_LAYERS);
}

/// Changing the environment while another thread reads it is undefined behaviour. Therefore only one module changes the
/// environment, before other threads exist.
#[test]
fn the_environment_is_changed_in_one_module() {
    let changes = |text: &str| ["set_var(", "remove_var(", "setenv(", "putenv("].iter().any(|call| text.contains(call));
    let files = CRATES.iter().flat_map(|folder| files_below(folder));
    let found: Vec<String> = files.filter(|(_, text)| changes(&code(text))).map(|(file, _)| file).collect();
    assert_eq!(found, ["src/worker/environment.rs"]);
}

/// All source files of the engine, with their text.
fn all_sources() -> Vec<(String, String)> {
    let entries = std::fs::read_dir(Path::new(ROOT).join("src")).unwrap();
    entries.flat_map(|entry| sources(&entry.unwrap().file_name().into_string().unwrap())).collect()
}

/// Restricts unsafe code to the layers over libtorch, NVIDIA's libraries, host memory and the allocator. Only
/// kernels/host/ accesses tensors as slices, and only kernels/cuda/launch.rs passes their addresses to a GPU. (meta.rs,
/// meta/, emulator.rs and loss_curve.rs are tests.)
#[test]
fn unsafe_code_and_host_memory_access_are_restricted() {
    let mut broken = Vec::new();
    let is_test = |file: &str| {
        [
            "kernels/meta.rs",
            "kernels/meta/memory.rs",
            "kernels/meta/steps.rs",
            "kernels/tests.rs",
            "kernels/tests/operations.rs",
            "kernels/cuda/emulator.rs",
            "train/loss_curve.rs",
        ]
        .contains(&file)
    };
    for (file, text) in all_sources().into_iter().filter(|(file, _)| file.ends_with(".rs") && !is_test(file)) {
        let (code, _) = text.split_once("mod tests {").unwrap_or((&text, ""));
        let allowed = [
            "torch/mod.rs",
            "torch/attention.rs",
            "torch/gpu.rs",
            "torch/operation.rs",
            "allocator.rs",
            "worker/environment.rs",
            "train/gradients.rs",
            "kernels/host/mod.rs",
            "kernels/host/gomp.rs",
            "gpu/driver.rs",
            "gpu/device.rs",
            "gpu/libtorch.rs",
            "gpu/stream.rs",
            "gpu/nvml.rs",
            "gpu/nvrtc.rs",
        ];
        if !allowed.contains(&file.as_str()) && UNSAFE.iter().any(|form| code.contains(form)) {
            broken.push(format!("{file} has unsafe code"));
        }
        if !file.starts_with("kernels/host/")
            && file != "kernels/cuda/launch.rs"
            && ["data_ptr", "from_raw_parts", "GOMP"].iter().any(|word| code.contains(word))
        {
            broken.push(format!("{file} takes a slice of a tensor"));
        }
        if !file.starts_with("kernels/")
            && !file.starts_with("gpu/")
            && file != "torch/mod.rs"
            && ["Device::Cpu", "Tensor::from_slice"].iter().any(|word| code.contains(word))
        {
            broken.push(format!("{file} puts a tensor into main memory"));
        }
        let difference = [
            ("state/", "lambert_store"),
            ("state/", "lambert_collective"),
            ("state/", "growth::"),
            ("stages/", "checkpoint::"),
            ("checkpoint/", "growth::"),
        ];
        broken.extend(
            difference
                .iter()
                .filter(|(dir, word)| file.starts_with(dir) && code.contains(word))
                .map(|(_, word)| format!("{file} mentions {word}")),
        );
    }
    assert!(broken.is_empty(), "{broken:?}");
}

const UNSAFE: [&str; 4] = ["unsafe {", "unsafe extern", "unsafe fn", "unsafe impl"];

/// All source files below `folder` of the project.
fn sources_of(folder: &str) -> Vec<(String, String)> {
    sources(&format!("../{folder}"))
}

/// The decision code of the coordinator uses no clock, I/O or threads. Only the launchers contain the flags and the
/// output of mpirun and srun.
#[test]
fn coordinator_layers_are_separate() {
    let mut broken = Vec::new();
    let decides = [sources_of("launcher/src/decide.rs"), sources_of("launcher/src/decide")].concat();
    assert!(decides.len() > 5, "the sources of the decision were not found");
    for (file, text) in decides {
        let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
        for word in
            ["Instant", "SystemTime", "std::fs", "std::thread", "std::net", "std::process", "lambert_store", "env::var"]
        {
            if code.contains(word) {
                broken.push(format!("{file} mentions {word}"));
            }
        }
    }
    for (file, text) in sources_of("launcher/src/run").into_iter().filter(|(file, _)| !file.contains("/launch/")) {
        for word in ["--tag-output", "prterun", "orte_", "prte_", "--oversubscribe", "--mpi=pmix", "--overlap"] {
            if text.contains(word) {
                broken.push(format!("{file} mentions {word}"));
            }
        }
    }
    assert!(broken.is_empty(), "{broken:?}");
}

#[test]
fn engine_layers_are_separate() {
    let mut broken = Vec::new();
    // The modules for computation use no ranks, files or network. (One test of the model saves checkpoints.)
    for dir in ["model", "objective", "optim", "masking", "state", "kernels", "train/step.rs"] {
        for (file, text) in sources(dir).into_iter().filter(|(file, _)| file != "model/tests/mod.rs") {
            for word in ["lambert_store", "lambert_collective", "std::fs", "std::net", "crate::worker"] {
                if text.contains(word) {
                    broken.push(format!("{file} mentions {word}"));
                }
            }
        }
    }
    let at_the_top = std::fs::read_dir(Path::new(ROOT).join("src")).unwrap();
    let files = at_the_top.filter(|entry| entry.as_ref().unwrap().path().is_file()).count();
    assert!(files <= 8, "{files} files at the top of src/");
    assert!(broken.is_empty(), "{broken:?}");
}

/// Returns true if `path` exists, or if there is a file or folder whose path starts with `path`.
fn exists(path: &str) -> bool {
    let path = Path::new(ROOT).join(path);
    let (Some(folder), Some(name)) = (path.parent(), path.file_name().and_then(|name| name.to_str())) else {
        return false;
    };
    let mut entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    path.exists() || entries.any(|entry| entry.file_name().to_string_lossy().starts_with(name))
}

/// Checks the paths of files and folders in the documentation. They are relative to the root of the repository.
#[test]
fn paths_in_the_documentation_exist() {
    const TOP: [&str; 8] = ["src/", "configs/", "data-prep/", "cluster/", "launcher/", "tests/", "docs/", "benches/"];
    let is_word = |c: char| c.is_ascii_alphanumeric() || "_-./*".contains(c);
    let (mut missing, mut found) = (Vec::new(), 0);
    let documents = files_below("README.md").into_iter().chain(files_below("docs"));
    for (document, text) in documents.filter(|(file, _)| file.ends_with(".md")) {
        for word in text.split(|c| !is_word(c)).map(|word| word.trim_end_matches(['.', '-'])) {
            // NAME is a placeholder, and `*` a pattern.
            let is_path =
                TOP.iter().any(|top| word.starts_with(top)) && !word.contains(['*']) && !word.contains("NAME");
            if is_path {
                found += 1;
                missing.extend((!exists(word)).then(|| format!("{document}: {word}")));
            }
        }
    }
    assert!(missing.is_empty(), "{missing:#?}");
    assert!(found > 150, "only {found} paths were found");
}
