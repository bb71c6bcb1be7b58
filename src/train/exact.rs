//! A sum of gradients that has the same bits in whatever order its terms come, and so in every world.
//!
//! Each f32 is taken apart into two f64: a multiple of 2^-32 and a multiple of 2^-80. Sums of either are exact as long as they
//! need no more than 53 bits, and exact sums have no order. (What a term has below 2^-80 is dropped; one of 2^16 and above, and what
//! is no number, makes the sum no number.) The sum of both halves is rounded to f32 once.

use lambert_collective::Group;

use crate::error::Error;

/// A sum with one of these has 52 bits behind the first, the last of which is 2^-32, or 2^-80: adding and subtracting it rounds to
/// multiples of that, ties to even, in two instructions of any processor.
const ROUNDS: [f64; 2] = [1.5 * (1_u64 << 20) as f64, 1.5 / (1_u64 << 28) as f64];
/// From here on sums of some hundred terms would need more bits.
const TOO_LARGE: f32 = 65536.0;
/// Numbers that are summed over the ranks at a time.
const CHUNK: usize = 1 << 17;

/// The sum so far.
pub struct ExactSum {
    /// The upper and the lower half of each element.
    halves: [Vec<f64>; 2],
}

impl ExactSum {
    /// Zeros.
    pub fn new(elements: usize) -> Self {
        Self { halves: [(); 2].map(|()| vec![0.0; elements]) }
    }

    /// Adds a term.
    pub fn add(&mut self, values: &[f32]) {
        let [high, low] = &mut self.halves;
        assert_eq!(values.len(), high.len(), "a term of another length");
        for ((high, low), value) in high.iter_mut().zip(low).zip(values) {
            let [upper, lower] = taken_apart(*value);
            *high += upper;
            *low += lower;
        }
    }

    /// Adds up the sums of all ranks, which call it together.
    ///
    /// # Errors
    /// What the group says.
    pub fn over_ranks(&mut self, group: &mut dyn Group) -> Result<(), Error> {
        if group.world_size() > 1 {
            let mut chunks = self.halves.iter_mut().flat_map(|half| half.chunks_mut(CHUNK));
            chunks.try_for_each(|chunk| group.all_reduce_sum_f64(chunk))?;
        }
        Ok(())
    }

    /// The sum.
    pub fn read(&self, into: &mut [f32]) {
        let [high, low] = &self.halves;
        for ((into, high), low) in into.iter_mut().zip(high).zip(low) {
            *into = (high + low) as f32;
        }
    }
}

fn taken_apart(value: f32) -> [f64; 2] {
    // Without a branch, so that several go at a time.
    let value = if value.abs() < TOO_LARGE { f64::from(value) } else { f64::NAN };
    let rounded = |value: f64, rounds: f64| (value + rounds) - rounds;
    let upper = rounded(value, ROUNDS[0]);
    [upper, rounded(value - upper, ROUNDS[1])]
}

#[cfg(test)]
mod tests {
    use lambert_collective::local;
    use lambert_dataset::random::Key;

    use super::*;

    /// Gradients of all sizes.
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
    fn the_order_changes_no_bit_and_the_sum_is_right() {
        let terms = terms(300, 1000);
        let forward = sum(terms.iter(), 1000);
        assert_eq!(forward, sum(terms.iter().rev(), 1000));
        let plain = |i: usize| terms.iter().map(|term| f64::from(term[i])).sum::<f64>() as f32;
        assert!((0..1000).all(|i| (forward[i] - plain(i)).abs() <= 1e-6 * plain(i).abs()), "f64 knows better");
        // Plain f32 does depend on the order.
        let plain = |terms: &mut dyn Iterator<Item = &Vec<f32>>| terms.fold(0.0_f32, |sum, term| sum + term[7]);
        assert_ne!(plain(&mut terms.iter()), plain(&mut terms.iter().rev()));
    }

    #[test]
    fn halves_are_rounded_to_even() {
        let mut rng = Key::new(5).rng();
        let sizes = (0..100_000).map(|_| ((rng.unit_f64() - 0.5) * 2_f64.powf(100.0 * rng.unit_f64() - 83.0)) as f32);
        let ties = (1..2000).map(|odd| (2 * odd + 1) as f32 * 2_f32.powi(-33));
        for value in sizes.chain(ties).chain([0.0, -65535.996, 65535.996]) {
            let rounded = |value: f64, unit: f64| (value / unit).round_ties_even() * unit;
            let upper = rounded(value.into(), 2_f64.powi(-32));
            let lower = rounded(f64::from(value) - upper, 2_f64.powi(-80));
            assert_eq!(taken_apart(value), [upper, lower], "{value:e}");
        }
    }

    #[test]
    fn what_cannot_be_summed_exactly_is_no_number() {
        let of = |values: &[f32]| sum(values.iter().map(|value| vec![*value]).collect::<Vec<_>>().iter(), 1)[0];
        assert_eq!(of(&[1.0, 2.0_f32.powi(-30), -1.0]), 2.0_f32.powi(-30));
        assert_eq!(of(&[65535.0, 2.0_f32.powi(-70), -65535.0]), 2.0_f32.powi(-70));
        assert_eq!(of(&[0.5, 1e-30]), 0.5);
        for fault in [65536.0, -1e30, f32::INFINITY, f32::NAN] {
            assert!(of(&[0.5, fault]).is_nan(), "{fault}");
        }
    }

    #[test]
    fn ranks_have_the_sum_of_all_terms_however_they_are_dealt() {
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
                    sum.over_ranks(&mut *ends.group).unwrap();
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
