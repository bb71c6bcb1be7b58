//! Tests the example in the README of the collective crate.

use std::path::Path;
use std::process::Command;

use crate::support::lambert;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// Returns the losses that the example prints on `ranks` ranks.
fn losses(ranks: usize) -> Vec<f64> {
    let example = lambert().with_file_name("examples").join("data_parallel");
    assert!(example.is_file(), "{} is not there: `cargo build --release --example data_parallel`", example.display());
    let output = Command::new("mpirun")
        .args(["--allow-run-as-root", "--oversubscribe", "-n", &ranks.to_string()])
        .arg(&example)
        .env("OMP_NUM_THREADS", "1")
        .output()
        .unwrap();
    assert!(output.status.success(), "{ranks} ranks: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    eprint!("{ranks} ranks:\n{text}");
    text.lines().map(|line| line.rsplit_once(' ').unwrap().1.parse().unwrap()).collect()
}

#[test]
fn the_example_gives_the_same_losses_on_one_two_and_three_ranks() {
    let alone = losses(1);
    assert_eq!(alone.len(), 5);
    assert!(alone[4] < 0.5 * alone[0], "{alone:?}");
    for ranks in [2, 3] {
        let together = losses(ranks);
        let alike = alone.iter().zip(&together).all(|(one, other)| (one - other).abs() < 1e-3);
        assert!(together.len() == 5 && alike, "{ranks} ranks: {together:?}, alone {alone:?}");
    }
}

#[test]
fn the_readme_shows_the_example() {
    let folder = Path::new(ROOT).join("cluster/collective");
    let example = std::fs::read_to_string(folder.join("examples/data_parallel.rs")).unwrap();
    let (_, code) = example.split_once("\n\n").unwrap();
    let readme = std::fs::read_to_string(folder.join("README.md")).unwrap();
    assert!(readme.contains(&format!("```rust\n{code}```\n")), "the README differs from the example");
}
