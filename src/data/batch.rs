//! Padded and masked token arrays of a micro-batch.

use lambert_dataset::random::Key;
use lambert_plan::batch_partition::{Layout, MicroBatchPlan};

use super::span_targets::SpanTargets;
use crate::masking::MaskedToken;

/// A masked sample, as the model reads it.
#[derive(Debug, Clone, PartialEq)]
pub struct MaskedSample {
    /// Token ids after masking.
    pub ids: Vec<u32>,
    /// Index of the first token of segment B; 0 if there is one segment.
    pub segment_b_start: u16,
    /// Sentence-pair label; `None` without a sentence-pair objective.
    pub pair_label: Option<u8>,
    /// Masked tokens, sorted by position.
    pub masked_tokens: Vec<MaskedToken>,
    /// Factor on the loss of the sample: 1, except in fault-injection tests.
    pub loss_scale: f32,
}

impl MaskedSample {
    /// 32-bit digest of the model input. The digest of a global batch is the sum of the digests of its samples.
    fn digest(&self) -> u64 {
        let mut key = Key::new(u64::from(self.segment_b_start)).with(self.pair_label.map_or(2, u64::from));
        for id in &self.ids {
            key = key.with(u64::from(*id));
        }
        for masked in &self.masked_tokens {
            key = key.with(u64::from(masked.position) << 32 | u64::from(masked.label));
        }
        key.value() >> 32
    }
}

/// Samples that are processed together. In the padded layout, token arrays are \[batch, sequence\], row-major. In the
/// unpadded layout, they have the tokens of all samples one after the other, then a tail of padding.
#[derive(Debug, Clone, PartialEq)]
pub struct MicroBatch {
    /// Index of each sample in the global batch, \[batch\].
    pub sample_indices: Vec<u64>,
    /// Number of samples.
    pub rows: usize,
    /// Length of the longest sample in tokens. In the padded layout, the length of every row.
    pub seq_len: usize,
    pub layout: Layout,
    /// Token ids.
    pub ids: Vec<i32>,
    /// Index of the first token of segment B in each sample, \[batch\]; `seq_len` if there is one segment.
    pub segment_b_starts: Vec<i32>,
    /// Length of each sample without padding, \[batch\].
    pub lengths: Vec<i32>,
    /// Indices of the masked tokens in `ids`.
    pub positions: Vec<i32>,
    /// Original ids of the masked tokens.
    pub labels: Vec<i32>,
    /// Sentence-pair labels, \[batch\]; empty without a sentence-pair objective.
    pub pair_labels: Vec<i32>,
    /// Targets of the span boundary objective; empty without this objective.
    pub span_targets: SpanTargets,
    /// Sum of the digests of the samples.
    pub digest: u64,
    /// Factor on the loss of each row, \[batch\]. Empty if all factors are 1. Other
    /// factors occur only in fault-injection tests.
    pub loss_scales: Vec<f32>,
}

impl MicroBatch {
    /// Arranges `samples` as `plan` says. Padding has the token ID `padding`.
    pub fn new(plan: &MicroBatchPlan, padding: u32, samples: &[MaskedSample]) -> Self {
        let (rows, seq_len) = (samples.len(), plan.width);
        let mut batch = Self {
            sample_indices: plan.samples.iter().map(|index| *index as u64).collect(),
            rows,
            seq_len,
            layout: plan.layout,
            ids: vec![padding as i32; plan.tokens],
            segment_b_starts: Vec::with_capacity(rows),
            lengths: Vec::with_capacity(rows),
            positions: Vec::new(),
            labels: Vec::new(),
            pair_labels: samples.iter().filter_map(|sample| sample.pair_label.map(i32::from)).collect(),
            span_targets: SpanTargets::default(),
            digest: 0,
            loss_scales: Vec::new(),
        };
        if samples.iter().any(|sample| sample.loss_scale != 1.0) {
            batch.loss_scales = samples.iter().map(|sample| sample.loss_scale).collect();
        }
        let mut start = 0;
        for sample in samples {
            batch.put(start, sample);
            start += match plan.layout {
                Layout::Padded => seq_len,
                Layout::Unpadded => sample.ids.len(),
            };
        }
        batch
    }

    /// Stacks `samples` and pads them to `seq_len` with the token ID 0. `sample_indices` are the indices of the samples in
    /// the global batch.
    pub fn padded(sample_indices: &[usize], seq_len: usize, samples: &[MaskedSample]) -> Self {
        let (tokens, layout) = (samples.len() * seq_len, Layout::Padded);
        Self::new(&MicroBatchPlan { samples: sample_indices.to_vec(), width: seq_len, tokens, layout }, 0, samples)
    }

