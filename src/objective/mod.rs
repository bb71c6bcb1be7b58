//! Training objective: an ordered list of passes. A pass is a network, its input and the losses of its output. To add a
//! loss, add a file to this folder, a line to `LOSSES`, and a description to configs/plan/src/objectives.rs. For
//! examples, see src/model/tests/architectures.rs.

mod cosine;
mod masked_language;
mod pair;
mod pass;
mod replaced_tokens;
mod soft_targets;
mod span_boundary;
mod teacher;
pub mod totals;

use lambert_config::run;
use lambert_plan::objectives::{self, TrainedNetwork};
use tch::{Kind, Reduction, Tensor};

use crate::data::{GlobalBatch, MicroBatch};
use crate::kernels::{CrossEntropy, Kernels, TokenTargets};
use crate::model::input::Input;
use crate::model::{Encoder, Heads, VocabularyLogits};
use crate::objective::totals::ObjectiveTotals;
use crate::state::Parameters;
pub use pass::{Pass, PassInput, PassOutput};
pub use replaced_tokens::GeneratedTokens;
pub use teacher::{Teacher, passes as taught_passes};

/// Loss of predictions against targets, summed over a micro-batch. The training loop divides the sum by the number of
/// targets in the global batch. The result therefore does not depend on the split into micro-batches.
pub trait Loss {
    /// Description of the loss.
    fn description(&self) -> objectives::LossSpec;

    /// Number of targets in a micro-batch.
    fn targets(&self, batch: &MicroBatch) -> usize;

    /// Number of targets in the global batch, over all ranks. The loss is divided by this number, which
    /// depends only on the lengths of the samples.
    fn global_targets(&self, batch: &GlobalBatch) -> u64;

    /// Computes the loss of a micro-batch with at least one target. `hidden` is \[batch, sequence, hidden\].
    fn score(&self, heads: &Heads, hidden: &Tensor, input: &Input) -> LossValue;
}

/// Constructor of a loss. The description has the loss weight that the run configures.
type LossFactory = fn(objectives::LossSpec) -> Box<dyn Loss>;

/// Implementations of the losses.
const LOSSES: [(objectives::LossSpec, LossFactory); 6] = [
    (objectives::MASKED_LANGUAGE, |description| Box::new(masked_language::MaskedLanguageLoss(description))),
    (objectives::PAIR, |description| Box::new(pair::PairLoss(description))),
    (objectives::REPLACED_TOKENS, |description| Box::new(replaced_tokens::ReplacedTokensLoss(description))),
    (objectives::SPAN_BOUNDARY, |description| Box::new(span_boundary::SpanBoundaryLoss(description))),
    (objectives::SOFT_TARGETS, |description| Box::new(soft_targets::SoftTargetLoss(description))),
    (objectives::COSINE, |description| Box::new(cosine::CosineLoss(description))),
];

/// Implementation of a loss.
///
/// # Panics
/// `LOSSES` has no entry for the loss.
pub(crate) fn loss(description: objectives::LossSpec) -> Box<dyn Loss> {
    let found = LOSSES.iter().find(|(known, _)| known.name == description.name);
    found.unwrap_or_else(|| panic!("loss {} has no implementation", description.name)).1(description)
}

/// Value of a loss for a micro-batch.
pub struct LossValue {
    /// Sum over the targets, nats; a scalar with a gradient.
    pub loss: Tensor,
    /// Number of correct predictions, a scalar; `None` if the loss has no accuracy.
    pub correct: Option<Tensor>,
    /// For a detection: numbers of positive targets, of positive predictions, and of targets that are both, i64 \[3\].
    pub detection: Option<Tensor>,
    /// Predictions \[targets, classes\], detached from the graph, for later passes.
    pub logits: Option<Tensor>,
}

/// Passes of a run, in order.
pub struct Objective {
    passes: Vec<Pass>,
}

impl Objective {
    /// Creates the passes of a configuration over the networks of `parameters`. Leaves out the losses that need a teacher, which
    /// [`Objective::with_teacher`] adds.
    pub fn new(parameters: &Parameters, model: &run::Model, config: &run::Objective) -> Self {
        Self::from_passes(Self::passes_of(parameters, model, config))
    }

