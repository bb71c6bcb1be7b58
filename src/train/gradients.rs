//! Gradient all-reduce, in place in the flat gradient buffer. The all-reduce runs either in buckets, overlapped with
//! the backward pass, or as an exact sum over canonical shards, which are a fixed partition of the global batch. The
//! exact sum has the same bits for every world size.

use std::ops::Range;

use lambert_collective::{Bucket, Group, MemoryLocation, PendingAllReduce, Reducer, all_reduce};

use crate::error::Error;
use crate::kernels::Address;
use crate::state::TrainState;
use crate::torch;
use crate::train::exact::ExactSum;
use crate::worker::host_share::HostShare;
use crate::worker::session::Session;

/// True if the all-reduce should overlap with the backward pass: `all_reduce.overlap` if it is set, otherwise true where
/// overlap hides communication.
pub fn wants_overlap(session: &Session) -> bool {
    let config = &session.config;
    let hides = || session.nccl.is_some() || hides_communication(session.host, session.world, config.device.threads);
    config.cluster.all_reduce.overlap.unwrap_or_else(hides)
}

/// True if overlap hides communication for `world` ranks of `threads` threads each. Overlap helps if ranks on other
/// hosts add network latency, or if this host has idle CPU cores.
fn hides_communication(host: HostShare, world: usize, threads: usize) -> bool {
    host.ranks < world || host.processors > host.ranks * threads
}

/// Bucketed all-reduce of the gradients of one step. A bucket is a range of the flat gradient buffer. The buffer stores
/// the gradients in the order in which the backward pass computes them. All ranks start the same buckets in the same
/// order, even if their numbers of micro-batches differ.
pub struct BucketedAllReduce<'a> {
    /// `None` with one rank, because there is nothing to reduce.
    reducer: Option<&'a mut dyn Reducer>,
    /// Number of elements per bucket.
    bucket: usize,
    /// True if buckets start before all gradients are final.
    overlap: bool,
    /// Elements that are reduced, if not all gradients and the extra elements.
    range: Option<Range<usize>>,
    /// End of the buckets started so far.
    started: usize,
    pending: Vec<Box<dyn PendingAllReduce>>,
    /// First error that occurred at the start of a bucket.
    failed: Option<lambert_collective::Error>,
}

impl<'a> BucketedAllReduce<'a> {
    /// Creates an all-reduce in buckets of `bucket` elements. `reducer` is `None` with one rank. With `overlap`, a
    /// bucket starts as soon as its gradients are final.
    pub fn new(reducer: Option<&'a mut dyn Reducer>, bucket: usize, overlap: bool) -> Self {
        Self { reducer, bucket: bucket.max(1), overlap, range: None, started: 0, pending: Vec::new(), failed: None }
    }

    /// True if buckets start before all gradients are final. Requires overlap, other ranks, and gradients in memory that
    /// the reducer can access.
    pub fn overlaps(&self, state: &TrainState) -> bool {
        self.overlap && self.bucket(state, 0, 1).is_some()
    }

    /// Reduces only the elements of `range`.
    pub fn within(self, range: Range<usize>) -> Self {
        Self { started: range.start, range: Some(range), ..self }
    }

