//! What is learnt. An objective turns the encoder's output into a sum of losses and a count of right answers over one
//! micro-batch; the training loop divides by the counts of the whole global batch, so that the loss does not depend on
//! how that batch was cut.

pub mod masked_language;
pub mod pair;

use tch::{Kind, Reduction, Tensor};

/// Sums over one micro-batch.
pub struct Scored {
    /// Sum of the cross-entropies, nats; a scalar that backward can start from.
    pub loss: Tensor,
    /// How many answers are right; a scalar.
    pub correct: Tensor,
}

/// Sum of the cross-entropies of `logits` \[n, classes\] against `labels` \[n\], and how many of the best guesses are right.
/// `factors` \[n\] multiply each cross-entropy, in tests.
fn score(logits: &Tensor, labels: &Tensor, factors: Option<&Tensor>) -> Scored {
    let loss = |reduction| logits.cross_entropy_loss(labels, None::<Tensor>, reduction, -100, 0.0);
    let loss = match factors {
        Some(factors) => (loss(Reduction::None) * factors).sum(Kind::Float),
        None => loss(Reduction::Sum),
    };
    let correct = tch::no_grad(|| logits.argmax(-1, false).eq_tensor(labels).sum(Kind::Int64));
    Scored { loss, correct }
}
