//! Streams a safetensors file from the store into the flat buffers. Each piece is copied to its targets on arrival,
//! so the file is never in memory as a whole.

use std::ops::Range;

use lambert_store::checkpoint::{HEADER_LENGTH_BYTES, MAX_HEADER_BYTES, ObjectSink};
use safetensors::tensor::{Dtype, Metadata};

use crate::state::Region;

/// Destination of a tensor.
pub struct LoadTarget {
    /// Tensor name in the file.
    pub name: String,
    /// Expected shape.
    pub shape: Vec<usize>,
    /// Destination in the training state.
    pub region: Region,
}

/// An object of a checkpoint with its load targets.
pub type TargetedObject = (String, Vec<LoadTarget>);

type CopyPlan = Vec<(usize, Range<usize>)>;

/// Receives a file in pieces.
pub struct TensorLoader {
    targets: Vec<LoadTarget>,
    head: Vec<u8>,
    /// For each tensor in file order: the index of its target, and its byte range after the
    /// header. `None` until the header is complete.
    plan: Option<CopyPlan>,
    /// Data bytes received.
    seen: usize,
    fault: Option<String>,
}

impl TensorLoader {
    /// Creates a loader for a file that must have exactly these tensors.
    pub fn new(targets: Vec<LoadTarget>) -> Self {
        Self { targets, head: Vec::new(), plan: None, seen: 0, fault: None }
    }

    /// Returns the error, if any. Without an error, all targets are filled.
    pub fn finish(self) -> Option<String> {
        let is_complete = self.plan.is_some_and(|plan| plan.iter().all(|(_, range)| range.end <= self.seen));
        self.fault.or_else(|| (!is_complete).then(|| "the file is truncated".to_owned()))
    }

    /// Consumes the header bytes of `piece` and returns the rest.
    fn take_header<'p>(&mut self, piece: &'p [u8]) -> Result<&'p [u8], String> {
        let length = self.head.first_chunk::<HEADER_LENGTH_BYTES>().map(|length| u64::from_le_bytes(*length));
        if let Some(length) = length.filter(|length| !(1..=MAX_HEADER_BYTES).contains(length)) {
            return Err(format!("it claims a header of {length} bytes, 1 to {MAX_HEADER_BYTES} are valid"));
        }
        let missing = HEADER_LENGTH_BYTES + length.unwrap_or(0) as usize - self.head.len();
        let (now, rest) = piece.split_at(missing.min(piece.len()));
        self.head.extend_from_slice(now);
        if now.len() == missing && length.is_some() {
            self.plan = Some(self.plan()?);
        }
        Ok(rest)
    }

    fn plan(&self) -> Result<CopyPlan, String> {
        let metadata: Metadata =
            serde_json::from_slice(&self.head[HEADER_LENGTH_BYTES..]).map_err(|error| error.to_string())?;
        let known = |name: &&String| self.targets.iter().any(|target| target.name == name.as_str());
        if let Some(alien) = metadata.offset_keys().iter().find(|name| !known(name)) {
            return Err(format!("it has the unknown tensor {alien}"));
        }
        let place = |(index, target): (usize, &LoadTarget)| {
            let info = metadata.info(&target.name).ok_or_else(|| format!("tensor {} is missing", target.name))?;
            if info.dtype != Dtype::F32 || info.shape != target.shape {
                let (name, expected) = (&target.name, &target.shape);
                return Err(format!("{name} is {:?} {:?}, expected F32 {expected:?}", info.dtype, info.shape));
            }
            Ok((index, info.data_offsets.0..info.data_offsets.1))
        };
        let mut plan = self.targets.iter().enumerate().map(place).collect::<Result<Vec<_>, _>>()?;
        plan.sort_by_key(|(_, range)| range.start);
        Ok(plan)
    }

    /// Copies the next `piece` to the targets that it overlaps.
    fn copy(&mut self, piece: &[u8]) {
        let (start, end) = (self.seen, self.seen + piece.len());
        let plan = self.plan.as_deref().unwrap_or_default();
        let first = plan.partition_point(|(_, range)| range.end <= start);
        for (index, range) in plan[first..].iter().take_while(|(_, range)| range.start < end) {
            let (from, to) = (range.start.max(start), range.end.min(end));
            self.targets[*index].region.write(from - range.start, &piece[from - start..to - start]);
        }
        self.seen = end;
    }
}

