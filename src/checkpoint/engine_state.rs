//! Engine state: counters, history and vocabulary, stored under `state` in the manifest of a checkpoint.

use std::collections::BTreeMap;

use lambert_config::RunConfig;
use lambert_dataset::VocabularyInfo;
use lambert_plan::timeline::{self, EarlyStops};
use lambert_store::checkpoint::Manifest;
use serde::{Deserialize, Serialize};

use super::teacher_record::TeacherRecord;
use crate::error::Error;
use crate::recovery::guard::LossHistory;
use crate::recovery::skipped_samples::SkippedSamples;
use crate::recovery::spikes::SpikeHistory;
use crate::state::plateau::PlateauTracker;
use crate::state::{ParamSpec, Skipped, StageProgress, TrainState};

/// Contents of `state` in a manifest. The serde aliases are the keys of formats up to 3.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct EngineState {
    /// Number of optimizer updates, by parameter group.
    updates: Updates,
    /// Formats up to 2: for each encoder layer that was added later, the number of updates before it was added.
    #[serde(default, skip_serializing)]
    born: BTreeMap<usize, u64>,
    /// Number of steps skipped because the loss or the gradient was not finite.
    skipped_updates: u64,
    /// Number of samples that were skipped, or whose update was skipped.
    #[serde(default)]
    skipped_samples: u64,
    /// Skipped samples of each mixture, and skipped shards of each dataset, by the id of the mixture or the SHA-256 of the
    /// manifest of the dataset.
    #[serde(default, alias = "detours")]
    skipped_by_dataset: BTreeMap<String, SkippedSamples>,
    /// Number of samples drawn from each mixture of several datasets, by its id.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    mixtures: BTreeMap<String, u64>,
    /// Loss statistics of the current stage, for the divergence guard.
    #[serde(default)]
    history: LossHistory,
    /// Spikes of the loss and of the gradient norm.
    #[serde(default, skip_serializing_if = "SpikeHistory::is_empty")]
    spikes: SpikeHistory,
    /// Plateau detection over the evaluations of the current stage.
    #[serde(default, alias = "watched", skip_serializing_if = "PlateauTracker::is_new")]
    plateau: PlateauTracker,
    /// Stages that ended early at a plateau, with their numbers of steps.
    #[serde(default, alias = "ended", skip_serializing_if = "EarlyStops::is_empty")]
    early_stops: EarlyStops,
    /// ID of the mixture that the current stage reads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    stage_mixture: Option<String>,
    /// True if the evaluation of this step is pending.
    #[serde(default, alias = "unevaluated", skip_serializing_if = "std::ops::Not::not")]
    evaluation_pending: bool,
    /// Number of encoder layers before the growth of the current stage, if the model has grown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    grown_from: Option<usize>,
    /// Teacher of the run, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub teacher: Option<TeacherRecord>,
    /// Vocabulary size and case.
    #[serde(flatten)]
    pub vocabulary: VocabularyInfo,
}

/// Update counts.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(untagged)]
enum Updates {
    /// Formats up to 2: one count for all parameters except layers added later.
    Alike(u64),
    /// By parameter group.
    Groups(BTreeMap<String, u64>),
}

impl EngineState {
    /// Captures `state`. The tuple has the size of the vocabulary, and true if text is lowercased.
    pub fn capture(state: &TrainState, (size, lowercase): (usize, bool)) -> Self {
        Self {
            updates: Updates::Groups(state.updates.clone()),
            born: BTreeMap::new(),
            skipped_updates: state.skipped.updates,
            skipped_samples: state.skipped.samples,
            skipped_by_dataset: state.skipped.by_source.clone(),
            mixtures: state.mixture_cursors.clone(),
            history: state.stages.losses.clone(),
            spikes: state.stages.spikes.clone(),
            plateau: state.stages.plateau.clone(),
            early_stops: state.stages.early_stops.clone(),
            stage_mixture: state.stages.mixture_id.clone(),
            evaluation_pending: state.evaluation_pending,
            grown_from: state.stages.grown_from,
            teacher: None,
            vocabulary: VocabularyInfo { size, lowercase },
        }
    }

    /// Parses the state in the manifest of a checkpoint.
    pub fn read(manifest: &Manifest) -> Result<Self, Error> {
        let fault = |error: serde_json::Error| Error::Checkpoint {
            name: manifest.name(),
            message: format!("invalid state: {error}"),
        };
        serde_json::from_value(manifest.state.clone()).map_err(fault)
    }

