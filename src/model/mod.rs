//! Encoder network with its pre-training heads, built from a network description (configs/plan/src/architecture).
//! The code uses no ranks, files or sockets.
//!
//! - [`Encoder`]: forward pass
//! - `backward`: backward pass, segment by segment
//! - `block`: interface of a segment
//! - `embeddings`, `layer`: segments; a layer has `attention` and `feed_forward`
//! - [`Heads`]: predictions from hidden states
//! - [`Dropout`]: dropout whose masks are a function of seed, step, sample and dropout site
//! - [`input`]: input tensors of a micro-batch
//! - `residual`: residual connections, with the normalization that follows them
//! - `relative`: relative positions of DeBERTa
//! - `rotation`: rotary positions
//! - `sequences`: samples of an unpadded micro-batch
//! - `constants`: masks and rotations that the layers of a micro-batch share
//! - `weights`: access to the parameters of one network

mod attention;
mod backward;
mod block;
mod constants;
mod dropout;
mod embeddings;
mod feed_forward;
mod heads;
pub mod input;
mod layer;
pub(crate) mod relative;
mod relative_range;
mod residual;
pub(crate) mod rotation;
mod sequences;
mod weights;

use std::sync::Arc;

use lambert_config::run::{self, Activation, Attention, NormKind, Precision, Unpadded};
use lambert_dataset::random::Key;
use lambert_plan::architecture::{ModuleKind, ParamKind, Segment, SegmentKind, SegmentOutput, TensorId};
use lambert_plan::batch_partition::Layout;
use tch::{Kind, Tensor};

use crate::kernels::{Kernels, NormParams};
use crate::state::Parameters;
use crate::torch::{self, LinearParams};
use input::Input;

use block::SegmentBlock;
pub use dropout::{Dropout, DropoutRates};
pub use heads::{Heads, VocabularyDecoder, VocabularyLogits};
use weights::NetworkWeights;

/// Linear layer `x W^T + b`, where W is \[out, in\]. The computation uses the dtype of `x`. Gradients are f32.
struct Linear {
    params: LinearParams,
    /// Parameters in the compute dtype. If `None`, they are cast on each call.
    compute_copy: Option<LinearParams>,
}

impl Linear {
    fn new(weights: NetworkWeights<'_>, part: ModuleKind, layer: Option<usize>) -> Self {
        let id = |leaf| weights.network.id(part, layer, leaf);
        let has_bias = weights.network.module(part).is_some_and(|module| module.has_bias);
        Self::from_ids(weights.parameters, id(ParamKind::Weight), has_bias.then(|| id(ParamKind::Bias)))
    }

    /// Uses the given weight and bias.
    fn from_ids(parameters: &Parameters, weight: TensorId, bias: Option<TensorId>) -> Self {
        let compute_copy = parameters
            .bf16_tensor(weight)
            .map(|weight| LinearParams { weight, bias: bias.and_then(|bias| parameters.bf16_tensor(bias)) });
        let params = LinearParams { weight: parameters.tensor(weight), bias: bias.map(|bias| parameters.tensor(bias)) };
        Self { params, compute_copy }
    }

    /// Creates one linear layer from modules of encoder layer `layer` that read the same input. The parameters of these
    /// modules are adjacent in the flat buffers. `part` is the first module.
    fn fused(weights: NetworkWeights<'_>, part: ModuleKind, layer: usize) -> Self {
        let [weight, bias] =
            [ParamKind::Weight, ParamKind::Bias].map(|leaf| weights.network.id(part, Some(layer), leaf));
        let parameters = weights.parameters;
        let compute_copy =
            parameters.bf16_joined(weight).map(|weight| LinearParams { weight, bias: parameters.bf16_joined(bias) });
        let params = LinearParams { weight: parameters.fused(weight), bias: Some(parameters.fused(bias)) };
        Self { params, compute_copy }
    }

