//! Device tensors of a micro-batch, which are the input of its forward passes.

use std::rc::Rc;
use std::sync::Arc;

use lambert_plan::batch_partition::Layout;
use tch::{Kind, Tensor};

use super::Heads;
use super::constants::{Constants, numbers};
use super::relative_range::{RelativeRange, RelativeRows};
use super::rotation::Rotation;
use super::sequences::{Sequences, TokenArrays};
use crate::data::MicroBatch;
use crate::data::span_targets::SpanTargets;
use crate::kernels::{Kernels, Values};

/// Input tensors of a micro-batch. The tokens of an unpadded micro-batch are one row, with batch = 1.
pub struct Input {
    /// Token ids, i64 \[batch, sequence\].
    pub ids: Tensor,
    /// Segment ids, 0 or 1, i64 \[batch, sequence\].
    pub segments: Tensor,
    /// Samples of an unpadded micro-batch; `None` for a padded one.
    pub sequences: Option<Sequences>,
    /// Attention mask, bool \[batch, 1, 1, sequence\]: `true` at tokens, `false` at padding. `None` without padding.
    pub attention_mask: Option<Tensor>,
    /// For each row, or for each token of an unpadded micro-batch, the index of its sample in the global batch, i64.
    pub samples: Tensor,
    /// Index of the first sample in the global batch. No other micro-batch of the
    /// global batch has the same first sample.
    pub first_sample: u64,
    /// Indices of the masked tokens in the flattened \[batch x sequence\] ids, i64 \[n\]; `None` without masked
    /// tokens.
    pub positions: Option<Tensor>,
    /// Original ids of the masked tokens, i64 \[n\].
    pub labels: Option<Tensor>,
    /// Sentence-pair labels, i64 \[batch\]; `None` without a sentence-pair objective.
    pub pair_labels: Option<Tensor>,
    /// Targets of the span boundary objective, i64 \[4, n\]: the indices of the tokens before and after the span of each
    /// target in the flattened ids, its position in the span, and its original id. `None` without targets.
    pub span_targets: Option<Tensor>,
    /// Targets that an earlier pass computed for this pass, if any.
    pub derived_targets: Option<Tensor>,
    /// Digest of the tokens that were drawn for this input, i64 \[\]; `None` if no tokens were drawn.
    pub drawn_digest: Option<Tensor>,
    /// Output of the teacher, if the network has one.
    pub teacher: Option<TeacherOutput>,
    /// Factor on the loss of each sample, f32 \[batch\]. `None` if all factors are 1. Other
    /// factors occur only in fault-injection tests.
    pub loss_scales: Option<Tensor>,
    /// Masks and rotations that layers share.
    pub(crate) constants: Constants,
}

/// Output of a teacher for a micro-batch, without a graph.
pub struct TeacherOutput {
    /// Hidden states of the last layer, \[batch, sequence, hidden\].
    pub hidden: Tensor,
    /// Heads of the teacher.
    pub heads: Rc<Heads>,
    /// Kernels of the device.
    pub kernels: Arc<dyn Kernels>,
    /// Temperature of the soft targets.
    pub temperature: f64,
    /// Maximum number of logits that the loss of the soft targets computes at a time.
    pub chunk: i64,
}

/// Micro-batch being uploaded.
struct PendingUpload {
    /// All integer arrays, concatenated, i32.
    numbers: Tensor,
    /// Number of tokens of each sample of an unpadded micro-batch, and of each piece of its tail.
    lengths: Vec<i64>,
    loss_scales: Option<Tensor>,
}

impl PendingUpload {
    fn new(kernels: &dyn Kernels, batch: &MicroBatch) -> Self {
        let samples: Vec<i32> = batch.sample_indices.iter().map(|sample| *sample as i32).collect();
        let tokens = TokenArrays::new(batch);
        let [first, second, third] = match &tokens {
            Some(tokens) => [&tokens.segments, &tokens.positions, &tokens.samples],
            None => [&batch.segment_b_starts, &batch.lengths, &samples],
        };
        let bounds = tokens.as_ref().map_or(&[][..], |tokens| &tokens.bounds);
        let SpanTargets { left, right, offsets, labels } = &batch.span_targets;
        let (positions, pairs) = (&batch.positions, &batch.pair_labels);
        let numbers: [&[i32]; 12] =
            [&batch.ids, first, second, third, positions, &batch.labels, pairs, left, right, offsets, labels, bounds];
        Self {
            lengths: tokens.as_ref().map_or_else(Vec::new, TokenArrays::lengths),
            numbers: kernels.upload_async(Values::I32(&numbers.concat())),
            loss_scales: (!batch.loss_scales.is_empty()).then(|| kernels.upload_async(Values::F32(&batch.loss_scales))),
        }
    }
}

