//! Pre-training heads for masked language modeling, for the sentence-pair label (NSP or SOP), for the span boundary objective
//! and for replaced-token detection. A network has the heads that its description lists.

use std::sync::Arc;

use lambert_config::run::Activation;
use lambert_plan::architecture::{Head, ModuleKind, ParamKind, TensorId};
use tch::Tensor;

use super::{Linear, NetworkWeights, Normalization, activate};
use crate::kernels::Kernels;
use crate::torch::{self, LinearParams};

/// Heads of a network.
pub struct Heads {
    kernels: Arc<dyn Kernels>,
    masked_language: Option<MaskedLanguageHead>,
    pair: Option<PairHead>,
    span_boundary: Option<SpanBoundaryHead>,
    replaced_tokens: Option<ReplacedTokensHead>,
}

impl Heads {
    pub(super) fn new(weights: NetworkWeights<'_>) -> Self {
        let has = |head| weights.network.has(|module| module.head == Some(head));
        Self {
            kernels: Arc::clone(weights.parameters.kernels()),
            masked_language: has(Head::MaskedLanguage).then(|| MaskedLanguageHead::new(weights)),
            pair: has(Head::Pair).then(|| PairHead::new(weights)),
            span_boundary: has(Head::SpanBoundary).then(|| SpanBoundaryHead::new(weights)),
            replaced_tokens: has(Head::ReplacedTokens).then(|| ReplacedTokensHead::new(weights)),
        }
    }

    /// Kernels of the device that has the parameters.
    pub fn kernels(&self) -> &dyn Kernels {
        &*self.kernels
    }

    /// Logits over the vocabulary at `n` positions. `hidden` is \[batch, sequence, hidden\]. `positions` are row indices into
    /// `hidden` flattened to \[batch x sequence, hidden\].
    ///
    /// # Panics
    /// The network has no masked-language head.
    pub fn masked_language(&self, hidden: &Tensor, positions: &Tensor) -> VocabularyLogits {
        let head = self.masked_language.as_ref().expect("the network has no masked-language head");
        head.logits(&hidden.flatten(0, 1).index_select(0, positions))
    }

    /// True if the network has a masked-language head.
    pub fn has_masked_language(&self) -> bool {
        self.masked_language.is_some()
    }

    /// Logit that a token was replaced, for all tokens, \[batch x sequence\]. `hidden` is \[batch, sequence, hidden\].
    ///
    /// # Panics
    /// The network has no head of replaced-token detection.
    pub fn replaced_tokens(&self, hidden: &Tensor) -> Tensor {
        self.replaced_tokens.as_ref().expect("the network has no detection head").logits(&hidden.flatten(0, 1))
    }

    /// Input of the decoder of the MLM head, \[n, width\], for hidden states \[n, hidden\].
    ///
    /// # Panics
    /// The network has no masked-language head.
    pub fn decoder_input(&self, hidden: &Tensor) -> Tensor {
        self.masked_language.as_ref().expect("the network has no masked-language head").decoder_input(hidden)
    }

    /// Decoder of the MLM head.
    ///
    /// # Panics
    /// The network has no masked-language head.
    pub fn decoder(&self) -> VocabularyDecoder {
        self.masked_language.as_ref().expect("the network has no masked-language head").decoder()
    }

    /// Logits of the sentence-pair label, \[batch, 2\]. `first_tokens` are the hidden states of the first token of each
    /// sample, \[batch, hidden\].
    ///
    /// # Panics
    /// The network has no sentence-pair head.
    pub fn pair(&self, first_tokens: &Tensor) -> Tensor {
        self.pair.as_ref().expect("the network has no pair head").logits(first_tokens)
    }

    /// Logits over the vocabulary at `n` tokens of masked spans. `hidden` is \[batch, sequence, hidden\]. `left` and `right` are
    /// row indices into `hidden` flattened to \[batch x sequence, hidden\]: the tokens before and after the span of each token.
    /// `offsets` are the positions of the tokens in their spans, from 0. All three are i64 \[n\].
    ///
    /// # Panics
    /// The network has no span boundary head.
    pub fn span_boundary(&self, hidden: &Tensor, left: &Tensor, right: &Tensor, offsets: &Tensor) -> VocabularyLogits {
        let head = self.span_boundary.as_ref().expect("the network has no span boundary head");
        let hidden = hidden.flatten(0, 1);
        head.logits(&hidden.index_select(0, left), &hidden.index_select(0, right), offsets)
    }
}

