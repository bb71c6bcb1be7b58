//! What a run learns: an ordered list of passes. A pass is a network, its input and the losses of its output. A new loss is a file
//! here, a line in `LOSSES` and its description in configs/plan/src/objectives.rs; src/model/tests/architectures.rs has examples.

mod masked_language;
mod pair;
mod pass;
pub mod totals;

use lambert_config::run;
use lambert_plan::objectives;
use tch::{Kind, Reduction, Tensor};

use crate::data::{GlobalBatch, MicroBatch};
use crate::model::input::Input;
use crate::model::{Encoder, Heads};
use crate::objective::totals::Totals;
use crate::state::Parameters;
pub use pass::{Output, Pass, PassInput};

/// A loss: the sum of a function of predictions and targets over a micro-batch. The training loop divides it by the number of
/// targets of the whole global batch, so that it does not depend on how that batch was cut.
pub trait Loss {
    /// Its description.
    fn description(&self) -> objectives::LossSpec;

    /// How many targets a micro-batch has.
    fn targets(&self, batch: &MicroBatch) -> usize;

    /// How many targets the whole global batch has, over all ranks: the divisor. It follows from the samples' lengths alone.
    fn targets_of_all(&self, batch: &GlobalBatch) -> u64;

    /// The loss of a micro-batch that has targets. `hidden` is \[rows, width, hidden\].
    fn score(&self, heads: &Heads, hidden: &Tensor, input: &Input) -> Scored;
}

/// Makes the code of a loss.
type Code = fn() -> Box<dyn Loss>;

/// The code of each loss.
const LOSSES: [(objectives::LossSpec, Code); 2] = [
    (objectives::MASKED_LANGUAGE, || Box::new(masked_language::MaskedLanguage)),
    (objectives::PAIR, || Box::new(pair::Pair)),
];

/// The code of a loss. One without code is a mistake in `LOSSES`.
pub(crate) fn loss(description: objectives::LossSpec) -> Box<dyn Loss> {
    let found = LOSSES.iter().find(|(known, _)| known.name == description.name);
    found.unwrap_or_else(|| panic!("the loss {} has no code", description.name)).1()
}

/// A loss over one micro-batch.
pub struct Scored {
    /// Its sum over the targets, nats; a scalar that the backward pass can start from.
    pub loss: Tensor,
    /// How many targets were predicted, a scalar; `None` if the loss has no accuracy.
    pub correct: Option<Tensor>,
    /// The predictions \[targets, classes\], cut off from the graph, for passes that come later.
    pub logits: Option<Tensor>,
}

/// The passes of a run, in their order.
pub struct Objective {
    passes: Vec<Pass>,
}

impl Objective {
    /// The passes of a configuration, over the networks of `parameters`.
    pub fn new(parameters: &Parameters, model: &run::Model, config: &run::Objective) -> Self {
        let losses = objectives::losses(config).into_iter().map(loss).collect();
        Self::of(vec![Pass::new(Encoder::new(parameters, model), losses)])
    }

    /// Of these passes.
    pub fn of(passes: Vec<Pass>) -> Self {
        Self { passes }
    }

    /// The same, with activations that are computed again in the backward pass, if `recompute` says so, instead of being kept.
    #[must_use]
    pub fn recomputing(mut self, recompute: bool) -> Self {
        self.passes.iter_mut().for_each(|pass| pass.encoder.recompute = recompute);
        self
    }

    /// The passes, in their order.
    pub fn passes(&self) -> &[Pass] {
        &self.passes
    }

    /// The network of the last pass: the one that an evaluation by tokens asks, and that an export has.
    pub fn encoder(&self) -> &Encoder {
        &self.passes[self.passes.len() - 1].encoder
    }

    /// Totals of no samples, with a place for each loss of each pass.
    pub fn no_totals(&self) -> Totals {
        Totals::new(self.passes.iter().flat_map(Pass::losses).map(Loss::description))
    }
}

/// What a micro-batch has as targets. Only a loss that has some is asked to score it.
fn targets(tensor: Option<&Tensor>) -> &Tensor {
    tensor.expect("a micro-batch without targets is not scored")
}

/// Sum of the cross-entropies of `logits` \[n, classes\] against `labels` \[n\], and how many of the best guesses are right.
/// `factors` \[n\] multiply each cross-entropy, in tests. Computed in f32 whatever the logits are.
fn score(logits: &Tensor, labels: &Tensor, factors: Option<&Tensor>) -> Scored {
    let given = logits.detach();
    let logits = logits.to_kind(Kind::Float);
    let loss = |reduction| logits.cross_entropy_loss(labels, None::<Tensor>, reduction, -100, 0.0);
    let loss = match factors {
        Some(factors) => (loss(Reduction::None) * factors).sum(Kind::Float),
        None => loss(Reduction::Sum),
    };
    let correct = tch::no_grad(|| logits.argmax(-1, false).eq_tensor(labels).sum(Kind::Int64));
    Scored { loss, correct: Some(correct), logits: Some(given) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_loss_has_code_and_is_what_it_says() {
        for description in objectives::ALL {
            assert_eq!(loss(description).description(), description);
        }
    }
}
