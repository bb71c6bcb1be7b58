//! The copy of the state that a checkpoint is written from: safetensors files in memory, whose headers are made once and
//! whose data is filled in again for each save. Taking it is one copy of the flat buffers, and all that training waits for.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use lambert_store::checkpoint::Slice;
use lambert_store::run;
use safetensors::tensor::{Dtype, Metadata, TensorInfo};

use super::files;
use crate::error::Error;
use crate::state::{Buffer, Region, Spec, TrainState};

/// Headers are padded to this, so that the data is aligned.
const ALIGNMENT: usize = 8;

/// A safetensors file in memory, of f32 tensors that lie one after the other in the order given.
#[derive(Debug)]
pub struct File {
    bytes: Arc<Vec<u8>>,
    head: usize,
}

/// Bytes that a store reads while their owner keeps the buffer.
struct Lent(Arc<Vec<u8>>);

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl File {
    /// Room for tensors of these names and shapes.
    ///
    /// # Errors
    /// More elements than a file can have.
    pub fn new(tensors: impl IntoIterator<Item = (String, Vec<usize>)>) -> Result<Self, Error> {
        let mut end = 0;
        let place = |(name, shape): (String, Vec<usize>)| {
            let start = end;
            end += size_of::<f32>() * shape.iter().product::<usize>();
            (name, TensorInfo { dtype: Dtype::F32, shape, data_offsets: (start, end) })
        };
        let tensors: Vec<_> = tensors.into_iter().map(place).collect();
        // `"format": "pt"` is what transformers asks for.
        let format = HashMap::from([("format".to_owned(), "pt".to_owned())]);
        let metadata = Metadata::new(Some(format), tensors).map_err(files::write_error)?;
        let mut header = serde_json::to_vec(&metadata).map_err(Error::Json)?;
        header.resize(header.len().next_multiple_of(ALIGNMENT), b' ');
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.append(&mut header);
        let head = bytes.len();
        // Not zero, so that the system gives the pages now and not during the first save.
        bytes.resize(head + end, 0xff);
        Ok(Self { bytes: Arc::new(bytes), head })
    }

    /// The file with `parts`, one after the other, as its data, which they fill exactly. The buffer is used again by the
    /// next call; while the bytes of the one before are still held somewhere, a new one takes its place.
    pub fn fill(&mut self, parts: &[Region]) -> Bytes {
        let head = self.head;
        let bytes = Arc::make_mut(&mut self.bytes);
        let mut rest = &mut bytes[head..];
        for part in parts {
            let (now, later) = rest.split_at_mut(part.len());
            part.read(now);
            rest = later;
        }
        assert!(rest.is_empty(), "the tensors of a snapshot have changed their shapes");
        Bytes::from_owner(Lent(Arc::clone(&self.bytes)))
    }
}

/// An object of a checkpoint, ready to be written.
#[derive(Debug)]
pub struct Object {
    /// Its name within the checkpoint.
    pub name: String,
    /// Its content.
    pub bytes: Bytes,
    /// Which elements of which parameters it holds, if it is a part of the moments.
    pub slices: Vec<Slice>,
}

/// Room for what one rank writes: its part of the moments and, on rank 0, the weights.
#[derive(Debug)]
pub struct Snapshot {
    weights: Option<File>,
    moments: File,
    name: String,
    /// The elements of the flat buffers whose moments this rank writes.
    ranges: Vec<Range<usize>>,
    slices: Vec<Slice>,
}

impl Snapshot {
    /// For rank `rank` of `world`, and parameters `specs`.
    ///
    /// # Errors
    /// More elements than a file can have.
    pub fn new(specs: &[Spec], rank: usize, world: usize) -> Result<Self, Error> {
        let elements = specs.iter().map(Spec::count).sum();
        let range = files::part_range(elements, rank, world);
        let slices = files::slices(specs, &range);
        let weights = specs.iter().map(|spec| (spec.name.clone(), spec.sizes()));
        let moments = [files::FIRST, files::SECOND].map(|name| (name.to_owned(), vec![range.len()]));
        Ok(Self {
            weights: (rank == 0).then(|| File::new(weights)).transpose()?,
            moments: File::new(moments)?,
            name: run::moments(rank, world),
            ranges: slices.iter().filter_map(|slice| files::place(specs, slice)).collect(),
            slices,
        })
    }

    /// Copies what this rank writes of `state`.
    pub fn take(&mut self, state: &TrainState) -> Vec<Object> {
        let moments = [Buffer::First, Buffer::Second].map(|buffer| state.region(buffer, self.ranges.clone()));
        let moments =
            Object { name: self.name.clone(), bytes: self.moments.fill(&moments), slices: self.slices.clone() };
        let weights = self.weights.as_mut().map(|file| {
            let all = state.parameters.specs().iter().map(Spec::range).collect();
            let bytes = file.fill(&[state.region(Buffer::Weights, all)]);
            Object { name: run::WEIGHTS.to_owned(), bytes, slices: Vec::new() }
        });
        std::iter::once(moments).chain(weights).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::tests::region;
    use safetensors::tensor::TensorView;

    #[test]
    fn a_file_is_what_the_safetensors_library_writes() {
        let (a, b) = ([1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0], [7.0f32, 8.0]);
        let mut file = File::new([("a".to_owned(), vec![2, 3]), ("b".to_owned(), vec![2])]).unwrap();
        let view =
            |shape: &[usize], data| TensorView::new(Dtype::F32, shape.to_vec(), bytemuck::cast_slice(data)).unwrap();
        let views = [("a", view(&[2, 3], &a[..])), ("b", view(&[2], &b[..]))];
        let format = HashMap::from([("format".to_owned(), "pt".to_owned())]);
        assert_eq!(file.fill(&[region(&a), region(&b)]), safetensors::serialize(views, Some(format)).unwrap());
    }

    #[test]
    fn a_buffer_is_used_again_and_never_under_a_reader() {
        let mut file = File::new([("a".to_owned(), vec![2])]).unwrap();
        let first = file.fill(&[region(&[1.0, 2.0])]);
        let second = file.fill(&[region(&[3.0, 4.0])]);
        assert_ne!(first, second, "the first was written over while somebody read it");
        let address = second.as_ptr();
        drop((first, second));
        assert_eq!(file.fill(&[region(&[5.0, 6.0])]).as_ptr(), address);
    }
}