    /// Returns the stages that ended early at a plateau. Omits the checkpoint's stage if `config` has no `plateau` for it
    /// any more, so that the run continues in it.
    pub fn early_stops(&self, config: &RunConfig, manifest: &Manifest) -> EarlyStops {
        timeline::without_removed_plateau(config, self.early_stops.clone(), manifest.stage)
    }

    /// Returns the update count of each parameter group of a model.
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

    /// Copies this engine state, and the step, stage and cursors of `manifest`, to `state`, which has the same model.
    pub fn apply(self, manifest: &Manifest, state: &mut TrainState) {
        state.updates = self.updates(state.parameters.specs());
        state.skipped = Skipped {
            updates: self.skipped_updates,
            samples: self.skipped_samples,
            by_source: self.skipped_by_dataset,
        };
        state.stages = StageProgress {
            entered: Some(manifest.stage),
            grown_from: self.grown_from,
            losses: self.history,
            spikes: self.spikes,
            plateau: self.plateau,
            early_stops: self.early_stops,
            mixture_id: self.stage_mixture,
        };
        state.evaluation_pending = self.evaluation_pending;
        state.step = manifest.step;
        state.dataset_cursors = manifest.cursor.clone();
        state.mixture_cursors = self.mixtures;
    }
}

#[cfg(test)]
mod tests {
    use lambert_plan::architecture::{ModuleKind, ParamKind, Role, TensorId};

    use super::*;

    #[test]
    fn update_counts_of_older_formats_are_converted_to_groups() {
        let spec = |name: &str, part, layer| {
            let id = TensorId { layer, ..TensorId::new(part, ParamKind::Bias) };
            ParamSpec {
                id,
                name: name.to_owned(),
                shape: vec![1],
                first: 0,
                matrices: 0,
                padding: None,
                is_fused: false,
                is_frozen: false,
                role: Role::Bias,
                head: None,
                final_after_segment: 1,
            }
        };
        let layers = [0, 1, 12].map(|layer| spec("of a layer", ModuleKind::Output, Some(layer)));
        let others =
            [("bert.pooler.dense.bias", ModuleKind::Pooler), ("cls.predictions.bias", ModuleKind::PredictionBias)];
        let others = others.map(|(name, part)| spec(name, part, None));
        let specs = [&layers[..], &others].concat();
        let rest = r#""skipped_updates": 0, "vocabulary": 9, "lowercase": true"#;
        let engine_state: EngineState =
            serde_json::from_str(&format!(r#"{{"updates": 70, "born": {{"1": 30, "12": 70}}, {rest}}}"#)).unwrap();
        let counts = [("bert.pooler", 70), ("cls.predictions", 70), ("layer.0", 70), ("layer.1", 40)];
        let counts: BTreeMap<String, u64> = counts.map(|(group, count)| (group.to_owned(), count)).into();
        assert_eq!(engine_state.updates(&specs), counts);
        let text =
            serde_json::to_string(&EngineState { updates: Updates::Groups(counts.clone()), ..engine_state }).unwrap();
        assert!(!text.contains("born") && text.ends_with(r#""vocabulary":9,"lowercase":true}"#), "{text}");
        assert_eq!(serde_json::from_str::<EngineState>(&text).unwrap().updates(&specs), counts);
    }

    /// Format 3 has the same values under other keys.
    #[test]
    fn keys_of_format_3_are_read() {
        let recent = |key: &str| {
            format!(
                r#"{{"losses":3,"mean":2.5,"variance":0.5,"recent":[{{"before":6,"samples":{{"start":96,"end":112}},"{key}":false}}]}}"#
            )
        };
        let ranges = r#"{"d":{"samples":[{"start":3,"end":5}]}}"#;
        let rest = r#""vocabulary":9,"lowercase":true}"#;
        let old = format!(
            r#"{{"updates":{{"layer.0":4}},"skipped_updates":1,"skipped_samples":2,"detours":{ranges},"history":{},"watched":{{"lowest":2.0,"flat":1}},"ended":{{"0":7}},"unevaluated":true,{rest}"#,
            recent("sound")
        );
        let new = format!(
            r#"{{"updates":{{"layer.0":4}},"skipped_updates":1,"skipped_samples":2,"skipped_by_dataset":{ranges},"history":{},"plateau":{{"lowest":2.0,"flat":1}},"early_stops":{{"0":7}},"evaluation_pending":true,{rest}"#,
            recent("finite")
        );
        for text in [&old, &new] {
            assert_eq!(serde_json::to_string(&serde_json::from_str::<EngineState>(text).unwrap()).unwrap(), new);
            let state: serde_json::Value = serde_json::from_str(text).unwrap();
            assert_eq!(timeline::stored_early_stops(&state), EarlyStops::from([(0, 7)]));
        }
    }
}
