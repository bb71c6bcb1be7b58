//! The counters and facts of a checkpoint: what its manifest has under `state`.

use std::collections::BTreeMap;

use lambert_dataset::VocabularyFacts;
use lambert_plan::timeline::EarlyStops;
use lambert_store::checkpoint::Manifest;
use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::recovery::guard::LossHistory;
use crate::recovery::skipped_samples::SkippedSamples;
use crate::state::plateau::PlateauTracker;
use crate::state::{ParamSpec, Skipped, StageProgress, TrainState};

/// The counters and facts of a manifest's `state`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Facts {
    /// Updates that the moments of each group of parameters have seen.
    updates: Updates,
    /// Of the encoder layers whose moments were zero after so many updates; in format 2 and older.
    #[serde(default, skip_serializing)]
    born: BTreeMap<usize, u64>,
    /// Steps whose loss or gradient was not finite.
    skipped_updates: u64,
    /// Samples that were passed over or taught nothing.
    #[serde(default)]
    skipped_samples: u64,
    /// What of each dataset is not drawn, by the sha256 of its manifest.
    #[serde(default)]
    detours: BTreeMap<String, SkippedSamples>,
    /// What the steps of the stage have shown.
    #[serde(default)]
    history: LossHistory,
    /// What the evaluations of the stage have shown.
    #[serde(default, skip_serializing_if = "PlateauTracker::is_new")]
    watched: PlateauTracker,
    /// Stages that have ended at a plateau, and their steps.
    #[serde(default, skip_serializing_if = "EarlyStops::is_empty")]
    ended: EarlyStops,
    /// Whether the evaluation after the step is still to be made.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    unevaluated: bool,
    /// Layers before the stage's growth, if its model has grown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    grown_from: Option<usize>,
    /// The vocabulary.
    #[serde(flatten)]
    pub vocabulary: VocabularyFacts,
}

/// Counts of updates.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(untagged)]
enum Updates {
    /// Of all parameters alike, but for layers that were born later: format 2 and older.
    Alike(u64),
    /// By group.
    Groups(BTreeMap<String, u64>),
}

impl Facts {
    /// Those of `state`, whose datasets have a vocabulary of so many pieces, lowercased or not.
    pub fn of(state: &TrainState, (size, lowercase): (usize, bool)) -> Self {
        Self {
            updates: Updates::Groups(state.updates.clone()),
            born: BTreeMap::new(),
            skipped_updates: state.skipped.updates,
            skipped_samples: state.skipped.samples,
            detours: state.skipped.by_dataset.clone(),
            history: state.stages.history.clone(),
            watched: state.stages.plateau.clone(),
            ended: state.stages.ended.clone(),
            unevaluated: state.unevaluated,
            grown_from: state.stages.grown_from,
            vocabulary: VocabularyFacts { size, lowercase },
        }
    }

    /// Those of a checkpoint.
    pub fn read(manifest: &Manifest) -> Result<Self, Error> {
        let fault = |error: serde_json::Error| Error::Checkpoint {
            name: manifest.name(),
            message: format!("its state: {error}"),
        };
        serde_json::from_value(manifest.state.clone()).map_err(fault)
    }

    /// The counts of updates, for a model of these parameters.
    pub fn updates(&self, specs: &[ParamSpec]) -> BTreeMap<String, u64> {
        let count = |spec: &ParamSpec| {
            let born = spec.id.layer.and_then(|layer| self.born.get(&layer)).copied().unwrap_or(0);
            match &self.updates {
                Updates::Alike(all) => all.saturating_sub(born),
                Updates::Groups(groups) => groups.get(&spec.group()).copied().unwrap_or(0),
            }
        };
        specs.iter().map(|spec| (spec.group(), count(spec))).filter(|(_, count)| *count > 0).collect()
    }

    /// Gives them, with the step, stage and cursors of `manifest`, to a state of its model.
    pub fn apply(self, manifest: &Manifest, state: &mut TrainState) {
        state.updates = self.updates(state.parameters.specs());
        state.skipped =
            Skipped { updates: self.skipped_updates, samples: self.skipped_samples, by_dataset: self.detours };
        state.stages = StageProgress {
            entered: Some(manifest.stage),
            grown_from: self.grown_from,
            history: self.history,
            plateau: self.watched,
            ended: self.ended,
        };
        state.unevaluated = self.unevaluated;
        state.step = manifest.step;
        state.cursors = manifest.cursor.clone();
    }
}

#[cfg(test)]
mod tests {
    use lambert_plan::architecture::{ModuleKind, ParamKind, Role, TensorId};

    use super::*;

    #[test]
    fn counts_of_the_formats_before_are_those_of_the_groups() {
        let spec = |name: &str, part, layer| {
            let id = TensorId { layer, ..TensorId::new(part, ParamKind::Bias) };
            ParamSpec {
                id,
                name: name.to_owned(),
                shape: vec![1],
                first: 0,
                padding: None,
                is_fused: false,
                is_frozen: false,
                role: Role::Bias,
                head: None,
                final_after: 1,
            }
        };
        let layers = [0, 1, 12].map(|layer| spec("of a layer", ModuleKind::Output, Some(layer)));
        let others =
            [("bert.pooler.dense.bias", ModuleKind::Pooler), ("cls.predictions.bias", ModuleKind::PredictionBias)];
        let others = others.map(|(name, part)| spec(name, part, None));
        let specs = [&layers[..], &others].concat();
        let rest = r#""skipped_updates": 0, "vocabulary": 9, "lowercase": true"#;
        let facts: Facts =
            serde_json::from_str(&format!(r#"{{"updates": 70, "born": {{"1": 30, "12": 70}}, {rest}}}"#)).unwrap();
        let counts = [("bert.pooler", 70), ("cls.predictions", 70), ("layer.0", 70), ("layer.1", 40)];
        let counts: BTreeMap<String, u64> = counts.map(|(group, count)| (group.to_owned(), count)).into();
        assert_eq!(facts.updates(&specs), counts);
        let text = serde_json::to_string(&Facts { updates: Updates::Groups(counts.clone()), ..facts }).unwrap();
        assert!(!text.contains("born") && text.ends_with(r#""vocabulary":9,"lowercase":true}"#), "{text}");
        assert_eq!(serde_json::from_str::<Facts>(&text).unwrap().updates(&specs), counts);
    }
}
