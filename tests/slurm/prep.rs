//! Preparation jobs under Slurm.

use std::path::Path;

use crate::support::slurm::Sandbox;
use crate::support::{TestDir, tree};

/// Submits a job array of four parts. One part fails and is resubmitted alone. After the join, the datasets must equal
/// the datasets that a single process prepares.
pub fn an_array_and_its_join(dir: &TestDir, sandbox: &Sandbox) {
    let text = std::fs::read_to_string(dir.path("prep.toml")).unwrap();
    // Paths in the file are relative to its folder.
    let was = text.split("path = \"").nth(1).unwrap().split("/corpus.txt").next().unwrap();
    let text = text.replace(was, &sandbox.path("prep"));
    for name in ["corpus.txt", "vocab.txt"] {
        sandbox.file(&format!("prep/{name}"), &std::fs::read_to_string(dir.path(name)).unwrap());
    }
    let fails = r#"[ "${SLURM_ARRAY_TASK_ID:-}" != 2 ] || [ -e prep/mended ] || exit 3"#;
    let config = sandbox.file("prep/prep.toml", &format!("{text}[slurm]\ntime = \"10\"\nprologue = ['{fails}']\n"));
    let submit = |more: &[&str]| {
        let ran =
            sandbox.lambert(&[&["submit", "--prep", "--config", &config, "--parts", "4", "--json"], more].concat());
        assert_eq!(ran.code, 0, "{}", ran.err);
        let jobs: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
        ["array", "join"].map(|name| jobs[name].as_str().unwrap().to_owned())
    };
    let [array, join] = submit(&[]);
    assert!(sandbox.ended(&join).starts_with("CANCELLED"), "the join ran without its parts");
    let ended = |task: usize| sandbox.ended(&format!("{array}_{task}"));
    assert_eq!((0..4).map(ended).filter(|end| end == "COMPLETED|0:0").count(), 3);
    assert_eq!(ended(2), "FAILED|3:0");
    assert!(!Path::new(&sandbox.path("prep/data/train/manifest.json")).exists());

    sandbox.file("prep/mended", "");
    let [array, join] = submit(&["--tasks", "2"]);
    assert_eq!(sandbox.ended(&join), "COMPLETED|0:0", "{}", sandbox.log(&join));
    assert_eq!(sandbox.ended(&array), "COMPLETED|0:0");
    let (one, other) = (tree(Path::new(&sandbox.path("prep/data"))), tree(Path::new(&dir.path("data"))));
    assert_eq!(one.keys().collect::<Vec<_>>(), other.keys().collect::<Vec<_>>());
    assert!(one.iter().all(|(name, bytes)| other[name] == *bytes), "the array's datasets differ from one process's");

    let refused = sandbox.lambert(&["submit", "--prep", "--config", &config, "--parts", "4", "--tasks", "4"]);
    assert_eq!(refused.code, 2);
    assert!(refused.err.contains("--tasks: no part 4: expected 0 to 3"), "{}", refused.err);
    let refused = sandbox.lambert(&["submit", "--prep", "--config", &config, "--memory", "64M"]);
    assert_eq!(refused.code, 2);
    assert!(refused.err.contains("--memory: must be at least 256 MiB"), "{}", refused.err);
}
