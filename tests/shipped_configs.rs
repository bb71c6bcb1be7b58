//! Every file in configs/ parses and passes the checks: `prep-*.toml` as preparations, the others as runs.

#![allow(clippy::unwrap_used, reason = "a panic is how a test reports")]

use std::path::Path;

use lambert_config::{Layers, PrepConfig, RunConfig, plan};

#[test]
fn every_shipped_configuration_is_valid() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("configs");
    let (mut runs, mut preparations) = (0, 0);
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        if !name.ends_with(".toml") || name == "Cargo.toml" {
            continue;
        }
        if name.starts_with("prep-") {
            Layers::default().load::<PrepConfig>(&path).unwrap_or_else(|error| panic!("{error}"));
            preparations += 1;
        } else {
            let config: RunConfig = Layers::default().load(&path).unwrap_or_else(|error| panic!("{error}"));
            assert!(plan::total_steps(&config) > 0, "{name}");
            runs += 1;
        }
    }
    assert!(runs >= 2 && preparations >= 2, "{runs} runs, {preparations} preparations");
}
