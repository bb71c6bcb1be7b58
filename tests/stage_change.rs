//! Stage transitions. Moments and counters either continue or are reset together. In both cases the size of the updates
//! must follow the schedule.

use std::sync::Arc;

use lambert_config::RunConfig;
use lambert_config::run::{Decay, Model, Optimizer, OptimizerKind, Stage};
use lambert_dataset::random::Key;
use lambert_plan::architecture::Architecture;
use lambert_plan::{schedule, timeline};
use lambert_worker::kernels::Host;
use lambert_worker::optim;
use lambert_worker::recovery::guard::GuardVerdict;
use lambert_worker::stages;
use lambert_worker::state::{Buffer, Parameters, TrainState};
use lambert_worker::train::outcome::StepOutcome;
use lambert_worker::train::sample_position::StepSamples;

const STEPS: u64 = 40;

fn config(kind: OptimizerKind, restart_optimizer: bool) -> RunConfig {
    let model = Model { layers: 1, hidden: 16, heads: 2, intermediate: 32, positions: 16, ..Model::default() };
    // The second stage has a tenth of the learning rate. This change comes from the schedule.
    let stage = |learning_rate, restart_optimizer| Stage {
        steps: STEPS,
        warmup: 0.0,
        decay: Decay::Constant,
        learning_rate,
        restart_optimizer,
        ..Stage::default()
    };
    let optimizer = Optimizer { kind, weight_decay: 0.0, trust_undecayed: true, ..Optimizer::default() };
    RunConfig {
        model,
        optimizer,
        stage: vec![stage(1e-3, false), stage(1e-4, restart_optimizer)],
        ..RunConfig::default()
    }
}

/// Returns the root mean square of each update divided by its learning rate, and the number of updates of the pooler.
/// The gradients have a constant direction.
fn relative_update_sizes(config: &RunConfig) -> (Vec<f64>, u64) {
    let specs = Architecture::new(&config.model, 1, 50);
    let mut state = TrainState::new(Parameters::initialize(Arc::new(Host), specs, 1, 0.02));
    let mut rng = Key::new(3).rng();
    let mut relative_update_sizes = Vec::new();
    while let Some(dir) = timeline::position(config, &state.stages.early_stops, state.step) {
        stages::enter(&mut state, config, &dir).unwrap();
        let rate = schedule::learning_rate(dir.stage, dir.done);
        let before = state.read(Buffer::Weights, 0..state.elements());
        let gradient = |index: usize| (1.0 + index as f32).sin() * (0.8 + 0.4 * rng.unit_f64() as f32);
        let gradients: Vec<f32> = (0..before.len()).map(gradient).collect();
        state.write(Buffer::Gradients, 0, &gradients);
        let norm =
            f64::try_from(optim::update(&mut state, &config.optimizer, rate, &mut optim::SingleRank).unwrap().norm)
                .unwrap();
        let drawn =
            StepSamples { mixture: "data".into(), samples: state.step..state.step + 1, ..StepSamples::default() };
        let outcome = StepOutcome { steps_before: state.step, drawn, norm, ..StepOutcome::default() };
        assert_eq!(outcome.judge_and_count(&mut state, &config.guard), GuardVerdict::Apply);
        let after = state.read(Buffer::Weights, 0..before.len());
        let squares = after.iter().zip(&before).map(|(after, before)| f64::from(after - before).powi(2));
        relative_update_sizes.push((squares.sum::<f64>() / before.len() as f64).sqrt() / rate);
    }
    (relative_update_sizes, state.updates["bert.pooler"])
}

#[test]
fn updates_follow_the_schedule_across_stages() {
    for (kind, restart) in [
        (OptimizerKind::Adamw, false),
        (OptimizerKind::Adamw, true),
        (OptimizerKind::AdamBert, false),
        (OptimizerKind::Lamb, false),
        (OptimizerKind::Lamb, true),
    ] {
        let (relative_update_sizes, updates) = relative_update_sizes(&config(kind, restart));
        let change = STEPS as usize;
        let ratios: Vec<f64> =
            (change..change + 10).map(|step| relative_update_sizes[step] / relative_update_sizes[change - 1]).collect();
        println!(
            "{kind:?}, restarted: {restart}: the first updates of the second stage are {ratios:.3?} times the last"
        );
        assert!(ratios.iter().all(|ratio| (0.8..1.25).contains(ratio)), "{kind:?}, {restart}: {ratios:?}");
        assert_eq!(updates, if restart { STEPS } else { 2 * STEPS }, "{kind:?}");
    }
}