    fn forward(&self, x: &Tensor) -> Tensor {
        torch::linear(x, &self.params, self.compute_copy.as_ref())
    }

    /// [`Linear::forward`] for an operation that computes the gradient of the bias.
    fn forward_without_bias_gradient(&self, x: &Tensor) -> Tensor {
        torch::linear_without_bias_gradient(x, &self.params, self.compute_copy.as_ref())
    }
}

/// Layer or RMS normalization over the hidden dimension.
struct Normalization {
    kind: NormKind,
    weight: Tensor,
    bias: Option<Tensor>,
    eps: f64,
}

impl Normalization {
    fn new(weights: NetworkWeights<'_>, part: ModuleKind, layer: Option<usize>) -> Self {
        let has_bias = weights.network.module(part).is_some_and(|module| module.has_bias);
        Self {
            kind: weights.model.norm_kind,
            weight: weights.tensor(part, layer, ParamKind::Weight),
            bias: has_bias.then(|| weights.tensor(part, layer, ParamKind::Bias)),
            eps: weights.model.layer_norm_eps,
        }
    }

    /// Returns the kernels that normalize the output of `linear`, and the parameters, if the device has such kernels. `dropout`
    /// must be on.
    fn fused<'a>(&'a self, dropout: Dropout<'a>, linear: &'a Linear) -> Option<(&'a dyn Kernels, NormParams<'a>)> {
        let Dropout::On { kernels, .. } = dropout else { return None };
        let bias = self.bias.as_ref().filter(|_| self.kind == NormKind::Layer)?;
        let linear_bias = linear.params.bias.as_ref();
        kernels
            .has_residual_norm(self.weight.size()[0])
            .then_some((kernels, NormParams { weight: &self.weight, bias, eps: self.eps, linear_bias }))
    }

    fn forward(&self, x: &Tensor) -> Tensor {
        let (shape, weight) = (self.weight.size(), self.weight.to_kind(x.kind()));
        let bias = self.bias.as_ref().map(|bias| bias.to_kind(x.kind()));
        match self.kind {
            NormKind::Layer => x.layer_norm(shape, Some(weight), bias, self.eps, false),
            NormKind::Rms => x.rms_norm(shape, Some(weight), self.eps),
        }
    }
}

/// Layout of the micro-batches of a run on the device of `kernels`.
pub fn layout(config: &run::RunConfig, kernels: &dyn Kernels) -> Layout {
    let model = &config.model;
    let is_keyed = match model.attention {
        Attention::Auto => !kernels.prefers_fused_attention(),
        Attention::Keyed => true,
        Attention::Fused => false,
    };
    let fits = compute_dtype(model) == Kind::BFloat16 && !(is_keyed && model.drops_attention());
    let has_buckets = |model: &run::Model| model.position_buckets > 0;
    let facts = config.objective.teacher.as_ref().and_then(|teacher| teacher.info.as_ref());
    let is_relative = has_buckets(model) || facts.is_some_and(|facts| has_buckets(&facts.model));
    match config.device.unpadded {
        Unpadded::Never => Layout::Padded,
        Unpadded::Always => Layout::Unpadded,
        Unpadded::Auto if fits && !is_relative && config.has_flash_heads() && kernels.has_unpadded_attention() => {
            Layout::Unpadded
        }
        Unpadded::Auto => Layout::Padded,
    }
}

/// Compute dtype of the layers and heads of a model.
pub fn compute_dtype(model: &run::Model) -> Kind {
    match model.precision {
        Precision::Fp32 | Precision::Tf32 => Kind::Float,
        Precision::Bf16 => Kind::BFloat16,
    }
}

fn activate(x: &Tensor, activation: Activation) -> Tensor {
    match activation {
        Activation::Gelu => x.gelu("none"),
        Activation::GeluTanh => x.gelu("tanh"),
        Activation::Silu => x.silu(),
    }
}

