//! Draws of tokens on the CPU. Each row of probabilities has a random generator with its own key. One 64-bit random word
//! serves two tokens.

use lambert_dataset::random::Key;

use super::gomp;
use crate::kernels::TokenDraws;

/// Draws one token for each row of `probabilities`, f32 \[rows, `width`\]. `site` is the key of all draws. `samples` and `positions` have an entry for each
/// row.
pub fn tokens(probabilities: &[f32], width: usize, site: Key, samples: &[i64], positions: &[i64]) -> Vec<i64> {
    let mut ids = vec![0; samples.len()];
    gomp::each_chunk(&mut ids, 1, |row, id| {
        let key = site.with(samples[row] as u64).with(positions[row] as u64);
        id.fill(first_arrival(&probabilities[row * width..][..width], key));
    });
    ids
}

/// Returns the token whose exponentially distributed arrival time, with its probability as rate, is first. This token has
/// the largest sum of logit and Gumbel noise. An arrival time is at least the uniform draw divided by the probability, so
/// that few tokens need a logarithm.
fn first_arrival(probabilities: &[f32], key: Key) -> i64 {
    let mut rng = key.rng();
    let (mut first, mut id) = (f32::INFINITY, 0);
    for (word, pair) in probabilities.chunks(2).enumerate() {
        let bits = rng.next_u64();
        for (lane, probability) in pair.iter().enumerate() {
            let uniform = TokenDraws::uniform((bits >> (32 * lane)) as u32);
            if uniform < first * probability {
                let arrival = -(-uniform).ln_1p() / probability;
                if arrival < first {
                    (first, id) = (arrival, 2 * word + lane);
                }
            }
        }
    }
    id as i64
}
