//! Weight updates over the flat buffers: clipping, then LAMB or AdamW. Nothing here knows ranks or files.

mod adamw;
mod lamb;

use lambert_config::run::{Optimizer as Settings, OptimizerKind};

use crate::model::parameters::Spec;

/// Moments and counter of an optimizer; with the weights, all of a run that an update changes.
#[derive(Debug, Clone, PartialEq)]
pub struct Optimizer {
    /// Mean of the gradients, one an element of the flat weights.
    pub first_moment: Vec<f32>,
    /// Mean of the squared gradients.
    pub second_moment: Vec<f32>,
    /// Updates made; the bias correction counts these.
    pub updates: u64,
    settings: Settings,
}

/// What one update of one element needs, the same for all.
#[derive(Debug, Clone, Copy)]
struct Rule {
    beta1: f32,
    /// 1 - beta1, and 1 - beta2 below: subtracted in f64, because f32 would lose the fifth digit.
    share1: f32,
    beta2: f32,
    share2: f32,
    eps: f32,
    /// 1 / (1 - beta1^t).
    correction1: f32,
    /// 1 / (1 - beta2^t).
    correction2: f32,
    /// What the gradient is multiplied with: the clipping.
    scale: f32,
    learning_rate: f32,
    weight_decay: f32,
}

impl Rule {
    /// Moves the moments of one element and returns `m_hat / (sqrt(v_hat) + eps)`.
    #[inline]
    fn direction(&self, gradient: f32, first: &mut f32, second: &mut f32) -> f32 {
        let gradient = gradient * self.scale;
        *first = self.beta1 * *first + self.share1 * gradient;
        *second = self.beta2 * *second + self.share2 * gradient * gradient;
        *first * self.correction1 / ((*second * self.correction2).sqrt() + self.eps)
    }
}

/// One parameter's part of the flat buffers.
struct Part<'a> {
    weights: &'a mut [f32],
    /// Gradients; scratch afterwards.
    gradients: &'a mut [f32],
    first: &'a mut [f32],
    second: &'a mut [f32],
    decays: bool,
}

impl Optimizer {
    /// Zero moments for `elements` weights.
    pub fn new(settings: Settings, elements: usize) -> Self {
        Self { first_moment: vec![0.0; elements], second_moment: vec![0.0; elements], updates: 0, settings }
    }

    /// One update of `weights` with `gradients` (which are scratch afterwards). `gradient_norm` is the L2 norm of all
    /// gradients: they are scaled down to the clipping norm when above it.
    pub fn step(
        &mut self,
        specs: &[Spec],
        weights: &mut [f32],
        gradients: &mut [f32],
        gradient_norm: f64,
        learning_rate: f64,
    ) {
        self.updates += 1;
        let rule = self.rule(gradient_norm, learning_rate);
        let update = match self.settings.kind {
            OptimizerKind::Lamb => lamb::update,
            OptimizerKind::Adamw => adamw::update,
        };
        for spec in specs {
            let range = spec.range();
            let part = Part {
                weights: &mut weights[range.clone()],
                gradients: &mut gradients[range.clone()],
                first: &mut self.first_moment[range.clone()],
                second: &mut self.second_moment[range],
                decays: spec.decays(),
            };
            update(&rule, part);
        }
    }

    fn rule(&self, gradient_norm: f64, learning_rate: f64) -> Rule {
        let settings = &self.settings;
        let correction = |beta: f64| (1.0 / (1.0 - beta.powf(self.updates as f64))) as f32;
        let clip = settings.clip_norm > 0.0 && gradient_norm > settings.clip_norm;
        Rule {
            beta1: settings.beta1 as f32,
            share1: (1.0 - settings.beta1) as f32,
            beta2: settings.beta2 as f32,
            share2: (1.0 - settings.beta2) as f32,
            eps: settings.eps as f32,
            correction1: correction(settings.beta1),
            correction2: correction(settings.beta2),
            scale: if clip { (settings.clip_norm / gradient_norm) as f32 } else { 1.0 },
            learning_rate: learning_rate as f32,
            weight_decay: settings.weight_decay as f32,
        }
    }
}

/// Sum of the squares, in f64 over fixed lanes, so that it is exact enough for a norm and the same each time.
pub fn sum_of_squares(values: &[f32]) -> f64 {
    let mut lanes = [0.0_f64; 8];
    let chunks = values.chunks_exact(8);
    let rest: f64 = chunks.remainder().iter().map(|value| f64::from(*value).powi(2)).sum();
    for chunk in chunks {
        for (lane, value) in lanes.iter_mut().zip(chunk) {
            *lane += f64::from(*value) * f64::from(*value);
        }
    }
    lanes.iter().sum::<f64>() + rest
}

