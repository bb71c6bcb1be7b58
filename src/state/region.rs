//! Ranges of a flat buffer, viewed as consecutive bytes. These bytes are the data of tensors in a checkpoint file.

use std::ops::Range;
use std::sync::Arc;

use tch::Tensor;

use crate::kernels::{Kernels, TensorCopy};

const ELEMENT: usize = size_of::<f32>();

/// Ranges of a buffer, concatenated.
pub struct Region {
    kernels: Arc<dyn Kernels>,
    buffer: Tensor,
    /// Byte offset of each range in the region, and the range in elements of the buffer.
    ranges: Vec<(usize, Range<usize>)>,
    bytes: usize,
}

impl Clone for Region {
    /// Returns another handle to the same bytes.
    fn clone(&self) -> Self {
        let (kernels, buffer) = (Arc::clone(&self.kernels), self.buffer.shallow_clone());
        Self { kernels, buffer, ranges: self.ranges.clone(), bytes: self.bytes }
    }
}

impl Region {
    /// Creates a region of `ranges`, in elements, of the f32 tensor `buffer`.
    pub(super) fn new(kernels: Arc<dyn Kernels>, buffer: Tensor, ranges: Vec<Range<usize>>) -> Self {
        let (mut places, mut bytes) = (Vec::<(usize, Range<usize>)>::new(), 0);
        for range in ranges {
            let before = bytes;
            bytes += ELEMENT * range.len();
            // Merge adjacent ranges into one copy.
            match places.last_mut().filter(|(_, last)| last.end == range.start) {
                Some((_, last)) => last.end = range.end,
                None => places.push((before, range)),
            }
        }
        Self { kernels, buffer, ranges: places, bytes }
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// True if the region has no bytes.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Copies the whole region to `into`, which must be as long as the region.
    pub fn read(&self, into: &mut [u8]) {
        for (before, range) in &self.ranges {
            let part = &mut into[*before..][..ELEMENT * range.len()];
            self.kernels.read(&self.buffer, ELEMENT * range.start, part);
        }
    }

    /// Returns the copies that transfer the region to host memory. The region starts at byte offset `at` of the
    /// destination.
    pub fn copies(&self, at: usize) -> impl Iterator<Item = TensorCopy> + '_ {
        self.ranges.iter().map(move |(before, range)| TensorCopy {
            tensor: self.buffer.shallow_clone(),
            src_offset: ELEMENT * range.start,
            dst_range: at + before..at + before + ELEMENT * range.len(),
        })
    }

    /// Writes `bytes` at byte offset `first`.
    pub fn write(&self, first: usize, bytes: &[u8]) {
        let end = first + bytes.len();
        let from = self.ranges.partition_point(|(before, range)| before + ELEMENT * range.len() <= first);
        for (before, range) in self.ranges[from..].iter().take_while(|(before, _)| *before < end) {
            let (start, stop) = (first.max(*before), end.min(before + ELEMENT * range.len()));
            self.kernels.write(
                &self.buffer,
                ELEMENT * range.start + start - before,
                &bytes[start - first..stop - first],
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::Host;
    use tch::Kind;

    #[test]
    fn writes_of_any_size_fill_the_ranges() {
        let numbers: Vec<f32> = (1..=6).map(|number| number as f32).collect();
        let bytes: &[u8] = bytemuck::cast_slice(&numbers);
        for size in [1, 3, 4, 7, 24] {
            let buffer = Host.zeros(&[10], Kind::Float);
            let region = Region::new(Arc::new(Host), buffer.shallow_clone(), vec![8..10, 0..0, 1..4, 5..6]);
            assert_eq!(region.len(), bytes.len());
            bytes.chunks(size).enumerate().for_each(|(index, piece)| region.write(index * size, piece));
            let all = Vec::<f32>::try_from(&buffer).unwrap();
            assert_eq!(all, [0.0, 3.0, 4.0, 5.0, 0.0, 6.0, 0.0, 0.0, 1.0, 2.0], "pieces of {size}");
            let mut back = vec![0; bytes.len()];
            region.read(&mut back);
            assert_eq!(back, bytes);
        }
    }
}
