//! The gradients of a step: this rank's passes, and the sum over all ranks, in place in the flat buffer. In buckets, each of which
//! travels while the rest of the backward pass runs; or exactly, leaf by leaf, which is the same in every world.

use lambert_collective::{Bucket, Group, MemoryLocation, PendingAllReduce, Reducer, all_reduce};

use crate::error::Error;
use crate::kernels::Address;
use crate::state::TrainState;
use crate::torch;
use crate::train::exact::ExactSum;
use crate::worker::host_share::HostShare;
use crate::worker::session::Session;

/// Whether gradients travel while the backward pass runs: as the configuration says, else where that hides them.
pub fn overlaps(session: &Session) -> bool {
    let config = &session.config;
    let hides = || session.nccl || hides_exchange(session.host, session.world, config.device.threads);
    config.cluster.all_reduce.overlap.unwrap_or_else(hides)
}

/// Whether `world` ranks of `threads` threads exchange gradients beside their computing: another host is waited for, or this one
/// has a processor left.
fn hides_exchange(host: HostShare, world: usize, threads: usize) -> bool {
    host.ranks < world || host.processors > host.ranks * threads
}

/// The gradients of one step on their way through the sum. A bucket is a range of the flat buffer, which lies in the order of
/// the backward pass: all ranks start the same buckets in the same order, however many micro-batches each of them has.
pub struct Exchange<'a> {
    /// None in a world of one, whose gradients are their sum.
    reducer: Option<&'a mut dyn Reducer>,
    /// Elements of a bucket.
    bucket: usize,
    /// Whether buckets are sent before all gradients are final.
    overlap: bool,
    /// Elements that are in buckets which have been started.
    started: usize,
    pending: Vec<Box<dyn PendingAllReduce>>,
    /// Why a bucket could not be started.
    failed: Option<lambert_collective::Error>,
}

impl<'a> Exchange<'a> {
    /// In buckets of so many elements, with a reducer unless there is one rank only; `overlap` says whether they are sent as
    /// soon as they are final.
    pub fn new(reducer: Option<&'a mut dyn Reducer>, bucket: usize, overlap: bool) -> Self {
        Self { reducer, bucket: bucket.max(1), overlap, started: 0, pending: Vec::new(), failed: None }
    }

    /// Starts the buckets that are whole now that the first `elements` gradients are final, which nothing in this process
    /// touches until [`Exchange::finish`] has returned.
    pub fn are_final(&mut self, state: &TrainState, elements: usize) {
        if self.overlap {
            self.start_up_to(state, elements);
        }
    }

    fn start_up_to(&mut self, state: &TrainState, elements: usize) {
        while self.started.saturating_add(self.bucket) <= elements {
            self.start(state, self.bucket);
        }
    }

    fn start(&mut self, state: &TrainState, count: usize) {
        let first = self.started;
        self.started += count;
        let Some(bucket) = self.bucket(state, first, count) else { return };
        let Some(reducer) = &mut self.reducer else { return };
        match reducer.start(bucket) {
            Ok(pending) => self.pending.push(pending),
            Err(error) => self.failed = self.failed.take().or(Some(error)),
        }
    }

    /// `count` gradients from `first` on, if the reducer reaches them where they are.
    fn bucket(&self, state: &TrainState, first: usize, count: usize) -> Option<Bucket> {
        let Address { pointer, device } = state.gradients_in_place(first..first + count)?;
        let place = device.map_or(MemoryLocation::Host, MemoryLocation::Device);
        // SAFETY: the values are those of the state's buffer, which outlives the buckets: they are awaited or dropped with this
        // exchange, in the course of one step. Whoever said that they are final does not touch them meanwhile, and has given a
        // device's compute stream all that writes there.
        let bucket = unsafe {
            match place {
                MemoryLocation::Host => Bucket::host(pointer.as_ptr(), count),
                MemoryLocation::Device(number) => Bucket::device(pointer.as_ptr(), count, number),
            }
        };
        self.reducer.as_ref().is_some_and(|reducer| reducer.supports(place)).then_some(bucket)
    }

    /// Sends what is left, and the element behind the gradients; returns when every rank has the sum, all the same bits.
    ///
    /// # Errors
    /// What the reducer says.
    pub fn finish(mut self, state: &mut TrainState) -> Result<(), Error> {
        let all = state.gradients_mut().numel();
        if self.bucket(state, 0, all).is_none() {
            return self.by_main_memory(state);
        }
        self.start_up_to(state, all);
        if self.started < all {
            self.start(state, all - self.started);
        }
        if let Some(error) = self.failed {
            return Err(error.into());
        }
        Ok(self.pending.into_iter().try_for_each(|pending| pending.wait(None))?)
    }