#[cfg(test)]
mod tests {
    use super::*;
    use lambert_data_prep::random::Key;

    const SHAPES: [(&str, usize, bool); 5] = [
        ("a.weight", 64 * 33, true),
        ("b.bias", 33, false),
        ("c.LayerNorm.weight", 7, false),
        ("d.weight", 1, true),
        ("e.weight", 50, true),
    ];

    /// The update rules once more, plainly and in f64. `e.weight` starts at zero norm.
    struct Reference {
        weights: Vec<f64>,
        first: Vec<f64>,
        second: Vec<f64>,
    }

    impl Reference {
        fn step(&mut self, kind: OptimizerKind, settings: &Settings, gradients: &[f64], t: i32, rate: f64) {
            let norm = gradients.iter().map(|g| g * g).sum::<f64>().sqrt();
            let divide = if norm > settings.clip_norm { norm / settings.clip_norm } else { 1.0 };
            let mut first = 0;
            for (_, count, decays) in SHAPES {
                let range = first..first + count;
                first += count;
                let decay = if decays { settings.weight_decay } else { 0.0 };
                let directions: Vec<f64> = range
                    .clone()
                    .map(|i| {
                        let g = gradients[i] / divide;
                        self.first[i] = settings.beta1 * self.first[i] + (1.0 - settings.beta1) * g;
                        self.second[i] = settings.beta2 * self.second[i] + (1.0 - settings.beta2) * g * g;
                        let m = self.first[i] / (1.0 - settings.beta1.powi(t));
                        let v = self.second[i] / (1.0 - settings.beta2.powi(t));
                        m / (v.sqrt() + settings.eps) + decay * self.weights[i]
                    })
                    .collect();
                let length = |values: &[f64]| values.iter().map(|value| value * value).sum::<f64>().sqrt();
                let (p, u) = (length(&self.weights[range.clone()]), length(&directions));
                let trusted = kind == OptimizerKind::Lamb && decays && p > 0.0 && u > 0.0;
                let ratio = if trusted { p / u } else { 1.0 };
                for (weight, direction) in self.weights[range].iter_mut().zip(directions) {
                    *weight -= rate * ratio * direction;
                }
            }
        }
    }

    fn against_reference(kind: OptimizerKind, steps: i32) -> f64 {
        let settings = Settings { kind, ..Settings::default() };
        let mut first = 0;
        let specs: Vec<Spec> = SHAPES
            .iter()
            .map(|(name, count, decays)| {
                let spec = Spec { name: (*name).to_owned(), shape: vec![*count as i64], first };
                assert_eq!(spec.decays(), *decays);
                first += count;
                spec
            })
            .collect();
        let mut rng = Key::new(5).rng();
        let mut draw = |scale: f64| (0..first).map(|_| ((rng.unit_f64() - 0.5) * scale) as f32).collect::<Vec<f32>>();
        let mut weights = draw(0.1);
        weights[first - 50..].fill(0.0);
        let wide = |values: &[f32]| values.iter().map(|value| f64::from(*value)).collect::<Vec<f64>>();
        let mut reference = Reference { weights: wide(&weights), first: vec![0.0; first], second: vec![0.0; first] };
        let mut optimizer = Optimizer::new(settings.clone(), first);
        for t in 1..=steps {
            // Every third gradient is small enough not to be clipped.
            let mut gradients = draw(if t % 3 == 0 { 1e-3 } else { 1.0 });
            let rate = 1e-2 / f64::from(t).sqrt();
            reference.step(kind, &settings, &wide(&gradients), t, rate);
            let norm = sum_of_squares(&gradients).sqrt();
            optimizer.step(&specs, &mut weights, &mut gradients, norm, rate);
        }
        let worst = |range: std::ops::Range<usize>| {
            let difference: f64 =
                range.clone().map(|i| (f64::from(weights[i]) - reference.weights[i]).powi(2)).sum::<f64>().sqrt();
            let size = range.map(|i| reference.weights[i].powi(2)).sum::<f64>().sqrt();
            difference / size
        };
        specs.iter().map(|spec| worst(spec.range())).fold(0.0, f64::max)
    }

    #[test]
    fn lamb_equals_its_formulas_in_f64() {
        let error = against_reference(OptimizerKind::Lamb, 100);
        println!("LAMB over 100 steps: relative error {error:.1e}");
        assert!(error < 1e-5, "{error:e}");
    }

    #[test]
    fn adamw_equals_its_formulas_in_f64() {
        let error = against_reference(OptimizerKind::Adamw, 100);
        println!("AdamW over 100 steps: relative error {error:.1e}");
        assert!(error < 1e-5, "{error:e}");
    }
}
