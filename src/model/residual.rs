//! Residual connection of a sublayer, with the normalization that follows it.

use tch::Tensor;

use super::dropout::{Dropout, DropoutSite};
use super::{Linear, Normalization};

/// Returns dropout(`linear`(`x`)) + `residual`, normalized by `norm` if given.
pub fn add(
    linear: &Linear,
    x: &Tensor,
    residual: &Tensor,
    norm: Option<&Normalization>,
    dropout: Dropout<'_>,
    site: DropoutSite,
) -> Tensor {
    let Some(norm) = norm else { return dropout.hidden(linear.forward(x), Some(residual), site) };
    if let Some((kernels, params)) = norm.fused(dropout, linear) {
        let projected = linear.forward_without_bias_gradient(x);
        return dropout.with_params(site, |dropout| kernels.residual_norm(&projected, residual, &params, dropout));
    }
    norm.forward(&dropout.hidden(linear.forward(x), Some(residual), site))
}