/// Logits of `n` predictions over the vocabulary.
pub struct VocabularyLogits {
    /// Output of the decoder, \[n, rows\]. The rows are the tokens of the vocabulary, then its padding entries.
    pub decoded: Tensor,
    /// Number of tokens of the vocabulary.
    pub vocabulary: i64,
    padding_logits: Option<Tensor>,
}

impl VocabularyLogits {
    /// Returns the logits, \[n, rows\], with minus infinity at padding entries of the vocabulary.
    pub fn without_padding(self) -> Tensor {
        match &self.padding_logits {
            Some(padding_logits) => self.decoded + padding_logits,
            None => self.decoded,
        }
    }
}

/// Linear layer to logits over the vocabulary.
struct Decoder {
    linear: Linear,
    /// Tensor added to the logits, \[rows\]: minus infinity at padding entries of the vocabulary, 0 elsewhere. `None` if the
    /// vocabulary has no padding entries.
    padding_logits: Option<Tensor>,
    /// Number of tokens of the vocabulary.
    vocabulary: i64,
}

impl Decoder {
    /// Uses the given weight, \[rows, width\], and bias, \[rows\].
    fn new(weights: NetworkWeights<'_>, weight: TensorId, bias: TensorId) -> Self {
        let rows = weights.parameters.tensor(bias).size()[0];
        let padding = weights.parameters.spec(bias).padding.unwrap_or(0) as i64;
        let padding_logits = || {
            let padding_logits = weights.parameters.tensor(bias).zeros_like().set_requires_grad(false);
            // With another dtype, the sum would have f32 for each logit.
            let padding_logits = padding_logits.to_kind(super::compute_dtype(weights.model));
            let _ = padding_logits.narrow(0, rows - padding, padding).fill_(f64::NEG_INFINITY);
            padding_logits
        };
        Self {
            linear: Linear::from_ids(weights.parameters, weight, Some(bias)),
            padding_logits: (padding > 0).then(padding_logits),
            vocabulary: rows - padding,
        }
    }

    /// Maps \[n, width\] to \[n, rows\].
    fn forward(&self, x: &Tensor) -> VocabularyLogits {
        VocabularyLogits {
            decoded: self.linear.forward(x),
            vocabulary: self.vocabulary,
            padding_logits: self.padding_logits.as_ref().map(Tensor::shallow_clone),
        }
    }
}

/// Masked-language-modeling head. The decoder weight is tied to the token embeddings or separate.
struct MaskedLanguageHead {
    activation: Activation,
    transform: Linear,
    norm: Normalization,
    decoder: Decoder,
}

impl MaskedLanguageHead {
    fn new(weights: NetworkWeights<'_>) -> Self {
        let network = weights.network;
        let is_tied = network.module(ModuleKind::Decoder).is_some_and(|decoder| decoder.tied_to.is_some());
        let (matrix, vector) = match is_tied {
            true => (ModuleKind::WordEmbeddings, ModuleKind::PredictionBias),
            false => (ModuleKind::Decoder, ModuleKind::Decoder),
        };
        let [weight, bias] = [(matrix, ParamKind::Weight), (vector, ParamKind::Bias)]
            .map(|(module, leaf)| network.id(module, None, leaf));
        Self {
            activation: network.head_activation,
            transform: Linear::new(weights, ModuleKind::Transform, None),
            norm: Normalization::new(weights, ModuleKind::TransformNorm, None),
            decoder: Decoder::new(weights, weight, bias),
        }
    }

    fn decoder_input(&self, hidden: &Tensor) -> Tensor {
        self.norm.forward(&activate(&self.transform.forward(hidden), self.activation))
    }

    fn decoder(&self) -> VocabularyDecoder {
        let Decoder { linear, vocabulary, .. } = &self.decoder;
        let LinearParams { weight, bias } = &linear.params;
        let bias = bias.as_ref().expect("the decoder has a bias");
        let copy = linear.compute_copy.as_ref();
        let copy = copy.map(|copy| [&copy.weight, copy.bias.as_ref().unwrap_or(bias)].map(Tensor::shallow_clone));
        VocabularyDecoder::new(weight.shallow_clone(), bias.shallow_clone(), copy, *vocabulary)
    }

    /// Maps \[n, hidden\] to logits.
    fn logits(&self, hidden: &Tensor) -> VocabularyLogits {
        self.decoder.forward(&self.decoder_input(hidden))
    }
}