    /// Gradients that no sum can be made of where they are.
    fn by_main_memory(self, state: &mut TrainState) -> Result<(), Error> {
        let Some(reducer) = self.reducer else { return Ok(()) };
        let kernels = state.parameters.kernels().clone();
        let mut reduced = Ok(());
        let mut sum = |values: &mut [f32]| reduced = all_reduce(&mut *reducer, values, None);
        torch::guard(|| kernels.with_host_floats(state.gradients_mut(), &mut sum))?;
        Ok(reduced?)
    }
}

/// Adds this rank's gradients, and the element behind them, to an exact sum, and leaves zeros.
pub fn add_exactly(state: &mut TrainState, sum: &mut ExactSum) {
    let kernels = state.parameters.kernels().clone();
    kernels.with_host_floats(state.gradients_mut(), &mut |values| sum.add(values));
    state.clear_gradients();
}

/// Gives `state` the sum over all ranks of what was added.
///
/// # Errors
/// What the group says.
pub fn sum_exactly(group: &mut dyn Group, state: &mut TrainState, mut sum: ExactSum) -> Result<(), Error> {
    torch::guard(|| add_exactly(state, &mut sum))?;
    sum.over_ranks(group)?;
    let kernels = state.parameters.kernels().clone();
    torch::guard(|| kernels.with_host_floats(state.gradients_mut(), &mut |values| sum.read(values)))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use lambert_collective::local;
    use lambert_config::run::{Model, Norm};
    use lambert_dataset::random::Key;
    use lambert_plan::architecture::Architecture;
    use lambert_plan::batch_partition::BatchPartition;

    use super::*;
    use crate::kernels::cuda::Emulator;
    use crate::kernels::{Cuda, Host, Kernels};
    use crate::state::{Buffer, Parameters};
    use crate::train::step;

    /// Sums buckets of device 0 only, which lies in main memory here.
    struct OfDevice(Box<dyn Reducer>);

    impl Reducer for OfDevice {
        fn name(&self) -> &'static str {
            "a test"
        }

        fn supports(&self, location: MemoryLocation) -> bool {
            location == MemoryLocation::Device(0)
        }

        fn start(&mut self, bucket: Bucket) -> lambert_collective::Result<Box<dyn PendingAllReduce>> {
            assert_eq!(
                bucket.location(),
                MemoryLocation::Device(0),
                "gradients of a card were taken through main memory"
            );
            // SAFETY: as it was promised for the same memory of the device.
            self.0.start(unsafe { Bucket::host(bucket.as_mut_ptr(), bucket.count()) })
        }
    }

    /// The gradients of each rank after the exchange, which told it of progress as `told` says.
    fn exchanged(
        kernels: fn() -> Arc<dyn Kernels>,
        bucket: usize,
        overlap: bool,
        told: &[&[f64]],
    ) -> Vec<(Vec<f32>, f64)> {
        let rank = |(rank, (mut ends, told)): (usize, (lambert_collective::Endpoints, Vec<f64>))| {
            std::thread::spawn(move || {
                tch::set_num_threads(1);
                let model = Model { hidden: 8, heads: 2, intermediate: 16, positions: 16, ..Model::default() };
                let parameters = Parameters::zeros(kernels(), Architecture::new(&model, 1, 50));
                let mut state = TrainState::new(parameters);
                let all = state.elements();
                // Of different sizes, so that their sum depends on the order.
                let own: Vec<f32> =
                    (0..all).map(|i| ((i * 37 + rank * 11) % 1009) as f32 * 1.1_f32.powi(i as i32 % 90)).collect();
                state.write(Buffer::Gradients, 0, &own);
                state.add_to_tail(&(state.kernels().zeros(&[], tch::Kind::Float) + rank as f64));
                if state.gradients_in_place(0..1).is_some_and(|address| address.device.is_some()) {
                    ends.reducer = Box::new(OfDevice(ends.reducer));
                }
                let mut exchange = Exchange::new(Some(&mut *ends.reducer), bucket, overlap);
                told.iter().for_each(|share| exchange.are_final(&state, (share * all as f64) as usize));
                exchange.finish(&mut state).unwrap();
                let norm = state.kernels().fetch(&state.gradient_norm().view([1]))[0];
                (state.read(Buffer::Gradients, 0..all), norm)
            })
        };
        let ranks = local::group(told.len()).into_iter().zip(told.iter().map(|shares| shares.to_vec())).enumerate();
        let threads: Vec<_> = ranks.map(rank).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    }

    /// What rank `rank` of so many has as the gradients of a step, after the exchange.
    fn gradients_of_a_world(mut ends: lambert_collective::Endpoints, lengths: &[u16], world: usize) -> Vec<f32> {
        tch::set_num_threads(1);
        let model = step::tests::model(Norm::Post);
        let division = BatchPartition::new(lengths, world, 24);
        let cuts: Vec<&[usize]> = division.ranks[ends.group.rank()].iter().map(|cut| &cut.samples[..]).collect();
        let parameters = Parameters::initialize(Arc::new(Host), Architecture::new(&model, 2, 50), 1, 0.2);
        let mut state = TrainState::new(parameters);
        let objective = step::tests::objective(&state, &model);
        let mut exchange = Exchange::new((world > 1).then_some(&mut *ends.reducer), 1000, true);
        let batch = step::tests::batch(&cuts);
        let mut are_final = |state: &TrainState, elements: usize| exchange.are_final(state, elements);
        step::forward_backward(&objective, &mut state, batch.whole(), Key::new(1), &mut are_final).unwrap();
        exchange.finish(&mut state).unwrap();
        state.read(Buffer::Gradients, 0..state.elements())
    }

    #[test]
    fn gradients_travel_beside_the_pass_where_a_host_is_waited_for_or_a_processor_is_left() {
        let hides = |processors, ranks, world| hides_exchange(HostShare { processors, ranks }, world, 2);
        assert!(!hides(8, 4, 4), "all processors compute");
        assert!(!hides(4, 4, 4), "there are fewer processors than threads");
        assert!(hides(9, 4, 4), "a processor is left");
        assert!(hides(8, 4, 8), "half of the ranks are on another host");
    }

    #[test]
    fn gradients_of_any_world_are_those_of_one_rank() {
        let lengths: Vec<u16> = (0..5).map(|number| 5 + 2 * number).collect();
        let of = |world: usize| {
            let ranks = local::group(world).into_iter().map(|ends| {
                let lengths = lengths.clone();
                std::thread::spawn(move || gradients_of_a_world(ends, &lengths, world))
            });
            let threads: Vec<_> = ranks.collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
        };
        let one = of(1).remove(0);
        let specs = Architecture::new(&step::tests::model(Norm::Post), 2, 50);
        let parameters = Parameters::zeros(Arc::new(Host), specs);
        let norm = |values: &mut dyn Iterator<Item = f32>| values.map(|v| f64::from(v).powi(2)).sum::<f64>().sqrt();
        let all = norm(&mut one.iter().copied());
        // One rank has nothing to do.
        for world in [2, 3, 4, 6] {
            let (mut worst, mut where_) = (0.0, "");
            for gradients in of(world) {
                for spec in parameters.specs() {
                    let apart = spec.range().map(|index| gradients[index] - one[index]);
                    let apart = norm(&mut apart.into_iter());
                    let own = norm(&mut one[spec.range()].iter().copied());
                    // The gradient of a key's bias is zero but for rounding: softmax takes no notice of it.
                    let share = apart / if spec.name.ends_with("key.bias") { all } else { own };
                    assert!(share < 1e-6, "{world} ranks: {share:.1e} of the norm of {}", spec.name);
                    if share > worst {
                        (worst, where_) = (share, &spec.name);
                    }
                }
            }
            eprintln!("{world} ranks: {worst:.1e} of the norm of {where_}");
        }
    }

    #[test]
    fn every_rank_has_the_same_sum_whenever_its_gradients_were_final() {
        let host: fn() -> Arc<dyn Kernels> = || Arc::new(Host);
        let card: fn() -> Arc<dyn Kernels> = || Arc::new(Cuda::new(Arc::new(Emulator::default())));
        let device: fn() -> Arc<dyn Kernels> = || Arc::new(Cuda::new(Arc::new(Emulator::with_device_index(0))));
        let whole = exchanged(host, usize::MAX, false, &[&[], &[], &[]]);
        assert!(whole[0].0.iter().filter(|sum| **sum != 0.0).count() > 1000);
        let told: [&[f64]; 3] = [&[0.3, 0.31, 0.9, 1.0], &[], &[1.0]];
        for (kernels, bucket, overlap) in [
            (host, 100, true),
            (host, 1, true),
            (host, 1 << 30, true),
            (host, 100, false),
            (card, 100, true),
            (device, 100, true),
            (device, 100, false),
        ] {
            for (sum, norm) in exchanged(kernels, bucket, overlap, &told) {
                assert!(sum == whole[0].0, "buckets of {bucket}");
                // The tail is 0 + 1 + 2.
                let square: f64 = sum.iter().map(|sum| f64::from(*sum).powi(2)).sum();
                assert!((norm / (square.sqrt() + 3.0) - 1.0).abs() < 1e-9, "{norm}");
            }
        }
    }
}
