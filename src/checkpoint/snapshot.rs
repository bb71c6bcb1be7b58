//! Host copy of the training state, from which a checkpoint is written. The copy is a set of safetensors files in
//! memory. Their headers are built once and reused for every copy. A copy from host memory blocks training. A copy from
//! a GPU runs in the background until the next update.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use lambert_store::checkpoint::Slice;
use lambert_store::run;
use safetensors::tensor::{Dtype, Metadata, TensorInfo};

use super::files;
use crate::error::Error;
use crate::kernels::{HostBuffer, Kernels, PendingSnapshot};
use crate::state::{Buffer, ParamSpec, Parameters, Region, TrainState};

/// Alignment of the tensor data, bytes. The header is padded to a multiple of this value.
const ALIGNMENT: usize = 8;

/// An in-memory safetensors file of f32 tensors in the given order.
pub struct SnapshotFile {
    kernels: Arc<dyn Kernels>,
    header: Vec<u8>,
    data: usize,
    /// Buffer of the last copy.
    memory: Option<Arc<HostBuffer>>,
}

/// Buffer that a store reads while the snapshot keeps the buffer for reuse.
struct SharedBuffer(Arc<HostBuffer>);

impl AsRef<[u8]> for SharedBuffer {
    fn as_ref(&self) -> &[u8] {
        self.0.bytes()
    }
}

impl SnapshotFile {
    /// Allocates a file for tensors of these names and shapes, for copies from the device of `kernels`.
    ///
    /// # Errors
    /// There are more elements than a file can hold.
    pub fn new(
        kernels: Arc<dyn Kernels>,
        tensors: impl IntoIterator<Item = (String, Vec<usize>)>,
    ) -> Result<Self, Error> {
        let mut end = 0;
        let place = |(name, shape): (String, Vec<usize>)| {
            let start = end;
            end += size_of::<f32>() * shape.iter().product::<usize>();
            (name, TensorInfo { dtype: Dtype::F32, shape, data_offsets: (start, end) })
        };
        let tensors: Vec<_> = tensors.into_iter().map(place).collect();
        // transformers requires `"format": "pt"`.
        let format = HashMap::from([("format".to_owned(), "pt".to_owned())]);
        let metadata = Metadata::new(Some(format), tensors).map_err(files::write_error)?;
        let mut header = serde_json::to_vec(&metadata).map_err(Error::Json)?;
        header.resize(header.len().next_multiple_of(ALIGNMENT), b' ');
        let mut whole = (header.len() as u64).to_le_bytes().to_vec();
        whole.append(&mut header);
        let mut file = Self { kernels, header: whole, data: end, memory: None };
        file.memory = Some(Arc::new(file.allocate()));
        Ok(file)
    }

    fn allocate(&self) -> HostBuffer {
        let mut bytes = self.header.clone();
        // Fill with nonzero bytes, so that pages are faulted in now and not during the first save.
        bytes.resize(self.header.len() + self.data, 0xff);
        self.kernels.host_buffer(bytes)
    }

    /// Starts to copy `parts` one after another to the data section, which they must fill exactly. Reuses the last
    /// buffer. If the last buffer is still shared, allocates another.
    pub fn begin(&mut self, parts: &[Region]) -> Box<dyn PendingSnapshot> {
        let memory = self.memory.take().and_then(Arc::into_inner).unwrap_or_else(|| self.allocate());
        let mut at = self.header.len();
        let mut copies = Vec::new();
        for part in parts {
            copies.extend(part.copies(at));
            at += part.len();
        }
        assert_eq!(at, memory.bytes().len(), "the tensors of a snapshot have changed their shapes");
        self.kernels.start_snapshot(copies, memory)
    }

    /// Waits for the copies of [`SnapshotFile::begin`] and returns the file.
    pub fn finish(&mut self, copies: Box<dyn PendingSnapshot>) -> Bytes {
        let memory = Arc::new(copies.wait());
        self.memory = Some(Arc::clone(&memory));
        Bytes::from_owner(SharedBuffer(memory))
    }
}

