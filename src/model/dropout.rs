//! Dropout whose draws are a pure function of the seed, the step, the sample and the place in the model: the same for
//! every world size and however a global batch is cut into micro-batches. libtorch's own generator is one stream, drawn
//! by one thread, which took an eighth of a step.

use lambert_dataset::random::Key;
use tch::Tensor;

use crate::kernels::{Draws, Kernels};

/// What shares are dropped.
#[derive(Debug, Clone, Copy)]
pub struct Rates {
    /// Of the activations.
    pub hidden: f64,
    /// Of the attention weights.
    pub attention: f64,
}

/// Dropout of one forward pass.
#[derive(Clone, Copy)]
pub enum Dropout<'a> {
    /// None: evaluation.
    Off,
    /// As drawn.
    On {
        /// How much.
        rates: Rates,
        /// Of the run's seed and the step.
        key: Key,
        /// The number of each row's sample in the global batch, i64 \[rows\].
        samples: &'a Tensor,
        /// What draws.
        kernels: &'a dyn Kernels,
        /// For fused attention, which draws by itself: a number that no other micro-batch of the global batch has.
        fused: Option<u64>,
    },
}

/// A place in the model where dropout is drawn. Two draws of a step have different places.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Site {
    /// Behind the embeddings.
    Embeddings,
    /// In an application of a layer.
    Layer {
        /// Its number among all applications, from 0.
        application: usize,
        /// Where in the layer.
        place: Place,
    },
}

/// A place in a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// On the attention weights.
    AttentionWeights,
    /// Before attention's output is added.
    AttentionOutput,
    /// Before the feed-forward layer's output is added.
    FeedForward,
}

impl Site {
    /// Its number in the key of the draws. These numbers decide what is drawn: they never change.
    fn number(self) -> u64 {
        match self {
            Self::Embeddings => 0,
            Self::Layer { application, place } => 1 + 3 * application as u64 + place as u64,
        }
    }
}

/// Values in 16 bits, of which four are cut from a random word.
const STEPS: f64 = 65536.0;

impl Dropout<'_> {
    /// Whether attention weights are dropped one by one, so that they have to be there.
    pub fn needs_weights(self) -> bool {
        matches!(self, Self::On { rates, fused: None, .. } if rates.attention > 0.0)
    }

    /// With fused attention, the share of the weights that it is to drop at `site`. Its generator is seeded
    /// for the next call.
    pub fn of_fused_attention(self, site: Site) -> f64 {
        match self {
            Self::On { rates, key, kernels, fused: Some(micro_batch), .. } if rates.attention > 0.0 => {
                kernels.seed(key.with(site.number()).with(micro_batch).value());
                rates.attention
            }
            _ => 0.0,
        }
    }

    /// Drops activations, \[rows, width, hidden\], at `site`, and adds `added` where there is something.
    pub fn hidden(self, x: Tensor, added: Option<&Tensor>, site: Site) -> Tensor {
        self.drop(x, added, site, |rates| rates.hidden)
    }

    /// Drops attention weights, \[rows, heads, width, width\], at `site`.
    pub fn attention(self, weights: Tensor, site: Site) -> Tensor {
        self.drop(weights, None, site, |rates| rates.attention)
    }

    fn drop(self, x: Tensor, added: Option<&Tensor>, site: Site, rate: impl Fn(Rates) -> f64) -> Tensor {
        let draws = match &self {
            Self::On { rates, key, samples, .. } if rate(*rates) > 0.0 => {
                let dropped = (rate(*rates) * STEPS).round();
                let scale = (STEPS / (STEPS - dropped)) as f32;
                Some(Draws { key: key.with(site.number()), samples, dropped: dropped as u16, scale })
            }
            _ => None,
        };
        match (self, draws) {
            (Self::On { kernels, .. }, Some(draws)) => kernels.dropout(&x, added, &draws),
            _ => added.map_or_else(|| x.shallow_clone(), |added| &x + added),
        }
    }
}
