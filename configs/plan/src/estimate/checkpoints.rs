//! Size and best interval of checkpoints.

/// Bytes of a checkpoint per parameter: weights and two moments in f32.
const BYTES: u64 = 12;

/// Returns the size of a checkpoint, bytes.
pub fn bytes(parameters: u64) -> u64 {
    BYTES.saturating_mul(parameters)
}

/// Returns the checkpoint interval that minimizes the lost time, seconds. The interval is `sqrt(2 * C * M)` for saves
/// of C seconds and a mean time between failures of M seconds (Young 1974; the first-order term of Daly 2006).
pub fn best_interval_seconds(save_seconds: f64, mean_seconds_between_failures: f64) -> f64 {
    (2.0 * save_seconds * mean_seconds_between_failures).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interval_follows_young() {
        // sqrt(2 x 2 s x 86,400 s) = 587.9 s.
        assert!((best_interval_seconds(2.0, 86_400.0) - 587.88).abs() < 0.01);
        assert_eq!(bytes(110_106_428), 1_321_277_136);
    }
}