/// A checkpoint object, ready to be written.
#[derive(Debug)]
pub struct SnapshotObject {
    /// Name within the checkpoint.
    pub name: String,
    /// Content.
    pub bytes: Bytes,
    /// Parameter slices of an optimizer shard; empty for the weights.
    pub slices: Vec<Slice>,
}

/// Pending copies for the objects of a rank.
pub struct PendingCopies {
    moments: Option<Box<dyn PendingSnapshot>>,
    weights: Option<Box<dyn PendingSnapshot>>,
}

impl PendingCopies {
    /// True if all copies are complete.
    pub fn is_done(&self) -> bool {
        [&self.moments, &self.weights].into_iter().flatten().all(|copies| copies.is_complete())
    }
}

/// Buffers for the objects of one rank: its optimizer shard, if it has one, and, on rank 0, the weights.
pub struct Snapshot {
    weights: Option<SnapshotFile>,
    moments: Option<SnapshotFile>,
    name: String,
    /// Ranges of the flat buffers in this rank's optimizer shard.
    ranges: Vec<Range<usize>>,
    slices: Vec<Slice>,
}

impl Snapshot {
    /// Allocates the buffers of rank `rank` of `world`.
    ///
    /// # Errors
    /// There are more elements than a file can hold.
    pub fn new(parameters: &Parameters, rank: usize, world: usize) -> Result<Self, Error> {
        let (specs, kernels) = (parameters.specs(), parameters.kernels());
        let elements = specs.iter().map(ParamSpec::count).sum();
        let parts = files::part_count(elements, world);
        let range = if rank < parts { files::shard_range(elements, rank, parts) } else { 0..0 };
        let slices = files::slices(specs, &range);
        let weights = specs.iter().map(|spec| (spec.name.clone(), spec.sizes()));
        let moments = [files::FIRST, files::SECOND].map(|name| (name.to_owned(), vec![range.len()]));
        Ok(Self {
            weights: (rank == 0).then(|| SnapshotFile::new(Arc::clone(kernels), weights)).transpose()?,
            moments: (rank < parts).then(|| SnapshotFile::new(Arc::clone(kernels), moments)).transpose()?,
            name: run::moments(rank, parts),
            ranges: slices.iter().filter_map(|slice| files::flat_range(specs, slice)).collect(),
            slices,
        })
    }

    /// Parameter slices of this rank's optimizer shard.
    pub fn slices(&self) -> &[Slice] {
        &self.slices
    }

    /// Starts to copy this rank's objects from `state`. Later changes of `state` do not affect the copy.
    pub fn begin(&mut self, state: &TrainState) -> PendingCopies {
        let regions = [Buffer::First, Buffer::Second].map(|buffer| state.region(buffer, self.ranges.clone()));
        let moments = self.moments.as_mut().map(|file| file.begin(&regions));
        let weights = self.weights.as_mut().map(|file| {
            let all = state.parameters.specs().iter().map(ParamSpec::range).collect();
            file.begin(&[state.region(Buffer::Weights, all)])
        });
        PendingCopies { moments, weights }
    }

