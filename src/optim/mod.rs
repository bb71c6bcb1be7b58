//! The rules of an update: what LAMB and AdamW need for each parameter. The loops over elements are the device's
//! ([`crate::kernels`]). Nothing here knows ranks or files.

#[cfg(test)]
mod definitions;

use std::collections::BTreeMap;

use lambert_config::run::{Optimizer as Settings, OptimizerKind};
use tch::{Kind, Tensor};

use crate::kernels::{Rule, Update};
use crate::state::{Spec, TrainState};

/// An update that was enqueued.
pub struct Updated {
    /// The norm of all gradients, f64 \[\].
    pub norm: Tensor,
    /// Of LAMB: each parameter's learning rate times its trust ratio, f32 \[parameters that are not frozen\].
    rates: Option<Tensor>,
    rules: Vec<Rule>,
}

impl Updated {
    /// LAMB's trust ratio of each tensor that has one, by name, of an update whose norm is finite.
    pub fn trust_ratios(&self, state: &TrainState) -> BTreeMap<String, f64> {
        let Some(rates) = &self.rates else { return BTreeMap::new() };
        let rates = state.kernels().fetch(&rates.to_kind(Kind::Double));
        let live = state.parameters.specs().iter().filter(|spec| !spec.frozen);
        let trusted = live.zip(&self.rules).zip(rates).filter(|((_, rule), _)| rule.trusted);
        let ratio =
            |((spec, rule), rate): ((&Spec, &Rule), f64)| (spec.name.clone(), rate / f64::from(rule.learning_rate));
        trusted.map(ratio).filter(|(_, ratio)| ratio.is_finite()).collect()
    }
}

/// Enqueues one update with the gradients of `state`, which are scratch afterwards. Where the norm of the gradients is not
/// finite it changes nothing. Frozen parameters are left out.
///
/// The counts of updates stay: [`TrainState::count_update`] follows when the step is known to be sound.
pub fn update(state: &mut TrainState, settings: &Settings, learning_rate: f64) -> Updated {
    let norm = state.gradient_norm();
    let live = state.parameters.specs().iter().filter(|spec| !spec.frozen);
    let rule =
        |spec: &Spec| (spec.range(), rule(settings, spec.role.decays(), state.updates_of(spec) + 1, learning_rate));
    let parameters: Vec<_> = live.map(rule).collect();
    let rules = parameters.iter().map(|(_, rule)| *rule).collect();
    let update = Update {
        kind: settings.kind,
        clip_norm: settings.clip_norm,
        trust_ratio: settings.trust_ratio,
        norm: &norm,
        parameters,
    };
    let kernels = state.parameters.kernels().clone();
    let rates = kernels.update(&mut state.buffers(), &update);
    Updated { norm, rates, rules }
}

/// The rule of a parameter whose moments have seen `updates` updates, the coming one counted. `decays` is whether it has
/// weight decay.
pub fn rule(settings: &Settings, decays: bool, updates: u64, learning_rate: f64) -> Rule {
    let correction = |beta: f64| {
        if settings.corrects_bias() { (1.0 / (1.0 - beta.powf(updates as f64))) as f32 } else { 1.0 }
    };
    Rule {
        beta1: settings.beta1 as f32,
        share1: (1.0 - settings.beta1) as f32,
        beta2: settings.beta2 as f32,
        share2: (1.0 - settings.beta2) as f32,
        eps: settings.eps as f32,
        correction1: correction(settings.beta1),
        correction2: correction(settings.beta2),
        learning_rate: learning_rate as f32,
        weight_decay: if decays { settings.weight_decay as f32 } else { 0.0 },
        trusted: settings.kind == OptimizerKind::Lamb && (decays || settings.trust_undecayed),
    }
}
