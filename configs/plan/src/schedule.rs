//! Learning rate schedule: linear warm-up, an optional constant part, then decay to the end of the stage.

use lambert_config::run::{Decay, Stage};

/// Returns the learning rate of the step after `done` completed steps of this stage. `done` is from 0 to `steps - 1`.
///
/// The warm-up is linear over `round(warmup x steps)` steps and ends at the peak learning rate. The decay starts at the
/// peak learning rate. It runs over the last `round(decay_fraction x steps)` steps of the stage, or over all steps after
/// the warm-up. Polynomial decay is `(1 - p)^power`, where p is the completed
/// fraction of the decay steps. In NVIDIA's recipe, p is the completed fraction of all steps, so that the learning rate
/// drops by a sixth at the end of the warm-up.
pub fn learning_rate(stage: &Stage, done: u64) -> f64 {
    let warmup = (stage.warmup * stage.steps as f64).round() as u64;
    if done < warmup {
        return stage.learning_rate * (done + 1) as f64 / warmup as f64;
    }
    let after_warmup = stage.steps.saturating_sub(warmup);
    let decay = stage.decay_fraction.map_or(after_warmup, |part| (part * stage.steps as f64).round() as u64);
    let decay = decay.min(after_warmup);
    let progress = done.saturating_sub(stage.steps - decay) as f64 / decay.max(1) as f64;
    let left = match stage.decay {
        Decay::Constant => 1.0,
        Decay::Linear => 1.0 - progress,
        Decay::Polynomial => (1.0 - progress).max(0.0).powf(stage.decay_power),
        Decay::OneMinusSqrt => 1.0 - progress.sqrt(),
        Decay::InverseSqrt => (warmup.max(1) as f64 / done.max(1) as f64).sqrt(),
        Decay::Cosine => 0.5 * (1.0 + (std::f64::consts::PI * progress).cos()),
    };
    stage.learning_rate_end + (stage.learning_rate - stage.learning_rate_end) * left
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stage(decay: Decay) -> Stage {
        Stage {
            steps: 100,
            warmup: 0.1,
            learning_rate: 2.0,
            learning_rate_end: 0.5,
            decay,
            decay_power: 2.0,
            ..Stage::default()
        }
    }

    #[test]
    fn warm_up_ends_at_the_full_rate() {
        for decay in
            [Decay::Linear, Decay::Polynomial, Decay::Cosine, Decay::OneMinusSqrt, Decay::InverseSqrt, Decay::Constant]
        {
            assert_eq!(learning_rate(&stage(decay), 0), 0.2);
            assert_eq!(learning_rate(&stage(decay), 9), 2.0);
            assert_eq!(learning_rate(&stage(decay), 10), 2.0);
        }
    }

    #[test]
    fn decay_follows_its_formula() {
        let half = |decay| learning_rate(&stage(decay), 55);
        assert!((half(Decay::Linear) - 1.25).abs() < 1e-12);
        assert!((half(Decay::Polynomial) - (0.5 + 1.5 * 0.25)).abs() < 1e-12);
        assert!((half(Decay::Cosine) - 1.25).abs() < 1e-12);
        assert_eq!(half(Decay::Constant), 2.0);
        assert!((half(Decay::OneMinusSqrt) - (0.5 + 1.5 * (1.0 - 0.5_f64.sqrt()))).abs() < 1e-12);
        // The warm-up has 10 steps, so step 40 has half the peak above `learning_rate_end`.
        assert!((learning_rate(&stage(Decay::InverseSqrt), 40) - 1.25).abs() < 1e-12);
        let last = learning_rate(&stage(Decay::Linear), 99);
        assert!(last > 0.5 && last < 0.52);
    }

    #[test]
    fn the_rate_is_constant_before_a_short_decay() {
        for decay in [Decay::Linear, Decay::Polynomial, Decay::Cosine, Decay::OneMinusSqrt] {
            let stage = Stage { decay_fraction: Some(0.2), ..stage(decay) };
            (10..=80).for_each(|done| assert_eq!(learning_rate(&stage, done), 2.0, "{decay:?}, step {done}"));
            let rates: Vec<f64> = (80..100).map(|done| learning_rate(&stage, done)).collect();
            assert!(rates.is_sorted_by(|a, b| a > b) && rates[19] < 0.6, "{decay:?}: {rates:?}");
        }
        let linear = Stage { decay_fraction: Some(0.2), ..stage(Decay::Linear) };
        assert!((learning_rate(&linear, 90) - 1.25).abs() < 1e-12);
        // Without a warm-up, the constant part starts at the first step.
        assert_eq!(learning_rate(&Stage { warmup: 0.0, ..linear }, 0), 2.0);
    }

    #[test]
    fn a_warm_up_of_all_steps_has_no_decay() {
        let stage = Stage { warmup: 1.0, ..stage(Decay::Linear) };
        assert_eq!(learning_rate(&stage, 99), 2.0);
    }
}
