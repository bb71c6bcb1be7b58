//! What is learnt. An objective turns the encoder's output into a sum of losses and a count of right answers over one
//! micro-batch; the training loop divides by the counts of the whole global batch, so that the loss does not depend on
//! how that batch was cut. A new objective is a file here and a line in [`ALL`].

mod masked_language;
mod pair;

use lambert_config::objectives;
use tch::{Kind, Reduction, Tensor};

use crate::data::{GlobalBatch, MicroBatch};
use crate::input::Input;
use crate::model::Heads;

/// One of the things that are learnt.
pub trait Objective: Sync {
    /// Its name, and what it asks for.
    fn description(&self) -> objectives::Objective;

    /// Answers that a micro-batch asks for.
    fn answers(&self, batch: &MicroBatch) -> usize;

    /// Answers that the whole global batch asks for, over all ranks: what the sum of its losses is divided by.
    fn answers_of_all(&self, batch: &GlobalBatch) -> u64;

    /// Scores a micro-batch that asks for answers. `hidden` is \[rows, width, hidden\].
    fn score(&self, heads: &Heads, hidden: &Tensor, input: &Input) -> Scored;
}

/// All objectives. Their losses are added up.
pub const ALL: [&dyn Objective; 2] = [&masked_language::MaskedLanguage, &pair::Pair];

/// Sums over one micro-batch.
pub struct Scored {
    /// Sum of the cross-entropies, nats; a scalar that backward can start from.
    pub loss: Tensor,
    /// How many answers are right; a scalar.
    pub correct: Tensor,
}

/// What a micro-batch asks for. Only those that have answers are asked to score it.
fn asked(questions: Option<&Tensor>) -> &Tensor {
    questions.expect("a micro-batch without answers is not scored")
}

/// Sum of the cross-entropies of `logits` \[n, classes\] against `labels` \[n\], and how many of the best guesses are right.
/// `factors` \[n\] multiply each cross-entropy, in tests. Computed in f32 whatever the logits are.
fn score(logits: &Tensor, labels: &Tensor, factors: Option<&Tensor>) -> Scored {
    let logits = logits.to_kind(Kind::Float);
    let loss = |reduction| logits.cross_entropy_loss(labels, None::<Tensor>, reduction, -100, 0.0);
    let loss = match factors {
        Some(factors) => (loss(Reduction::None) * factors).sum(Kind::Float),
        None => loss(Reduction::Sum),
    };
    let correct = tch::no_grad(|| logits.argmax(-1, false).eq_tensor(labels).sum(Kind::Int64));
    Scored { loss, correct }
}
