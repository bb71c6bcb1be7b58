//! Objects of a checkpoint: weights and optimizer moments as safetensors.

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use lambert_collective::Group;
use lambert_store::checkpoint::{self as stored, Manifest, Slice, VerifiedCheckpoint};
use lambert_store::{Store, run};

use super::shared_read;
use super::tensor_loader::{LoadTarget, TargetedObject, TensorLoader};
use crate::error::Error;
use crate::state::{Buffer, ParamSpec, Parameters, TrainState};

/// Tensor name of the first moments.
pub const FIRST: &str = "exp_avg";
/// Tensor name of the second moments.
pub const SECOND: &str = "exp_avg_sq";

/// Number of optimizer shards of a checkpoint that `world` ranks write, of `elements` parameters. One rank writes one
/// shard. More than [`MANY_PARTS`] ranks write that number of shards, or one for each [`MIN_PART_BYTES`] if these are
/// more, because each rank reads all of them when it resumes.
pub fn part_count(elements: usize, world: usize) -> usize {
    let bytes = elements.saturating_mul(2 * size_of::<f32>());
    world.min(MANY_PARTS.max(bytes / MIN_PART_BYTES))
}

/// Number of ranks up to which each rank writes an optimizer shard.
const MANY_PARTS: usize = 64;
/// Minimum size of optimizer shards if there are more than [`MANY_PARTS`], bytes.
const MIN_PART_BYTES: usize = 64 << 20;

/// Returns the element range of shard `index` of `parts` shards. Shard sizes differ by at most one element.
pub fn shard_range(elements: usize, index: usize, parts: usize) -> Range<usize> {
    let start = |index: usize| (elements as u128 * index as u128 / parts as u128) as usize;
    start(index)..start(index + 1)
}

/// Splits `range`, an element range over all concatenated parameters, into slices of parameters.
pub fn slices(specs: &[ParamSpec], range: &Range<usize>) -> Vec<Slice> {
    let mut before = 0;
    let cut = |spec: &ParamSpec| {
        let first = before;
        before += spec.count();
        let (start, end) = (first.max(range.start), before.min(range.end));
        (start < end).then(|| Slice {
            tensor: spec.name.clone(),
            first: (start - first) as u64,
            count: (end - start) as u64,
        })
    };
    specs.iter().filter_map(cut).collect()
}

/// Returns the range of a slice in the flat buffers; `None` if the model does not have the slice.
pub fn flat_range(specs: &[ParamSpec], slice: &Slice) -> Option<Range<usize>> {
    let spec = specs.iter().find(|spec| spec.name == slice.tensor)?;
    let end = slice.first.checked_add(slice.count).filter(|end| *end <= spec.count() as u64)?;
    Some(spec.first + slice.first as usize..spec.first + end as usize)
}

pub(super) fn write_error(error: safetensors::SafeTensorError) -> Error {
    Error::Checkpoint { name: "in progress".to_owned(), message: error.to_string() }
}

/// Maximum number of objects that are read concurrently.
const PARALLEL: usize = 16;

/// How a rank reads the objects of a checkpoint.
pub enum ReadMode<'a> {
    /// This process reads all objects.
    Alone,
    /// Each rank of a group reads a part of the objects and sends it to the other ranks. All ranks of the group must read
    /// the same objects.
    Shared(&'a mut dyn Group),
}

/// Reads the weights of a verified checkpoint. The file must have exactly the parameters of the model.
pub fn read_weights(
    store: &Store,
    verified: &VerifiedCheckpoint,
    parameters: &Parameters,
    mode: ReadMode<'_>,
) -> Result<(), Error> {
    read_objects(store, verified, vec![(run::WEIGHTS.to_owned(), weights(parameters))], mode)
}

fn weights(parameters: &Parameters) -> Vec<LoadTarget> {
    let target = |spec: &ParamSpec| {
        let region = parameters.region(vec![spec.range()]);
        LoadTarget { name: spec.name.clone(), shape: spec.sizes(), region }
    };
    parameters.specs().iter().map(target).collect()
}

/// Reads weights and moments, several objects concurrently. The moments may be split into any number of shards.
pub fn read(
    store: &Store,
    verified: &VerifiedCheckpoint,
    state: &mut TrainState,
    mode: ReadMode<'_>,
) -> Result<(), Error> {
    let moments = parts(&verified.manifest, state)?;
    // The weights are the largest object, so they are first.
    let objects = std::iter::once((run::WEIGHTS.to_owned(), weights(&state.parameters))).chain(moments);
    read_objects(store, verified, objects.collect(), mode)
}

