//! Gradient noise scale, in samples. A batch size far above the noise scale needs hardly fewer updates than a batch
//! size equal to the noise scale.
//!
//! The estimate is the simple noise scale of McCandlish et al. 2018 (arXiv 1812.06162, appendix A.1). A global
//! batch of B samples is split at random into two halves of b samples each. The mean gradient of the batch is
//! g_B, and the mean gradient of a half is g_b.
//!
//! ```text
//! |G|^2 = (B * |g_B|^2 - b * |g_b|^2) / (B - b)
//! tr(S) = (|g_b|^2 - |g_B|^2) / (1/b - 1/B)
//! ```
//!
//! The value |G|^2 is an unbiased estimate of the squared norm of the true gradient. The value tr(S) is an unbiased
//! estimate of the trace of the per-sample covariance. Both estimates are noisy, so each is averaged over many
//! steps. The noise scale is the average of tr(S) divided by the average of |G|^2. Micro-batches cannot serve as
//! halves, because samples are sorted by length.

use lambert_control::GradientNoise;

/// Estimates |G|^2 and tr(S) from one step. `whole` is the norm of the mean gradient over all `samples`. `parts` are
/// the norms of the contributions of the two halves to that mean, so each is divided by `samples` and not by the size
/// of the half. Returns `None` if a norm is not finite or a half is empty.
pub fn estimate(samples: u64, whole: f64, parts: [f64; 2]) -> Option<GradientNoise> {
    let all = samples as f64;
    let sizes = [samples / 2, samples - samples / 2].map(|size| size as f64);
    let square = |(part, size): (f64, f64)| (part * all / size).powi(2);
    let half = parts.into_iter().zip(sizes).map(square).sum::<f64>() / 2.0;
    let inverse = sizes.iter().map(|size| 1.0 / size).sum::<f64>() / 2.0;
    let variance = (half - whole.powi(2)) / (inverse - 1.0 / all);
    let gradient = whole.powi(2) - variance / all;
    (variance.is_finite() && gradient.is_finite()).then_some(GradientNoise { gradient, variance })
}

#[cfg(test)]
mod tests {
    use lambert_dataset::random::Key;

    use super::*;
    use crate::data::halves::halves;

    #[test]
    fn estimates_converge_to_the_true_moments() {
        const WIDTH: usize = 4;
        let (mean, deviation) = ([0.3, -0.1, 0.0, 0.2], 1.5);
        let mut rng = Key::new(7).rng();
        // Uniform noise with standard deviation `deviation`.
        let mut noise = || (rng.unit_f64() - 0.5) * 12.0_f64.sqrt() * deviation;
        for samples in [2_u64, 7, 64] {
            let rounds = 200_000 / samples;
            let (mut gradient, mut variance) = (0.0, 0.0);
            for round in 0..rounds {
                let drawn: Vec<[f64; WIDTH]> = (0..samples).map(|_| mean.map(|mean| mean + noise())).collect();
                let norm = |of: &[usize]| {
                    let sum = |axis: usize| of.iter().map(|sample| drawn[*sample][axis]).sum::<f64>() / samples as f64;
                    (0..WIDTH).map(|axis| sum(axis).powi(2)).sum::<f64>().sqrt()
                };
                let parts = halves(samples as usize, Key::new(round)).map(|half| norm(&half));
                let all: Vec<usize> = (0..samples as usize).collect();
                let estimate = estimate(samples, norm(&all), parts).unwrap();
                gradient += estimate.gradient / rounds as f64;
                variance += estimate.variance / rounds as f64;
            }
            let expected = (mean.iter().map(|mean| mean * mean).sum::<f64>(), WIDTH as f64 * deviation * deviation);
            assert!((gradient / expected.0 - 1.0).abs() < 0.25, "{samples}: |G|^2 {gradient} for {}", expected.0);
            assert!((variance / expected.1 - 1.0).abs() < 0.05, "{samples}: tr(S) {variance} for {}", expected.1);
        }
    }

    #[test]
    fn one_sample_or_a_nonfinite_norm_gives_no_estimate() {
        assert_eq!(estimate(1, 1.0, [0.0, 1.0]), None);
        assert_eq!(estimate(4, f64::NAN, [1.0, 1.0]), None);
        assert_eq!(estimate(4, 1.0, [f64::INFINITY, 1.0]), None);
    }
}
