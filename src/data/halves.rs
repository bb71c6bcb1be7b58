//! Random split of a global batch into two halves, for the gradient noise scale.

use lambert_dataset::random::Key;

/// Splits sample indices 0 to `samples` - 1 into halves, each sorted. If `samples` is
/// odd, the second half has one sample more.
pub fn halves(samples: usize, key: Key) -> [Vec<usize>; 2] {
    let mut order: Vec<usize> = (0..samples).collect();
    order.sort_by_key(|sample| (key.with(*sample as u64).value(), *sample));
    let mut second = order.split_off(samples / 2);
    order.sort_unstable();
    second.sort_unstable();
    [order, second]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_sample_is_in_exactly_one_half_chosen_by_key() {
        let [first, second] = halves(101, Key::new(1));
        assert_eq!((first.len(), second.len()), (50, 51));
        let mut all = [first.clone(), second].concat();
        all.sort_unstable();
        assert_eq!(all, (0..101).collect::<Vec<_>>());
        assert_eq!(halves(101, Key::new(1))[0], first);
        let shared = halves(101, Key::new(2))[0].iter().filter(|sample| first.contains(sample)).count();
        assert!((15..36).contains(&shared), "{shared} of 50 are in the first half under another key, too");
    }
}