    /// Waits for the copies and returns the objects.
    pub fn finish(&mut self, copying: PendingCopies) -> Vec<SnapshotObject> {
        let moments = self.moments.as_mut().zip(copying.moments);
        let moments = moments.map(|(file, copies)| {
            let bytes = file.finish(copies);
            SnapshotObject { name: self.name.clone(), bytes, slices: self.slices.clone() }
        });
        let weights = self.weights.as_mut().zip(copying.weights);
        let weights = weights.map(|(file, copies)| {
            let bytes = file.finish(copies);
            SnapshotObject { name: run::WEIGHTS.to_owned(), bytes, slices: Vec::new() }
        });
        moments.into_iter().chain(weights).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::cuda::Emulator;
    use crate::kernels::{Cuda, Host};
    use crate::optim;
    use crate::state::tests::region;
    use lambert_config::run::{Model, Optimizer};
    use lambert_plan::architecture::Architecture;
    use safetensors::tensor::TensorView;

    fn file(tensors: impl IntoIterator<Item = (String, Vec<usize>)>) -> SnapshotFile {
        SnapshotFile::new(Arc::new(Host), tensors).unwrap()
    }

    fn fill(file: &mut SnapshotFile, parts: &[Region]) -> Bytes {
        let copies = file.begin(parts);
        file.finish(copies)
    }

    #[test]
    fn a_file_matches_the_safetensors_library() {
        let (a, b) = ([1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0], [7.0f32, 8.0]);
        let mut file = file([("a".to_owned(), vec![2, 3]), ("b".to_owned(), vec![2])]);
        let view =
            |shape: &[usize], data| TensorView::new(Dtype::F32, shape.to_vec(), bytemuck::cast_slice(data)).unwrap();
        let views = [("a", view(&[2, 3], &a[..])), ("b", view(&[2], &b[..]))];
        let format = HashMap::from([("format".to_owned(), "pt".to_owned())]);
        assert_eq!(fill(&mut file, &[region(&a), region(&b)]), safetensors::serialize(views, Some(format)).unwrap());
    }

    #[test]
    fn a_buffer_is_reused_only_when_no_reader_is_left() {
        let mut file = file([("a".to_owned(), vec![2])]);
        let first = fill(&mut file, &[region(&[1.0, 2.0])]);
        let second = fill(&mut file, &[region(&[3.0, 4.0])]);
        assert_ne!(first, second, "the first was overwritten while it was read");
        let address = second.as_ptr();
        drop((first, second));
        assert_eq!(fill(&mut file, &[region(&[5.0, 6.0])]).as_ptr(), address);
    }

    /// Uses an emulated GPU, which copies as late as possible.
    #[test]
    fn later_changes_do_not_affect_a_snapshot() {
        let gpu = || Arc::new(Cuda::new(Arc::new(Emulator::default())));
        let model = Model { hidden: 16, heads: 2, intermediate: 32, positions: 16, ..Model::default() };
        let mut state = TrainState::new(Parameters::initialize(gpu(), Architecture::new(&model, 2, 50), 1, 0.2));
        let all = 0..state.elements();
        let mut snapshot = Snapshot::new(&state.parameters, 0, 1).unwrap();
        let bytes = |state: &TrainState| {
            [Buffer::Weights, Buffer::First, Buffer::Second].map(|buffer| {
                let region = state.region(buffer, state.parameters.specs().iter().map(ParamSpec::range).collect());
                let mut bytes = vec![0; region.len()];
                region.read(&mut bytes);
                bytes
            })
        };
        type Change = fn(&mut TrainState);
        let changes: [(&str, Change); 6] = [
            ("an update", |state| {
                drop(optim::update(state, &Optimizer::default(), 1e-2, &mut optim::SingleRank).unwrap());
            }),
            ("new moments", TrainState::restart_optimizer),
            ("a bit", TrainState::flip_bit),
            ("a value", |state| state.fill(Buffer::Weights, 0..8, 9.0)),
            ("a copy", |state| {
                let other = Parameters::initialize(Arc::new(Host), state.parameters.architecture().clone(), 2, 0.2);
                state.copy(Buffer::Weights, 0..8, &TrainState::new(other), 0..8, 1.0);
            }),
            ("another state", |state| {
                let other = Parameters::initialize(Arc::new(Host), state.parameters.architecture().clone(), 3, 0.2);
                state.take_tensors(TrainState::new(other));
            }),
        ];
        for (name, change) in changes {
            state.fill(Buffer::First, all.clone(), 0.5);
            state.fill(Buffer::Gradients, all.clone(), 0.1);
            let before = bytes(&state);
            let copying = snapshot.begin(&state);
            change(&mut state);
            let after = bytes(&state);
            assert_ne!(before, after, "{name} changes nothing");
            let objects = snapshot.finish(copying);
            assert!(objects[0].bytes.ends_with(&before[1..].concat()), "moments, {name}");
            assert!(objects[1].bytes.ends_with(&before[0]), "weights, {name}");
        }
    }
}
