//! Splits the parameters of an update into chunks, one per thread block, in the layout that kernels.cu reads.

use std::ops::Range;

use tch::Tensor;

use crate::kernels::{Kernels, OptimizerUpdate, ParamUpdate, Values};

/// Maximum number of elements in a chunk. The value fixes the order of summation on every GPU.
pub const CHUNK: usize = 1 << 16;

/// Chunk table of a set of parameters, reused while the set is unchanged.
pub struct ChunkTable {
    parameters: Vec<Range<usize>>,
    /// `Chunk` structs of kernels.cu as bytes, u8 \[16 x count\].
    pub table: Tensor,
    /// For each parameter, the number of chunks of this parameter and all parameters before it. The numbers are u32
    /// values as bytes, u8 \[4 x parameters\].
    pub ends: Tensor,
    /// Number of chunks.
    pub count: usize,
}

impl ChunkTable {
    /// Builds the table for the parameters of `update` and uploads it.
    pub fn new(kernels: &dyn Kernels, update: &OptimizerUpdate<'_>) -> Self {
        let (mut table, mut ends, mut count) = (Vec::new(), Vec::new(), 0_u32);
        for (number, (range, _)) in update.parameters.iter().enumerate() {
            for first in range.clone().step_by(CHUNK) {
                table.extend_from_slice(&(first as u64).to_le_bytes());
                table.extend_from_slice(&(CHUNK.min(range.end - first) as u32).to_le_bytes());
                table.extend_from_slice(&(number as u32).to_le_bytes());
                count += 1;
            }
            ends.extend_from_slice(&count.to_le_bytes());
        }
        Self {
            parameters: update.parameters.iter().map(|(range, _)| range.clone()).collect(),
            table: kernels.upload(Values::U8(&table)),
            ends: kernels.upload(Values::U8(&ends)),
            count: count as usize,
        }
    }

    /// True if the table was built for the parameters of `update`.
    pub fn matches(&self, update: &OptimizerUpdate<'_>) -> bool {
        self.parameters.len() == update.parameters.len()
            && self.parameters.iter().zip(&update.parameters).all(|(own, (range, _))| own == range)
    }
}

/// `ParamUpdate` structs of kernels.cu for the parameters of `update`, as bytes.
pub fn constants(update: &OptimizerUpdate<'_>) -> Vec<u8> {
    let bytes = |(_, constants): &(Range<usize>, ParamUpdate)| {
        let floats = [
            constants.beta1,
            constants.one_minus_beta1,
            constants.beta2,
            constants.one_minus_beta2,
            constants.eps,
            constants.inv_bias_correction1,
            constants.inv_bias_correction2,
            constants.learning_rate,
            constants.weight_decay,
        ];
        let words = floats.into_iter().map(f32::to_bits).chain([constants.step_scale as u32]);
        words.flat_map(u32::to_le_bytes).collect::<Vec<u8>>()
    };
    update.parameters.iter().flat_map(bytes).collect()
}
