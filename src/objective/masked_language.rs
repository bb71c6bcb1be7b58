//! Masked language modelling (arXiv 1810.04805, 3.1): name the piece that was hidden.

use tch::Tensor;

use super::Scored;
use crate::model::Heads;

/// Scores the hidden tokens at `positions` (indices into the rows laid end to end, \[n\]) with the pieces `labels` (\[n\]).
/// The head runs at these positions only. `hidden` is \[rows, width, hidden\]; `factors` \[n\] multiply the losses.
pub fn score(heads: &Heads, hidden: &Tensor, positions: &Tensor, labels: &Tensor, factors: Option<&Tensor>) -> Scored {
    super::score(&heads.masked_language(hidden, positions), labels, factors)
}
