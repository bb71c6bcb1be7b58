//! Order-independent gradient summation: the result has the same bits for every world size.
//!
//! Each f32 is split into two f64: a multiple of 2^-32 and a multiple of 2^-80. A sum of these multiples is exact while
//! it fits in 53 bits, and an exact sum does not depend on the order of its terms. Bits below 2^-80 are dropped. NaN or
//! |x| >= 2^16 yields NaN. At the end, the sums of the two halves are added, and the result is rounded to f32.

use lambert_collective::Group;

use crate::error::Error;

/// Constants that round an f64 to a multiple of 2^-32 (the first) or 2^-80 (the second), ties to even.
/// Adding and then subtracting a constant does the rounding, because the lowest mantissa bit of the
/// intermediate sum is worth 2^-32 or 2^-80.
const ROUNDING_SHIFTS: [f64; 2] = [1.5 * (1_u64 << 20) as f64, 1.5 / (1_u64 << 28) as f64];
/// Limit on |x|. A sum of 32 terms below the limit always fits in 53 bits.
const TOO_LARGE: f32 = 65536.0;
/// Number of elements per all-reduce.
const CHUNK: usize = 1 << 17;

/// Accumulator of an exact sum.
pub struct ExactSum {
    /// Sums of the upper halves and sums of the lower halves, one f64 per element.
    halves: [Vec<f64>; 2],
}

impl ExactSum {
    /// Creates a sum of zeros.
    pub fn new(elements: usize) -> Self {
        Self { halves: [(); 2].map(|()| vec![0.0; elements]) }
    }

    /// Adds a term.
    pub fn add(&mut self, values: &[f32]) {
        let [high, low] = &mut self.halves;
        assert_eq!(values.len(), high.len(), "a term of another length");
        for ((high, low), value) in high.iter_mut().zip(low).zip(values) {
            let [upper, lower] = split(*value);
            *high += upper;
            *low += lower;
        }
    }

    /// Sums over all ranks. Collective: every rank must call it.
    ///
    /// # Errors
    /// The all-reduce fails.
    pub fn all_reduce(&mut self, group: &mut dyn Group) -> Result<(), Error> {
        if group.world_size() > 1 {
            let mut chunks = self.halves.iter_mut().flat_map(|half| half.chunks_mut(CHUNK));
            chunks.try_for_each(|chunk| group.all_reduce_sum_f64(chunk))?;
        }
        Ok(())
    }

    /// Rounds the sum to f32 and writes it to `into`.
    pub fn read(&self, into: &mut [f32]) {
        let [high, low] = &self.halves;
        for ((into, high), low) in into.iter_mut().zip(high).zip(low) {
            *into = (high + low) as f32;
        }
    }
}

fn split(value: f32) -> [f64; 2] {
    // The compiler generates a select instruction for this line instead of a branch, so the loop can be vectorized.
    let value = if value.abs() < TOO_LARGE { f64::from(value) } else { f64::NAN };
    let rounded = |value: f64, shift: f64| (value + shift) - shift;
    let upper = rounded(value, ROUNDING_SHIFTS[0]);
    [upper, rounded(value - upper, ROUNDING_SHIFTS[1])]
}

#[cfg(test)]
mod tests {
    use lambert_collective::local;
    use lambert_dataset::random::Key;

    use super::*;

    /// Gradients of very different magnitudes.
    fn terms(count: usize, elements: usize) -> Vec<Vec<f32>> {
        let mut rng = Key::new(3).rng();
        let mut value = || ((rng.unit_f64() - 0.5) * 10_f64.powf(8.0 * rng.unit_f64() - 7.0)) as f32;
        (0..count).map(|_| (0..elements).map(|_| value()).collect()).collect()
    }

    fn sum<'a>(terms: impl Iterator<Item = &'a Vec<f32>>, elements: usize) -> Vec<f32> {
        let mut sum = ExactSum::new(elements);
        terms.for_each(|term| sum.add(term));
        let mut out = vec![0.0; elements];
        sum.read(&mut out);
        out
    }

    #[test]
    fn sum_is_accurate_and_independent_of_the_order() {
        let terms = terms(300, 1000);
        let forward = sum(terms.iter(), 1000);
        assert_eq!(forward, sum(terms.iter().rev(), 1000));
        let plain = |i: usize| terms.iter().map(|term| f64::from(term[i])).sum::<f64>() as f32;
        assert!((0..1000).all(|i| (forward[i] - plain(i)).abs() <= 1e-6 * plain(i).abs()), "f64 knows better");
        // Plain f32 summation depends on the order.
        let plain = |terms: &mut dyn Iterator<Item = &Vec<f32>>| terms.fold(0.0_f32, |sum, term| sum + term[7]);
        assert_ne!(plain(&mut terms.iter()), plain(&mut terms.iter().rev()));
    }

    #[test]
    fn halves_round_ties_to_even() {
        let mut rng = Key::new(5).rng();
        let sizes = (0..100_000).map(|_| ((rng.unit_f64() - 0.5) * 2_f64.powf(100.0 * rng.unit_f64() - 83.0)) as f32);
        let ties = (1..2000).map(|odd| (2 * odd + 1) as f32 * 2_f32.powi(-33));
        for value in sizes.chain(ties).chain([0.0, -65535.996, 65535.996]) {
            let rounded = |value: f64, unit: f64| (value / unit).round_ties_even() * unit;
            let upper = rounded(value.into(), 2_f64.powi(-32));
            let lower = rounded(f64::from(value) - upper, 2_f64.powi(-80));
            assert_eq!(split(value), [upper, lower], "{value:e}");
        }
    }

    #[test]
    fn terms_out_of_range_yield_nan() {
        let of = |values: &[f32]| sum(values.iter().map(|value| vec![*value]).collect::<Vec<_>>().iter(), 1)[0];
        assert_eq!(of(&[1.0, 2.0_f32.powi(-30), -1.0]), 2.0_f32.powi(-30));
        assert_eq!(of(&[65535.0, 2.0_f32.powi(-70), -65535.0]), 2.0_f32.powi(-70));
        assert_eq!(of(&[0.5, 1e-30]), 0.5);
        for fault in [65536.0, -1e30, f32::INFINITY, f32::NAN] {
            assert!(of(&[0.5, fault]).is_nan(), "{fault}");
        }
    }

    #[test]
    fn all_reduced_sum_is_independent_of_the_partition() {
        let elements = CHUNK + 5;
        let whole = sum(terms(6, elements).iter(), elements);
        for shares in [vec![6], vec![3, 3], vec![1, 0, 5]] {
            let mut first = 0;
            let ranks = local::group(shares.len()).into_iter().zip(shares.clone()).map(|(mut ends, share)| {
                let range = first..first + share;
                first += share;
                std::thread::spawn(move || {
                    let mut sum = ExactSum::new(elements);
                    terms(6, elements)[range].iter().for_each(|term| sum.add(term));
                    sum.all_reduce(&mut *ends.group).unwrap();
                    let mut out = vec![0.0; elements];
                    sum.read(&mut out);
                    out
                })
            });
            let ranks: Vec<_> = ranks.collect();
            ranks.into_iter().for_each(|rank| assert!(rank.join().unwrap() == whole, "{shares:?}"));
        }
    }
}