/// As [`Kernels::gate`], with single libtorch operations.
pub(crate) fn gated(x: &Tensor, activation: Activation) -> Tensor {
    let halves = x.chunk(2, -1);
    activate(&halves[0], activation) * &halves[1]
}

/// Encoder segment (not the heads).
struct EncoderSegment {
    block: Box<dyn SegmentBlock>,
    /// Outputs of other segments that this segment reads.
    inputs: Vec<SegmentOutput>,
    /// True for the embeddings and for layers, whose first output is a hidden state of the model.
    is_hidden_state: bool,
    /// Earlier segments whose outputs are not read after this segment. The forward pass
    /// frees these outputs after this segment.
    releases: Vec<usize>,
}

/// Encoder with its heads.
pub struct Encoder {
    /// Index of the network, which is part of the dropout key.
    network: usize,
    segments: Vec<EncoderSegment>,
    /// Output that the heads read.
    heads_input: SegmentOutput,
    /// Normalization after the last layer, if the network has one.
    final_norm: Option<Normalization>,
    dropout: DropoutRates,
    /// True if attention uses fused kernels, which draw dropout from the libtorch random generator.
    uses_fused_attention: bool,
    kernels: Arc<dyn Kernels>,
    /// True if the backward pass recomputes activations instead of storing them.
    pub recompute: bool,
    /// Pre-training heads.
    pub heads: Heads,
}

impl Encoder {
    /// Creates the encoder of network `number` of `parameters`, whose configuration is `model`. The encoder shares the tensors of
    /// `parameters`.
    pub fn new(parameters: &Parameters, number: usize, model: &run::Model) -> Self {
        Self::with_blocks(NetworkWeights::new(parameters, number, model), block)
    }

    /// Creates the encoder of the network of `weights`. `block` returns the
    /// implementation of each segment except the heads.
    fn with_blocks(
        weights: NetworkWeights<'_>,
        block: impl Fn(NetworkWeights<'_>, &Segment) -> Option<Box<dyn SegmentBlock>>,
    ) -> Self {
        let NetworkWeights { parameters, network, model } = weights;
        let reads = |segment: &Segment, index: usize| segment.inputs.iter().any(|value| value.segment == index);
        let last_reader = |index: usize| network.segments.iter().rposition(|segment| reads(segment, index));
        let code = |(index, segment): (usize, &Segment)| {
            let releases = (0..index).filter(|other| last_reader(*other) == Some(index)).collect();
            let is_hidden_state = matches!(segment.kind, SegmentKind::Embed | SegmentKind::Layer { .. });
            Some(EncoderSegment {
                block: block(weights, segment)?,
                inputs: segment.inputs.clone(),
                is_hidden_state,
                releases,
            })
        };
        let segments: Vec<EncoderSegment> = network.segments.iter().enumerate().filter_map(code).collect();
        let has_final_norm = network.has(|module| module.kind == ModuleKind::FinalNorm);
        let read_by_heads = network.segments.last().and_then(|heads| heads.inputs.first().copied());
        Self {
            network: network.number,
            heads_input: read_by_heads
                .unwrap_or(SegmentOutput { segment: segments.len().saturating_sub(1), output: 0 }),
            segments,
            final_norm: has_final_norm.then(|| Normalization::new(weights, ModuleKind::FinalNorm, None)),
            dropout: DropoutRates {
                hidden: model.dropout,
                attention: model.attention_dropout.unwrap_or(model.dropout),
                attention_output: model.attention_output_dropout(),
            },
            uses_fused_attention: match model.attention {
                Attention::Auto => parameters.kernels().prefers_fused_attention(),
                Attention::Keyed => false,
                Attention::Fused => true,
            },
            kernels: Arc::clone(parameters.kernels()),
            recompute: false,
            heads: Heads::new(weights),
        }
    }

    /// Kernels of the device that has the parameters.
    pub fn kernels(&self) -> &dyn Kernels {
        &*self.kernels
    }

    /// Number of segments, including the heads.
    pub fn segments(&self) -> usize {
        self.segments.len() + 1
    }

    /// Returns the final hidden states, \[batch, sequence, hidden\].
    pub fn forward(&self, input: &Input, dropout: Dropout<'_>) -> Tensor {
        let mut outputs = Vec::<Vec<Tensor>>::with_capacity(self.segments.len());
        for (index, segment) in self.segments.iter().enumerate() {
            outputs.push(self.forward_segment(index, |value| &outputs[value.segment][value.output], input, dropout));
            segment.releases.iter().for_each(|spent| outputs[*spent].clear());
        }
        self.apply_final_norm(outputs[self.heads_input.segment][self.heads_input.output].shallow_clone())
    }

    /// Returns the hidden states as `output_hidden_states` of transformers does, each \[batch, sequence, hidden\]: the output of
    /// the embeddings and of each layer, the last one after the final normalization. Without dropout.
    pub fn hidden_states(&self, input: &Input) -> Vec<Tensor> {
        let mut outputs = Vec::<Vec<Tensor>>::with_capacity(self.segments.len());
        for index in 0..self.segments.len() {
            let read = |value: SegmentOutput| &outputs[value.segment][value.output];
            outputs.push(self.forward_segment(index, read, input, Dropout::Off));
        }
        let states = outputs.iter().zip(&self.segments).filter(|(_, segment)| segment.is_hidden_state);
        let mut states: Vec<Tensor> = states.map(|(outputs, _)| outputs[0].shallow_clone()).collect();
        let last = states.pop().map(|last| self.apply_final_norm(last));
        states.extend(last);
        states
    }

    /// Computes the outputs of segment `index`. `read` returns an output of an earlier segment.
    fn forward_segment<'a>(
        &self,
        index: usize,
        read: impl Fn(SegmentOutput) -> &'a Tensor,
        input: &Input,
        dropout: Dropout<'_>,
    ) -> Vec<Tensor> {
        let EncoderSegment { block, inputs, .. } = &self.segments[index];
        let inputs: Vec<&Tensor> = inputs.iter().map(|value| read(*value)).collect();
        block.forward(&inputs, input, dropout)
    }

