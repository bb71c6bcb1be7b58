//! Start of a stage: model growth and optimizer restart.
//!
//! - [`growth`]: progressive stacking of layers
//! - [`teacher`]: a model that starts from the layers of its teacher
//! - [`vocabulary`]: more tokens than the model that a run starts from

pub mod growth;
pub mod teacher;
pub mod vocabulary;

use lambert_config::run::RunConfig;
use lambert_plan::architecture::Architecture;
use lambert_plan::timeline::StagePosition;

use crate::recovery::guard::LossHistory;
use crate::state::TrainState;
use crate::state::plateau::PlateauTracker;
use crate::torch::TorchError;

/// Enters the stage of `position`, unless the state is already in that stage. Grows the model, resets the loss history and
/// the plateau tracker, and restarts the optimizer if configured.
///
/// # Errors
/// Out of memory while growing the model.
pub fn enter(state: &mut TrainState, config: &RunConfig, position: &StagePosition<'_>) -> Result<(), TorchError> {
    if state.stages.entered == Some(position.index) {
        return Ok(());
    }
    let vocabulary = state.parameters.architecture().vocabulary();
    let architecture = Architecture::of_run(config, position.stage.depth(&config.model), vocabulary);
    growth::grow(state, architecture, &position.stage.growth)?;
    state.stages.losses = LossHistory::default();
    state.stages.spikes.start_stage();
    state.stages.plateau = PlateauTracker::default();
    if position.stage.restart_optimizer {
        state.restart_optimizer();
    }
    state.stages.entered = Some(position.index);
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use lambert_config::run::{Growth, Model, Stage};

    use super::*;
    use crate::kernels::Host;
    use crate::state::Parameters;

    /// A stage is entered again after a failed read in its first step.
    #[test]
    fn entering_a_stage_twice_has_no_effect() {
        let model = Model { hidden: 8, heads: 2, intermediate: 16, positions: 16, ..Model::default() };
        let parameters = Parameters::initialize(Arc::new(Host), Architecture::new(&model, 1, 50), 1, 0.02);
        let mut state = TrainState::new(parameters);
        let config = RunConfig { model, ..RunConfig::default() };
        let growth = Growth { new_layers_only: 3, ..Growth::default() };
        let stage = Stage { layers: Some(2), steps: 9, growth, restart_optimizer: true, ..Stage::default() };
        let position = |done| StagePosition { index: 1, stage: &stage, done };
        enter(&mut state, &config, &position(0)).unwrap();
        state.count_update();
        enter(&mut state, &config, &position(0)).unwrap();
        assert_eq!((state.stages.grown_from, state.parameters.layers()), (Some(1), 2));
        assert_eq!(state.updates["layer.1"], 1, "the optimizer was restarted twice");
        // If the configuration of the previous stage was shortened, the run enters the next stage later than at its
        // first step.
        state.stages.entered = Some(0);
        enter(&mut state, &config, &position(5)).unwrap();
        assert_eq!((state.stages.entered, state.updates.is_empty()), (Some(1), true));
    }
}
