//! Pre-training heads for masked language modeling, for the sentence-pair label (NSP or SOP) and for replaced-token detection.
//! A network has the heads that its description lists.

use lambert_config::run::Activation;
use lambert_plan::architecture::{Head, ModuleKind, ParamKind};
use tch::Tensor;

use super::{Linear, NetworkWeights, Normalization, activate};

/// Heads of a network.
pub struct Heads {
    masked_language: Option<MaskedLanguageHead>,
    pair: Option<PairHead>,
    replaced_tokens: Option<ReplacedTokensHead>,
}

impl Heads {
    pub(super) fn new(weights: NetworkWeights<'_>) -> Self {
        let has = |head| weights.network.has(|module| module.head == Some(head));
        Self {
            masked_language: has(Head::MaskedLanguage).then(|| MaskedLanguageHead::new(weights)),
            pair: has(Head::Pair).then(|| PairHead::new(weights)),
            replaced_tokens: has(Head::ReplacedTokens).then(|| ReplacedTokensHead::new(weights)),
        }
    }

    /// Logits over the vocabulary at `n` positions, \[n, vocabulary\]. `hidden` is \[batch, sequence, hidden\].
    /// `positions` are row indices into `hidden` flattened to \[batch x sequence, hidden\]. Padding entries of the
    /// vocabulary have a logit of minus infinity.
    ///
    /// # Panics
    /// The network has no masked-language head.
    pub fn masked_language(&self, hidden: &Tensor, positions: &Tensor) -> Tensor {
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

    /// Logits of the sentence-pair label, \[batch, 2\]. `first_tokens` are the hidden states of the first token of each
    /// sample, \[batch, hidden\].
    ///
    /// # Panics
    /// The network has no sentence-pair head.
    pub fn pair(&self, first_tokens: &Tensor) -> Tensor {
        self.pair.as_ref().expect("the network has no pair head").logits(first_tokens)
    }
}

/// Masked-language-modeling head. The decoder weight is tied to the token embeddings or separate.
struct MaskedLanguageHead {
    activation: Activation,
    transform: Linear,
    norm: Normalization,
    decoder: Linear,
    /// Tensor added to the logits, \[vocabulary\]: minus infinity at padding entries of the vocabulary, 0 elsewhere.
    /// `None` if the vocabulary has no padding entries.
    padding_logits: Option<Tensor>,
}

impl MaskedLanguageHead {
    fn new(weights: NetworkWeights<'_>) -> Self {
        let NetworkWeights { parameters, network, .. } = weights;
        let is_tied = network.module(ModuleKind::Decoder).is_some_and(|decoder| decoder.tied_to.is_some());
        let (matrix, vector) = match is_tied {
            true => (ModuleKind::WordEmbeddings, ModuleKind::PredictionBias),
            false => (ModuleKind::Decoder, ModuleKind::Decoder),
        };
        let bias = network.id(vector, None, ParamKind::Bias);
        let decoder = Linear::from_ids(parameters, network.id(matrix, None, ParamKind::Weight), Some(bias));
        let padding = parameters.spec(bias).padding.unwrap_or(0) as i64;
        let padding_logits = (padding > 0).then(|| {
            let padding_logits = parameters.tensor(bias).zeros_like().set_requires_grad(false);
            let _ = padding_logits.narrow(0, padding_logits.size()[0] - padding, padding).fill_(f64::NEG_INFINITY);
            padding_logits
        });
        Self {
            activation: network.head_activation,
            transform: Linear::new(weights, ModuleKind::Transform, None),
            norm: Normalization::new(weights, ModuleKind::TransformNorm, None),
            decoder,
            padding_logits,
        }
    }

    /// Maps \[n, hidden\] to \[n, vocabulary\].
    fn logits(&self, hidden: &Tensor) -> Tensor {
        let transformed = activate(&self.transform.forward(hidden), self.activation);
        let logits = self.decoder.forward(&self.norm.forward(&transformed));
        match &self.padding_logits {
            Some(padding_logits) => logits + padding_logits,
            None => logits,
        }
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