impl Input {
    /// Uploads the micro-batches to the device and calls `work` with each. While `work`
    /// runs, the next micro-batch is uploaded.
    pub fn each(kernels: &dyn Kernels, batches: &[MicroBatch], mut work: impl FnMut(&MicroBatch, Self)) {
        let mut next_upload = batches.first().map(|batch| PendingUpload::new(kernels, batch));
        for (number, batch) in batches.iter().enumerate() {
            let Some(upload) = next_upload.take() else { return };
            kernels.wait_uploads();
            next_upload = batches.get(number + 1).map(|next| PendingUpload::new(kernels, next));
            work(batch, Self::new(batch, upload));
        }
    }

    /// Uploads one micro-batch.
    pub fn upload(kernels: &dyn Kernels, batch: &MicroBatch) -> Self {
        let upload = PendingUpload::new(kernels, batch);
        kernels.wait_uploads();
        Self::new(batch, upload)
    }

    /// Returns the values of dtype `kind` that are added to the attention scores: 0 where a query (row) attends to a key, and minus
    /// infinity elsewhere. With a `reach`, a token attends to tokens at a distance of at most `reach`, and the values are \[batch
    /// or 1, 1, sequence, sequence\]. A padding token then attends to itself too, because a softmax over no token is undefined.
    /// Without a `reach`, or if all tokens are within reach, they are \[batch, 1, 1, sequence\]. `None` if all tokens attend to all.
    pub fn added_mask(&self, reach: Option<usize>, kind: Kind) -> Option<Tensor> {
        let reach = reach.filter(|reach| (*reach as i64) < self.ids.size()[1] - 1);
        self.constants.added_mask(&self.ids, self.attention_mask.as_ref(), reach, kind)
    }

    /// Returns the rows of the table of relative positions for all distances of two tokens of a sample.
    pub fn relative_rows(&self, range: RelativeRange) -> RelativeRows {
        self.constants.relative_rows(&self.ids, range)
    }

    /// Returns the rotation of attention heads of `head_size` elements by the positions of their tokens.
    pub fn rotation(&self, base: f64, head_size: i64) -> Rotation {
        let row = || numbers(&self.ids, self.ids.size()[1]);
        let positions = self.sequences.as_ref().map_or_else(row, |sequences| sequences.positions.shallow_clone());
        self.constants.rotation(&positions, base, head_size)
    }

    /// Returns the first token of each sample, \[batch, hidden\], of hidden states \[batch, sequence, hidden\].
    pub fn first_tokens(&self, hidden: &Tensor) -> Tensor {
        match &self.sequences {
            Some(sequences) => hidden.flatten(0, 1).index_select(0, &sequences.first_tokens),
            None => hidden.select(1, 0),
        }
    }

    /// Returns the number, within the micro-batch, of the sample of each token. `tokens` are indices into the flattened ids.
    pub fn rows_of(&self, tokens: &Tensor) -> Tensor {
        match &self.sequences {
            Some(sequences) => sequences.rows_of(tokens),
            None => tokens.divide_scalar_mode(self.ids.size()[1], "floor"),
        }
    }

    /// Returns the index of its sample in the global batch and the position in its sample of each token. `tokens` are indices
    /// into the flattened ids.
    pub fn places_of(&self, tokens: &Tensor) -> (Tensor, Tensor) {
        match &self.sequences {
            Some(sequences) => (self.samples.index_select(0, tokens), sequences.positions.index_select(0, tokens)),
            None => (self.samples.index_select(0, &self.rows_of(tokens)), tokens.remainder(self.ids.size()[1])),
        }
    }

    /// Returns 1 for tokens and 0 for padding, f32 \[batch x sequence\]. `None` without padding.
    pub fn token_mask(&self) -> Option<Tensor> {
        match &self.sequences {
            Some(sequences) => sequences.token_mask(),
            None => self.attention_mask.as_ref().map(|mask| mask.flatten(0, -1).to_kind(Kind::Float)),
        }
    }

    /// Returns the weight of each token in a loss over all tokens, f32 \[batch x sequence\]: 0 for padding, and the factor on the loss
    /// of its sample for any other token. `None` if all weights are 1.
    pub fn token_weights(&self) -> Option<Tensor> {
        let padding = self.token_mask();
        let Some(factors) = &self.loss_scales else { return padding };
        let tokens = numbers(&self.ids, self.ids.numel() as i64);
        // The tail of an unpadded micro-batch belongs to the last sample here, and has weight 0.
        let factors = factors.index_select(0, &self.rows_of(&tokens));
        Some(padding.map_or_else(|| factors.shallow_clone(), |padding| padding * &factors))
    }

    /// Copies the tensor handles, sharing their storage. Leaves out the output of a teacher.
    pub fn shallow_clone(&self) -> Self {
        let clone_option = |tensor: &Option<Tensor>| tensor.as_ref().map(Tensor::shallow_clone);
        Self {
            ids: self.ids.shallow_clone(),
            segments: self.segments.shallow_clone(),
            sequences: self.sequences.as_ref().map(Sequences::shallow_clone),
            attention_mask: clone_option(&self.attention_mask),
            samples: self.samples.shallow_clone(),
            first_sample: self.first_sample,
            positions: clone_option(&self.positions),
            labels: clone_option(&self.labels),
            pair_labels: clone_option(&self.pair_labels),
            span_targets: clone_option(&self.span_targets),
            derived_targets: clone_option(&self.derived_targets),
            drawn_digest: clone_option(&self.drawn_digest),
            teacher: None,
            loss_scales: clone_option(&self.loss_scales),
            constants: Constants::default(),
        }
    }

