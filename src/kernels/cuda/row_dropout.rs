//! Dropout as a part of other kernels.

use lambert_dataset::random::Key;
use tch::Tensor;

use super::launch::KernelArguments;
use crate::kernels::DropoutParams;

/// Dropout of the rows of a tensor.
pub struct RowDropout {
    key: Key,
    samples: Tensor,
    positions: Option<Tensor>,
    threshold: u16,
    scale: f32,
}

impl RowDropout {
    /// Copies the parameters, sharing the storage of the tensors.
    pub fn new(params: &DropoutParams<'_>) -> Self {
        let DropoutParams { key, samples, positions, threshold, scale } = *params;
        Self {
            key,
            samples: samples.shallow_clone(),
            positions: positions.map(Tensor::shallow_clone),
            threshold,
            scale,
        }
    }

    /// Appends samples, positions, key, threshold and scale. Without `dropout`, a kernel keeps all elements.
    pub fn append(dropout: Option<&Self>, arguments: KernelArguments) -> KernelArguments {
        match dropout {
            Some(Self { key, samples, positions, threshold, scale }) => {
                let arguments = arguments.tensor(samples).optional_tensor(positions.as_ref());
                arguments.u64(key.bits()).u32((*threshold).into()).f32(*scale)
            }
            None => arguments.u64(0).u64(0).u64(0).u32(0).f32(1.0),
        }
    }
}
