//! Dropout factors on the CPU. Each combination of sample, head and position has a random generator with its own key.
//! One 64-bit random word gives four factors.

use lambert_dataset::random::Key;

use super::gomp;
use crate::kernels::DropoutParams;

/// Fills `factors` for the tokens of an unpadded micro-batch, \[tokens, length\]. `samples` and `positions` have the sample
/// and the position of each token.
pub fn fill_tokens(factors: &mut [f32], length: usize, params: &DropoutParams<'_>, samples: &[i64], positions: &[i64]) {
    let (site, threshold, scale) = (params.key, params.threshold, params.scale);
    gomp::each_chunk(factors, length, |token, row| {
        let key = site.with(samples[token] as u64).with(0).with(positions[token] as u64);
        fill_row(row, key, threshold, scale);
    });
}

/// Fills `factors`, which has shape `shape` \[batch, (heads,) sequence, length\]. `samples` has shape \[batch\].
pub fn fill(factors: &mut [f32], shape: &[i64], params: &DropoutParams<'_>, samples: &[i64]) {
    let (length, positions) = (shape[shape.len() - 1] as usize, shape[shape.len() - 2] as usize);
    let heads = if shape.len() == 4 { shape[1] as usize } else { 1 };
    let (site, threshold, scale) = (params.key, params.threshold, params.scale);
    gomp::each_chunk(factors, positions * length, |index, values| {
        let (sample, head) = (index / heads, index % heads);
        let key = site.with(samples[sample] as u64).with(head as u64);
        for (position, row) in values.chunks_mut(length).enumerate() {
            fill_row(row, key.with(position as u64), threshold, scale);
        }
    });
}

fn fill_row(row: &mut [f32], key: Key, threshold: u16, scale: f32) {
    let mut rng = key.rng();
    for four in row.chunks_mut(4) {
        let word = rng.next_u64();
        for (lane, value) in four.iter_mut().enumerate() {
            *value = if (word >> (16 * lane)) as u16 >= threshold { scale } else { 0.0 };
        }
    }
}
