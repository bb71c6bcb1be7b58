//! The training state: all that a step changes, and nothing else. Order, masks and dropout are functions of it.
//!
//! - [`TrainState`]: weights, gradients and moments on one device, counters and cursors
//! - [`Parameters`]: the weights by themselves, for those that only read a model
//! - [`Spec`]: where a parameter lies in the flat buffers
//! - [`Skipped`], [`StageProgress`]: counters of skipped updates and samples, and of the stages
//! - [`plateau`]: whether the held-out loss is flat
//! - [`Region`]: ranges of a buffer as bytes, for load and save
//!
//! Nothing here knows stores, collectives or how a state grows.

mod layout;
mod parameters;
pub mod plateau;
mod progress;
mod region;

use std::collections::BTreeMap;
use std::ops::Range;

use lambert_dataset::Dataset;
use tch::{Kind, Tensor};

use crate::kernels::{Address, Buffers, Kernels};

pub use layout::{Spec, elements, final_elements, specs};
pub use parameters::Parameters;
pub use progress::{Skipped, StageProgress};
pub use region::Region;

/// Elements behind the last gradient, so that the first of them can carry one more number through the sum over the ranks:
/// 0, or what is not finite if a rank's loss is not, so that no rank makes the update.
const TAIL: usize = 32;

/// All that a step changes.
pub struct TrainState {
    /// Steps finished since the run's first start.
    pub step: u64,
    /// Weights.
    pub parameters: Parameters,
    /// All gradients, f32 \[elements + TAIL\]; backward adds to them.
    gradients: Tensor,
    /// Mean of the gradients, f32 \[elements\].
    first: Tensor,
    /// Mean of the squared gradients, f32 \[elements\].
    second: Tensor,
    /// Updates that the moments of each group of parameters have seen ([`Spec::group`]): what bias correction counts.
    pub updates: BTreeMap<String, u64>,
    /// Updates and samples skipped so far.
    pub skipped: Skipped,
    /// Progress through the stages.
    pub stages: StageProgress,
    /// The evaluation after the last step is missing, because its samples could not be read or a stop was requested.
    pub unevaluated: bool,
    /// Samples drawn from each dataset, by the sha256 of its manifest.
    pub cursors: BTreeMap<String, u64>,
}

/// One of the flat buffers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Buffer {
    /// Weights.
    Weights,
    /// Gradients.
    Gradients,
    /// Mean of the gradients.
    First,
    /// Mean of the squared gradients.
    Second,
}

