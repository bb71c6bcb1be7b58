//! A micro-batch on the device: all that its passes read.

use tch::Tensor;

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
    /// Indices of the hidden tokens in the rows laid end to end, i64 \[n\]; `None` where nothing is hidden.
    pub positions: Option<Tensor>,
    /// What stood there, i64 \[n\].
    pub labels: Option<Tensor>,
    /// Pair label of each row, i64 \[rows\]; `None` without a pair objective.
    pub pair_labels: Option<Tensor>,
    /// What each row's loss is multiplied with, f32 \[rows\]; `None` if nothing is, as everywhere but in tests.
    pub factors: Option<Tensor>,
}

impl Input {
    /// Copies a micro-batch to the device.
    pub fn upload(kernels: &dyn Kernels, batch: &MicroBatch) -> Self {
        let shape = [batch.rows as i64, batch.width as i64];
        let samples: Vec<i64> = batch.samples.iter().map(|sample| *sample as i64).collect();
        let integers = |values: &[i64]| kernels.upload(Values::I64(values));
        let some = |values: &[i64]| (!values.is_empty()).then(|| integers(values));
        let attendable = batch.is_padded().then(|| {
            let row = |length: &usize| (0..batch.width).map(|position| position < *length).collect::<Vec<bool>>();
            let all: Vec<bool> = batch.lengths.iter().flat_map(row).collect();
            kernels.upload(Values::Bool(&all)).view([shape[0], 1, 1, shape[1]])
        });
        Self {
            ids: integers(&batch.ids).view(shape),
            segments: integers(&batch.segments).view(shape),
            attendable,
            samples: integers(&samples),
            positions: some(&batch.positions),
            labels: some(&batch.labels),
            pair_labels: some(&batch.pair_labels),
            factors: (!batch.factors.is_empty()).then(|| kernels.upload(Values::F32(&batch.factors))),
        }
    }
}
