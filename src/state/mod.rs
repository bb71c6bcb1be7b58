//! Training state: everything that a step changes. Sample order, masks and dropout are
//! functions of the seed and of this state.
//!
//! - [`TrainState`]: weights, gradients and moments on one device, counters and cursors
//! - [`Parameters`]: weights only, for inference
//! - [`ParamSpec`]: name, shape and offset of a parameter in the flat buffers
//! - [`Skipped`], [`StageProgress`]: skipped updates and samples, and progress through the stages
//! - [`plateau`]: plateau detection on the held-out loss
//! - [`Region`]: ranges of a buffer as bytes, for load and save
//!
//! This module does not depend on stores, collectives or model growth.

mod layout;
mod parameters;
pub mod plateau;
mod progress;
mod region;

use std::collections::BTreeMap;
use std::ops::Range;

use tch::{Kind, Tensor};

use crate::kernels::{Address, Kernels, StateBuffers};

pub use layout::{ParamSpec, elements, final_elements, specs};
pub use parameters::{InitialDeviation, Parameters};
pub use progress::{Skipped, StageProgress};
pub use region::Region;

/// Number of extra elements after the gradients. The first of them is a flag that is all-reduced with the gradients.
/// The flag is 0 if the losses of all ranks are finite. Otherwise the flag is not finite, and no rank updates its
/// weights.
const EXTRA_ELEMENTS: usize = 32;

/// Training state.
pub struct TrainState {
    /// Steps completed since the start of the run.
    pub step: u64,
    /// Weights.
    pub parameters: Parameters,
    /// Gradients, f32 \[elements + EXTRA_ELEMENTS\]. The backward pass accumulates into this buffer.
    gradients: Tensor,
    /// First moments, f32 \[elements\].
    first: Tensor,
    /// Second moments, f32 \[elements\].
    second: Tensor,
    /// Update count of each parameter group ([`ParamSpec::group`]), for bias correction.
    pub updates: BTreeMap<String, u64>,
    /// Skipped updates and samples.
    pub skipped: Skipped,
    /// Progress through the stages.
    pub stages: StageProgress,
    /// True if the evaluation after the last step is missing, because of a failed read or a stop request.
    pub evaluation_pending: bool,
    /// Number of samples drawn from each dataset, by the sha256 of the dataset manifest.
    pub dataset_cursors: BTreeMap<String, u64>,
    /// Number of samples drawn from each mixture of several datasets, by its id.
    pub mixture_cursors: BTreeMap<String, u64>,
}

/// Flat buffer of the training state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Buffer {
    Weights,
    Gradients,
    /// First moments.
    First,
    /// Second moments.
    Second,
}

impl TrainState {
    /// Creates a state at step 0 with the weights in `parameters` and zero moments.
    pub fn new(mut parameters: Parameters) -> Self {
        let elements = elements(parameters.specs());
        let zeros = |count: usize| parameters.kernels.zeros(&[count as i64], Kind::Float);
        let (gradients, first, second) = (zeros(elements + EXTRA_ELEMENTS), zeros(elements), zeros(elements));
        parameters.attach(&gradients);
        Self {
            step: 0,
            updates: BTreeMap::new(),
            parameters,
            gradients,
            first,
            second,
            skipped: Skipped::default(),
            stages: StageProgress::default(),
            evaluation_pending: false,
            dataset_cursors: BTreeMap::new(),
            mixture_cursors: BTreeMap::new(),
        }
    }

    /// Kernels of the device that holds the state.
    pub fn kernels(&self) -> &dyn Kernels {
        &*self.parameters.kernels
    }

    /// Number of elements of the weights, and of each moment.
    pub fn elements(&self) -> usize {
        elements(self.parameters.specs())
    }

    /// Update count of a parameter.
    pub fn updates_of(&self, spec: &ParamSpec) -> u64 {
        self.updates.get(&spec.group()).copied().unwrap_or(0)
    }

    /// Resets the moments and the update counts.
    pub fn restart_optimizer(&mut self) {
        self.kernels().wait_snapshots();
        let _ = (self.first.zero_(), self.second.zero_());
        self.updates.clear();
    }

    /// Increments the update counts of all groups that are not frozen.
    pub fn count_update(&mut self) {
        let live = self.parameters.specs().iter().filter(|spec| !spec.is_frozen).map(ParamSpec::group);
        for group in live.collect::<std::collections::BTreeSet<_>>() {
            *self.updates.entry(group).or_default() += 1;
        }
    }

    /// Sets the gradients and the extra elements to zero.
    pub fn clear_gradients(&mut self) {
        let _ = self.gradients.zero_();
    }

    /// Adds `number`, f32 \[\], to the flag after the gradients, which is all-reduced with the gradients.
    pub fn add_to_flag(&mut self, number: &Tensor) {
        let _ = self.gradients.narrow(0, self.elements() as i64, 1).g_add_(number);
    }

