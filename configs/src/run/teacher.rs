//! Teacher of a run: knowledge distillation (DistilBERT, arXiv 1910.01108).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::check::{not_negative, positive};
use super::{Model, RunConfig};
use crate::load::{ConfigError, ConfigIssue};

/// Start of a value of `from` that names a Hugging Face Transformers folder.
const FOLDER: &str = "hf:";

/// Knowledge distillation: the model also learns the predictions and the hidden states of a trained model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Teacher {
    /// Trained model: `RUN/checkpoints/step-...`, the URL of a run, or `hf:FOLDER`. It must have the vocabulary of the run.
    ///
    /// The first start copies the weights to the run, and later starts use the copy. With the URL of a run, it takes the newest
    /// checkpoint.
    pub from: String,
    /// Divides the logits of both models in the loss of the soft targets.
    pub temperature: f64,
    /// Weight of the loss of the soft targets. 0: no such loss.
    ///
    /// The loss is the Kullback-Leibler divergence from the distribution of the teacher to that of the model, over all tokens,
    /// multiplied by the square of the temperature.
    pub soft_target_weight: f64,
    /// Weight of the cosine loss. 0: no such loss.
    ///
    /// The loss is 1 minus the cosine of the angle between the last hidden states of both models, over all tokens. The hidden sizes
    /// must be equal.
    pub cosine_weight: f64,
    /// Weight of the loss of masked language modeling.
    pub masked_language_weight: f64,
    /// Layers of the teacher, from 0, from which the layers of the model start. Absent: random weights.
    ///
    /// One for each layer of the model, for example `[0, 2, 4, 7, 9, 11]`. The embeddings and the MLM head start from those of the
    /// teacher, too. Segment embeddings that the model does not have are left out, as in DistilBERT.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub layers: Vec<usize>,
    /// Description of the teacher. Not a configuration key: the start of a run reads it from the teacher.
    #[serde(skip)]
    pub info: Option<Box<TeacherInfo>>,
}

impl Default for Teacher {
    fn default() -> Self {
        Self {
            from: String::new(),
            temperature: 2.0,
            soft_target_weight: 5.0,
            cosine_weight: 1.0,
            masked_language_weight: 2.0,
            layers: Vec::new(),
            info: None,
        }
    }
}

/// Description of the teacher of a run. The first start of the run stores it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TeacherInfo {
    /// URL of the checkpoint. `None`: a Hugging Face Transformers folder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<String>,
    /// SHA-256 of its weights file.
    pub weights_sha256: String,
    /// SHA-256 of the configuration of its run.
    pub config_sha256: String,
    /// SHA-256 of its vocabulary.
    pub vocabulary_sha256: String,
    /// Its encoder, with the number of layers of the checkpoint.
    pub model: Model,
}

impl TeacherInfo {
    /// True if both teachers have the same weights and compute the same with them.
    pub fn is_same(&self, other: &Self) -> bool {
        self.weights_sha256 == other.weights_sha256 && self.model.computes_like(&other.model)
    }

    /// Returns the description as TOML.
    ///
    /// # Errors
    /// An integer exceeds `i64`.
    pub fn to_toml(&self) -> Result<String, toml::ser::Error> {
        toml::to_string(self)
    }

    /// Parses the stored description. `origin` names it in messages.
    ///
    /// # Errors
    /// The text is not TOML, or lacks a key.
    pub fn parse(text: &str, origin: &str) -> Result<Self, ConfigError> {
        toml::from_str(text).map_err(|error| ConfigError::Invalid {
            origin: origin.to_owned(),
            issues: vec![ConfigIssue::new("objective.teacher", error.message())],
        })
    }
}

impl Teacher {
    /// Folder of Hugging Face Transformers that `from` names, if it names one.
    pub fn folder(&self) -> Option<&str> {
        self.from.strip_prefix(FOLDER)
    }

    /// Value of `from` for a Hugging Face Transformers folder.
    pub fn of_folder(folder: &str) -> String {
        format!("{FOLDER}{folder}")
    }

