//! `run.from`: what a run and the checkpoint that it starts from must have in common, and what is warned of.

use std::path::Path;

use crate::support::{CommandOutput, TestDir, checkpoints, copy, done, run};

/// A run of five steps, from whose checkpoint other runs start.
struct Base {
    dir: TestDir,
    config: String,
    checkpoint: String,
}

impl Base {
    fn train() -> Self {
        Self::train_with(|text| text)
    }

    /// Trains a run with a changed configuration.
    fn train_with(change: impl FnOnce(String) -> String) -> Self {
        let dir = TestDir::new();
        let (config, base) = (dir.config(5, 1), dir.path("base"));
        std::fs::write(&config, change(std::fs::read_to_string(&config).unwrap())).unwrap();
        done(&["run", "--config", &config, "--run", &base]);
        let checkpoint = format!("{base}/checkpoints/{}", checkpoints(&base)[0]);
        Self { dir, config, checkpoint }
    }

    /// Checks a start of another run with these settings.
    fn check_start(&self, sets: &[&str]) -> CommandOutput {
        let to = self.dir.path("other");
        let start = ["run", "--check", "--config", &self.config, "--run", &to, "--from", &self.checkpoint];
        run(&start.into_iter().chain(sets.iter().flat_map(|set| ["--set", set])).collect::<Vec<_>>())
    }
}

#[test]
fn a_model_that_computes_something_else_is_refused() {
    let base = Base::train();
    for (set, key, values) in [
        ("model.activation=\"silu\"", "activation", "\"gelu\", the configuration has \"silu\""),
        ("model.layer_norm_eps=1e-5", "layer_norm_eps", "0.000000000001, the configuration has 0.00001"),
    ] {
        let refused = base.check_start(&[set]);
        let message =
            format!("run.from: its model has {key} = {values}; to change it, add \"{key}\" to run.from_changes");
        assert!(refused.code == 2 && refused.err.contains(&message), "{}", refused.err);
        let allowed = base.check_start(&[set, &format!("run.from_changes=[{key:?}]")]);
        assert_eq!(allowed.code, 0, "{}", allowed.err);
    }
    // Only training reads these keys.
    let other = base.check_start(&["model.dropout=0.2", "model.initializer_range=0.5"]);
    assert_eq!(other.code, 0, "{}", other.err);
}

/// A model with rotary positions has no table of positions.
#[test]
fn the_maximum_length_may_change_without_position_embeddings() {
    let refused = Base::train().check_start(&["model.positions=128"]);
    let message = "run.from: its model has positions = 64, the configuration has 128";
    assert!(refused.code == 2 && refused.err.contains(message), "{}", refused.err);
    let family =
        |text: String| text.replace("[model]\n", "[objective]\npair = \"none\"\n[model]\nfamily = \"modernbert\"\n");
    let base = Base::train_with(family);
    for positions in ["model.positions=128", "model.positions=70"] {
        let allowed = base.check_start(&[positions]);
        assert_eq!(allowed.code, 0, "{}", allowed.err);
    }
    let started = base.dir.path("longer");
    let from = ["--from", &base.checkpoint, "--set", "model.positions=128"];
    done(&[&["run", "--config", &base.config, "--run", &started], &from[..]].concat());
}

#[test]
fn repeated_samples_are_warned_of() {
    let base = Base::train();
    let warning = "was trained on this dataset with the same run.seed";
    assert!(base.check_start(&[]).err.contains(warning));
    assert!(!base.check_start(&["run.seed=7"]).err.contains(warning));
}

/// The held-out samples have the vocabulary of the training samples, but were not lowercased.
#[test]
fn the_case_of_text_is_that_of_the_training_data() {
    let dir = TestDir::new();
    let cased = dir.path("cased");
    copy(Path::new(&dir.path("data/train")), Path::new(&cased));
    let manifest = Path::new(&cased).join("manifest.json");
    let text = std::fs::read_to_string(&manifest).unwrap();
    assert!(text.contains("\"lowercase\": true"), "{text}");
    std::fs::write(&manifest, text.replace("\"lowercase\": true", "\"lowercase\": false")).unwrap();
    let (config, evaluation) = (dir.config(5, 1), format!("evaluation.data={cased:?}"));
    let refused = run(&["run", "--check", "--config", &config, "--run", &dir.path("run"), "--set", &evaluation]);
    let message = "evaluation.data: its tokenizer keeps the case of text, that of stage.0.data lowercases text; prepare the dataset \
                   with vocabulary.lowercase = true";
    assert!(refused.code == 2 && refused.err.contains(message), "{}", refused.err);
}
