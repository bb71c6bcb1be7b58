//! Dropout's factors: four from each random word of a generator for each sample, head and position.

use lambert_dataset::random::Key;

use super::gomp;
use crate::kernels::Draws;

/// Fills `factors`, of `shape` \[rows, (heads,) width, length\]; `samples` is \[rows\].
pub fn fill(factors: &mut [f32], shape: &[i64], draws: &Draws<'_>, samples: &[i64]) {
    let (length, width) = (shape[shape.len() - 1] as usize, shape[shape.len() - 2] as usize);
    let heads = if shape.len() == 4 { shape[1] as usize } else { 1 };
    let (site, dropped, scale) = (draws.key, draws.dropped, draws.scale);
    gomp::each_chunk(factors, width * length, |index, values| {
        let (row, head) = (index / heads, index % heads);
        let key = site.with(samples[row] as u64).with(head as u64);
        for (position, line) in values.chunks_mut(length).enumerate() {
            fill_line(line, key.with(position as u64), dropped, scale);
        }
    });
}

fn fill_line(line: &mut [f32], key: Key, dropped: u16, scale: f32) {
    let mut rng = key.rng();
    for four in line.chunks_mut(4) {
        let word = rng.next_u64();
        for (lane, value) in four.iter_mut().enumerate() {
            *value = if (word >> (16 * lane)) as u16 >= dropped { scale } else { 0.0 };
        }
    }
}
