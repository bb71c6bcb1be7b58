//! Training steps of lambert.

use std::sync::Arc;
use std::time::Instant;

use lambert_config::run::{self, Model, Optimizer as Settings, OptimizerKind};
use lambert_dataset::random::Key;
use lambert_plan::architecture::Architecture;
use lambert_worker::data::GlobalBatch;
use lambert_worker::kernels::Host;
use lambert_worker::objective::Objective;
use lambert_worker::optim;
use lambert_worker::state::{Parameters, TrainState};
use lambert_worker::train::step;

/// Total time of several steps, and the time of their forward and backward passes, in seconds.
#[derive(Clone, Copy)]
pub struct Seconds {
    pub all: f64,
    pub forward_backward: f64,
}

pub struct Engine {
    state: TrainState,
    objective: Objective,
    settings: Settings,
    step: u64,
}

impl Engine {
    pub fn new(model: &Model, vocabulary: usize, recompute: bool) -> Self {
        let specs = Architecture::new(model, model.layers, vocabulary);
        let state = TrainState::new(Parameters::initialize(Arc::new(Host), specs, 1, 0.02));
        let settings = Settings { kind: OptimizerKind::Adamw, ..Settings::default() };
        let losses = run::Objective { pair: model.family.pair(), ..run::Objective::default() };
        let objective = Objective::new(&state.parameters, model, &losses);
        Self { objective: objective.recomputing(recompute), state, settings, step: 0 }
    }

    pub fn steps(&mut self, batches: &[GlobalBatch]) -> Seconds {
        let start = Instant::now();
        let mut forward_backward = 0.0;
        for batch in batches {
            let begin = Instant::now();
            let dropout = Key::new(1).with_bytes(b"dropout").with(self.step);
            let computed =
                step::forward_backward(&self.objective, &mut self.state, batch.whole(), dropout, &mut |_, _| ())
                    .unwrap();
            forward_backward += begin.elapsed().as_secs_f64();
            let norm = optim::update(&mut self.state, &self.settings, 1e-4, &mut optim::SingleRank).unwrap().norm;
            computed.fetch(&Host, &norm).unwrap();
            self.state.count_update();
            self.step += 1;
        }
        Seconds { all: start.elapsed().as_secs_f64(), forward_backward }
    }
}
