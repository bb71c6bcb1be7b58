//! Updates of Muon on several ranks: the ranks share the matrices and get the same bits.

use std::collections::BTreeMap;
use std::sync::Arc;

use lambert_collective::local;
use lambert_config::run::{Model, Optimizer, OptimizerKind};
use lambert_plan::architecture::Architecture;

use super::*;
use crate::kernels::cuda::Emulator;
use crate::kernels::tests::RandomValues;
use crate::kernels::{Cuda, Host, Kernels};
use crate::optim;
use crate::state::{Buffer, Parameters};

/// Ranks of a test.
struct LocalRanks {
    rank: usize,
    world: usize,
    ends: lambert_collective::Endpoints,
}

impl Ranks for LocalRanks {
    fn rank(&self) -> usize {
        self.rank
    }

    fn world(&self) -> usize {
        self.world
    }

    fn sum(&mut self, state: &mut TrainState, range: Range<usize>) -> Result<(), Error> {
        BucketedAllReduce::new(Some(&mut *self.ends.reducer), 1000, false).within(range).finish(state)
    }
}

/// Weights, momentum and step scales after updates of a rank.
type Updated = (Vec<f32>, Vec<f32>, BTreeMap<String, f64>);

/// Makes three updates with random gradients. With `is_frozen`, only the second layer of three is updated.
fn train(ranks: &mut LocalRanks, is_frozen: bool, kernels: Arc<dyn Kernels>) -> Updated {
    tch::set_num_threads(1);
    let model = Model { hidden: 16, heads: 2, intermediate: 32, positions: 16, ..Model::default() };
    let mut state = TrainState::new(Parameters::initialize(kernels, Architecture::new(&model, 3, 50), 1, 0.02));
    state.parameters.freeze(|spec| is_frozen && spec.id.layer != Some(1));
    let mut random = RandomValues::new(3);
    let settings = Optimizer { kind: OptimizerKind::Muon, ..Optimizer::default() };
    let mut scales = BTreeMap::new();
    for _ in 0..3 {
        let gradients = random.values(&[("", state.elements(), true)], 1e-2);
        state.write(Buffer::Gradients, 0, &gradients);
        let updated = optim::update(&mut state, &settings, 1e-2, ranks).unwrap();
        scales = updated.trust_ratios(&state);
        state.count_update();
    }
    let weights = state.read(Buffer::Weights, 0..state.elements());
    (weights, state.read(Buffer::First, 0..state.elements()), scales)
}

#[test]
fn ranks_share_the_matrices_and_get_the_same_bits() {
    let host: fn() -> Arc<dyn Kernels> = || Arc::new(Host);
    let gpu: fn() -> Arc<dyn Kernels> = || Arc::new(Cuda::new(Arc::new(Emulator::default())));
    for (kernels, is_frozen) in [(host, false), (gpu, false), (host, true), (gpu, true)] {
        let of = |world: usize| {
            let start = |(rank, ends)| {
                let mut ranks = LocalRanks { rank, world, ends };
                std::thread::spawn(move || train(&mut ranks, is_frozen, kernels()))
            };
            let threads: Vec<_> = local::group(world).into_iter().enumerate().map(start).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
        };
        let one = of(1).remove(0);
        assert_eq!(one.2.len(), if is_frozen { 6 } else { 18 });
        assert!(one.2.values().all(|ratio| *ratio > 1.0), "{:?}", one.2);
        for world in [2, 3, 20] {
            for (rank, other) in of(world).into_iter().enumerate() {
                assert!(other == one, "rank {rank} of {world}");
            }
        }
    }
}

#[test]
fn frozen_layers_stay_unchanged() {
    let updated = |is_frozen| {
        let ends = local::group(1).remove(0);
        train(&mut LocalRanks { rank: 0, world: 1, ends }, is_frozen, Arc::new(Host))
    };
    let (frozen, free) = (updated(true), updated(false));
    let model = Model { hidden: 16, heads: 2, intermediate: 32, positions: 16, ..Model::default() };
    let start = TrainState::new(Parameters::initialize(Arc::new(Host), Architecture::new(&model, 3, 50), 1, 0.02));
    for spec in start.parameters.specs() {
        let before = start.read(Buffer::Weights, spec.range());
        let is_updated = frozen.0[spec.range()] != before[..];
        assert_eq!(is_updated, spec.id.layer == Some(1), "{}", spec.name);
        assert!(spec.id.layer == Some(1) || frozen.1[spec.range()].iter().all(|momentum| *momentum == 0.0));
        assert!(free.0[spec.range()] != before[..], "{}", spec.name);
    }
}