    fn apply_final_norm(&self, hidden: Tensor) -> Tensor {
        match &self.final_norm {
            Some(norm) => norm.forward(&hidden),
            None => hidden,
        }
    }

    /// Dropout of a step for the samples of `input`. `key` is derived from the seed and the step.
    pub fn dropout<'a>(&'a self, key: Key, input: &'a Input) -> Dropout<'a> {
        // The key of network 0 does not include the network index, so that runs with a single network keep their masks.
        let key = if self.network == 0 { key } else { key.with_bytes(b"network").with(self.network as u64) };
        let fused_seed = self.uses_fused_attention.then_some(input.first_sample);
        Dropout::On {
            rates: self.dropout,
            key,
            samples: &input.samples,
            positions: input.sequences.as_ref().map(|sequences| &sequences.positions),
            kernels: &*self.kernels,
            fused_seed,
        }
    }
}

/// Implementation of a segment; `None` for the heads, which read the output of the encoder.
fn block(weights: NetworkWeights<'_>, segment: &Segment) -> Option<Box<dyn SegmentBlock>> {
    match (segment.kind, segment.layer) {
        (SegmentKind::Embed, _) => Some(Box::new(embeddings::Embeddings::new(weights))),
        (SegmentKind::Layer { application } | SegmentKind::Decoder { application }, Some(layer)) => {
            Some(Box::new(layer::Layer::new(weights, layer, application)))
        }
        (SegmentKind::Side, _) if segment.module(ModuleKind::RelativeEmbeddings).is_some() => {
            Some(Box::new(relative::RelativeEmbeddings::new(weights)))
        }
        (SegmentKind::Side, _) => Some(Box::new(relative::PositionQueries::new(weights))),
        _ => None,
    }
}

#[cfg(test)]
pub(crate) mod tests;