    /// With overlap, starts the complete buckets within the first `elements` gradients, which are final. The caller
    /// must not access these gradients until [`BucketedAllReduce::finish`] returns.
    pub fn gradients_ready(&mut self, state: &TrainState, elements: usize) {
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

    /// Returns the bucket of `count` gradients that starts at element `first`. `None` if there is no reducer, or if the
    /// reducer does not support the memory of the gradients.
    fn bucket(&self, state: &TrainState, first: usize, count: usize) -> Option<Bucket> {
        let Address { pointer, device } = state.gradients_in_place(first..first + count)?;
        let place = device.map_or(MemoryLocation::Host, MemoryLocation::Device);
        // SAFETY: the bucket points into the gradient buffer of the state. The buffer outlives the bucket, because
        // every bucket is awaited or dropped with this all-reduce, within one step. Until then, the caller of
        // `gradients_ready` does not access the elements. The caller has already enqueued all writes to the
        // elements on the compute stream of the device.
        let bucket = unsafe {
            match place {
                MemoryLocation::Host => Bucket::host(pointer.as_ptr(), count),
                MemoryLocation::Device(number) => Bucket::device(pointer.as_ptr(), count, number),
            }
        };
        self.reducer.as_ref().is_some_and(|reducer| reducer.supports(place)).then_some(bucket)
    }

    /// Reduces the remaining buckets and the flag, which follows the gradients. Returns when this rank has the
    /// sum. The sum has the same bits on all ranks.
    ///
    /// # Errors
    /// The all-reduce fails.
    pub fn finish(mut self, state: &mut TrainState) -> Result<(), Error> {
        let range = self.range.clone().unwrap_or(0..state.gradients_mut().numel());
        if self.bucket(state, range.start, range.len()).is_none() {
            return self.via_host(state, range);
        }
        self.start_up_to(state, range.end);
        if self.started < range.end {
            self.start(state, range.end - self.started);
        }
        if let Some(error) = self.failed {
            return Err(error.into());
        }
        Ok(self.pending.into_iter().try_for_each(|pending| pending.wait(None))?)
    }

    /// All-reduces through host memory. Used if the reducer does not support the memory of the gradients.
    fn via_host(self, state: &mut TrainState, range: Range<usize>) -> Result<(), Error> {
        let Some(reducer) = self.reducer else { return Ok(()) };
        let kernels = state.parameters.kernels().clone();
        let mut reduced = Ok(());
        let mut sum = |values: &mut [f32]| reduced = all_reduce(&mut *reducer, values, None);
        torch::guard(|| {
            let mut gradients = state.gradients_mut().narrow(0, range.start as i64, range.len() as i64);
            kernels.with_host_floats(&mut gradients, &mut sum);
        })?;
        Ok(reduced?)
    }
}

/// Adds this rank's gradients and the flag to `sum`, and clears them.
pub fn accumulate_exact(state: &mut TrainState, sum: &mut ExactSum) {
    let kernels = state.parameters.kernels().clone();
    kernels.with_host_floats(state.gradients_mut(), &mut |values| sum.add(values));
    state.clear_gradients();
}

/// Adds the gradients of `state` to `sum`, all-reduces `sum`, and writes the result to the gradients of `state`.
///
/// # Errors
/// The all-reduce fails.
pub fn all_reduce_exact(group: &mut dyn Group, state: &mut TrainState, mut sum: ExactSum) -> Result<(), Error> {
    torch::guard(|| accumulate_exact(state, &mut sum))?;
    sum.all_reduce(group)?;
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
    use lambert_plan::batch_partition::{BatchPartition, Layout};

    use super::*;
    use crate::kernels::cuda::Emulator;
    use crate::kernels::{Cuda, Host, Kernels};
    use crate::state::{Buffer, Parameters};
    use crate::train::step;

    /// Reducer that supports only device 0. The memory of the emulated device is host memory.
    struct DeviceReducer(Box<dyn Reducer>);

    impl Reducer for DeviceReducer {
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
                "gradients of a GPU were reduced through host memory"
            );
            // SAFETY: the emulated device memory is host memory, and the guarantees of the caller apply to it.
            self.0.start(unsafe { Bucket::host(bucket.as_mut_ptr(), bucket.count()) })
        }
    }

    /// Gradients and gradient norm of each rank after the all-reduce. `ready[rank]` has one number per call of
    /// `gradients_ready` on this rank: the fraction of the gradients that the call reports as ready.
    fn all_reduced(
        kernels: fn() -> Arc<dyn Kernels>,
        bucket: usize,
        overlap: bool,
        ready: &[&[f64]],
    ) -> Vec<(Vec<f32>, f64)> {
        let rank = |(rank, (mut ends, ready)): (usize, (lambert_collective::Endpoints, Vec<f64>))| {
            std::thread::spawn(move || {
                tch::set_num_threads(1);
                let model = Model { hidden: 8, heads: 2, intermediate: 16, positions: 16, ..Model::default() };
                let parameters = Parameters::zeros(kernels(), Architecture::new(&model, 1, 50));
                let mut state = TrainState::new(parameters);
                let all = state.elements();
                // Different magnitudes, so that the sum depends on the order.
                let own: Vec<f32> =
                    (0..all).map(|i| ((i * 37 + rank * 11) % 1009) as f32 * 1.1_f32.powi(i as i32 % 90)).collect();
                state.write(Buffer::Gradients, 0, &own);
                state.add_to_flag(&(state.kernels().zeros(&[], tch::Kind::Float) + rank as f64));
                if state.gradients_in_place(0..1).is_some_and(|address| address.device.is_some()) {
                    ends.reducer = Box::new(DeviceReducer(ends.reducer));
                }
                let mut all_reduce = BucketedAllReduce::new(Some(&mut *ends.reducer), bucket, overlap);
                ready.iter().for_each(|share| all_reduce.gradients_ready(&state, (share * all as f64) as usize));
                let reaches = state.gradients_in_place(0..1).is_some();
                assert_eq!(all_reduce.overlaps(&state), overlap && reaches, "memory that only the host reaches");
                all_reduce.finish(&mut state).unwrap();
                let norm = state.kernels().fetch(&state.gradient_norm().view([1]))[0];
                (state.read(Buffer::Gradients, 0..all), norm)
            })
        };
        let ranks = local::group(ready.len()).into_iter().zip(ready.iter().map(|shares| shares.to_vec())).enumerate();
        let threads: Vec<_> = ranks.map(rank).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    }

    /// Gradients on one rank after a step, all-reduced over `world` ranks.
    fn gradients_of_a_world(mut ends: lambert_collective::Endpoints, lengths: &[u16], world: usize) -> Vec<f32> {
        tch::set_num_threads(1);
        let model = step::tests::model(Norm::Post);
        let division = BatchPartition::new(lengths, world, 24, Layout::Padded);
        let cuts: Vec<&[usize]> = division.ranks[ends.group.rank()].iter().map(|cut| &cut.samples[..]).collect();
        let parameters = Parameters::initialize(Arc::new(Host), Architecture::new(&model, 2, 50), 1, 0.2);
        let mut state = TrainState::new(parameters);
        let objective = step::tests::objective(&state, &model);
        let mut all_reduce = BucketedAllReduce::new((world > 1).then_some(&mut *ends.reducer), 1000, true);
        let batch = step::tests::batch(&cuts);
        let mut gradients_ready = |state: &TrainState, elements: usize| all_reduce.gradients_ready(state, elements);
        step::forward_backward(&objective, &mut state, batch.whole(), Key::new(1), &mut gradients_ready).unwrap();
        all_reduce.finish(&mut state).unwrap();
        state.read(Buffer::Gradients, 0..state.elements())
    }

    #[test]
    fn all_reduce_overlaps_across_hosts_or_with_idle_cores() {
        let hides = |processors, ranks, world| hides_communication(HostShare { processors, ranks }, world, 2);
        assert!(!hides(8, 4, 4), "all processors compute");
        assert!(!hides(4, 4, 4), "there are fewer processors than threads");
        assert!(hides(9, 4, 4), "a processor is left");
        assert!(hides(8, 4, 8), "half of the ranks are on another host");
    }

    #[test]
    fn gradients_match_those_of_one_rank_for_any_world_size() {
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
        // With more ranks than samples, some ranks have no work.
        for world in [2, 3, 4, 6] {
            let (mut worst, mut where_) = (0.0, "");
            for gradients in of(world) {
                for spec in parameters.specs() {
                    let difference = spec.range().map(|index| gradients[index] - one[index]);
                    let difference = norm(&mut difference.into_iter());
                    let own = norm(&mut one[spec.range()].iter().copied());
                    // Softmax does not depend on the key bias, so the gradient of a key bias is zero up to rounding.
                    let share = difference / if spec.name.ends_with("key.bias") { all } else { own };
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
    fn sum_is_independent_of_when_gradients_become_ready() {
        let host: fn() -> Arc<dyn Kernels> = || Arc::new(Host);
        let gpu: fn() -> Arc<dyn Kernels> = || Arc::new(Cuda::new(Arc::new(Emulator::default())));
        let device: fn() -> Arc<dyn Kernels> = || Arc::new(Cuda::new(Arc::new(Emulator::with_device_index(0))));
        let whole = all_reduced(host, usize::MAX, false, &[&[], &[], &[]]);
        assert!(whole[0].0.iter().filter(|sum| **sum != 0.0).count() > 1000);
        let ready: [&[f64]; 3] = [&[0.3, 0.31, 0.9, 1.0], &[], &[1.0]];
        for (kernels, bucket, overlap) in [
            (host, 100, true),
            (host, 1, true),
            (host, 1 << 30, true),
            (host, 100, false),
            (gpu, 100, true),
            (device, 100, true),
            (device, 100, false),
        ] {
            for (sum, norm) in all_reduced(kernels, bucket, overlap, &ready) {
                assert!(sum == whole[0].0, "buckets of {bucket}");
                // The flag is the sum over the three ranks, 0 + 1 + 2.
                let square: f64 = sum.iter().map(|sum| f64::from(*sum).powi(2)).sum();
                assert!((norm / (square.sqrt() + 3.0) - 1.0).abs() < 1e-9, "{norm}");
            }
        }
    }
}
