//! A micro-batch on the device: all that its passes read.

use tch::{Kind, Tensor};

use crate::data::MicroBatch;
use crate::kernels::{Kernels, Values};

/// The tensors of a micro-batch.
pub struct Input {
    /// Token ids, i64 \[rows, width\].
    pub ids: Tensor,
    /// Segment of each token, i64 \[rows, width\], 0 or 1.
    pub segments: Tensor,
    /// `true` where a token may be attended to, \[rows, 1, 1, width\]; `None` where no row is padded.
    pub attendable: Option<Tensor>,
    /// The number of each row's sample in the global batch, i64 \[rows\].
    pub samples: Tensor,
    /// The first of them: no other micro-batch of the global batch has it.
    pub first_sample: u64,
    /// Indices of the hidden tokens in the rows laid end to end, i64 \[n\]; `None` where nothing is hidden.
    pub positions: Option<Tensor>,
    /// What stood there, i64 \[n\].
    pub labels: Option<Tensor>,
    /// Pair label of each row, i64 \[rows\]; `None` without a pair objective.
    pub pair_labels: Option<Tensor>,
    /// Targets that an earlier pass has made for the losses of this one; `None` if there are none.
    pub made_targets: Option<Tensor>,
    /// What each row's loss is multiplied with, f32 \[rows\]; `None` if nothing is, as everywhere but in tests.
    pub factors: Option<Tensor>,
}

/// A micro-batch on its way to the device.
struct Sent {
    /// All of its whole numbers, i32.
    numbers: Tensor,
    factors: Option<Tensor>,
}

impl Sent {
    fn new(kernels: &dyn Kernels, batch: &MicroBatch) -> Self {
        let samples: Vec<i32> = batch.samples.iter().map(|sample| *sample as i32).collect();
        let numbers: [&[i32]; 7] =
            [&batch.ids, &batch.second, &batch.lengths, &samples, &batch.positions, &batch.labels, &batch.pair_labels];
        Self {
            numbers: kernels.send(Values::I32(&numbers.concat())),
            factors: (!batch.factors.is_empty()).then(|| kernels.send(Values::F32(&batch.factors))),
        }
    }
}

impl Input {
    /// Gives `work` each micro-batch on the device, where the next one goes meanwhile.
    pub fn each(kernels: &dyn Kernels, batches: &[MicroBatch], mut work: impl FnMut(&MicroBatch, Self)) {
        let mut ahead = batches.first().map(|batch| Sent::new(kernels, batch));
        for (number, batch) in batches.iter().enumerate() {
            let Some(sent) = ahead.take() else { return };
            kernels.order_sent();
            ahead = batches.get(number + 1).map(|next| Sent::new(kernels, next));
            work(batch, Self::new(batch, sent));
        }
    }

    /// One micro-batch on the device.
    pub fn upload(kernels: &dyn Kernels, batch: &MicroBatch) -> Self {
        let sent = Sent::new(kernels, batch);
        kernels.order_sent();
        Self::new(batch, sent)
    }

    /// The same tensors once more.
    pub fn shallow_clone(&self) -> Self {
        let some = |tensor: &Option<Tensor>| tensor.as_ref().map(Tensor::shallow_clone);
        Self {
            ids: self.ids.shallow_clone(),
            segments: self.segments.shallow_clone(),
            attendable: some(&self.attendable),
            samples: self.samples.shallow_clone(),
            first_sample: self.first_sample,
            positions: some(&self.positions),
            labels: some(&self.labels),
            pair_labels: some(&self.pair_labels),
            made_targets: some(&self.made_targets),
            factors: some(&self.factors),
        }
    }

    /// A micro-batch that has arrived; what follows from its numbers is computed on the device.
    fn new(batch: &MicroBatch, sent: Sent) -> Self {
        let (rows, width) = (batch.rows as i64, batch.width as i64);
        let all = sent.numbers.to_kind(Kind::Int64);
        let (positions, labels, pairs) = (batch.positions.len(), batch.labels.len(), batch.pair_labels.len());
        let counts = [batch.ids.len(), batch.second.len(), batch.lengths.len(), batch.rows, positions, labels, pairs];
        let mut first = 0;
        let parts = counts.map(|count| {
            first += count as i64;
            all.narrow(0, first - count as i64, count as i64)
        });
        let [ids, second, lengths, samples, positions, labels, pair_labels] = parts;
        let some = |part: Tensor| (part.size()[0] > 0).then_some(part);
        // 0 to the width, for every row.
        let position = all.narrow(0, 0, width).ones_like().cumsum(0, Kind::Int64) - 1;
        let is_before = |ends: Tensor| position.lt_tensor(&ends.view([rows, 1]));
        let (in_first, in_row) = (is_before(second), is_before(lengths));
        Self {
            ids: ids.view([rows, width]),
            segments: in_row.bitwise_and_tensor(&in_first.bitwise_not()).to_kind(Kind::Int64),
            attendable: batch.is_padded().then(|| in_row.view([rows, 1, 1, width])),
            samples,
            first_sample: batch.samples.first().copied().unwrap_or(0),
            positions: some(positions),
            labels: some(labels),
            pair_labels: some(pair_labels),
            made_targets: None,
            factors: sent.factors,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::batch::MaskedSample;
    use crate::kernels::Host;
    use crate::masking::Hidden;

    #[test]
    fn a_micro_batch_arrives_as_it_was() {
        let sample = |ids: &[u32], segment_b_start, position, label| MaskedSample {
            ids: ids.to_vec(),
            segment_b_start,
            pair_label: Some(1),
            hidden: vec![Hidden { position, label }],
            factor: 1.0,
        };
        let samples = [sample(&[2, 5, 3, 6], 3, 1, 50), sample(&[2, 9], 0, 1, 90), sample(&[2, 7, 7], 1, 2, 8)];
        let input = Input::upload(&Host, &MicroBatch::new(&[3, 1, 70_000], 4, 0, &samples));
        let numbers = |tensor: &Tensor| {
            assert_eq!(tensor.kind(), Kind::Int64);
            Vec::<i64>::try_from(tensor.flatten(0, -1)).unwrap()
        };
        assert_eq!(input.ids.size(), [3, 4]);
        assert_eq!(numbers(&input.ids), [2, 5, 3, 6, 2, 9, 0, 0, 2, 7, 7, 0]);
        assert_eq!(numbers(&input.segments), [0, 0, 0, 1, 0, 0, 0, 0, 0, 1, 1, 0]);
        assert_eq!(numbers(&input.samples), [3, 1, 70_000]);
        let attendable = input.attendable.unwrap();
        assert_eq!(attendable.size(), [3, 1, 1, 4]);
        assert_eq!(numbers(&attendable.to_kind(Kind::Int64)), [1, 1, 1, 1, 1, 1, 0, 0, 1, 1, 1, 0]);
        assert_eq!(numbers(&input.positions.unwrap()), [1, 5, 10]);
        assert_eq!(numbers(&input.labels.unwrap()), [50, 90, 8]);
        assert_eq!(numbers(&input.pair_labels.unwrap()), [1, 1, 1]);
        let alone = MicroBatch::new(&[0], 4, 0, &samples[..1]);
        assert!(Input::upload(&Host, &alone).attendable.is_none());
    }
}
