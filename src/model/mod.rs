//! An encoder, computed as its description (configs/plan/src/architecture) says: segments of blocks, and the pre-training heads.
//! Nothing here knows ranks, files or sockets.
//!
//! - [`Encoder`]: the segments of a network, forward; `backward`: the way back, segment by segment
//! - `block`: the code of a segment; `embeddings` and `layer` are BERT's
//! - [`Heads`]: predictions from hidden states
//! - [`Dropout`]: keyed draws
//! - [`input`]: a micro-batch on the device
//! - `weights`: the parameters as one network sees them

mod backward;
mod block;
mod dropout;
mod embeddings;
mod heads;
pub mod input;
mod layer;
mod weights;

use std::sync::Arc;

use lambert_config::run::{self, Activation, Attention, Precision};
use lambert_dataset::random::Key;
use lambert_plan::architecture::{Leaf, Part, Segment, SegmentKind, TensorId, Value};
use tch::{Kind, Tensor};

use crate::kernels::Kernels;
use crate::state::Parameters;
use crate::torch;
use input::Input;

use block::Block;
pub use dropout::{Dropout, Rates};
pub use heads::Heads;
use weights::NetworkWeights;

/// A linear map `x W^T + b`; W is \[out, in\]. Computed in the kind of number that `x` is; the gradients are f32.
struct Linear {
    weight: Tensor,
    bias: Tensor,
    /// Both once more, in the kind of number that the model computes with; `None`: they are cast each time.
    low: Option<[Tensor; 2]>,
}

impl Linear {
    fn new(weights: NetworkWeights<'_>, part: Part, layer: Option<usize>) -> Self {
        let id = |leaf| weights.network.id(part, layer, leaf);
        Self::of(weights.parameters, id(Leaf::Weight), id(Leaf::Bias))
    }

    /// Of these two parameters.
    fn of(parameters: &Parameters, weight: TensorId, bias: TensorId) -> Self {
        let low = parameters.low_tensor(weight).zip(parameters.low_tensor(bias)).map(|(weight, bias)| [weight, bias]);
        Self { weight: parameters.tensor(weight), bias: parameters.tensor(bias), low }
    }

    /// Of several in a layer that have the same input and are joined to the first, `part`.
    fn joined(weights: NetworkWeights<'_>, part: Part, layer: usize) -> Self {
        let [weight, bias] = [Leaf::Weight, Leaf::Bias].map(|leaf| weights.network.id(part, Some(layer), leaf));
        let parameters = weights.parameters;
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
    fn new(weights: NetworkWeights<'_>, part: Part, layer: Option<usize>) -> Self {
        let leaf = |leaf| weights.tensor(part, layer, leaf);
        Self { weight: leaf(Leaf::Weight), bias: leaf(Leaf::Bias), eps: weights.model.layer_norm_eps }
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
    /// The number of its network, by which dropout is drawn.
    network: usize,
    segments: Vec<SegmentCode>,
    /// What the heads read.
    top: Value,
    /// The normalisation behind the last layer, if the network has one.
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
    /// The first network of `parameters`, which stay where they are.
    pub fn new(parameters: &Parameters, model: &run::Model) -> Self {
        Self::of(NetworkWeights::of(parameters, 0, model), block)
    }

    /// The network of these weights; `block` makes the code of each segment below the heads.
    fn of(weights: NetworkWeights<'_>, block: impl Fn(NetworkWeights<'_>, &Segment) -> Option<Box<dyn Block>>) -> Self {
        let NetworkWeights { parameters, network, model } = weights;
        let reads = |segment: &Segment, index: usize| segment.inputs.iter().any(|value| value.segment == index);
        let last_reader = |index: usize| network.segments.iter().rposition(|segment| reads(segment, index));
        let code = |(index, segment): (usize, &Segment)| {
            let releases = (0..index).filter(|other| last_reader(*other) == Some(index)).collect();
            Some(SegmentCode { block: block(weights, segment)?, inputs: segment.inputs.clone(), releases })
        };
        let segments: Vec<SegmentCode> = network.segments.iter().enumerate().filter_map(code).collect();
        let has_norm = network.has(|module| module.part == Part::FinalNorm);
        let read_by_heads = network.segments.last().and_then(|heads| heads.inputs.first().copied());
        Self {
            network: network.number,
            top: read_by_heads.unwrap_or(Value { segment: segments.len().saturating_sub(1), output: 0 }),
            segments,
            norm: has_norm.then(|| LayerNorm::new(weights, Part::FinalNorm, None)),
            dropout: Rates { hidden: model.dropout, attention: model.attention_dropout.unwrap_or(model.dropout) },
            fused: match model.attention {
                Attention::Auto => parameters.kernels().prefers_fused(),
                Attention::Keyed => false,
                Attention::Fused => true,
            },
            kernels: Arc::clone(parameters.kernels()),
            recompute: false,
            heads: Heads::new(weights),
        }
    }

    /// The kernels of the device that it computes on.
    pub fn kernels(&self) -> &dyn Kernels {
        &*self.kernels
    }

    /// Segments that a backward pass goes through, the heads among them.
    pub fn segments(&self) -> usize {
        self.segments.len() + 1
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
        // Network 0 has the draws that it had when it was the only one.
        let key = if self.network == 0 { key } else { key.with_bytes(b"network").with(self.network as u64) };
        let fused = self.fused.then_some(input.first_sample);
        Dropout::On { rates: self.dropout, key, samples: &input.samples, kernels: &*self.kernels, fused }
    }
}

/// The code of a segment; `None` of the heads, which are computed from the encoder's output.
fn block(weights: NetworkWeights<'_>, segment: &Segment) -> Option<Box<dyn Block>> {
    match (segment.kind, segment.layer) {
        (SegmentKind::Embed, _) => Some(Box::new(embeddings::Embeddings::new(weights))),
        (SegmentKind::Layer { application }, Some(layer)) => {
            Some(Box::new(layer::Layer::new(weights, layer, application)))
        }
        _ => None,
    }
}

#[cfg(test)]
pub(crate) mod tests;
