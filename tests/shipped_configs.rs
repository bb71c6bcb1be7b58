//! Every configuration in configs/ and docs/ must parse and pass the checks. `prep*.toml` are configurations of
//! preparation jobs, the others of runs.

use std::path::Path;

use lambert_config::run::{Family, MaskUnit, Model, OptimizerKind};
use lambert_config::{Layers, RunConfig};
use lambert_data_prep::{prep, source};
use lambert_plan::architecture::Architecture;
use lambert_plan::distillation::copied_tensors;
use lambert_plan::{objectives, schedule, timeline};

#[test]
fn every_shipped_configuration_is_valid() {
    let folders = [
        "configs",
        "docs/engine",
        "docs/experiments/domain",
        "docs/experiments/recipes",
        "docs/images",
        "docs/large-batch",
        "docs/scaling",
        "docs/stacking",
    ];
    let folders = folders.map(|folder| Path::new(env!("CARGO_MANIFEST_DIR")).join(folder));
    let (mut runs, mut preparations) = (0, 0);
    for entry in folders.into_iter().flat_map(|folder| std::fs::read_dir(folder).unwrap()) {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        if !name.ends_with(".toml") || name == "Cargo.toml" {
            continue;
        }
        if name.starts_with("prep") {
            let config = prep::load(&Layers::default(), &[path]).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(source::unused_settings(&config), [], "{name}");
            preparations += 1;
        } else {
            let config: RunConfig = Layers::default().load(&[path]).unwrap_or_else(|error| panic!("{error}"));
            assert!(timeline::total_steps(&config, &timeline::EarlyStops::new()) > 0, "{name}");
            runs += 1;
        }
    }
    assert!(runs >= 2 && preparations >= 2, "{runs} runs, {preparations} preparations");
}

fn shipped(name: &str) -> RunConfig {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("configs").join(format!("{name}.toml"));
    Layers::default().load(&[path]).unwrap_or_else(|error| panic!("{error}"))
}

/// Returns steps, samples and peak learning rate of each stage.
fn plan(config: &RunConfig) -> Vec<(u64, u64, f64)> {
    config.stage.iter().map(|stage| (stage.steps, timeline::samples(stage), stage.learning_rate)).collect()
}

fn parameters(config: &RunConfig) -> u64 {
    let plain = Model { pad_vocabulary_to: 1, ..config.model.clone() };
    Architecture::new(&plain, config.model.layers, 30522).parameters()
}

#[test]
fn lamb_has_the_published_constants() {
    for (name, size) in [("bert-base-lamb", 110_106_428), ("bert-large-lamb", 336_226_108)] {
        let config = shipped(name);
        assert_eq!(config.optimizer.kind, OptimizerKind::Lamb);
        assert_eq!(plan(&config), [(7038, 461_242_368, 6e-3), (1563, 51_216_384, 4e-3)]);
        assert_eq!([config.stage[0].warmup, config.stage[1].warmup], [0.2843, 0.128]);
        assert_eq!(parameters(&config), size);
    }
}

#[test]
fn adam_has_the_published_schedule_in_both_phases() {
    for (name, size) in [("bert-base-adam", 110_106_428), ("bert-large-adam", 336_226_108)] {
        let config = shipped(name);
        assert_eq!(
            (config.optimizer.kind, timeline::total_steps(&config, &timeline::EarlyStops::new())),
            (OptimizerKind::AdamBert, 1_000_000)
        );
        assert_eq!(config.stage.iter().map(timeline::samples).sum::<u64>(), 256_000_000);
        assert_eq!(parameters(&config), size);
        for step in [0, 9_999, 10_000, 500_000, 899_999, 900_000, 999_999] {
            let dir = timeline::position(&config, &timeline::EarlyStops::new(), step).unwrap();
            let line = if step < 10_000 { (step + 1) as f64 / 1e4 } else { (1_000_000 - step) as f64 / 990_000.0 };
            let rate = schedule::learning_rate(dir.stage, dir.done);
            assert!((rate - 1e-4 * line).abs() < 1e-9 * 1e-4, "{name}, step {step}: {rate}");
        }
    }
}