    pub(super) fn check(&self, config: &RunConfig, issues: &mut Vec<ConfigIssue>) {
        if self.from.is_empty() {
            let message = "missing: expected RUN/checkpoints/step-..., the URL of a run, or hf:FOLDER";
            issues.push(ConfigIssue::new("objective.teacher.from", message));
        }
        positive("objective.teacher.temperature", self.temperature, issues);
        for (key, weight) in [
            ("soft_target_weight", self.soft_target_weight),
            ("cosine_weight", self.cosine_weight),
            ("masked_language_weight", self.masked_language_weight),
        ] {
            not_negative(&format!("objective.teacher.{key}"), weight, issues);
        }
        if self.soft_target_weight == 0.0 && self.cosine_weight == 0.0 {
            let message = "cosine_weight is 0, too, so the model would learn nothing from the teacher";
            issues.push(ConfigIssue::of_value("objective.teacher.soft_target_weight", 0, message));
        }
        let layers = config.model.layers;
        if let Some(index) = (0..config.stage.len()).find(|index| config.depth(*index) != layers) {
            let there = config.depth(index);
            let message = format!("must be model.layers ({layers}), because a model with a teacher cannot grow");
            issues.push(ConfigIssue::of_value(format!("stage.{index}.layers"), there, message));
        }
        if !self.layers.is_empty() && self.layers.len() != layers {
            let message = format!("{} layers for model.layers = {layers}: expected one for each", self.layers.len());
            issues.push(ConfigIssue::new("objective.teacher.layers", message));
        }
        if !self.layers.is_empty() && config.run.from.is_some() {
            let message = "conflicts with run.from, from which all weights start";
            issues.push(ConfigIssue::new("objective.teacher.layers", message));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Layers;

    fn issues(lines: &str, stage: &str) -> String {
        let teacher = format!("[objective.teacher]\nfrom = \"runs/a\"\n{lines}\n");
        let text = format!("[model]\nlayers = 2\n{teacher}[[stage]]\nname = 'a'\ndata = 'd'\nsteps = 3\n{stage}");
        Layers::default().parse::<RunConfig>(&text, "test").err().map_or(String::new(), |error| error.to_string())
    }

    #[test]
    fn each_wrong_value_is_named() {
        assert_eq!(issues("", ""), "");
        assert_eq!(issues("layers = [0, 1]\ncosine_weight = 0.0", ""), "");
        for (lines, stage, words) in [
            ("temperature = 0.0", "", "objective.teacher.temperature = 0: must be above 0"),
            ("cosine_weight = -1.0", "", "objective.teacher.cosine_weight = -1: must be 0 or above"),
            (
                "soft_target_weight = 0.0\ncosine_weight = 0.0",
                "",
                "objective.teacher.soft_target_weight = 0: cosine_weight is 0, too",
            ),
            ("layers = [0]", "", "objective.teacher.layers: 1 layers for model.layers = 2"),
            (
                "",
                "layers = 1",
                "stage.0.layers = 1: must be model.layers (2), because a model with a teacher cannot grow",
            ),
            (
                "layers = [0, 1]\n[run]\nfrom = 'a/checkpoints/b'",
                "",
                "objective.teacher.layers: conflicts with run.from",
            ),
        ] {
            let found = issues(lines, stage);
            assert!(found.contains(words), "{lines} {stage}: {found}");
        }
    }

    #[test]
    fn a_run_without_a_teacher_stores_no_section() {
        let text = toml::to_string(&RunConfig::default()).unwrap();
        assert!(!text.contains("teacher"), "{text}");
        let mut config = RunConfig::default();
        config.objective.teacher = Some(Teacher { from: "runs/a".into(), ..Teacher::default() });
        assert!(
            toml::to_string(&config).unwrap().contains("[objective.teacher]\nfrom = \"runs/a\"\ntemperature = 2.0\n")
        );
    }
}