    /// Builds the input of an uploaded micro-batch. Segment ids and attention mask are computed on the device.
    fn new(batch: &MicroBatch, upload: PendingUpload) -> Self {
        let (rows, seq_len) = (batch.rows as i64, batch.seq_len as i64);
        let all = upload.numbers.to_kind(Kind::Int64);
        let (positions, labels, pairs) = (batch.positions.len(), batch.labels.len(), batch.pair_labels.len());
        // The second to fourth arrays have an entry for each sample, or for each token of an unpadded micro-batch.
        let each = if batch.layout == Layout::Padded { batch.rows } else { batch.ids.len() };
        let mut first = 0;
        let span_targets = 4 * batch.span_targets.labels.len();
        let parts = [batch.ids.len(), each, each, each, positions, labels, pairs, span_targets].map(|count| {
            first += count as i64;
            all.narrow(0, first - count as i64, count as i64)
        });
        let [ids, second, third, samples, positions, labels, pair_labels, span_targets] = parts;
        let (ids, segments, sequences, attention_mask) = match batch.layout {
            Layout::Unpadded => {
                let bounds = upload.numbers.narrow(0, first, upload.lengths.len() as i64 + 1);
                let sequences = Sequences::new(bounds, upload.lengths, third, rows);
                (ids.unsqueeze(0), second.unsqueeze(0), Some(sequences), None)
            }
            Layout::Padded => {
                // Positions 0 to seq_len - 1, shared by all rows.
                let position = all.narrow(0, 0, seq_len).ones_like().cumsum(0, Kind::Int64) - 1;
                let is_before = |ends: Tensor| position.lt_tensor(&ends.view([rows, 1]));
                let (in_first, in_row) = (is_before(second), is_before(third));
                let segments = in_row.bitwise_and_tensor(&in_first.bitwise_not()).to_kind(Kind::Int64);
                let mask = batch.is_padded().then(|| in_row.view([rows, 1, 1, seq_len]));
                (ids.view([rows, seq_len]), segments, None, mask)
            }
        };
        let non_empty = |part: Tensor| (part.size()[0] > 0).then_some(part);
        Self {
            ids,
            segments,
            sequences,
            attention_mask,
            samples,
            first_sample: batch.sample_indices.first().copied().unwrap_or(0),
            positions: non_empty(positions),
            labels: non_empty(labels),
            pair_labels: non_empty(pair_labels),
            span_targets: non_empty(span_targets).map(|targets| targets.view([4, -1])),
            derived_targets: None,
            drawn_digest: None,
            teacher: None,
            loss_scales: upload.loss_scales,
            constants: Constants::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::batch::MaskedSample;
    use crate::kernels::Host;
    use crate::masking::MaskedToken;

    #[test]
    fn upload_preserves_micro_batch() {
        let sample = |ids: &[u32], segment_b_start, position, label| MaskedSample {
            ids: ids.to_vec(),
            segment_b_start,
            pair_label: Some(1),
            masked_tokens: vec![MaskedToken { position, label }],
            loss_scale: 1.0,
        };
        let samples = [sample(&[2, 5, 3, 6], 3, 1, 50), sample(&[2, 9], 0, 1, 90), sample(&[2, 7, 7], 1, 2, 8)];
        let input = Input::upload(&Host, &MicroBatch::padded(&[3, 1, 70_000], 4, &samples));
        let numbers = |tensor: &Tensor| {
            assert_eq!(tensor.kind(), Kind::Int64);
            Vec::<i64>::try_from(tensor.flatten(0, -1)).unwrap()
        };
        assert_eq!(input.ids.size(), [3, 4]);
        assert_eq!(numbers(&input.ids), [2, 5, 3, 6, 2, 9, 0, 0, 2, 7, 7, 0]);
        assert_eq!(numbers(&input.segments), [0, 0, 0, 1, 0, 0, 0, 0, 0, 1, 1, 0]);
        assert_eq!(numbers(&input.samples), [3, 1, 70_000]);
        let attention_mask = input.attention_mask.unwrap();
        assert_eq!(attention_mask.size(), [3, 1, 1, 4]);
        assert_eq!(numbers(&attention_mask.to_kind(Kind::Int64)), [1, 1, 1, 1, 1, 1, 0, 0, 1, 1, 1, 0]);
        assert_eq!(numbers(&input.positions.unwrap()), [1, 5, 10]);
        assert_eq!(numbers(&input.labels.unwrap()), [50, 90, 8]);
        assert_eq!(numbers(&input.pair_labels.unwrap()), [1, 1, 1]);
        let alone = MicroBatch::padded(&[0], 4, &samples[..1]);
        assert!(Input::upload(&Host, &alone).attention_mask.is_none());
    }
}
