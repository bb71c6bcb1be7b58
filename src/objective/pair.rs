//! Pair objectives: next-sentence prediction and sentence order. Both ask for one of two labels a sample; what the
//! label means is the dataset's matter (1 = the second segment was replaced, or swapped with the first).

use tch::Tensor;

use super::Scored;
use crate::model::Heads;

/// Scores the pair `labels` (\[rows\], 0 or 1). `hidden` is \[rows, width, hidden\]; `factors` \[rows\] multiply the losses.
pub fn score(heads: &Heads, hidden: &Tensor, labels: &Tensor, factors: Option<&Tensor>) -> Scored {
    super::score(&heads.pair(hidden), labels, factors)
}
