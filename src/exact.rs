//! A sum of gradients that has the same bits in whatever order its terms come, and so in every world.
//!
//! Each f32 is taken apart into two f64: a multiple of 2^-32 and a multiple of 2^-80. Sums of either are exact as long as they
//! need no more than 53 bits, and exact sums have no order. (What a term has below 2^-80 is dropped; one of 2^16 and above, and what
//! is no number, makes the sum no number.) The sum of both halves is rounded to f32 once.

use lambert_collective::Group;

use crate::error::Error;

/// One over the unit of the upper half, and of the lower.
const UNITS: [f64; 2] = [(1_u64 << 32) as f64, (1_u128 << 80) as f64];
/// From here on sums of some hundred terms would need more bits.
const TOO_LARGE: f64 = 65536.0;
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
        if group.world() > 1 {
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
    let value = f64::from(value);
    if value.is_nan() || value.abs() >= TOO_LARGE {
        return [f64::NAN; 2];
    }
    let rounded = |value: f64, unit: f64| (value * unit).round_ties_even() / unit;
    let upper = rounded(value, UNITS[0]);
    [upper, rounded(value - upper, UNITS[1])]
}

#[cfg(test)]
mod tests {
    use lambert_collective::local;
    use lambert_data_prep::random::Key;

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