    /// Returns the passes of a configuration, without a teacher.
    pub fn passes_of(parameters: &Parameters, model: &run::Model, config: &run::Objective) -> Vec<Pass> {
        let pass = |(number, TrainedNetwork { model, losses }): (usize, TrainedNetwork)| {
            let losses = losses.into_iter().filter(|loss| !loss.needs_teacher()).map(loss).collect();
            let pass = Pass::new(Encoder::new(parameters, number, &model), losses);
            // The only network with a predecessor is the discriminator.
            if number == 0 { pass } else { pass.with_input(Box::new(GeneratedTokens)) }
        };
        objectives::networks(model, config).into_iter().enumerate().map(pass).collect()
    }

    /// Creates an objective from passes.
    pub fn from_passes(passes: Vec<Pass>) -> Self {
        Self { passes }
    }

    /// Adds a teacher, if there is one, and the losses of its student. The student is the last pass.
    #[must_use]
    pub fn with_teacher(mut self, teacher: Option<&Teacher>, config: &run::Objective) -> Self {
        if let Some(teacher) = teacher {
            let student = self.passes.pop();
            self.passes.extend(student.into_iter().flat_map(|student| teacher::passes(teacher, student, config)));
        }
        self
    }

    /// Turns activation recomputation in the backward pass on or off.
    #[must_use]
    pub fn recomputing(mut self, recompute: bool) -> Self {
        self.passes.iter_mut().for_each(|pass| pass.encoder.recompute = recompute);
        self
    }

    /// Passes, in order.
    pub fn passes(&self) -> &[Pass] {
        &self.passes
    }

    /// Network of the last pass, whose hidden states inference and export use.
    pub fn encoder(&self) -> &Encoder {
        &self.passes[self.passes.len() - 1].encoder
    }

    /// Network that predicts masked tokens: the generator, if the objective has one.
    pub fn masked_language_encoder(&self) -> &Encoder {
        let found = self.passes.iter().map(|pass| &pass.encoder).find(|encoder| encoder.heads.has_masked_language());
        found.unwrap_or_else(|| self.encoder())
    }

    /// Totals of zero, with an entry for each loss of each pass.
    pub fn no_totals(&self) -> ObjectiveTotals {
        ObjectiveTotals::new(self.passes.iter().flat_map(Pass::losses).map(Loss::description))
    }
}

/// Returns the targets of a micro-batch. They exist, because a loss is computed only if the micro-batch has targets.
fn targets(tensor: Option<&Tensor>) -> &Tensor {
    tensor.expect("a micro-batch without targets is not scored")
}

/// Computes the summed cross-entropy of `logits` \[n, classes\] against `labels` \[n\], and the
/// number of correct predictions. The tests use `factors` \[n\] to scale each cross-entropy. The
/// computation uses f32 for any dtype of the logits.
fn score(logits: &Tensor, labels: &Tensor, factors: Option<&Tensor>) -> LossValue {
    let detached = logits.detach();
    let logits = logits.to_kind(Kind::Float);
    let loss = |reduction| logits.cross_entropy_loss(labels, None::<Tensor>, reduction, -100, 0.0);
    let loss = match factors {
        Some(factors) => (loss(Reduction::None) * factors).sum(Kind::Float),
        None => loss(Reduction::Sum),
    };
    let correct = tch::no_grad(|| logits.argmax(-1, false).eq_tensor(labels).sum(Kind::Int64));
    LossValue { loss, correct: Some(correct), detection: None, logits: Some(detached) }
}

/// Computes the loss of predicted tokens as [`score`] does, if possible with a kernel that leaves out the padding of the
/// vocabulary.
fn score_tokens(
    kernels: &dyn Kernels,
    logits: VocabularyLogits,
    labels: &Tensor,
    factors: Option<&Tensor>,
) -> LossValue {
    if !kernels.has_cross_entropy() {
        return score(&logits.without_padding(), labels, factors);
    }
    let VocabularyLogits { decoded, vocabulary, .. } = logits;
    let CrossEntropy { loss, correct } = kernels.cross_entropy(&decoded, &TokenTargets { vocabulary, labels, factors });
    // Later passes see no padding entries.
    let predictions = decoded.detach().narrow(1, 0, vocabulary);
    LossValue { loss, correct: Some(correct), detection: None, logits: Some(predictions) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_loss_has_an_implementation_with_its_description() {
        for known in objectives::ALL {
            let description = objectives::LossSpec { weight: 0.25, ..known };
            assert_eq!(loss(description).description(), description);
        }
    }
}
