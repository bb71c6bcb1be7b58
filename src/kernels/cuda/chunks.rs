//! The parameters of an update in chunks, one for each block, as kernels.cu reads them.

use std::ops::Range;

use tch::Tensor;

use crate::kernels::{Kernels, Rule, Update, Values};

/// Elements of a chunk at most. The order of a sum follows from it, not from the card.
pub const CHUNK: usize = 1 << 16;

/// Where the chunks of some parameters are; good for as long as the same ones are updated.
pub struct Chunks {
    parameters: Vec<Range<usize>>,
    /// `Chunk` of kernels.cu, u8 \[16 x count\].
    pub table: Tensor,
    /// The number of chunks up to each parameter and with it, u32 as u8 \[4 x parameters\].
    pub ends: Tensor,
    /// How many they are.
    pub count: usize,
}

impl Chunks {
    /// Those of `update`.
    pub fn new(kernels: &dyn Kernels, update: &Update<'_>) -> Self {
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

    /// Whether they are those of `update`.
    pub fn are_of(&self, update: &Update<'_>) -> bool {
        self.parameters.len() == update.parameters.len()
            && self.parameters.iter().zip(&update.parameters).all(|(own, (range, _))| own == range)
    }
}

/// `Rule` of kernels.cu for each parameter of `update`.
pub fn rules(update: &Update<'_>) -> Vec<u8> {
    let bytes = |(_, rule): &(Range<usize>, Rule)| {
        let floats = [
            rule.beta1,
            rule.share1,
            rule.beta2,
            rule.share2,
            rule.eps,
            rule.correction1,
            rule.correction2,
            rule.learning_rate,
            rule.weight_decay,
        ];
        let words = floats.into_iter().map(f32::to_bits).chain([u32::from(rule.trusted)]);
        words.flat_map(u32::to_le_bytes).collect::<Vec<u8>>()
    };
    update.parameters.iter().flat_map(bytes).collect()
}
