//! Dropout whose draws are a pure function of the seed, the step, the sample and the place in the model: the same for
//! every world size and however a global batch is cut into micro-batches. libtorch's own generator is one stream, drawn
//! by one thread, which took an eighth of a step.

use lambert_data_prep::random::Key;
use tch::{Device, Kind, Tensor};

use crate::torch;

/// Dropout of one forward pass.
#[derive(Debug, Clone, Copy)]
pub enum Dropout<'a> {
    /// None: evaluation.
    Off,
    /// As drawn.
    On(Draws<'a>),
}

/// What dropout is drawn from.
#[derive(Debug, Clone, Copy)]
pub struct Draws<'a> {
    /// Share of the activations that are dropped.
    pub hidden: f64,
    /// Share of the attention weights that are dropped.
    pub attention: f64,
    /// Of the run's seed and the step.
    pub key: Key,
    /// The number of each row's sample in the global batch, \[rows\].
    pub samples: &'a [u64],
}

/// Values in 16 bits, of which four are cut from a random word.
const STEPS: f64 = 65536.0;

impl Dropout<'_> {
    /// Whether attention weights are dropped at all.
    pub fn drops_attention(self) -> bool {
        matches!(self, Self::On(draws) if draws.attention > 0.0)
    }

    /// Drops activations, \[rows, width, hidden\], at the model's place `site`.
    pub fn hidden(self, x: Tensor, site: u64) -> Tensor {
        match self {
            Self::On(draws) if draws.hidden > 0.0 => apply(&x, &draws.mask(&x.size(), draws.hidden, site)),
            _ => x,
        }
    }

    /// Drops attention weights, \[rows, heads, width, width\], at the model's place `site`.
    pub fn attention(self, weights: Tensor, site: u64) -> Tensor {
        match self {
            Self::On(draws) if draws.attention > 0.0 => {
                apply(&weights, &draws.mask(&weights.size(), draws.attention, site))
            }
            _ => weights,
        }
    }
}

/// The factors are f32: 1 / 0.9 has no equal in bf16.
fn apply(x: &Tensor, mask: &Tensor) -> Tensor {
    (x * mask).to_kind(x.kind())
}

impl Draws<'_> {
    /// Factors of the given shape \[rows, (heads,) width, length\]: 0 for what is dropped, and what keeps the mean for the
    /// rest. The draws of a row do not depend on how far it is padded.
    fn mask(&self, shape: &[i64], probability: f64, site: u64) -> Tensor {
        let dropped = (probability * STEPS).round();
        let scale = (STEPS / (STEPS - dropped)) as f32;
        let (length, width) = (shape[shape.len() - 1] as usize, shape[shape.len() - 2] as usize);
        let heads = if shape.len() == 4 { shape[1] as usize } else { 1 };
        let site = self.key.with(site);
        let mut mask = Tensor::empty(shape, (Kind::Float, Device::Cpu));
        torch::each_chunk(torch::floats_mut(&mut mask), width * length, |index, values| {
            let (row, head) = (index / heads, index % heads);
            let key = site.with(self.samples[row]).with(head as u64);
            for (position, line) in values.chunks_mut(length).enumerate() {
                fill(line, key.with(position as u64), dropped as u16, scale);
            }
        });
        mask
    }
}

fn fill(line: &mut [f32], key: Key, dropped: u16, scale: f32) {
    let mut rng = key.rng();
    for four in line.chunks_mut(4) {
        let word = rng.next_u64();
        for (lane, value) in four.iter_mut().enumerate() {
            *value = if (word >> (16 * lane)) as u16 >= dropped { scale } else { 0.0 };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draws(samples: &[u64]) -> Draws<'_> {
        Draws { hidden: 0.1, attention: 0.1, key: Key::new(5), samples }
    }

    fn values(mask: &Tensor) -> Vec<f32> {
        torch::floats(mask).to_vec()
    }

    #[test]
    fn a_tenth_is_dropped_and_the_mean_kept() {
        let mask = values(&draws(&[0, 1, 2, 3]).mask(&[4, 4, 64, 64], 0.1, 1));
        let count = mask.len() as f64;
        let dropped = mask.iter().filter(|value| **value == 0.0).count() as f64 / count;
        assert!((dropped - 0.1).abs() < 4.0 * (0.09 / count).sqrt(), "{dropped}");
        let mean = mask.iter().map(|value| f64::from(*value)).sum::<f64>() / count;
        assert!((mean - 1.0).abs() < 0.006, "{mean}");
    }

    #[test]
    fn neighbours_are_independent() {
        let mask = values(&draws(&[0, 1, 2, 3]).mask(&[4, 4, 64, 64], 0.1, 1));
        for distance in [1, 4, 64, 64 * 64, 4 * 64 * 64] {
            let pairs = mask.iter().zip(&mask[distance..]);
            let both = pairs.clone().filter(|(a, b)| **a == 0.0 && **b == 0.0).count() as f64;
            let count = (mask.len() - distance) as f64;
            assert!((both / count - 0.01).abs() < 5.0 * (0.01 * 0.99 / count).sqrt(), "{distance}: {}", both / count);
        }
    }

    #[test]
    fn a_samples_draws_do_not_depend_on_its_row_nor_on_padding() {
        let wide = values(&draws(&[7, 8]).mask(&[2, 3, 10, 10], 0.1, 4));
        let narrow = values(&draws(&[8]).mask(&[1, 3, 6, 6], 0.1, 4));
        for head in 0..3 {
            for position in 0..6 {
                let (a, b) = (((3 + head) * 10 + position) * 10, (head * 6 + position) * 6);
                assert_eq!(wide[a..a + 6], narrow[b..b + 6]);
            }
        }
        assert_ne!(values(&draws(&[7]).mask(&[1, 8, 64], 0.1, 4)), values(&draws(&[7]).mask(&[1, 8, 64], 0.1, 5)));
        assert_ne!(values(&draws(&[7]).mask(&[1, 8, 64], 0.1, 4)), values(&draws(&[8]).mask(&[1, 8, 64], 0.1, 4)));
    }
}
