//! Feed-forward network of a layer, gated or not.

use lambert_config::run::Activation;
use lambert_plan::architecture::ModuleKind;
use tch::Tensor;

use super::dropout::{DropoutSite, LayerDropout};
use super::residual;
use super::{Dropout, Linear, NetworkWeights, Normalization, activate, gated};

/// Up projection, activation function and down projection.
pub struct FeedForward {
    activation: Activation,
    is_gated: bool,
    /// True if dropout follows the activation function instead of the down projection.
    drops_inner: bool,
    up: Linear,
    down: Linear,
    site: DropoutSite,
}

impl FeedForward {
    /// Creates the feed-forward network of layer application `application`, which uses the parameters of layer `layer`.
    pub fn new(weights: NetworkWeights<'_>, layer: usize, application: usize) -> Self {
        let linear = |part| Linear::new(weights, part, Some(layer));
        let is_gated = weights.network.module(ModuleKind::Intermediate).is_some_and(|module| module.is_gated);
        Self {
            activation: weights.model.activation,
            is_gated,
            drops_inner: !weights.drops(ModuleKind::Output),
            up: linear(ModuleKind::Intermediate),
            down: linear(ModuleKind::Output),
            site: DropoutSite::Layer { application, position: LayerDropout::FeedForward },
        }
    }

    /// Returns the network's output for `x` plus `residual`, normalized by `norm` if given. All are \[batch, sequence, hidden\].
    pub fn forward(&self, x: &Tensor, residual: &Tensor, norm: Option<&Normalization>, dropout: Dropout<'_>) -> Tensor {
        let up = self.up.forward(x);
        let half = up.size().last().map_or(0, |width| width / 2);
        let gating = dropout.kernels().filter(|kernels| kernels.has_gate(half));
        let inner = match (self.is_gated, gating) {
            (true, Some(kernels)) => kernels.gate(&up, self.activation),
            (true, None) => gated(&up, self.activation),
            (false, _) => activate(&up, self.activation),
        };
        match self.drops_inner {
            true => {
                let dropped = dropout.hidden(inner, None, self.site);
                residual::add(&self.down, &dropped, residual, norm, Dropout::Off, self.site)
            }
            false => residual::add(&self.down, &inner, residual, norm, dropout, self.site),
        }
    }
}
