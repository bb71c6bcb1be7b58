//! Data of a stage that changed between the last checkpoint and this start.

use lambert_config::RunConfig;
use lambert_plan::timeline;
use lambert_store::checkpoint::Manifest;

use crate::data::Mixture;
use crate::recovery::guard::LossHistory;
use crate::state::TrainState;

/// If the data of the stage that `state` is in have changed, resets the loss statistics, which are those of the old
/// data: a rollback would otherwise skip samples of the wrong data. Returns a warning. `mixtures` has the data of each
/// stage, and `manifest` is the checkpoint of the state.
pub fn forget_statistics(
    config: &RunConfig,
    mixtures: &[Mixture],
    manifest: &Manifest,
    state: &mut TrainState,
) -> Option<String> {
    let position = timeline::position(config, &state.stages.early_stops, state.step)?;
    let mixture = mixtures.get(position.index)?;
    let is_same = match &state.stages.mixture_id {
        Some(id) => id == mixture.id(),
        None if mixture.is_single() => state.dataset_cursors.contains_key(mixture.id()),
        None => state.mixture_cursors.contains_key(mixture.id()),
    };
    if is_same || position.done == 0 || state.stages.entered != Some(position.index) {
        return None;
    }
    state.stages.losses = LossHistory::default();
    state.stages.spikes.start_stage();
    Some(format!(
        "stage.{}: its data have changed since {}: different datasets or weights, or datasets prepared again; each \
         dataset continues after the samples that were drawn from it",
        position.index,
        manifest.name()
    ))
}