/// Reads objects that must have exactly the tensors of their targets.
fn read_objects(
    store: &Store,
    verified: &VerifiedCheckpoint,
    objects: Vec<TargetedObject>,
    mode: ReadMode<'_>,
) -> Result<(), Error> {
    match mode {
        ReadMode::Alone => read_alone(store, verified, objects),
        ReadMode::Shared(group) => shared_read::read(group, store, verified, objects),
    }
}

fn read_alone(store: &Store, verified: &VerifiedCheckpoint, objects: Vec<TargetedObject>) -> Result<(), Error> {
    let threads = PARALLEL.min(objects.len());
    let objects = Mutex::new(objects.into_iter());
    let next = || objects.lock().unwrap_or_else(PoisonError::into_inner).next();
    let read = || {
        while let Some((name, targets)) = next() {
            fill(store, verified, &name, targets)?;
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(read)).collect();
        let mut ended = threads.into_iter().map(|thread| thread.join());
        ended.try_for_each(|read| read.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })
}

fn fill(store: &Store, verified: &VerifiedCheckpoint, object: &str, targets: Vec<LoadTarget>) -> Result<(), Error> {
    let mut loader = TensorLoader::new(targets);
    stored::stream_object(store, verified, object, &mut loader)?;
    loader.finish().map_or(Ok(()), |why| Err(invalid_checkpoint(&verified.manifest, format!("{object}: {why}"))))
}

/// Returns the optimizer shards with their load targets. The slices of a shard determine its targets, so a checkpoint
/// may have the parameters in a different order than the model.
fn parts(manifest: &Manifest, state: &TrainState) -> Result<Vec<TargetedObject>, Error> {
    let specs = state.parameters.specs();
    let mut covered = Vec::new();
    let mut parts = Vec::new();
    for object in manifest.objects.iter().filter(|object| run::is_moments(&object.path)) {
        let ranges = object.slices.iter().map(|slice| flat_range(specs, slice)).collect::<Option<Vec<_>>>();
        let ranges = ranges.ok_or_else(|| {
            invalid_checkpoint(manifest, format!("{} has slices that the model does not have", object.path))
        })?;
        let shape = vec![ranges.iter().map(Range::len).sum()];
        let target = |name: &str, buffer| {
            let region = state.region(buffer, ranges.clone());
            LoadTarget { name: name.to_owned(), shape: shape.clone(), region }
        };
        parts.push((object.path.clone(), vec![target(FIRST, Buffer::First), target(SECOND, Buffer::Second)]));
        covered.extend(ranges);
    }
    // Threads write concurrently, so each element must be covered at most once.
    covered.sort_by_key(|range| range.start);
    let once = covered.windows(2).all(|pair| pair[0].end <= pair[1].start);
    let all = covered.iter().map(Range::len).sum::<usize>() == specs.iter().map(ParamSpec::count).sum::<usize>();
    match once && all {
        true => Ok(parts),
        false => {
            Err(invalid_checkpoint(manifest, "its optimizer shards do not cover every element exactly once".to_owned()))
        }
    }
}

fn invalid_checkpoint(manifest: &Manifest, message: String) -> Error {
    Error::Checkpoint { name: manifest.name(), message }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_cover_every_element_once() {
        for (elements, parts) in [(10, 3), (7, 7), (3, 8), (110_106_428, 5)] {
            let ranges: Vec<_> = (0..parts).map(|index| shard_range(elements, index, parts)).collect();
            assert_eq!((ranges[0].start, ranges[parts - 1].end), (0, elements));
            assert!(ranges.windows(2).all(|pair| pair[0].end == pair[1].start));
        }
    }

    #[test]
    fn large_worlds_write_fewer_shards_than_ranks() {
        let large = 335_000_000;
        assert_eq!([1, 8, 64, 65, 1024].map(|world| part_count(large, world)), [1, 8, 64, 64, 64]);
        assert_eq!([8, 1024].map(|world| part_count(10 * large, world)), [8, 399]);
        assert_eq!([2, 1024].map(|world| part_count(5, world)), [2, 64]);
    }
}
