//! Record of the teacher in the manifest of a checkpoint.

use lambert_config::RunConfig;
use serde::{Deserialize, Serialize};

/// Teacher of a checkpoint, as its manifest records it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TeacherRecord {
    /// SHA-256 of the weights of the teacher.
    pub weights_sha256: String,
    /// SHA-256 of the configuration of the run of the teacher.
    pub config_sha256: String,
}

impl TeacherRecord {
    /// Returns the record of the teacher of a run; `None` without a teacher.
    pub fn of(config: &RunConfig) -> Option<Self> {
        let facts = config.objective.teacher.as_ref()?.facts.as_ref()?;
        Some(Self { weights_sha256: facts.weights_sha256.clone(), config_sha256: facts.config_sha256.clone() })
    }

    /// Returns the reason why a checkpoint with this record does not fit a run; `None` if it fits. A run without a teacher fits.
    pub fn incompatibility(&self, config: &RunConfig) -> Option<String> {
        let ours = Self::of(config)?;
        (ours.weights_sha256 != self.weights_sha256).then(|| {
            format!(
                "it was trained with another teacher: objective.teacher has the weights {}, that teacher had the weights {}",
                ours.weights_sha256, self.weights_sha256
            )
        })
    }
}
