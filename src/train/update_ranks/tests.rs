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

#[test]
fn ranks_share_the_matrices_and_get_the_same_bits() {
    let train = |rank: usize, world: usize, ends: lambert_collective::Endpoints, kernels: Arc<dyn Kernels>| {
        tch::set_num_threads(1);
        let model = Model { hidden: 16, heads: 2, intermediate: 32, positions: 16, ..Model::default() };
        let mut state = TrainState::new(Parameters::initialize(kernels, Architecture::new(&model, 2, 50), 1, 0.02));
        let mut random = RandomValues::new(3);
        let mut ranks = LocalRanks { rank, world, ends };
        let settings = Optimizer { kind: OptimizerKind::Muon, ..Optimizer::default() };
        let mut scales = BTreeMap::new();
        for _ in 0..3 {
            let gradients = random.values(&[("", state.elements(), true)], 1e-2);
            state.write(Buffer::Gradients, 0, &gradients);
            let updated = optim::update(&mut state, &settings, 1e-2, &mut ranks).unwrap();
            scales = updated.trust_ratios(&state);
            state.count_update();
        }
        let weights = state.read(Buffer::Weights, 0..state.elements());
        (weights, state.read(Buffer::First, 0..state.elements()), scales)
    };
    let host: fn() -> Arc<dyn Kernels> = || Arc::new(Host);
    let gpu: fn() -> Arc<dyn Kernels> = || Arc::new(Cuda::new(Arc::new(Emulator::default())));
    for kernels in [host, gpu] {
        let of = |world: usize| {
            let start = |(rank, ends)| std::thread::spawn(move || train(rank, world, ends, kernels()));
            let threads: Vec<_> = local::group(world).into_iter().enumerate().map(start).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
        };
        let one = of(1).remove(0);
        assert_eq!(one.2.len(), 12);
        assert!(one.2.values().all(|ratio| *ratio > 1.0), "{:?}", one.2);
        for world in [2, 3, 20] {
            for (rank, other) in of(world).into_iter().enumerate() {
                assert!(other == one, "rank {rank} of {world}");
            }
        }
    }
}