    /// L2 norm of the gradients, f64 \[\]. Not finite if the flag is not finite.
    pub fn gradient_norm(&self) -> Tensor {
        let elements = self.elements() as i64;
        let norm = self.kernels().norm(&self.gradients.narrow(0, 0, elements));
        norm + self.gradients.select(0, elements)
    }

    /// Gradients and extra elements, f32, for the all-reduce.
    pub fn gradients_mut(&mut self) -> &mut Tensor {
        &mut self.gradients
    }

    /// Address of a range of the gradients and the extra elements, if the kernels permit direct access.
    pub fn gradients_in_place(&self, range: Range<usize>) -> Option<Address> {
        assert!(range.start < range.end && range.end <= self.gradients.numel(), "gradients {range:?}");
        self.kernels().address(&self.gradients, range.start)
    }

    /// All buffers, for an in-place update.
    pub fn buffers(&mut self) -> StateBuffers<'_> {
        self.kernels().wait_snapshots();
        StateBuffers {
            weights: &mut self.parameters.values,
            gradients: &mut self.gradients,
            first_moments: &mut self.first,
            second_moments: &mut self.second,
            bf16_weights: self.parameters.bf16.as_mut(),
        }
    }

    /// Returns a flat buffer.
    pub fn buffer(&self, buffer: Buffer) -> &Tensor {
        match buffer {
            Buffer::Weights => &self.parameters.values,
            Buffer::Gradients => &self.gradients,
            Buffer::First => &self.first,
            Buffer::Second => &self.second,
        }
    }

    /// Copies elements of a buffer to host memory.
    pub fn read(&self, buffer: Buffer, range: Range<usize>) -> Vec<f32> {
        let mut elements = vec![0.0_f32; range.len()];
        let first = size_of::<f32>() * range.start;
        self.kernels().read(self.buffer(buffer), first, bytemuck::cast_slice_mut(&mut elements));
        elements
    }

    /// Digest of the bits of the weights, i64 \[\].
    pub fn digest(&self) -> Tensor {
        self.kernels().digest(&self.parameters.values)
    }

    /// Writes elements of a buffer.
    pub fn write(&mut self, buffer: Buffer, first: usize, elements: &[f32]) {
        let bytes = bytemuck::cast_slice(elements);
        self.kernels().wait_snapshots();
        self.kernels().write(self.buffer(buffer), size_of::<f32>() * first, bytes);
    }

    /// Copies elements of `other`, multiplied by `share`.
    pub fn copy(&mut self, buffer: Buffer, to: Range<usize>, other: &Self, from: Range<usize>, share: f32) {
        let part =
            |state: &Self, range: &Range<usize>| state.buffer(buffer).narrow(0, range.start as i64, range.len() as i64);
        self.kernels().wait_snapshots();
        let old = part(other, &from);
        part(self, &to).copy_(&if share == 1.0 { old } else { old * f64::from(share) });
    }

    /// Fills elements with `value`.
    pub fn fill(&mut self, buffer: Buffer, range: Range<usize>, value: f32) {
        self.kernels().wait_snapshots();
        let mut part = self.buffer(buffer).narrow(0, range.start as i64, range.len() as i64);
        let _ = part.fill_(f64::from(value));
    }

    /// Flips a high mantissa bit of a weight, for fault injection. The change is so
    /// large that updates do not round it away.
    pub fn flip_bit(&mut self) {
        let first = self.parameters.specs().last().map_or(0, |spec| spec.first);
        let flipped = self.read(Buffer::Weights, first..first + 1)[0].to_bits() ^ (1 << 22);
        self.write(Buffer::Weights, first, &[f32::from_bits(flipped)]);
    }

    /// Sets the last second moment to infinity, for fault injection. The weights stay unchanged.
    pub fn corrupt_moment(&mut self) {
        let end = self.parameters.specs().last().map_or(0, |spec| spec.range().end);
        self.write(Buffer::Second, end - 1, &[f32::INFINITY]);
    }

    /// Takes weights, gradients, moments and update counts from `other`, which may have a different number of layers.
    pub fn take_tensors(&mut self, other: Self) {
        self.parameters = other.parameters;
        (self.gradients, self.first, self.second) = (other.gradients, other.first, other.second);
        self.updates = other.updates;
    }

    /// View of ranges of a buffer as consecutive bytes.
    pub fn region(&self, buffer: Buffer, ranges: Vec<Range<usize>>) -> Region {
        Region::new(self.parameters.kernels.clone(), self.buffer(buffer).shallow_clone(), ranges)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::kernels::Host;

    /// Region over a new buffer with these values.
    pub fn region(numbers: &[f32]) -> Region {
        let (buffer, all) = (Tensor::from_slice(numbers), 0..numbers.len());
        Region::new(Arc::new(Host), buffer, Vec::from([all]))
    }
}
