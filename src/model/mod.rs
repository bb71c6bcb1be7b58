//! BERT (arXiv 1810.04805): token, position and segment embeddings, the encoder, the pre-training heads. Tensors carry
//! Hugging Face's names: those of BertForPreTraining, or with pre-normalisation of MegatronBertForPreTraining. Nothing
//! here knows ranks, files or the network.

mod backward;
mod dropout;
mod embeddings;
mod encoder;
mod heads;
pub mod parameters;

use std::sync::Arc;

use lambert_config::architecture::{Leaf, Part, TensorId};
use lambert_config::run::{self, Activation, Attention, Norm, Precision};
use lambert_data_prep::random::Key;
use tch::{Kind, Tensor};

use crate::input::Input;
use crate::kernels::Kernels;
use crate::state::Parameters;
use crate::torch;

pub use backward::Passed;
pub use dropout::{Dropout, Rates};
pub use heads::Heads;

/// A linear map `x W^T + b`; W is \[out, in\]. Computed in the kind of number that `x` is; the gradients are f32.
struct Linear {
    weight: Tensor,
    bias: Tensor,
    /// Both once more, in the kind of number that the model computes with; `None`: they are cast each time.
    low: Option<[Tensor; 2]>,
}

impl Linear {
    fn new(parameters: &Parameters, part: Part, layer: Option<usize>) -> Self {
        let id = |leaf| TensorId { part, layer, leaf };
        Self::of(parameters, id(Leaf::Weight), id(Leaf::Bias))
    }

    /// Of these two parameters.
    fn of(parameters: &Parameters, weight: TensorId, bias: TensorId) -> Self {
        let low = parameters.low_tensor(weight).zip(parameters.low_tensor(bias)).map(|(weight, bias)| [weight, bias]);
        Self { weight: parameters.tensor(weight), bias: parameters.tensor(bias), low }
    }

    /// Of several in a layer that have the same input and are joined to the first, `part`.
    fn joined(parameters: &Parameters, part: Part, layer: usize) -> Self {
        let [weight, bias] = [Leaf::Weight, Leaf::Bias].map(|leaf| TensorId { part, layer: Some(layer), leaf });
        let low = parameters.low_joined(weight).zip(parameters.low_joined(bias)).map(|(weight, bias)| [weight, bias]);
        Self { weight: parameters.joined(weight), bias: parameters.joined(bias), low }
    }

    fn forward(&self, x: &Tensor) -> Tensor {
        torch::linear(x, &self.weight, &self.bias, self.low.as_ref())
    }
}

/// Layer normalisation over the width.
struct LayerNorm {
    weight: Tensor,
    bias: Tensor,
    eps: f64,
}

impl LayerNorm {
    fn new(parameters: &Parameters, part: Part, layer: Option<usize>, model: &run::Model) -> Self {
        let leaf = |leaf| parameters.tensor(TensorId { part, layer, leaf });
        Self { weight: leaf(Leaf::Weight), bias: leaf(Leaf::Bias), eps: model.layer_norm_eps }
    }

    fn forward(&self, x: &Tensor) -> Tensor {
        let (weight, bias) = (self.weight.to_kind(x.kind()), self.bias.to_kind(x.kind()));
        x.layer_norm(self.weight.size(), Some(weight), Some(bias), self.eps, false)
    }
}

/// What a model computes with.
pub fn kind(model: &run::Model) -> Kind {
    match model.precision {
        Precision::Fp32 | Precision::Tf32 => Kind::Float,
        Precision::Bf16 => Kind::BFloat16,
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
    dropout: Rates,
    /// Whether attention draws its dropout by itself.
    fused: bool,
    kernels: Arc<dyn Kernels>,
    /// What the layers and heads compute with.
    kind: Kind,
    /// Whether activations are computed again on the way back, instead of being kept.
    pub recompute: bool,
    /// What turns the encoder's output into predictions.
    pub heads: Heads,
}

impl Bert {
    /// The model over `parameters`, which stay where they are; `layers` deep.
    pub fn new(parameters: &Parameters, model: &run::Model, layers: usize) -> Self {
        Self {
            embeddings: embeddings::Embeddings::new(parameters, model),
            layers: (0..layers).map(|index| encoder::Layer::new(parameters, model, index)).collect(),
            norm: (model.norm == Norm::Pre).then(|| LayerNorm::new(parameters, Part::FinalNorm, None, model)),
            dropout: Rates { hidden: model.dropout, attention: model.attention_dropout.unwrap_or(model.dropout) },
            fused: match model.attention {
                Attention::Auto => parameters.kernels().prefers_fused(),
                Attention::Keyed => false,
                Attention::Fused => true,
            },
            kernels: Arc::clone(parameters.kernels()),
            kind: kind(model),
            recompute: false,
            heads: Heads::new(parameters, model),
        }
    }

    /// The kernels of the device that it computes on.
    pub fn kernels(&self) -> &dyn Kernels {
        &*self.kernels
    }

    /// Hidden states of the last layer, \[rows, width, hidden\].
    pub fn forward(&self, input: &Input, dropout: Dropout<'_>) -> Tensor {
        let mut hidden = self.embed(input, dropout);
        for layer in &self.layers {
            hidden = layer.forward(&hidden, input.attendable.as_ref(), dropout);
        }
        self.finish(hidden)
    }

    /// What goes into the first layer.
    fn embed(&self, input: &Input, dropout: Dropout<'_>) -> Tensor {
        self.embeddings.forward(input, dropout).to_kind(self.kind)
    }

    fn finish(&self, hidden: Tensor) -> Tensor {
        match &self.norm {
            Some(norm) => norm.forward(&hidden),
            None => hidden,
        }
    }

    /// The model's dropout of a step for the samples of `input`; `key` is made of the seed and the step.
    pub fn dropout<'a>(&'a self, key: Key, input: &'a Input) -> Dropout<'a> {
        let fused = self.fused.then_some(input.first_sample);
        Dropout::On { rates: self.dropout, key, samples: &input.samples, kernels: &*self.kernels, fused }
    }
}
