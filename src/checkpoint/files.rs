//! The objects of a checkpoint: weights and moments as safetensors.

use std::ops::Range;

use lambert_store::checkpoint::{self as stored, Manifest, Slice, Verified};
use lambert_store::{Store, run};

use super::filler::{Filler, Target};
use crate::error::Error;
use crate::state::{Buffer, ParamSpec, Parameters, TrainState};

/// Mean of the gradients.
pub const FIRST: &str = "exp_avg";
/// Mean of the squared gradients.
pub const SECOND: &str = "exp_avg_sq";

/// The elements of part `index` of `parts`, which differ in size by one at most.
pub fn part_range(elements: usize, index: usize, parts: usize) -> Range<usize> {
    let start = |index: usize| (elements as u128 * index as u128 / parts as u128) as usize;
    start(index)..start(index + 1)
}

/// Which elements of which parameters are those of `range`, counted over all parameters one behind the other.
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

/// Where a slice lies in the flat buffers; `None` if these parameters do not have it.
pub fn place(specs: &[ParamSpec], slice: &Slice) -> Option<Range<usize>> {
    let spec = specs.iter().find(|spec| spec.name == slice.tensor)?;
    let end = slice.first.checked_add(slice.count).filter(|end| *end <= spec.count() as u64)?;
    Some(spec.first + slice.first as usize..spec.first + end as usize)
}

pub(super) fn write_error(error: safetensors::SafeTensorError) -> Error {
    Error::Checkpoint { name: "being written".to_owned(), message: error.to_string() }
}

/// Objects that are read at the same time.
const PARALLEL: usize = 4;

/// Reads the weights; what is read is what was verified. The file must hold the model's parameters and no others.
pub fn read_weights(store: &Store, verified: &Verified, parameters: &Parameters) -> Result<(), Error> {
    fill(store, verified, run::WEIGHTS, weights(parameters))
}

fn weights(parameters: &Parameters) -> Vec<Target> {
    let target = |spec: &ParamSpec| {
        let region = parameters.region(vec![spec.range()]);
        Target { name: spec.name.clone(), shape: spec.sizes(), region }
    };
    parameters.specs().iter().map(target).collect()
}

/// Reads the weights and the moments, several objects at a time. The moments may lie in any number of parts.
pub fn read(store: &Store, verified: &Verified, state: &mut TrainState) -> Result<(), Error> {
    let moments = parts(&verified.manifest, state)?;
    let mut objects = vec![(run::WEIGHTS.to_owned(), weights(&state.parameters))];
    objects.extend(moments);
    while !objects.is_empty() {
        let now: Vec<_> = objects.drain(..objects.len().min(PARALLEL)).collect();
        std::thread::scope(|scope| {
            let read =
                |(name, targets): (String, Vec<Target>)| scope.spawn(move || fill(store, verified, &name, targets));
            let threads: Vec<_> = now.into_iter().map(read).collect();
            let mut ended = threads.into_iter().map(|thread| thread.join());
            ended.try_for_each(|read| read.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
        })?;
    }
    Ok(())
}

/// Reads an object into `targets`, which are all that it may hold.
fn fill(store: &Store, verified: &Verified, object: &str, targets: Vec<Target>) -> Result<(), Error> {
    let mut filler = Filler::new(targets);
    stored::stream_object(store, verified, object, &mut filler)?;
    filler.finish().map_or(Ok(()), |why| Err(fault(&verified.manifest, format!("{object}: {why}"))))
}

/// The objects with the moments, and where they go: as their slices say, whatever the order of the parameters was.
fn parts(manifest: &Manifest, state: &TrainState) -> Result<Vec<(String, Vec<Target>)>, Error> {
    let specs = state.parameters.specs();
    let mut covered = Vec::new();
    let mut parts = Vec::new();
    for object in manifest.objects.iter().filter(|object| run::is_moments(&object.path)) {
        let ranges = object.slices.iter().map(|slice| place(specs, slice)).collect::<Option<Vec<_>>>();
        let ranges = ranges.ok_or_else(|| fault(manifest, format!("{} has slices of another model", object.path)))?;
        let shape = vec![ranges.iter().map(Range::len).sum()];
        let target = |name: &str, buffer| {
            let region = state.region(buffer, ranges.clone());
            Target { name: name.to_owned(), shape: shape.clone(), region }
        };
        parts.push((object.path.clone(), vec![target(FIRST, Buffer::First), target(SECOND, Buffer::Second)]));
        covered.extend(ranges);
    }
    // Several threads write: no element twice.
    covered.sort_by_key(|range| range.start);
    let once = covered.windows(2).all(|pair| pair[0].end <= pair[1].start);
    let all = covered.iter().map(Range::len).sum::<usize>() == specs.iter().map(ParamSpec::count).sum::<usize>();
    match once && all {
        true => Ok(parts),
        false => Err(fault(manifest, "its optimizer parts do not have every element once".to_owned())),
    }
}

fn fault(manifest: &Manifest, message: String) -> Error {
    Error::Checkpoint { name: manifest.name(), message }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_cover_every_element_once() {
        for (elements, parts) in [(10, 3), (7, 7), (3, 8), (110_106_428, 5)] {
            let ranges: Vec<_> = (0..parts).map(|index| part_range(elements, index, parts)).collect();
            assert_eq!((ranges[0].start, ranges[parts - 1].end), (0, elements));
            assert!(ranges.windows(2).all(|pair| pair[0].end == pair[1].start));
        }
    }
}