    /// Finds the targets of the span boundary objective.
    #[must_use]
    pub fn with_span_targets(mut self) -> Self {
        let mut start = 0;
        let ranges = self.lengths.iter().map(|length| {
            let range = start..start + length;
            start += if self.layout == Layout::Padded { self.seq_len as i32 } else { *length };
            range
        });
        self.span_targets = SpanTargets::new(&self.positions, &self.labels, ranges);
        self
    }

    /// Number of tokens without padding.
    pub fn tokens(&self) -> usize {
        self.lengths.iter().map(|length| *length as usize).sum()
    }

    fn put(&mut self, start: usize, sample: &MaskedSample) {
        let length = sample.ids.len();
        for (slot, id) in self.ids[start..start + length].iter_mut().zip(&sample.ids) {
            *slot = *id as i32;
        }
        self.segment_b_starts.push(match sample.segment_b_start {
            0 => self.seq_len as i32,
            start => i32::from(start),
        });
        self.lengths.push(length as i32);
        for masked in &sample.masked_tokens {
            self.positions.push((start + usize::from(masked.position)) as i32);
            self.labels.push(masked.label as i32);
        }
        self.digest += sample.digest();
    }

    /// Number of padding tokens after the samples of an unpadded micro-batch.
    pub fn tail(&self) -> usize {
        self.ids.len() - self.lengths.iter().map(|length| *length as usize).sum::<usize>()
    }

    /// True if any row of a padded micro-batch contains padding.
    pub fn is_padded(&self) -> bool {
        self.lengths.iter().any(|length| (*length as usize) < self.seq_len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pads_rows_and_offsets_positions() {
        let sample = |ids: &[u32], start, position, label| MaskedSample {
            ids: ids.to_vec(),
            segment_b_start: start,
            pair_label: Some(1),
            masked_tokens: vec![MaskedToken { position, label }],
            loss_scale: 1.0,
        };
        let batch = MicroBatch::padded(&[3, 1], 4, &[sample(&[2, 5, 3, 6], 3, 1, 50), sample(&[2, 9], 0, 1, 90)]);
        assert_eq!(batch.ids, [2, 5, 3, 6, 2, 9, 0, 0]);
        assert_eq!(batch.segment_b_starts, [3, 4]);
        assert_eq!((batch.positions, batch.labels), (vec![1, 5], vec![50, 90]));
        assert_eq!((batch.lengths, batch.pair_labels), (vec![4, 2], vec![1, 1]));
    }

    #[test]
    fn span_targets_do_not_depend_on_the_layout() {
        let sample = |length: u32, masked: &[u16]| MaskedSample {
            ids: (0..length).collect(),
            segment_b_start: 0,
            pair_label: None,
            masked_tokens: masked.iter().map(|position| MaskedToken { position: *position, label: 9 }).collect(),
            loss_scale: 1.0,
        };
        let samples = [sample(5, &[1, 2]), sample(6, &[4]), sample(3, &[1])];
        let boundaries = |layout, tokens| {
            let plan = MicroBatchPlan { samples: vec![0, 1, 2], width: 6, tokens, layout };
            let SpanTargets { left, right, offsets, .. } =
                MicroBatch::new(&plan, 0, &samples).with_span_targets().span_targets;
            assert_eq!(offsets, [0, 1, 0, 0]);
            (left, right)
        };
        assert_eq!(boundaries(Layout::Padded, 18), (vec![0, 0, 9, 12], vec![3, 3, 11, 14]));
        assert_eq!(boundaries(Layout::Unpadded, 16), (vec![0, 0, 8, 11], vec![3, 3, 10, 13]));
    }

    #[test]
    fn unpadded_samples_follow_each_other() {
        let sample = |ids: &[u32], position| MaskedSample {
            ids: ids.to_vec(),
            segment_b_start: 0,
            pair_label: None,
            masked_tokens: vec![MaskedToken { position, label: 9 }],
            loss_scale: 1.0,
        };
        let plan = MicroBatchPlan { samples: vec![3, 1], width: 4, tokens: 8, layout: Layout::Unpadded };
        let batch = MicroBatch::new(&plan, 0, &[sample(&[2, 5, 3, 6], 1), sample(&[2, 9], 0)]);
        assert_eq!(batch.ids, [2, 5, 3, 6, 2, 9, 0, 0]);
        assert_eq!((batch.positions.clone(), batch.lengths.clone(), batch.tail()), (vec![1, 4], vec![4, 2], 2));
    }
}
