//! Samples of an unpadded micro-batch, whose tokens are one row.

use lambert_plan::batch_partition::Layout;
use tch::{Kind, Tensor};

use crate::data::MicroBatch;
use crate::torch;

/// Arrays with an entry for each token of an unpadded micro-batch. The entries of its tail are 0.
pub struct TokenArrays {
    /// Segment, 0 or 1.
    pub segments: Vec<i32>,
    /// Position in the sample.
    pub positions: Vec<i32>,
    /// Index of the sample in the global batch.
    pub samples: Vec<i32>,
    /// Index of the first token of each sample, then of each piece of the tail, then the number of tokens.
    pub bounds: Vec<i32>,
}

impl TokenArrays {
    /// Computes the arrays; `None` for a padded micro-batch.
    pub fn new(batch: &MicroBatch) -> Option<Self> {
        if batch.layout == Layout::Padded {
            return None;
        }
        let tokens = batch.ids.len();
        let empty = || Vec::with_capacity(tokens);
        let mut arrays = Self { segments: empty(), positions: empty(), samples: empty(), bounds: vec![0] };
        for ((length, second), sample) in batch.lengths.iter().zip(&batch.segment_b_starts).zip(&batch.sample_indices) {
            arrays.positions.extend(0..*length);
            arrays.segments.extend((0..*length).map(|position| i32::from(position >= *second)));
            arrays.samples.extend(std::iter::repeat_n(*sample as i32, *length as usize));
            arrays.bounds.push(arrays.positions.len() as i32);
        }
        if batch.tail() > 0 {
            // Attention kernels start blocks for the longest piece in each sample. So no piece is longer than the samples.
            let longest = batch.lengths.iter().map(|length| *length as usize).max().unwrap_or(tokens).max(1);
            let ends = (arrays.positions.len() + longest..tokens).step_by(longest);
            arrays.bounds.extend(ends.map(|end| end as i32).chain([tokens as i32]));
            for array in [&mut arrays.segments, &mut arrays.positions, &mut arrays.samples] {
                array.resize(tokens, 0);
            }
        }
        Some(arrays)
    }

    /// Number of tokens of each sample, and of each piece of the tail.
    pub fn lengths(&self) -> Vec<i64> {
        self.bounds.windows(2).map(|pair| i64::from(pair[1] - pair[0])).collect()
    }
}

/// Samples of an unpadded micro-batch. A piece of the tail of padding counts as a sample, whose results are not used.
pub struct Sequences {
    /// Index of the first token of each sample, then the number of tokens, i32 \[samples + 1\].
    bounds: Tensor,
    /// Number of tokens of each sample.
    lengths: Vec<i64>,
    /// Position of each token in its sample, i64 \[tokens\].
    pub positions: Tensor,
    /// Index of the first token of each sample except the tail, i64 \[batch\].
    pub first_tokens: Tensor,
}

impl Sequences {
    /// `batch` is the number of samples without the tail.
    pub fn new(bounds: Tensor, lengths: Vec<i64>, positions: Tensor, batch: i64) -> Self {
        let first_tokens = bounds.narrow(0, 0, batch).to_kind(Kind::Int64);
        Self { bounds, lengths, positions, first_tokens }
    }

    /// Copies the tensor handles, sharing their storage.
    pub fn shallow_clone(&self) -> Self {
        Self {
            bounds: self.bounds.shallow_clone(),
            lengths: self.lengths.clone(),
            positions: self.positions.shallow_clone(),
            first_tokens: self.first_tokens.shallow_clone(),
        }
    }

    /// Returns 1 for the tokens of samples and 0 for the tail, f32 \[tokens\]. `None` without a tail.
    pub fn token_mask(&self) -> Option<Tensor> {
        let samples = self.first_tokens.size()[0] as usize;
        let tail: i64 = self.lengths[samples..].iter().sum();
        (tail > 0).then(|| {
            let mask = self.positions.ones_like().to_kind(Kind::Float);
            let _ = mask.narrow(0, mask.size()[0] - tail, tail).zero_();
            mask
        })
    }

    /// Returns the number of the sample of each token in `tokens`.
    pub fn rows_of(&self, tokens: &Tensor) -> Tensor {
        tokens.bucketize(&self.first_tokens, false, true) - 1
    }

    /// Returns softmax(Q K^T / sqrt(head size)) V within each sample, \[1, tokens, heads, head size\]. Queries, keys and values
    /// have the same shape. A token attends to tokens at a distance of at most `reach`. `dropped` is the dropout probability of
    /// the attention weights, with draws from the libtorch random generator.
    pub fn attention(&self, [query, key, value]: [&Tensor; 3], reach: Option<usize>, dropped: f64) -> Tensor {
        let longest = self.lengths.iter().copied().max().unwrap_or(0);
        let reach = reach.map(|reach| reach as i64).filter(|reach| *reach < longest - 1);
        let [query, key, value] = [query, key, value].map(|tensor| tensor.squeeze_dim(0));
        torch::attention::unpadded([&query, &key, &value], &self.bounds, &self.lengths, reach, dropped).unsqueeze(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::train::step::tests::batch_with;

    #[test]
    fn no_piece_of_the_tail_is_longer_than_the_samples() {
        let arrays = TokenArrays::new(&batch_with(&[&[0, 1]], Layout::Unpadded).micro_batches[0]).unwrap();
        assert_eq!(arrays.lengths(), [5, 7, 7, 7, 6]);
        assert_eq!(arrays.positions.len(), 32);
    }
}