/// Span boundary head (arXiv 1907.10529, section 3.2): two dense layers, each with an activation function and a normalization,
/// and a decoder whose weight is tied to the token embeddings. The bias of the decoder is separate from that of the MLM head.
struct SpanBoundaryHead {
    activation: Activation,
    /// Position embeddings, \[positions, width\].
    positions: Tensor,
    dense: [(Linear, Normalization); 2],
    decoder: Decoder,
}

impl SpanBoundaryHead {
    fn new(weights: NetworkWeights<'_>) -> Self {
        let network = weights.network;
        let matrix = network.id(ModuleKind::WordEmbeddings, None, ParamKind::Weight);
        let bias = network.id(ModuleKind::SpanBias, None, ParamKind::Bias);
        let dense = |(linear, norm)| (Linear::new(weights, linear, None), Normalization::new(weights, norm, None));
        Self {
            activation: network.head_activation,
            positions: weights.tensor(ModuleKind::SpanPositions, None, ParamKind::Weight),
            dense: [
                (ModuleKind::SpanTransform, ModuleKind::SpanTransformNorm),
                (ModuleKind::SpanOutput, ModuleKind::SpanOutputNorm),
            ]
            .map(dense),
            decoder: Decoder::new(weights, matrix, bias),
        }
    }

    /// Maps the boundaries, \[n, hidden\] each, and the positions in the spans, \[n\], to logits.
    fn logits(&self, left: &Tensor, right: &Tensor, offsets: &Tensor) -> VocabularyLogits {
        let positions = torch::embedding(&self.positions, offsets).to_kind(left.kind());
        let mut x = Tensor::cat(&[left, right, &positions], 1);
        for (linear, norm) in &self.dense {
            x = norm.forward(&activate(&linear.forward(&x), self.activation));
        }
        self.decoder.forward(&x)
    }
}

/// Decoder of the MLM head. Its rows are the tokens of the vocabulary and the padding of the vocabulary.
pub struct VocabularyDecoder {
    /// Weight, f32 \[rows, width\], part of the graph.
    pub weight: Tensor,
    /// Bias, f32 \[rows\], part of the graph.
    pub bias: Tensor,
    /// Number of tokens of the vocabulary.
    pub vocabulary: i64,
    /// Weight in the compute dtype, without a graph.
    pub compute_weight: Tensor,
    compute_bias: Tensor,
}

impl VocabularyDecoder {
    /// Creates a decoder. `copy` are weight and bias in the compute dtype, unless that is f32.
    pub fn new(weight: Tensor, bias: Tensor, copy: Option<[Tensor; 2]>, vocabulary: i64) -> Self {
        let [compute_weight, compute_bias] = copy.unwrap_or_else(|| [weight.detach(), bias.detach()]);
        Self { weight, bias, vocabulary, compute_weight: compute_weight.detach(), compute_bias: compute_bias.detach() }
    }

    /// Logits of `states` \[n, width\], \[n, rows\], without a graph of the parameters.
    pub fn logits(&self, states: &Tensor) -> Tensor {
        let params =
            LinearParams { weight: self.compute_weight.shallow_clone(), bias: Some(self.compute_bias.shallow_clone()) };
        torch::linear(states, &params, None)
    }
}

/// Sentence-pair (NSP/SOP) head: pooler and classifier.
struct PairHead {
    pooler: Linear,
    classifier: Linear,
}

impl PairHead {
    fn new(weights: NetworkWeights<'_>) -> Self {
        let linear = |part| Linear::new(weights, part, None);
        Self { pooler: linear(ModuleKind::Pooler), classifier: linear(ModuleKind::PairHead) }
    }

    /// Maps \[batch, hidden\] to \[batch, 2\].
    fn logits(&self, hidden: &Tensor) -> Tensor {
        self.classifier.forward(&self.pooler.forward(hidden).tanh())
    }
}

/// Head of replaced-token detection: a dense layer and a classifier.
struct ReplacedTokensHead {
    activation: Activation,
    transform: Linear,
    classifier: Linear,
}

impl ReplacedTokensHead {
    fn new(weights: NetworkWeights<'_>) -> Self {
        let linear = |part| Linear::new(weights, part, None);
        Self {
            activation: weights.model.activation,
            transform: linear(ModuleKind::DetectionTransform),
            classifier: linear(ModuleKind::Detection),
        }
    }

    /// Maps \[n, hidden\] to \[n\].
    fn logits(&self, hidden: &Tensor) -> Tensor {
        self.classifier.forward(&activate(&self.transform.forward(hidden), self.activation)).squeeze_dim(-1)
    }
}
