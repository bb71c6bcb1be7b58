//! Rotary positions.

use tch::{Kind, Tensor};

use crate::kernels::Angles;

/// Rotary position embedding (arXiv 2104.09864): rotates element i and element i + d/2 of a head of d elements by the angle
/// position x base^(-2i/d).
pub struct Rotation {
    /// Cosines of the angles, f32 \[sequence, 1, head size / 2\].
    cosines: Tensor,
    /// Sines of the angles.
    sines: Tensor,
}

impl Rotation {
    /// Computes the angles in f32, as transformers does. `elements` are the numbers of the rotated pairs.
    pub fn new(positions: &Tensor, elements: &Tensor, base: f64) -> Self {
        let exponents = elements.to_kind(Kind::Float) / elements.size()[0] as f64;
        let frequencies = Tensor::pow_scalar(base, &exponents).reciprocal();
        let angles = positions.to_kind(Kind::Float).unsqueeze(1) * frequencies.unsqueeze(0);
        Self { cosines: angles.cos().unsqueeze(1), sines: angles.sin().unsqueeze(1) }
    }

    /// Copies the tensor handles, sharing their storage.
    pub fn shallow_clone(&self) -> Self {
        Self { cosines: self.cosines.shallow_clone(), sines: self.sines.shallow_clone() }
    }

    /// Cosines and sines for [`Kernels::rotate`](crate::kernels::Kernels::rotate).
    pub fn angles(&self) -> Angles<'_> {
        Angles { cosines: &self.cosines, sines: &self.sines }
    }

    /// Rotates `x`, \[batch, sequence, heads, head size\], in f32. The result has the dtype of `x`.
    pub fn apply(&self, x: &Tensor) -> Tensor {
        let halves = x.to_kind(Kind::Float).chunk(2, -1);
        let (first, second) = (&halves[0], &halves[1]);
        let rotated = [first * &self.cosines - second * &self.sines, second * &self.cosines + first * &self.sines];
        Tensor::cat(&rotated, -1).to_kind(x.kind())
    }
}
