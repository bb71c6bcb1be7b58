//! The rules of direction in docs/architecture.md, proved over cargo's own dependency graph and over the sources.

#![allow(clippy::unwrap_used, reason = "a panic is how a test reports")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use serde_json::Value;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// Crates that each crate reaches through normal dependencies, by name.
fn reached() -> BTreeMap<String, BTreeSet<String>> {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let output = Command::new(cargo)
        .args([
            "metadata",
            "--format-version",
            "1",
            "--locked",
            "--offline",
            "--filter-platform",
            "x86_64-unknown-linux-gnu",
        ])
        .current_dir(ROOT)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let names: BTreeMap<String, String> =
        metadata["packages"].as_array().unwrap().iter().map(|p| (text(&p["id"]), text(&p["name"]))).collect();
    let is_normal = |dep: &&Value| dep["dep_kinds"].as_array().unwrap().iter().any(|kind| kind["kind"].is_null());
    let edges: BTreeMap<String, Vec<String>> = metadata["resolve"]["nodes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|node| {
            let deps = node["deps"].as_array().unwrap().iter().filter(is_normal).map(|dep| text(&dep["pkg"])).collect();
            (text(&node["id"]), deps)
        })
        .collect();
    let members = metadata["workspace_members"].as_array().unwrap();
    let closure = |member: &Value| {
        let (mut seen, mut open) = (BTreeSet::new(), vec![text(member)]);
        while let Some(id) = open.pop() {
            for next in &edges[&id] {
                if seen.insert(next.clone()) {
                    open.push(next.clone());
                }
            }
        }
        (names[&text(member)].clone(), seen.iter().map(|id| names[id].clone()).collect())
    };
    members.iter().map(closure).collect()
}

#[test]
fn crates_depend_in_one_direction() {
    const TENSORS: [&str; 2] = ["tch", "torch-sys"];
    const MPI: [&str; 2] = ["mpi", "mpi-sys"];
    let rules: [(&str, Vec<&str>); 7] =
        [
            (
                "lambert-config",
                [
                    &[
                        "lambert",
                        "lambert-data-prep",
                        "lambert-collective",
                        "lambert-store",
                        "lambert-launcher",
                        "tokio",
                    ][..],
                    &TENSORS,
                    &MPI,
                ]
                .concat(),
            ),
            (
                "lambert-data-prep",
                [&["lambert", "lambert-collective", "lambert-launcher"][..], &TENSORS, &MPI].concat(),
            ),
            (
                "lambert-control",
                [
                    &[
                        "lambert",
                        "lambert-data-prep",
                        "lambert-collective",
                        "lambert-store",
                        "lambert-launcher",
                        "tokio",
                    ][..],
                    &TENSORS,
                    &MPI,
                ]
                .concat(),
            ),
            ("lambert-collective", [&["lambert", "lambert-data-prep", "lambert-launcher"][..], &TENSORS].concat()),
            ("lambert-store", [&["lambert", "lambert-data-prep", "lambert-launcher"][..], &TENSORS, &MPI].concat()),
            ("lambert-launcher", [&["lambert", "lambert-collective"][..], &TENSORS, &MPI].concat()),
            ("lambert", vec!["lambert-launcher"]),
        ];
    let reached = reached();
    assert_eq!(reached.len(), rules.len(), "a crate without a rule: {:?}", reached.keys());
    let mut broken = Vec::new();
    for (name, forbidden) in &rules {
        let found = &reached[*name];
        broken
            .extend(forbidden.iter().filter(|other| found.contains(**other)).map(|other| format!("{name} -> {other}")));
    }
    assert!(broken.is_empty(), "{broken:?}");
    // The graph was really read: these edges are there.
    assert!(reached["lambert"].contains("tch") && reached["lambert"].contains("mpi"));
    assert!(reached["lambert-launcher"].contains("lambert-store"));
}

/// Every source file below `folder` of src/, with its text.
fn sources(folder: &str) -> Vec<(String, String)> {
    let path = Path::new(ROOT).join("src").join(folder);
    if path.is_file() {
        return vec![(folder.to_owned(), std::fs::read_to_string(&path).unwrap())];
    }
    let mut files = Vec::new();
    for entry in std::fs::read_dir(&path).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        files.extend(sources(&format!("{folder}/{name}")));
    }
    files
}

const UNSAFE: [&str; 4] = ["unsafe {", "unsafe extern", "unsafe fn", "unsafe impl"];

/// Every source file below `folder` of the project.
fn sources_of(folder: &str) -> Vec<(String, String)> {
    sources(&format!("../{folder}"))
}

/// What decides has neither clock nor I/O nor thread, and only launchers know a starter's flags and prose.
#[test]
fn the_coordinator_keeps_its_layers() {
    let mut broken = Vec::new();
    let decides = [sources_of("launcher/src/run/decide.rs"), sources_of("launcher/src/run/decide")].concat();
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
        for word in ["--tag-output", "prterun", "orte_", "prte_", "--oversubscribe"] {
            if text.contains(word) {
                broken.push(format!("{file} mentions {word}"));
            }
        }
    }
    assert!(broken.is_empty(), "{broken:?}");
}

#[test]
fn the_engine_keeps_its_layers() {
    let mut broken = Vec::new();
    // What computes knows neither ranks nor files nor the network.
    for place in ["model", "objective", "optim", "masking", "step.rs"] {
        for (file, text) in sources(place) {
            for word in
                ["lambert_store", "lambert_collective", "std::fs", "std::net", "crate::session", "crate::control"]
            {
                if text.contains(word) {
                    broken.push(format!("{file} mentions {word}"));
                }
            }
        }
    }
    // Nothing but the program imports the loop.
    for entry in std::fs::read_dir(Path::new(ROOT).join("src")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        for (file, text) in sources(&name) {
            if file != "main.rs" && file != "train.rs" && text.contains("crate::train") {
                broken.push(format!("{file} imports train"));
            }
            // Unsafe code stays in the layers over libtorch and the allocator.
            if file.ends_with(".rs")
                && !["torch.rs", "allocator.rs"].contains(&file.as_str())
                && UNSAFE.iter().any(|form| text.contains(form))
            {
                broken.push(format!("{file} has unsafe code"));
            }
        }
    }
    assert!(broken.is_empty(), "{broken:?}");
}
