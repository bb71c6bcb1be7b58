//! `lambert report` of a run with a killed worker, a rollback and growth.

use std::path::Path;

use crate::support::{TestDir, copy, done, observed, run};
use serde_json::Value;

fn observed_run() -> &'static str {
    observed::run().to_str().unwrap()
}

#[test]
fn the_facts_of_a_run_are_in_every_format() {
    let (dir, url) = (TestDir::new(), observed_run());
    let facts: Value = serde_json::from_str(&done(&["report", url, "--format", "json"])).unwrap();
    let facts = &facts[0];
    assert_eq!(
        (&facts["steps"], &facts["planned_steps"], &facts["state"]),
        (&90.into(), &90.into(), &"finished".into())
    );
    assert_eq!(facts["samples"], 16 * observed::STEPS);
    assert_eq!(facts["skipped_samples"], 32);
    assert!(facts["undone_steps"].as_u64().unwrap() >= 2 && facts["flops"].as_f64().unwrap() > 1e9, "{facts}");
    let layers: Vec<u64> =
        facts["stages"].as_array().unwrap().iter().map(|stage| stage["layers"].as_u64().unwrap()).collect();
    assert_eq!(layers, [2, 4]);
    assert!(facts["peak_memory"].as_u64().unwrap() > 50_000_000, "{facts}");
    let causes = facts["failures"].to_string();
    assert!(causes.contains("killed by SIGKILL") && causes.contains("rolled back to step 39"), "{causes}");
    let goodput = &facts["goodput"]["seconds"];
    for category in ["productive_step", "wasted_progress_from_disruption", "infrastructure_recovery_from_disruption"] {
        assert!(goodput[category].as_f64() > Some(0.0), "{category}: {goodput}");
    }
    assert_eq!((facts.get("gpu"), facts.get("xids")), (None, None), "the ranks have no GPUs");
    let final_loss = format!("{:.4} nats", facts["losses"]["mlm"].as_f64().unwrap());

    let (html, svg) = (dir.path("report.html"), dir.path("curves.svg"));
    done(&["report", url, "--output", &html, "--curves", &svg]);
    let html = std::fs::read_to_string(html).unwrap();
    let markdown = done(&["report", url, "--format", "markdown"]);
    let sha256 = facts["datasets_sha256"][0].as_str().unwrap();
    for text in [
        &final_loss as &str,
        "90 of 90",
        "killed by SIGKILL",
        sha256,
        "micro_batch_tokens = 256",
        "peak memory of a rank",
    ] {
        for (format, content) in [("HTML", &html), ("Markdown", &markdown)] {
            assert!(content.contains(text), "no {text:?} in the {format} report");
        }
    }
    for text in ["GPU", "Xid"] {
        assert!(!html.contains(text) && !markdown.contains(text), "{text} in the report of a run without GPUs");
    }
    let svg = std::fs::read_to_string(svg).unwrap();
    for label in ["worker killed at step", "rollback at step 41", "grown from 2 to 4 layers", "held-out MLM loss"] {
        assert!(svg.contains(label) && html.contains(label), "no {label:?} in the picture");
    }
}

/// The file can be mailed: it loads nothing and runs nothing.
#[test]
fn texts_of_a_run_are_escaped() {
    let dir = TestDir::new();
    let copied = dir.path("copied");
    copy(observed::run(), Path::new(&copied));
    for (file, name) in [("status.json", "\"observed\""), ("run.toml", "\"observed\"")] {
        let path = format!("{copied}/{file}");
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.contains(name), "{file}: {text}");
        std::fs::write(&path, text.replace(name, "\"<script>alert(1)</script>\"")).unwrap();
    }
    let html = done(&["report", &copied]);
    assert!(html.contains("&lt;script&gt;alert(1)"), "{html}");
    for forbidden in ["<script", "src=", "href=", "<link", "@import"] {
        assert!(!html.contains(forbidden), "{forbidden} in the report");
    }
    assert!(!done(&["report", &copied, "--format", "markdown"]).contains("# <script"), "markup in the title");
}

#[test]
fn runs_are_compared_side_by_side() {
    let dir = TestDir::new();
    let (config, other) = (dir.config(12, 1), dir.path("short"));
    done(&["run", "--config", &config, "--run", &other]);
    let markdown = done(&["report", observed_run(), &other, "--format", "markdown"]);
    for text in ["| steps | 90 of 90 | 12 of 12 |", "| failures | 2 failures,", "## Stages: "] {
        assert!(markdown.contains(text), "no {text:?} in {markdown}");
    }
    let missing = run(&["report", observed_run(), &dir.path("none")]);
    assert!(missing.code == 2 && missing.err.contains("none is not a run"), "{}", missing.err);
}
