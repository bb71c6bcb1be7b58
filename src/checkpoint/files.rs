//! The objects of a checkpoint: weights and moments as safetensors.

use std::collections::HashMap;
use std::ops::Range;

use bytes::Bytes;
use lambert_store::Store;
use lambert_store::checkpoint::{self as stored, Manifest, Slice};
use safetensors::tensor::{Dtype, SafeTensors, TensorView};

use super::Facts;
use crate::error::Error;
use crate::model::Parameters;
use crate::model::parameters::Spec;
use crate::optim::Optimizer;
use crate::torch;

/// The weights, under Hugging Face's names.
pub const MODEL: &str = "model.safetensors";
/// Mean of the gradients.
const FIRST: &str = "exp_avg";
/// Mean of the squared gradients.
const SECOND: &str = "exp_avg_sq";

/// The object with part `index` of `parts` of the moments.
pub fn part_name(index: usize, parts: usize) -> String {
    format!("optimizer-{index:05}-of-{parts:05}.safetensors")
}

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

/// The weights as a safetensors file; `"format": "pt"` is what transformers asks for.
pub fn model_bytes(parameters: &Parameters) -> Result<Bytes, Error> {
    let values = torch::floats(&parameters.values);
    let views = parameters.specs().iter().map(|spec| {
        let shape = spec.shape.iter().map(|size| *size as usize).collect();
        Ok((spec.name.as_str(), TensorView::new(Dtype::F32, shape, bytemuck::cast_slice(&values[spec.range()]))?))
    });
    serialize(views.collect::<Result<_, _>>().map_err(write_error)?)
}

/// A slice of the moments as a safetensors file.
pub fn moments_bytes(optimizer: &Optimizer, range: Range<usize>) -> Result<Bytes, Error> {
    let view =
        |moment| TensorView::new(Dtype::F32, vec![range.len()], bytemuck::cast_slice(moment)).map_err(write_error);
    let (first, second) = (&optimizer.first_moment[range.clone()], &optimizer.second_moment[range.clone()]);
    serialize(vec![(FIRST, view(first)?), (SECOND, view(second)?)])
}

fn serialize(views: Vec<(&str, TensorView<'_>)>) -> Result<Bytes, Error> {
    let metadata = HashMap::from([("format".to_owned(), "pt".to_owned())]);
    Ok(safetensors::serialize(views, Some(metadata)).map_err(write_error)?.into())
}

fn write_error(error: safetensors::SafeTensorError) -> Error {
    Error::Checkpoint { name: "being written".to_owned(), message: error.to_string() }
}

/// The counters and facts of a checkpoint.
pub fn facts(manifest: &Manifest) -> Result<Facts, Error> {
    serde_json::from_value(manifest.state.clone()).map_err(|error| fault(manifest, format!("its state: {error}")))
}

/// Reads the weights; the file must hold the model's parameters and no others.
pub fn read_weights(store: &Store, manifest: &Manifest, parameters: &mut Parameters) -> Result<(), Error> {
    let bytes = stored::read_object(store, manifest, MODEL)?;
    let file = File::open(manifest, MODEL, &bytes)?;
    let specs = parameters.specs().to_vec();
    if let Some(name) = file.tensors.names().into_iter().find(|name| !specs.iter().any(|spec| spec.name == **name)) {
        return Err(fault(manifest, format!("{MODEL} holds {name}, which this model does not have")));
    }
    let values = torch::floats_mut(&mut parameters.values);
    for spec in &specs {
        let shape: Vec<usize> = spec.shape.iter().map(|size| *size as usize).collect();
        file.read(&spec.name, &shape, &mut values[spec.range()])?;
    }
    Ok(())
}

/// Reads the moments, whatever the number of parts.
pub fn read_moments(store: &Store, manifest: &Manifest, optimizer: &mut Optimizer) -> Result<(), Error> {
    let elements = optimizer.first_moment.len();
    let parts = manifest.objects.iter().filter(|object| object.path.starts_with("optimizer-")).count();
    for index in 0..parts {
        let (name, range) = (part_name(index, parts), part_range(elements, index, parts));
        let bytes = stored::read_object(store, manifest, &name)?;
        let file = File::open(manifest, &name, &bytes)?;
        file.read(FIRST, &[range.len()], &mut optimizer.first_moment[range.clone()])?;
        file.read(SECOND, &[range.len()], &mut optimizer.second_moment[range])?;
    }
    if parts == 0 { Err(fault(manifest, "it has no optimizer parts".to_owned())) } else { Ok(()) }
}

struct File<'a> {
    manifest: &'a Manifest,
    name: &'a str,
    tensors: SafeTensors<'a>,
}

impl<'a> File<'a> {
    fn open(manifest: &'a Manifest, name: &'a str, bytes: &'a [u8]) -> Result<Self, Error> {
        let tensors = SafeTensors::deserialize(bytes).map_err(|error| fault(manifest, format!("{name}: {error}")))?;
        Ok(Self { manifest, name, tensors })
    }

    fn read(&self, tensor: &str, shape: &[usize], into: &mut [f32]) -> Result<(), Error> {
        let complain = |message: String| fault(self.manifest, format!("{}: {tensor}: {message}", self.name));
        let view = self.tensors.tensor(tensor).map_err(|error| complain(error.to_string()))?;
        if view.dtype() != Dtype::F32 || view.shape() != shape {
            return Err(complain(format!("is {:?} {:?}, expected F32 {shape:?}", view.dtype(), view.shape())));
        }
        for (value, bytes) in into.iter_mut().zip(view.data().as_chunks::<4>().0) {
            *value = f32::from_le_bytes(*bytes);
        }
        Ok(())
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