impl TrainState {
    /// Step 0 with these weights and no moments.
    pub fn new(mut parameters: Parameters) -> Self {
        let elements = elements(parameters.specs());
        let zeros = |count: usize| parameters.kernels.zeros(&[count as i64], Kind::Float);
        let (gradients, first, second) = (zeros(elements + TAIL), zeros(elements), zeros(elements));
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
            unevaluated: false,
            cursors: BTreeMap::new(),
        }
    }

    /// The kernels of the device that it is on.
    pub fn kernels(&self) -> &dyn Kernels {
        &*self.parameters.kernels
    }

    /// Elements of the weights, and of each moment.
    pub fn elements(&self) -> usize {
        elements(self.parameters.specs())
    }

    /// Samples drawn from `dataset` so far.
    pub fn cursor(&self, dataset: &Dataset) -> u64 {
        self.cursors.get(dataset.manifest_sha256()).copied().unwrap_or(0)
    }

    /// Updates that a parameter's moments have seen.
    pub fn updates_of(&self, spec: &Spec) -> u64 {
        self.updates.get(&spec.group()).copied().unwrap_or(0)
    }

    /// Forgets the moments and the counts of updates.
    pub fn restart_optimizer(&mut self) {
        self.kernels().order_copies();
        let _ = (self.first.zero_(), self.second.zero_());
        self.updates.clear();
    }

    /// Counts an update: one more for every group that is not frozen.
    pub fn count_update(&mut self) {
        let live = self.parameters.specs().iter().filter(|spec| !spec.frozen).map(Spec::group);
        for group in live.collect::<std::collections::BTreeSet<_>>() {
            *self.updates.entry(group).or_default() += 1;
        }
    }

    /// Gradients are zero afterwards.
    pub fn clear_gradients(&mut self) {
        let _ = self.gradients.zero_();
    }

    /// Adds `number`, f32 \[\], to the element that goes through the sum over the ranks beside the gradients.
    pub fn add_to_tail(&mut self, number: &Tensor) {
        let _ = self.gradients.narrow(0, self.elements() as i64, 1).g_add_(number);
    }

    /// The L2 norm of all gradients, f64 \[\]; not finite if what was added to the tail is not.
    pub fn gradient_norm(&self) -> Tensor {
        let elements = self.elements() as i64;
        let norm = self.kernels().norm(&self.gradients.narrow(0, 0, elements));
        norm + self.gradients.select(0, elements)
    }

    /// The gradients and their tail, f32, to be summed over the ranks.
    pub fn gradients_mut(&mut self) -> &mut Tensor {
        &mut self.gradients
    }

    /// Where a range of the gradients and their tail lies, if others may read and write it there.
    pub fn gradients_in_place(&self, range: Range<usize>) -> Option<Address> {
        assert!(range.start < range.end && range.end <= self.gradients.numel(), "gradients {range:?}");
        self.kernels().address(&self.gradients, range.start)
    }

    /// All buffers, for an update in place.
    pub fn buffers(&mut self) -> Buffers<'_> {
        self.kernels().order_copies();
        Buffers {
            weights: &mut self.parameters.values,
            gradients: &mut self.gradients,
            first: &mut self.first,
            second: &mut self.second,
            low: self.parameters.low.as_mut(),
        }
    }

    /// One of the flat buffers.
    pub fn buffer(&self, buffer: Buffer) -> &Tensor {
        match buffer {
            Buffer::Weights => &self.parameters.values,
            Buffer::Gradients => &self.gradients,
            Buffer::First => &self.first,
            Buffer::Second => &self.second,
        }
    }

    /// Elements of a buffer, in main memory.
    pub fn read(&self, buffer: Buffer, range: Range<usize>) -> Vec<f32> {
        let mut elements = vec![0.0_f32; range.len()];
        let first = size_of::<f32>() * range.start;
        self.kernels().read(self.buffer(buffer), first, bytemuck::cast_slice_mut(&mut elements));
        elements
    }

    /// A digest of the weights' bits as they are now, i64 \[\].
    pub fn digest(&self) -> Tensor {
        self.kernels().digest(&self.parameters.values)
    }

    /// Writes elements of a buffer.
    pub fn write(&mut self, buffer: Buffer, first: usize, elements: &[f32]) {
        let bytes = bytemuck::cast_slice(elements);
        self.kernels().order_copies();
        self.kernels().write(self.buffer(buffer), size_of::<f32>() * first, bytes);
    }

    /// Copies elements of `other`, multiplied with `share`.
    pub fn copy(&mut self, buffer: Buffer, to: Range<usize>, other: &Self, from: Range<usize>, share: f32) {
        let part =
            |state: &Self, range: &Range<usize>| state.buffer(buffer).narrow(0, range.start as i64, range.len() as i64);
        self.kernels().order_copies();
        let old = part(other, &from);
        part(self, &to).copy_(&if share == 1.0 { old } else { old * f64::from(share) });
    }

    /// Gives elements all the same value.
    pub fn fill(&mut self, buffer: Buffer, range: Range<usize>, value: f32) {
        self.kernels().order_copies();
        let mut part = self.buffer(buffer).narrow(0, range.start as i64, range.len() as i64);
        let _ = part.fill_(f64::from(value));
    }

    /// Lets a bit of the weights change by itself, for tests: one that no update rounds away.
    pub fn flip_a_bit(&mut self) {
        let first = self.parameters.specs().last().map_or(0, |spec| spec.first);
        let flipped = self.read(Buffer::Weights, first..first + 1)[0].to_bits() ^ (1 << 22);
        self.write(Buffer::Weights, first, &[f32::from_bits(flipped)]);
    }

    /// Lets the last second moment become infinite, for tests: the weights stay as they are.
    pub fn spoil_a_moment(&mut self) {
        let end = self.parameters.specs().last().map_or(0, |spec| spec.range().end);
        self.write(Buffer::Second, end - 1, &[f32::INFINITY]);
    }

    /// Takes the weights, gradients, moments and counts of updates of `other`, which may be of another model, for its own.
    pub fn take_tensors(&mut self, other: Self) {
        self.parameters = other.parameters;
        (self.gradients, self.first, self.second) = (other.gradients, other.first, other.second);
        self.updates = other.updates;
    }

    /// The ranges `ranges` of a buffer, one behind the other, to be read or filled as bytes.
    pub fn region(&self, buffer: Buffer, ranges: Vec<Range<usize>>) -> Region {
        Region::new(self.parameters.kernels.clone(), self.buffer(buffer).shallow_clone(), ranges)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::kernels::Host;

    /// A region of these numbers, in a buffer of its own.
    pub fn region(numbers: &[f32]) -> Region {
        let (buffer, all) = (Tensor::from_slice(numbers), 0..numbers.len());
        Region::new(Arc::new(Host), buffer, Vec::from([all]))
    }
}
