//! The tokens of a micro-batch: padded, masked, ready to become tensors.

use lambert_dataset::random::Key;

use crate::masking::Hidden;

/// One sample as the model sees it.
#[derive(Debug, Clone, PartialEq)]
pub struct MaskedSample {
    /// Token ids, some hidden.
    pub ids: Vec<u32>,
    /// First token of the second segment; 0 for one segment.
    pub segment_b_start: u16,
    /// The pair label; `None` without a pair objective.
    pub pair_label: Option<u8>,
    /// What is hidden.
    pub hidden: Vec<Hidden>,
    /// What its loss is multiplied with: 1, but in tests.
    pub factor: f32,
}

impl MaskedSample {
    /// 32 bits over all that the model sees of the sample; a global batch's digest is their sum.
    fn digest(&self) -> u64 {
        let mut key = Key::new(u64::from(self.segment_b_start)).with(self.pair_label.map_or(2, u64::from));
        for id in &self.ids {
            key = key.with(u64::from(*id));
        }
        for hidden in &self.hidden {
            key = key.with(u64::from(hidden.position) << 32 | u64::from(hidden.label));
        }
        key.value() >> 32
    }
}

/// Samples that go through the model together. Matrices are \[rows, width\], row after row.
#[derive(Debug, Clone, PartialEq)]
pub struct MicroBatch {
    /// The number of each sample in the global batch, \[rows\].
    pub samples: Vec<u64>,
    /// Samples.
    pub rows: usize,
    /// Tokens of a row, padding included.
    pub width: usize,
    /// Token ids, \[rows, width\].
    pub ids: Vec<i32>,
    /// First token of each row's second segment, \[rows\]; the width where there is none.
    pub second: Vec<i32>,
    /// Tokens of each row without padding, \[rows\].
    pub lengths: Vec<i32>,
    /// Indices into `ids` of the hidden tokens.
    pub positions: Vec<i32>,
    /// What stood there.
    pub labels: Vec<i32>,
    /// Pair label of each row, \[rows\]; empty without a pair objective.
    pub pair_labels: Vec<i32>,
    /// Sum of the samples' digests.
    pub digest: u64,
    /// What each row's loss is multiplied with, \[rows\]; empty if nothing is, as everywhere but in tests.
    pub factors: Vec<f32>,
}

impl MicroBatch {
    /// Lays `samples`, whose numbers in the global batch are `numbers`, one below the other and pads them with `padding`
    /// to `width`.
    pub fn new(numbers: &[usize], width: usize, padding: u32, samples: &[MaskedSample]) -> Self {
        let rows = samples.len();
        let mut batch = Self {
            samples: numbers.iter().map(|number| *number as u64).collect(),
            rows,
            width,
            ids: vec![padding as i32; rows * width],
            second: Vec::with_capacity(rows),
            lengths: Vec::with_capacity(rows),
            positions: Vec::new(),
            labels: Vec::new(),
            pair_labels: samples.iter().filter_map(|sample| sample.pair_label.map(i32::from)).collect(),
            digest: 0,
            factors: Vec::new(),
        };
        if samples.iter().any(|sample| sample.factor != 1.0) {
            batch.factors = samples.iter().map(|sample| sample.factor).collect();
        }
        for (row, sample) in samples.iter().enumerate() {
            batch.put(row * width, sample);
        }
        batch
    }

    fn put(&mut self, start: usize, sample: &MaskedSample) {
        let length = sample.ids.len();
        for (slot, id) in self.ids[start..start + length].iter_mut().zip(&sample.ids) {
            *slot = *id as i32;
        }
        self.second.push(match sample.segment_b_start {
            0 => self.width as i32,
            start => i32::from(start),
        });
        self.lengths.push(length as i32);
        for hidden in &sample.hidden {
            self.positions.push((start + usize::from(hidden.position)) as i32);
            self.labels.push(hidden.label as i32);
        }
        self.digest += sample.digest();
    }

    /// Whether any row is shorter than the batch is wide.
    pub fn is_padded(&self) -> bool {
        self.lengths.iter().any(|length| (*length as usize) < self.width)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_padded_and_positions_point_into_the_whole() {
        let sample = |ids: &[u32], start, position, label| MaskedSample {
            ids: ids.to_vec(),
            segment_b_start: start,
            pair_label: Some(1),
            hidden: vec![Hidden { position, label }],
            factor: 1.0,
        };
        let batch = MicroBatch::new(&[3, 1], 4, 0, &[sample(&[2, 5, 3, 6], 3, 1, 50), sample(&[2, 9], 0, 1, 90)]);
        assert_eq!(batch.ids, [2, 5, 3, 6, 2, 9, 0, 0]);
        assert_eq!(batch.second, [3, 4]);
        assert_eq!((batch.positions, batch.labels), (vec![1, 5], vec![50, 90]));
        assert_eq!((batch.lengths, batch.pair_labels), (vec![4, 2], vec![1, 1]));
    }
}
