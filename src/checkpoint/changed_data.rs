//! Data of a stage that changed between the last checkpoint and this start.

use lambert_config::RunConfig;
use lambert_plan::timeline;
use lambert_store::checkpoint::Manifest;

use crate::data::Mixture;
use crate::recovery::guard::LossHistory;
use crate::state::TrainState;

/// If the stage that `state` is in has other data than before, resets the loss statistics, which are those of the other data: a
/// rollback would skip samples of the wrong data. Returns a warning. `mixtures` has the data of each stage, and `manifest` is the
/// checkpoint of the state.
pub fn forget_statistics(
    config: &RunConfig,
    mixtures: &[Mixture],
    manifest: &Manifest,
    state: &mut TrainState,
) -> Option<String> {
    let place = timeline::position(config, &state.stages.early_stops, state.step)?;
    let mixture = mixtures.get(place.index)?;
    let is_known = match mixture.is_single() {
        true => state.cursors.contains_key(mixture.datasets()[0].manifest_sha256()),
        false => state.mixtures.contains_key(mixture.id()),
    };
    if is_known || place.done == 0 || state.stages.entered != Some(place.index) {
        return None;
    }
    state.stages.history = LossHistory::default();
    state.stages.spikes.start_stage();
    let (index, url, name) = (place.index, mixture.url(), manifest.name());
    Some(match mixture.is_single() {
        true => format!(
            "stage.{index}.data: {url} is not the dataset of {name}, or was prepared again since; the stage continues at its first \
             sample"
        ),
        false => format!(
            "stage.{index}.mixture: its datasets or weights are not those of {name}; each dataset continues after the samples that \
             were drawn from it"
        ),
    })
}