#[test]
fn electra_has_the_published_networks_and_optimizer() {
    let config = shipped("electra-base");
    let losses: Vec<(&str, f64)> =
        objectives::losses(&config.objective).iter().map(|loss| (loss.name, loss.weight)).collect();
    assert_eq!(losses, [("mlm", 1.0), ("rtd", 50.0)]);
    assert_eq!((config.objective.mask_share, config.objective.random_share), (0.85, 0.0));
    let generator = config.objective.replaced_tokens.as_ref().unwrap().generator(&config.model);
    assert_eq!((generator.layers, generator.hidden, generator.heads, generator.intermediate), (12, 256, 4, 1024));
    assert_eq!((config.model.layers, config.model.hidden, config.model.embedding()), (12, 768, 768));
    let (optimizer, stage) = (&config.optimizer, &config.stage[0]);
    // This optimizer has no bias correction.
    assert_eq!((optimizer.kind, optimizer.eps, optimizer.weight_decay), (OptimizerKind::AdamBert, 1e-6, 0.01));
    assert_eq!((stage.steps, stage.global_batch, stage.learning_rate, stage.warmup), (766_000, 256, 2e-4, 0.013));
}

/// The published warm-up has 3 billion tokens, while the batch grows.
#[test]
fn modernbert_has_the_published_warmup_and_no_clipping() {
    let config = shipped("modernbert-base");
    let (optimizer, stage) = (&config.optimizer, &config.stage[0]);
    assert_eq!((optimizer.kind, optimizer.clip_norm), (OptimizerKind::StableAdamw, 0.0));
    let steps = (stage.warmup * stage.steps as f64).round() as u64;
    let samples = timeline::samples(stage) - timeline::samples_after(stage, steps);
    assert!((samples as f64 * 1024.0 / 3e9 - 1.0).abs() < 0.01, "{samples} samples");
}

#[test]
fn albert_has_the_published_masks_and_dropout() {
    let config = shipped("albert-base");
    assert_eq!((config.objective.mask_unit, config.model.dropout), (MaskUnit::Ngram, 0.1));
    let (optimizer, stage) = (&config.optimizer, &config.stage[0]);
    assert_eq!((optimizer.kind, optimizer.bias_correction), (OptimizerKind::Lamb, false));
    assert_eq!((stage.steps, stage.global_batch, stage.learning_rate), (125_000, 4096, 1.76e-3));
}

#[test]
fn distilbert_has_the_published_losses_and_layers() {
    let config = shipped("distilbert-base");
    let losses: Vec<(&str, f64)> =
        objectives::losses(&config.objective).iter().map(|loss| (loss.name, loss.weight)).collect();
    assert_eq!(losses, [("mlm", 2.0), ("soft_targets", 5.0), ("cosine", 1.0)]);
    let teacher = config.objective.teacher.clone().unwrap();
    assert_eq!((teacher.temperature, &teacher.layers[..]), (2.0, &[0, 2, 4, 7, 9, 11][..]));
    let (optimizer, stage) = (&config.optimizer, &config.stage[0]);
    assert_eq!((optimizer.eps, optimizer.weight_decay, optimizer.clip_norm), (1e-6, 0.0, 5.0));
    assert_eq!((stage.global_batch, stage.learning_rate, stage.warmup), (250, 5e-4, 0.05));
    // DistilBertForMaskedLM of distilbert-base-uncased has 66,985,530 parameters.
    assert_eq!(parameters(&config), 66_985_530);
    let bert = Family::Bert.model();
    let (ours, theirs) = (Architecture::new(&config.model, 6, 30522), Architecture::new(&bert, 12, 30522));
    let copied = copied_tensors((&ours, &config.model), (&theirs, &bert), &teacher.layers).unwrap();
    assert_eq!(copied.len(), ours.tensors().len());
}
