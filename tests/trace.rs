//! Traces of selected steps.

use std::path::Path;

use crate::support::{self, Running, TestDir};
use serde_json::Value;

/// The trace file of each rank must contain the requested steps and the spans within these steps.
#[test]
fn selected_steps_are_traced() {
    let dir = TestDir::new();
    let (run, logs) = (dir.path("run"), dir.path("logs"));
    let sets = [
        &format!("cluster.log_folder={logs:?}"),
        "metrics.trace_steps=3",
        "metrics.trace_from_step=6",
        "checkpoint.every_steps=7",
    ];
    let sets: Vec<&str> = sets.iter().flat_map(|set| ["--set", *set]).collect();
    let ended = Running::start_with(&dir.config(12, 2), &run, &sets).end();
    assert_eq!(ended.code, Some(0), "{}", ended.log);
    for rank in ["rank-00000.trace.json", "rank-00001.trace.json"] {
        let files = support::tree(Path::new(&logs));
        let (path, bytes) = files.iter().find(|(path, _)| path.ends_with(rank)).unwrap_or_else(|| panic!("no {rank}"));
        let trace: Vec<Value> =
            serde_json::from_slice(bytes).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let begun = |name: &'static str| trace.iter().filter(move |event| event["ph"] == "B" && event["name"] == name);
        let steps: Vec<u64> =
            begun("step").filter_map(|event| event["args"]["number"].as_str()?.parse().ok()).collect();
        assert_eq!(steps, [6, 7, 8], "{rank}");
        for name in ["wait for samples", "forward and backward", "all-reduce", "update", "agree"] {
            assert_eq!(begun(name).count(), 3, "{rank}: {name}");
        }
        assert_eq!(begun("save").count(), 1, "{rank}");
        let ends = trace.iter().filter(|event| event["ph"] == "E" && event["name"] == "step").count();
        assert_eq!(ends, 3, "{rank}");
    }
    assert!(!ended.log.contains("forward and backward"), "the log shows spans: {}", ended.log);
}
