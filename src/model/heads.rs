//! The pre-training heads: masked tokens, and the pair label. A network has those that its description lists.

use lambert_config::run::Activation;
use lambert_plan::architecture::{Head, Leaf, Part};
use tch::Tensor;

use super::{LayerNorm, Linear, NetworkWeights, activate};

/// The heads of a network.
pub struct Heads {
    masked_language: Option<MaskedLanguageHead>,
    pair: Option<PairHead>,
}

impl Heads {
    pub(super) fn new(weights: NetworkWeights<'_>) -> Self {
        let has = |head| weights.network.has(|module| module.head == Some(head));
        Self {
            masked_language: has(Head::MaskedLanguage).then(|| MaskedLanguageHead::new(weights)),
            pair: has(Head::Pair).then(|| PairHead::new(weights)),
        }
    }

    /// Logits over the vocabulary, \[n, vocabulary\], at `n` chosen positions: `positions` are indices into the rows laid
    /// end to end. `hidden` is \[rows, width, hidden\]. Rows that fill up the vocabulary have minus infinity.
    ///
    /// Asking a network for a head that it does not have is a mistake in the code of a loss.
    pub fn masked_language(&self, hidden: &Tensor, positions: &Tensor) -> Tensor {
        let head = self.masked_language.as_ref().expect("the network has no head for masked tokens");
        head.logits(&hidden.flatten(0, 1).index_select(0, positions))
    }

    /// Logits of the pair label, \[rows, 2\], from the first token's hidden state; `hidden` is \[rows, width, hidden\].
    ///
    /// Asking a network for a head that it does not have is a mistake in the code of a loss.
    pub fn pair(&self, hidden: &Tensor) -> Tensor {
        self.pair.as_ref().expect("the network has no pair head").logits(&hidden.select(1, 0))
    }
}

/// Predicts a masked token. Its decoder is the token embedding table, unless it has one of its own.
struct MaskedLanguageHead {
    activation: Activation,
    transform: Linear,
    norm: LayerNorm,
    decoder: Linear,
    /// Added to the logits: minus infinity where a row stands for no token; \[rows\], `None` if there are none.
    never: Option<Tensor>,
}

impl MaskedLanguageHead {
    fn new(weights: NetworkWeights<'_>) -> Self {
        let NetworkWeights { parameters, network, model } = weights;
        let bias = network.id(Part::PredictionBias, None, Leaf::Bias);
        let is_tied = network.module(Part::Decoder).is_some_and(|decoder| decoder.tied_to.is_some());
        let decoder = if is_tied {
            Linear::of(parameters, network.id(Part::WordEmbeddings, None, Leaf::Weight), bias)
        } else {
            Linear::new(weights, Part::Decoder, None)
        };
        let padding = parameters.spec(bias).padding.unwrap_or(0) as i64;
        let never = (padding > 0).then(|| {
            let never = decoder.bias.zeros_like().set_requires_grad(false);
            let _ = never.narrow(0, never.size()[0] - padding, padding).fill_(f64::NEG_INFINITY);
            never
        });
        Self {
            activation: model.activation,
            transform: Linear::new(weights, Part::Transform, None),
            norm: LayerNorm::new(weights, Part::TransformNorm, None),
            decoder,
            never,
        }
    }

    /// \[n, hidden\] to \[n, vocabulary\].
    fn logits(&self, hidden: &Tensor) -> Tensor {
        let transformed = activate(&self.transform.forward(hidden), self.activation);
        let logits = self.decoder.forward(&self.norm.forward(&transformed));
        match &self.never {
            Some(never) => logits + never,
            None => logits,
        }
    }
}

/// Predicts the pair label.
struct PairHead {
    pooler: Linear,
    classifier: Linear,
}

impl PairHead {
    fn new(weights: NetworkWeights<'_>) -> Self {
        let linear = |part| Linear::new(weights, part, None);
        Self { pooler: linear(Part::Pooler), classifier: linear(Part::PairHead) }
    }

    /// \[rows, hidden\] to \[rows, 2\].
    fn logits(&self, hidden: &Tensor) -> Tensor {
        self.classifier.forward(&self.pooler.forward(hidden).tanh())
    }
}
