//! An encoder, computed as its description (configs/src/architecture) says: segments of blocks, and the pre-training heads.
//! Nothing here knows ranks, files or sockets.

mod backward;
mod block;
mod dropout;
mod embeddings;
mod heads;
mod layer;
pub mod parameters;

use std::sync::Arc;

use lambert_config::architecture::{Leaf, Network, Part, Segment, SegmentKind, TensorId, Value};
use lambert_config::run::{self, Activation, Attention, Norm, Precision};
use lambert_data_prep::random::Key;
use tch::{Kind, Tensor};

use crate::input::Input;
use crate::kernels::Kernels;
use crate::state::Parameters;
use crate::torch;

use block::Block;
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

/// A segment below the heads.
struct SegmentCode {
    block: Box<dyn Block>,
    /// What it reads of other segments.
    inputs: Vec<Value>,
    /// The segments whose outputs nobody reads behind it.
    releases: Vec<usize>,
}

/// The encoder and its heads.
pub struct Encoder {
    segments: Vec<SegmentCode>,
    /// What the heads read.
    top: Value,
    /// With pre-normalisation, what follows the last layer.
    norm: Option<LayerNorm>,
    dropout: Rates,
    /// Whether attention draws its dropout by itself.
    fused: bool,
    kernels: Arc<dyn Kernels>,
    /// Whether activations are computed again on the way back, instead of being kept.
    pub recompute: bool,
    /// What turns the encoder's output into predictions.
    pub heads: Heads,
}

impl Encoder {
    /// The model over `parameters`, which stay where they are; `layers` deep.
    pub fn new(parameters: &Parameters, model: &run::Model, layers: usize) -> Self {
        let network = Network::new(model, layers, parameters.vocabulary());
        Self::of(parameters, model, &network, |segment| block(parameters, model, segment))
    }

    /// The model that `network` describes; `block` makes the code of each segment below the heads.
    fn of(
        parameters: &Parameters,
        model: &run::Model,
        network: &Network,
        block: impl Fn(&Segment) -> Option<Box<dyn Block>>,
    ) -> Self {
        let reads = |segment: &Segment, index: usize| segment.inputs.iter().any(|value| value.segment == index);
        let last_reader = |index: usize| network.segments.iter().rposition(|segment| reads(segment, index));
        let code = |(index, segment): (usize, &Segment)| {
            let releases = (0..index).filter(|other| last_reader(*other) == Some(index)).collect();
            Some(SegmentCode { block: block(segment)?, inputs: segment.inputs.clone(), releases })
        };
        let segments: Vec<SegmentCode> = network.segments.iter().enumerate().filter_map(code).collect();
        let read_by_heads = network.segments.last().and_then(|heads| heads.inputs.first().copied());
        Self {
            top: read_by_heads.unwrap_or(Value { segment: segments.len().saturating_sub(1), output: 0 }),
            segments,
            norm: (model.norm == Norm::Pre).then(|| LayerNorm::new(parameters, Part::FinalNorm, None, model)),
            dropout: Rates { hidden: model.dropout, attention: model.attention_dropout.unwrap_or(model.dropout) },
            fused: match model.attention {
                Attention::Auto => parameters.kernels().prefers_fused(),
                Attention::Keyed => false,
                Attention::Fused => true,
            },
            kernels: Arc::clone(parameters.kernels()),
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
        let mut outputs = Vec::<Vec<Tensor>>::with_capacity(self.segments.len());
        for (index, segment) in self.segments.iter().enumerate() {
            outputs.push(self.run(index, |value| &outputs[value.segment][value.output], input, dropout));
            segment.releases.iter().for_each(|spent| outputs[*spent].clear());
        }
        self.finish(outputs[self.top.segment][self.top.output].shallow_clone())
    }

    /// The outputs of segment `index`, which finds its inputs by `read`.
    fn run<'a>(
        &self,
        index: usize,
        read: impl Fn(Value) -> &'a Tensor,
        input: &Input,
        dropout: Dropout<'_>,
    ) -> Vec<Tensor> {
        let SegmentCode { block, inputs, .. } = &self.segments[index];
        let inputs: Vec<&Tensor> = inputs.iter().map(|value| read(*value)).collect();
        block.forward(&inputs, input, dropout)
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

/// The code of a segment; `None` of the heads, which are computed from the encoder's output.
fn block(parameters: &Parameters, model: &run::Model, segment: &Segment) -> Option<Box<dyn Block>> {
    match (segment.kind, segment.layer) {
        (SegmentKind::Embed, _) => Some(Box::new(embeddings::Embeddings::new(parameters, model))),
        (SegmentKind::Layer { application }, Some(layer)) => {
            Some(Box::new(layer::Layer::new(parameters, model, layer, application)))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests;
