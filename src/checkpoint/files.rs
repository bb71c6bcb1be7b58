//! The objects of a checkpoint: weights and moments as safetensors.

use std::ops::Range;

use lambert_store::checkpoint::{self as stored, Manifest, Slice, Verified};
use lambert_store::{Store, run};

use super::Facts;
use super::filler::{Filler, Target};
use crate::error::Error;
use crate::model::Parameters;
use crate::model::parameters::Spec;
use crate::optim::Optimizer;
use crate::torch;

/// Mean of the gradients.
pub const FIRST: &str = "exp_avg";
/// Mean of the squared gradients.
pub const SECOND: &str = "exp_avg_sq";

/// The elements of part `index` of `parts`, which differ in size by one at most.
pub fn part_range(elements: usize, index: usize, parts: usize) -> Range<usize> {
    let start = |index: usize| (elements as u128 * index as u128 / parts as u128) as usize;
    start(index)..start(index + 1)
}

/// Which elements of which parameters lie in `range` of the flat buffers.
pub fn slices(specs: &[Spec], range: &Range<usize>) -> Vec<Slice> {
    let cut = |spec: &Spec| {
        let (start, end) = (spec.first.max(range.start), spec.range().end.min(range.end));
        (start < end).then(|| Slice {
            tensor: spec.name.clone(),
            first: (start - spec.first) as u64,
            count: (end - start) as u64,
        })
    };
    specs.iter().filter_map(cut).collect()
}

pub(super) fn write_error(error: safetensors::SafeTensorError) -> Error {
    Error::Checkpoint { name: "being written".to_owned(), message: error.to_string() }
}

/// The counters and facts of a checkpoint.
pub fn facts(manifest: &Manifest) -> Result<Facts, Error> {
    serde_json::from_value(manifest.state.clone()).map_err(|error| fault(manifest, format!("its state: {error}")))
}

/// Objects that are read at the same time.
const PARALLEL: usize = 4;

/// Reads the weights and, if asked for, the moments, several objects at a time; what is read is what was verified. The
/// weights' file must hold the model's parameters and no others; the moments may lie in any number of parts.
pub fn read(
    store: &Store,
    verified: &Verified,
    parameters: &mut Parameters,
    optimizer: Option<&mut Optimizer>,
) -> Result<(), Error> {
    let specs = parameters.specs().to_vec();
    let values = torch::floats_mut(&mut parameters.values);
    let mut reads: Vec<Box<dyn FnOnce() -> Result<(), Error> + Send + '_>> =
        vec![Box::new(|| read_weights(store, verified, &specs, values))];
    if let Some(optimizer) = optimizer {
        for part in parts(&verified.manifest, optimizer)? {
            reads.push(Box::new(|| read_part(store, verified, part)));
        }
    }
    while !reads.is_empty() {
        let now: Vec<_> = reads.drain(..reads.len().min(PARALLEL)).collect();
        std::thread::scope(|scope| {
            let threads: Vec<_> = now.into_iter().map(|read| scope.spawn(read)).collect();
            let mut ended = threads.into_iter().map(|thread| thread.join());
            ended.try_for_each(|read| read.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
        })?;
    }
    Ok(())
}

fn read_weights(store: &Store, verified: &Verified, specs: &[Spec], values: &mut [f32]) -> Result<(), Error> {
    let mut rest = values;
    let targets = specs.iter().map(|spec| {
        let values = rest.split_off_mut(..spec.count()).unwrap_or_default();
        Target { name: &spec.name, shape: spec.sizes(), values }
    });
    fill(store, verified, run::WEIGHTS, targets.collect())
}

/// Reads an object into `targets`, which are all that it may hold.
fn fill(store: &Store, verified: &Verified, object: &str, targets: Vec<Target<'_>>) -> Result<(), Error> {
    let mut filler = Filler::new(targets);
    stored::stream_object(store, verified, object, &mut filler)?;
    filler.finish().map_or(Ok(()), |why| Err(fault(&verified.manifest, format!("{object}: {why}"))))
}

/// A part of the moments, and where it goes.
struct Part<'a> {
    name: String,
    first: &'a mut [f32],
    second: &'a mut [f32],
}

fn parts<'a>(manifest: &Manifest, optimizer: &'a mut Optimizer) -> Result<Vec<Part<'a>>, Error> {
    let count = manifest.objects.iter().filter(|object| run::is_moments(&object.path)).count();
    if count == 0 {
        return Err(fault(manifest, "it has no optimizer parts".to_owned()));
    }
    let elements = optimizer.first_moment.len();
    let (mut first, mut second) = (&mut optimizer.first_moment[..], &mut optimizer.second_moment[..]);
    let cut = |index| {
        let length = part_range(elements, index, count).len();
        let first = first.split_off_mut(..length).unwrap_or_default();
        let second = second.split_off_mut(..length).unwrap_or_default();
        Part { name: run::moments(index, count), first, second }
    };
    Ok((0..count).map(cut).collect())
}

fn read_part(store: &Store, verified: &Verified, part: Part<'_>) -> Result<(), Error> {
    let shape = vec![part.first.len()];
    let targets = vec![
        Target { name: FIRST, shape: shape.clone(), values: part.first },
        Target { name: SECOND, shape, values: part.second },
    ];
    fill(store, verified, &part.name, targets)
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
