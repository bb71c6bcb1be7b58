//! Weight updates over the flat buffers: clipping, then LAMB or AdamW, on several threads. Nothing here knows ranks or
//! files.

mod adamw;
mod chunks;
mod lamb;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use lambert_config::run::{Optimizer as Settings, OptimizerKind};

use crate::model::parameters::Spec;
use chunks::Buffers;

/// Moments and counter of an optimizer; with the weights, all of a run that an update changes.
#[derive(Debug, Clone, PartialEq)]
pub struct Optimizer {
    /// Mean of the gradients, one an element of the flat weights.
    pub first_moment: Vec<f32>,
    /// Mean of the squared gradients.
    pub second_moment: Vec<f32>,
    /// Updates made; the bias correction counts these.
    pub updates: u64,
    /// Of the encoder layers whose moments were zero after so many updates: the bias correction of theirs counts from there.
    pub born: BTreeMap<usize, u64>,
    settings: Settings,
}

/// What one update of one element needs, the same for all of a parameter.
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

impl Optimizer {
    /// Zero moments for `elements` weights.
    pub fn new(settings: Settings, elements: usize) -> Self {
        Self {
            first_moment: vec![0.0; elements],
            second_moment: vec![0.0; elements],
            updates: 0,
            born: BTreeMap::new(),
            settings,
        }
    }

    /// Forgets the moments and the count of updates.
    pub fn restart(&mut self) {
        self.first_moment.fill(0.0);
        self.second_moment.fill(0.0);
        self.updates = 0;
        self.born.clear();
    }

    /// One update of `weights` with `gradients` (which are scratch afterwards), on as many threads as libtorch has been
    /// given. `gradient_norm` is the L2 norm of all gradients: they are scaled down to the clipping norm when above it.
    /// Frozen parameters are passed over.
    pub fn step(
        &mut self,
        specs: &[Spec],
        weights: &mut [f32],
        gradients: &mut [f32],
        gradient_norm: f64,
        learning_rate: f64,
    ) {
        self.updates += 1;
        let age = |spec: &Spec| {
            let born = spec.layer().and_then(|(layer, _)| self.born.get(&layer));
            self.updates - born.copied().unwrap_or(0)
        };
        let rule = |spec: &Spec| (!spec.frozen).then(|| self.rule(gradient_norm, learning_rate, age(spec)));
        let rules: Vec<Option<Rule>> = specs.iter().map(rule).collect();
        let (first, second) = (&mut *self.first_moment, &mut *self.second_moment);
        update(&self.settings, &rules, specs, Buffers { weights, gradients, first, second }, threads());
    }

    /// The rule for parameters whose moments have seen `updates` updates, this one counted.
    fn rule(&self, gradient_norm: f64, learning_rate: f64, updates: u64) -> Rule {
        let settings = &self.settings;
        let correction = |beta: f64| {
            if settings.corrects_bias() { (1.0 / (1.0 - beta.powf(updates as f64))) as f32 } else { 1.0 }
        };
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

/// The update itself; the number of threads changes no bit of it.
fn update(settings: &Settings, rules: &[Option<Rule>], specs: &[Spec], buffers: Buffers<'_>, threads: usize) {
    let mut chunks = chunks::cut(specs, rules, buffers);
    match settings.kind {
        OptimizerKind::Lamb => lamb::update(settings, &mut chunks, threads),
        OptimizerKind::Adamw | OptimizerKind::AdamBert => adamw::update(&mut chunks, threads),
    }
}

fn threads() -> usize {
    tch::get_num_threads().max(1) as usize
}

/// The L2 norm of all gradients, in f64; the same for any number of threads.
pub fn norm(gradients: &[f32]) -> f64 {
    chunks::sum_of_squares_of(gradients, threads()).sqrt()
}
