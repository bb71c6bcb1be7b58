//! A safetensors file on its way from the store into the flat buffers: each piece is copied to where it belongs as it
//! comes, so that no file is ever held in memory as a whole.

use std::ops::Range;

use lambert_store::checkpoint::Sink;
use safetensors::tensor::{Dtype, Metadata};

use crate::state::Region;

const LENGTH: usize = size_of::<u64>();
/// Headers of real models have kilobytes.
const LONGEST_HEADER: u64 = 16 << 20;

/// Where a tensor goes.
pub struct Target {
    /// Its name in the file.
    pub name: String,
    /// The shape that it must have.
    pub shape: Vec<usize>,
    /// Its place in the training state.
    pub region: Region,
}

type Plan = Vec<(usize, Range<usize>)>;

/// Takes a file piece by piece.
pub struct Filler {
    targets: Vec<Target>,
    head: Vec<u8>,
    /// For each target, in the order of the file: its place among the targets, and its bytes, counted from the end of the
    /// header. None until the header was read.
    plan: Option<Plan>,
    /// Bytes of the data that were seen.
    seen: usize,
    fault: Option<String>,
}

impl Filler {
    /// For a file that must hold these tensors and no others.
    pub fn new(targets: Vec<Target>) -> Self {
        Self { targets, head: Vec::new(), plan: None, seen: 0, fault: None }
    }

    /// What is wrong with the file, if anything is. All targets are filled if nothing is.
    pub fn finish(self) -> Option<String> {
        let whole = self.plan.is_some_and(|plan| plan.iter().all(|(_, range)| range.end <= self.seen));
        self.fault.or_else(|| (!whole).then(|| "it ends too early".to_owned()))
    }

    /// Takes the part of `piece` that belongs to the head, and gives the rest.
    fn take_head<'p>(&mut self, piece: &'p [u8]) -> Result<&'p [u8], String> {
        let length = self.head.first_chunk::<LENGTH>().map(|length| u64::from_le_bytes(*length));
        if let Some(length) = length.filter(|length| !(1..=LONGEST_HEADER).contains(length)) {
            return Err(format!("it claims a header of {length} bytes, 1 to {LONGEST_HEADER} are possible"));
        }
        let missing = LENGTH + length.unwrap_or(0) as usize - self.head.len();
        let (now, rest) = piece.split_at(missing.min(piece.len()));
        self.head.extend_from_slice(now);
        if now.len() == missing && length.is_some() {
            self.plan = Some(self.plan()?);
        }
        Ok(rest)
    }

    fn plan(&self) -> Result<Plan, String> {
        let metadata: Metadata = serde_json::from_slice(&self.head[LENGTH..]).map_err(|error| error.to_string())?;
        let known = |name: &&String| self.targets.iter().any(|target| target.name == name.as_str());
        if let Some(alien) = metadata.offset_keys().iter().find(|name| !known(name)) {
            return Err(format!("it holds {alien}, which this model does not have"));
        }
        let place = |(index, target): (usize, &Target)| {
            let info = metadata.info(&target.name).ok_or_else(|| format!("it has no {}", target.name))?;
            if info.dtype != Dtype::F32 || info.shape != target.shape {
                let (name, wanted) = (&target.name, &target.shape);
                return Err(format!("{name} is {:?} {:?}, expected F32 {wanted:?}", info.dtype, info.shape));
            }
            Ok((index, info.data_offsets.0..info.data_offsets.1))
        };
        let mut plan = self.targets.iter().enumerate().map(place).collect::<Result<Vec<_>, _>>()?;
        plan.sort_by_key(|(_, range)| range.start);
        Ok(plan)
    }

    /// Copies what `piece`, which comes next, holds of each target.
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

impl Sink for Filler {
    fn restart(&mut self) {
        self.head.clear();
        (self.plan, self.seen, self.fault) = (None, 0, None);
    }

    fn update(&mut self, mut piece: &[u8]) {
        while self.fault.is_none() && self.plan.is_none() && !piece.is_empty() {
            match self.take_head(piece) {
                Ok(rest) => piece = rest,
                Err(fault) => self.fault = Some(fault),
            }
        }
        if self.fault.is_none() && !piece.is_empty() {
            self.copy(piece);
        }
    }
}

/// The files hold little-endian numbers, and are copied as they are.
const _: () = assert!(cfg!(target_endian = "little"));

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    use crate::checkpoint::snapshot::File;
    use crate::kernels::Host;
    use crate::state::tests::region;

    fn file() -> Vec<u8> {
        let tensors = [("a".to_owned(), vec![2, 3]), ("b".to_owned(), vec![2])];
        let mut file = File::new(Arc::new(Host), tensors).unwrap();
        let copies = file.begin(&[region(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]), region(&[7.0, 8.0])]);
        file.finish(copies).to_vec()
    }

    /// What becomes of `bytes`, in pieces of `size`, with `b` to be of shape `shape`.
    fn fill(bytes: &[u8], size: usize, shape: &[usize]) -> (Vec<f32>, Option<String>) {
        let (a, b) = (region(&[0.0; 6]), region(&vec![0.0; shape.iter().product()]));
        let target =
            |name: &str, shape: &[usize], region| Target { name: name.to_owned(), shape: shape.to_vec(), region };
        // In another order than the file's.
        let mut filler = Filler::new(vec![target("b", shape, b.clone()), target("a", &[2, 3], a.clone())]);
        filler.update(&bytes[..bytes.len() / 2]);
        filler.restart();
        bytes.chunks(size).for_each(|piece| filler.update(piece));
        let fault = filler.finish();
        let floats = |region: &Region| {
            let mut values = vec![0.0_f32; region.len() / 4];
            region.read(bytemuck::cast_slice_mut(&mut values));
            values
        };
        ([floats(&a), floats(&b)].concat(), fault)
    }

    #[test]
    fn pieces_of_any_size_fill_the_same() {
        let bytes = file();
        for size in [1, 2, 3, 5, 7, 8, 64, bytes.len() - 1, bytes.len()] {
            assert_eq!(fill(&bytes, size, &[2]), ((1..=8).map(|i| i as f32).collect(), None), "{size}");
        }
    }

    #[test]
    fn files_of_other_tensors_are_refused() {
        let bytes = file();
        let fault = |bytes: &[u8], shape: &[usize]| fill(bytes, 10, shape).1.unwrap();
        assert!(fault(&bytes, &[3]).contains("b is F32 [2], expected F32 [3]"));
        let renamed = |from: &str, to: &str| {
            let at = bytes.windows(from.len()).position(|part| part == from.as_bytes()).unwrap();
            [&bytes[..at], to.as_bytes(), &bytes[at + from.len()..]].concat()
        };
        assert!(fault(&renamed("\"b\"", "\"c\""), &[2]).contains("it holds c"));
        assert!(fault(&renamed("F32", "I32"), &[2]).contains("a is I32"));
        assert!(fault(&bytes[..bytes.len() - 1], &[2]).contains("too early"));
        assert!(fault(&bytes[..20], &[2]).contains("too early"));
        assert!(fault(&[&(1u64 << 50).to_le_bytes()[..], b"{}"].concat(), &[2]).contains("claims a header"));
        assert!(fault(&[0; 100], &[2]).contains("claims a header of 0"));
        assert!(fault(&[&2u64.to_le_bytes()[..], b"no"].concat(), &[2]).contains("expected"));
    }
}
