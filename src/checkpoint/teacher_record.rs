//! Record of the teacher in the manifest of a checkpoint.

use lambert_config::RunConfig;
use lambert_config::run::Model;
use serde::{Deserialize, Serialize};

/// Teacher of a checkpoint, as its manifest records it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TeacherRecord {
    /// SHA-256 of the weights of the teacher.
    pub weights_sha256: String,
    /// SHA-256 of the configuration of the run of the teacher.
    pub config_sha256: String,
    /// Configuration of its encoder. `None` in checkpoints of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<Model>,
}

impl TeacherRecord {
    /// Returns the record of the teacher of a run; `None` without a teacher.
    pub fn of(config: &RunConfig) -> Option<Self> {
        let info = config.objective.teacher.as_ref()?.info.as_ref()?;
        Some(Self {
            weights_sha256: info.weights_sha256.clone(),
            config_sha256: info.config_sha256.clone(),
            model: Some(info.model.clone()),
        })
    }

    /// Returns the reason why a checkpoint with this record does not fit a run; `None` if it fits. A run without a teacher fits.
    pub fn incompatibility(&self, config: &RunConfig) -> Option<String> {
        let ours = Self::of(config)?;
        if ours.weights_sha256 != self.weights_sha256 {
            return Some(format!(
                "it was trained with a different teacher: objective.teacher has weights with SHA-256 {}, the checkpoint records {}",
                ours.weights_sha256, self.weights_sha256
            ));
        }
        let is_other = ours.model.zip(self.model.as_ref()).is_some_and(|(ours, theirs)| !ours.computes_like(theirs));
        is_other.then(|| {
            "it was trained with a different teacher: objective.teacher has the same weights, but a different encoder configuration"
                .to_owned()
        })
    }
}

#[cfg(test)]
mod tests {
    use lambert_config::run::{Precision, Teacher, TeacherInfo};

    use super::*;
    use crate::checkpoint::EngineState;

    fn config(weights: Option<&str>) -> RunConfig {
        let info = |weights: &str| TeacherInfo {
            checkpoint: None,
            weights_sha256: weights.to_owned(),
            config_sha256: "c".to_owned(),
            vocabulary_sha256: String::new(),
            model: Model::default(),
        };
        let mut config = RunConfig::default();
        config.objective.teacher =
            weights.map(|weights| Teacher { info: Some(Box::new(info(weights))), ..Teacher::default() });
        config
    }

    #[test]
    fn another_teacher_does_not_fit() {
        let record = TeacherRecord::of(&config(Some("a"))).unwrap();
        assert_eq!(record.incompatibility(&config(Some("a"))), None);
        assert_eq!(record.incompatibility(&config(None)), None);
        let with = |model: Model| {
            let mut config = config(Some("a"));
            config.objective.teacher.as_mut().unwrap().info.as_mut().unwrap().model = model;
            config
        };
        let same = Model { dropout: 0.0, precision: Precision::Bf16, ..Model::default() };
        assert_eq!(record.incompatibility(&with(same)), None);
        let why = record.incompatibility(&with(Model { heads: 6, ..Model::default() })).unwrap();
        assert!(why.contains("the same weights, but a different encoder configuration"), "{why}");
        let why = record.incompatibility(&config(Some("b"))).unwrap();
        assert!(why.contains("objective.teacher has weights with SHA-256 b, the checkpoint records a"), "{why}");
        assert_eq!(TeacherRecord::of(&config(None)), None);
    }

    /// States of earlier versions have no teacher.
    #[test]
    fn a_state_without_a_teacher_is_read() {
        let old = r#"{"updates":{},"skipped_updates":0,"vocabulary":50,"lowercase":true}"#;
        let mut state: EngineState = serde_json::from_str(old).unwrap();
        assert_eq!(state.teacher, None);
        assert!(!serde_json::to_string(&state).unwrap().contains("teacher"));
        state.teacher = TeacherRecord::of(&config(Some("a")));
        let text = serde_json::to_string(&state).unwrap();
        assert!(text.contains(r#""teacher":{"weights_sha256":"a","config_sha256":"c","model":{"#), "{text}");
        assert_eq!(serde_json::from_str::<EngineState>(&text).unwrap().teacher, state.teacher);
        // The version before had no configuration of the encoder.
        let old = r#"{"weights_sha256":"a","config_sha256":"c"}"#;
        let old: TeacherRecord = serde_json::from_str(old).unwrap();
        assert_eq!(old.incompatibility(&config(Some("a"))), None);
    }
}
