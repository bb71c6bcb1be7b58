//! BERT (arXiv 1810.04805): token, position and segment embeddings, the encoder, the pre-training heads. Tensors carry
//! Hugging Face's names: those of BertForPreTraining, or with pre-normalisation of MegatronBertForPreTraining. Nothing here knows ranks, files or the network.

mod embeddings;
mod encoder;
mod heads;
pub mod parameters;

use lambert_config::run::{self, Activation, Norm};
use tch::Tensor;

pub use heads::Heads;
pub use parameters::Parameters;

/// What one forward pass of a micro-batch reads.
pub struct Input {
    /// Token ids, \[rows, width\], i64.
    pub ids: Tensor,
    /// Segment of each token, \[rows, width\], i64, 0 or 1.
    pub segments: Tensor,
    /// `true` where a token may be attended to, \[rows, 1, 1, width\]; `None` where no row is padded.
    pub attendable: Option<Tensor>,
}

/// Dropout of one forward pass.
#[derive(Debug, Clone, Copy)]
pub enum Dropout {
    /// None: evaluation.
    Off,
    /// With this probability. libtorch's generator is seeded before the embeddings and each layer from `seed` and the
    /// layer's number, so that the same layer draws the same again whatever was computed before it.
    On {
        /// Share of the activations that are dropped.
        probability: f64,
        /// Share of the attention weights that are dropped.
        attention: f64,
        /// A pure function of the run's seed, the step and the micro-batch.
        seed: u64,
    },
}

impl Dropout {
    fn probability(self) -> f64 {
        match self {
            Self::Off => 0.0,
            Self::On { probability, .. } => probability,
        }
    }

    fn attention_probability(self) -> f64 {
        match self {
            Self::Off => 0.0,
            Self::On { attention, .. } => attention,
        }
    }

    fn seed_layer(self, layer: u64) {
        if let Self::On { probability, attention, seed } = self
            && (probability > 0.0 || attention > 0.0)
        {
            tch::manual_seed(lambert_data_prep::random::Key::new(seed).with(layer).value() as i64);
        }
    }

    fn apply(self, tensor: Tensor) -> Tensor {
        if self.probability() > 0.0 { tensor.dropout(self.probability(), true) } else { tensor }
    }
}

/// A linear map `x W^T + b`; W is \[out, in\].
struct Linear {
    weight: Tensor,
    bias: Tensor,
}

impl Linear {
    fn new(parameters: &Parameters, name: &str) -> Self {
        let part = |part: &str| parameters.tensor(&format!("{name}.{part}"));
        Self { weight: part("weight"), bias: part("bias") }
    }

    fn forward(&self, x: &Tensor) -> Tensor {
        x.linear(&self.weight, Some(&self.bias))
    }
}

/// Layer normalisation over the width.
struct LayerNorm {
    weight: Tensor,
    bias: Tensor,
    eps: f64,
}

impl LayerNorm {
    fn new(parameters: &Parameters, name: &str, model: &run::Model) -> Self {
        let part = |part: &str| parameters.tensor(&format!("{name}.{part}"));
        Self { weight: part("weight"), bias: part("bias"), eps: model.layer_norm_eps }
    }

    fn forward(&self, x: &Tensor) -> Tensor {
        x.layer_norm(self.weight.size(), Some(&self.weight), Some(&self.bias), self.eps, false)
    }
}

fn activate(x: &Tensor, activation: Activation) -> Tensor {
    x.gelu(match activation {
        Activation::Gelu => "none",
        Activation::GeluTanh => "tanh",
    })
}

/// The encoder and its heads.
pub struct Bert {
    embeddings: embeddings::Embeddings,
    layers: Vec<encoder::Layer>,
    /// With pre-normalisation, what follows the last layer.
    norm: Option<LayerNorm>,
    dropout: [f64; 2],
    /// What turns the encoder's output into predictions.
    pub heads: Heads,
}

impl Bert {
    /// The model over `parameters`, which stay where they are; `layers` deep.
    pub fn new(parameters: &Parameters, model: &run::Model, layers: usize) -> Self {
        Self {
            embeddings: embeddings::Embeddings::new(parameters, model),
            layers: (0..layers).map(|index| encoder::Layer::new(parameters, model, index)).collect(),
            norm: (model.norm == Norm::Pre).then(|| LayerNorm::new(parameters, "bert.encoder.ln", model)),
            dropout: [model.dropout, model.attention_dropout.unwrap_or(model.dropout)],
            heads: Heads::new(parameters, model),
        }
    }

    /// Hidden states of the last layer, \[rows, width, hidden\].
    pub fn forward(&self, input: &Input, dropout: Dropout) -> Tensor {
        dropout.seed_layer(0);
        let mut hidden = self.embeddings.forward(input, dropout);
        for (index, layer) in self.layers.iter().enumerate() {
            dropout.seed_layer(index as u64 + 1);
            hidden = layer.forward(&hidden, input.attendable.as_ref(), dropout);
        }
        match &self.norm {
            Some(norm) => norm.forward(&hidden),
            None => hidden,
        }
    }

    /// The model's dropout, drawn from `seed`.
    pub fn dropout(&self, seed: u64) -> Dropout {
        let [probability, attention] = self.dropout;
        Dropout::On { probability, attention, seed }
    }
}