impl ObjectSink for TensorLoader {
    fn restart(&mut self) {
        self.head.clear();
        (self.plan, self.seen, self.fault) = (None, 0, None);
    }

    fn update(&mut self, mut piece: &[u8]) {
        while self.fault.is_none() && self.plan.is_none() && !piece.is_empty() {
            match self.take_header(piece) {
                Ok(rest) => piece = rest,
                Err(fault) => self.fault = Some(fault),
            }
        }
        if self.fault.is_none() && !piece.is_empty() {
            self.copy(piece);
        }
    }
}

/// The host must be little-endian, because files are little-endian and are copied without conversion.
const _: () = assert!(cfg!(target_endian = "little"));

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    use crate::checkpoint::snapshot::SnapshotFile;
    use crate::kernels::Host;
    use crate::state::tests::region;

    fn file() -> Vec<u8> {
        let tensors = [("a".to_owned(), vec![2, 3]), ("b".to_owned(), vec![2])];
        let mut file = SnapshotFile::new(Arc::new(Host), tensors).unwrap();
        let copies = file.begin(&[region(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]), region(&[7.0, 8.0])]);
        file.finish(copies).to_vec()
    }

    /// Loads `bytes` in pieces of `size` bytes. Expects tensor `b` to have the shape `shape`.
    fn fill(bytes: &[u8], size: usize, shape: &[usize]) -> (Vec<f32>, Option<String>) {
        let (a, b) = (region(&[0.0; 6]), region(&vec![0.0; shape.iter().product()]));
        let target =
            |name: &str, shape: &[usize], region| LoadTarget { name: name.to_owned(), shape: shape.to_vec(), region };
        // The targets are in a different order than in the file.
        let mut loader = TensorLoader::new(vec![target("b", shape, b.clone()), target("a", &[2, 3], a.clone())]);
        loader.update(&bytes[..bytes.len() / 2]);
        loader.restart();
        bytes.chunks(size).for_each(|piece| loader.update(piece));
        let fault = loader.finish();
        let floats = |region: &Region| {
            let mut values = vec![0.0_f32; region.len() / 4];
            region.read(bytemuck::cast_slice_mut(&mut values));
            values
        };
        ([floats(&a), floats(&b)].concat(), fault)
    }

    #[test]
    fn pieces_of_any_size_yield_the_same_tensors() {
        let bytes = file();
        for size in [1, 2, 3, 5, 7, 8, 64, bytes.len() - 1, bytes.len()] {
            assert_eq!(fill(&bytes, size, &[2]), ((1..=8).map(|i| i as f32).collect(), None), "{size}");
        }
    }

    #[test]
    fn files_with_other_tensors_are_rejected() {
        let bytes = file();
        let fault = |bytes: &[u8], shape: &[usize]| fill(bytes, 10, shape).1.unwrap();
        assert!(fault(&bytes, &[3]).contains("b is F32 [2], expected F32 [3]"));
        let renamed = |from: &str, to: &str| {
            let at = bytes.windows(from.len()).position(|part| part == from.as_bytes()).unwrap();
            [&bytes[..at], to.as_bytes(), &bytes[at + from.len()..]].concat()
        };
        assert!(fault(&renamed("\"b\"", "\"c\""), &[2]).contains("unknown tensor c"));
        assert!(fault(&renamed("F32", "I32"), &[2]).contains("a is I32"));
        assert!(fault(&bytes[..bytes.len() - 1], &[2]).contains("truncated"));
        assert!(fault(&bytes[..20], &[2]).contains("truncated"));
        assert!(fault(&[&(1u64 << 50).to_le_bytes()[..], b"{}"].concat(), &[2]).contains("claims a header"));
        assert!(fault(&[0; 100], &[2]).contains("claims a header of 0"));
        assert!(fault(&[&2u64.to_le_bytes()[..], b"no"].concat(), &[2]).contains("expected"));
    }
}
