//! Keyed dropout: the dropout masks are a pure function of seed, step, sample and dropout site. The masks do not depend
//! on the number of ranks or on the partition into micro-batches. On the CPU, the libtorch random generator is a
//! single sequential stream. With that generator, dropout took an eighth of the time of a step.

use lambert_dataset::random::Key;
use tch::Tensor;

use crate::kernels::{DropoutParams, Kernels};

/// Dropout probabilities.
#[derive(Debug, Clone, Copy)]
pub struct DropoutRates {
    /// Dropout of hidden states.
    pub hidden: f64,
    /// Dropout of attention weights.
    pub attention: f64,
    /// Dropout of attention outputs.
    pub attention_output: f64,
}

/// Dropout of one forward pass.
#[derive(Clone, Copy)]
pub enum Dropout<'a> {
    /// No dropout, as in evaluation.
    Off,
    /// Dropout with masks that are derived from `key`.
    On {
        /// Probabilities.
        rates: DropoutRates,
        /// Key derived from the seed of the run and the step.
        key: Key,
        /// For each row, the index of its sample in the global batch, i64 \[batch\].
        samples: &'a Tensor,
        /// Position of each token in its sample, for an unpadded micro-batch. `samples` then has an entry for each token.
        positions: Option<&'a Tensor>,
        /// Device kernels.
        kernels: &'a dyn Kernels,
        /// Seed of the libtorch generator, which fused attention uses for its dropout. No other micro-batch of the
        /// global batch has the same seed. `None` if the masks of attention dropout are derived from `key`.
        fused_seed: Option<u64>,
    },
}

/// Location of a dropout operation in the model, unique within a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DropoutSite {
    /// After the embeddings.
    Embeddings,
    /// Table of relative positions that a layer reads.
    RelativePositions {
        /// Index of the application in the network, from 0.
        application: usize,
    },
    /// Dropout in a layer.
    Layer {
        /// Index of the application in the network, from 0.
        application: usize,
        /// Position within the layer.
        position: LayerDropout,
    },
}

/// Dropout position within a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LayerDropout {
    AttentionWeights,
    /// Attention output, before the residual addition.
    AttentionOutput,
    /// Feed-forward output, before the residual addition, or input of the down projection.
    FeedForward,
}

impl DropoutSite {
    /// Number of the site, which is part of the dropout key. Changing a number would change the dropout masks.
    fn number(self) -> u64 {
        match self {
            Self::Embeddings => 0,
            Self::RelativePositions { application } => (1 << 32) + application as u64,
            Self::Layer { application, position } => 1 + 3 * application as u64 + position as u64,
        }
    }
}

/// Dropout probability of hidden states at `site`.
fn hidden_rate(rates: DropoutRates, site: DropoutSite) -> f64 {
    match site {
        DropoutSite::Layer { position: LayerDropout::AttentionOutput, .. } => rates.attention_output,
        _ => rates.hidden,
    }
}

/// Number of distinct values of a 16-bit random draw.
const STEPS: f64 = 65536.0;

impl Dropout<'_> {
    /// Kernels of the device, if dropout is on.
    pub fn kernels(&self) -> Option<&dyn Kernels> {
        match self {
            Self::Off => None,
            Self::On { kernels, .. } => Some(*kernels),
        }
    }

    /// True if dropout applies to individual attention weights, so that attention must materialize them.
    pub fn needs_attention_weights(self) -> bool {
        matches!(self, Self::On { rates, fused_seed: None, .. } if rates.attention > 0.0)
    }

    /// Returns the dropout probability for fused attention at `site`. Seeds the
    /// libtorch generator for that attention call.
    pub fn seed_fused_attention(self, site: DropoutSite) -> f64 {
        match self {
            Self::On { rates, key, kernels, fused_seed: Some(micro_batch), .. } if rates.attention > 0.0 => {
                kernels.seed(key.with(site.number()).with(micro_batch).value());
                rates.attention
            }
            _ => 0.0,
        }
    }

    /// Applies dropout to hidden states \[batch, sequence, hidden\] and adds the residual `added`, if given.
    pub fn hidden(self, x: Tensor, added: Option<&Tensor>, site: DropoutSite) -> Tensor {
        self.drop(x, added, site, |rates| hidden_rate(rates, site))
    }

    /// Calls `work` with the dropout of hidden states at `site`; `None` without dropout.
    pub fn with_params<T>(self, site: DropoutSite, work: impl FnOnce(Option<&DropoutParams<'_>>) -> T) -> T {
        work(self.params(site, |rates| hidden_rate(rates, site)).as_ref())
    }

    /// Calls `work` with the dropout of attention weights at `site`; `None` without dropout.
    pub fn with_attention_params<T>(self, site: DropoutSite, work: impl FnOnce(Option<&DropoutParams<'_>>) -> T) -> T {
        work(self.params(site, |rates| rates.attention).as_ref())
    }

    /// Applies dropout to a table \[rows, hidden\]. The mask is the same for all samples of a step.
    pub fn shared(self, table: &Tensor, site: DropoutSite) -> Tensor {
        let Self::On { rates, key, kernels, fused_seed, samples, .. } = self else { return table.shallow_clone() };
        let constant = samples.narrow(0, 0, 1).zeros_like();
        let shared = Dropout::On { rates, key, kernels, fused_seed, samples: &constant, positions: None };
        shared.hidden(table.unsqueeze(0), None, site).squeeze_dim(0)
    }

    /// Applies dropout to attention weights \[batch, heads, sequence, sequence\].
    pub fn attention(self, weights: Tensor, site: DropoutSite) -> Tensor {
        self.drop(weights, None, site, |rates| rates.attention)
    }

    /// Parameters of the dropout at `site`; `None` if nothing is dropped.
    fn params(&self, site: DropoutSite, rate: impl Fn(DropoutRates) -> f64) -> Option<DropoutParams<'_>> {
        match self {
            Self::On { rates, key, samples, positions, .. } if rate(*rates) > 0.0 => {
                let threshold = (rate(*rates) * STEPS).round();
                let scale = (STEPS / (STEPS - threshold)) as f32;
                let (key, positions) = (key.with(site.number()), *positions);
                Some(DropoutParams { key, samples, positions, threshold: threshold as u16, scale })
            }
            _ => None,
        }
    }

    fn drop(self, x: Tensor, added: Option<&Tensor>, site: DropoutSite, rate: impl Fn(DropoutRates) -> f64) -> Tensor {
        match (self, self.params(site, rate)) {
            (Self::On { kernels, .. }, Some(params)) => kernels.dropout(&x, added, &params),
            _ => added.map_or_else(|| x.shallow_clone(), |added| &x + added),
        }
    }
}
