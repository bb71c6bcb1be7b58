//! Optimizer updates. The module computes the constants of the update of each parameter. The loops over
//! elements are device kernels ([`crate::kernels`]). The code uses no ranks and no files.

#[cfg(test)]
mod lamb_variants;

use std::collections::BTreeMap;

use lambert_config::run::{Optimizer as Settings, OptimizerKind};
use tch::{Kind, Tensor};

use crate::kernels::{OptimizerUpdate, ParamUpdate, StepScale};
use crate::state::{ParamSpec, TrainState};

/// An enqueued update.
pub struct EnqueuedUpdate {
    /// L2 norm of all gradients, f64 \[\].
    pub norm: Tensor,
    /// Step sizes of LAMB and StableAdamW: learning rate times step scale, f32 \[parameters that are not frozen\].
    step_sizes: Option<Tensor>,
    constants: Vec<ParamUpdate>,
}

impl EnqueuedUpdate {
    /// Step scale of each tensor that has one, by tensor name: LAMB's trust ratio, or the reduction by StableAdamW. The gradient norm of the update must be finite.
    pub fn trust_ratios(&self, state: &TrainState) -> BTreeMap<String, f64> {
        let Some(step_sizes) = &self.step_sizes else { return BTreeMap::new() };
        let step_sizes = state.kernels().fetch(&step_sizes.to_kind(Kind::Double));
        let trainable = state.parameters.specs().iter().filter(|spec| !spec.is_frozen);
        let scaled = trainable.zip(&self.constants).zip(step_sizes);
        let scaled = scaled.filter(|((_, constants), _)| constants.step_scale != StepScale::Fixed);
        let ratio = |((spec, constants), step_size): ((&ParamSpec, &ParamUpdate), f64)| {
            (spec.name.clone(), step_size / f64::from(constants.learning_rate))
        };
        scaled.map(ratio).filter(|(_, ratio)| ratio.is_finite()).collect()
    }
}

/// Enqueues an update with the gradients of `state`. The update overwrites the gradients and skips frozen parameters.
/// If the gradient norm is not finite, weights and moments stay unchanged.
///
/// The update is not counted. Call [`TrainState::count_update`] when the step is known to be valid.
pub fn update(state: &mut TrainState, settings: &Settings, learning_rate: f64) -> EnqueuedUpdate {
    let norm = state.gradient_norm();
    let trainable = state.parameters.specs().iter().filter(|spec| !spec.is_frozen);
    let parameter = |spec: &ParamSpec| {
        (spec.range(), param_update(settings, spec.role.decays(), state.updates_of(spec) + 1, learning_rate))
    };
    let parameters: Vec<_> = trainable.map(parameter).collect();
    let constants = parameters.iter().map(|(_, constants)| *constants).collect();
    let update = OptimizerUpdate {
        kind: settings.kind,
        clip_norm: settings.clip_norm,
        trust_ratio: settings.trust_ratio,
        norm: &norm,
        parameters,
    };
    let kernels = state.parameters.kernels().clone();
    let step_sizes = kernels.update(&mut state.buffers(), &update);
    EnqueuedUpdate { norm, step_sizes, constants }
}

/// Constants of update number `updates` of a parameter, counted from 1. `decays` is true if weight decay applies.
pub fn param_update(settings: &Settings, decays: bool, updates: u64, learning_rate: f64) -> ParamUpdate {
    let correction = |beta: f64| {
        if settings.corrects_bias() { (1.0 / (1.0 - beta.powf(updates as f64))) as f32 } else { 1.0 }
    };
    let step_scale = match settings.kind {
        OptimizerKind::Lamb if decays || settings.trust_undecayed => StepScale::TrustRatio,
        OptimizerKind::StableAdamw => StepScale::Stable,
        OptimizerKind::Lamb | OptimizerKind::Adamw | OptimizerKind::AdamBert => StepScale::Fixed,
    };
    ParamUpdate {
        beta1: settings.beta1 as f32,
        one_minus_beta1: (1.0 - settings.beta1) as f32,
        beta2: settings.beta2 as f32,
        one_minus_beta2: (1.0 - settings.beta2) as f32,
        eps: settings.eps as f32,
        inv_bias_correction1: correction(settings.beta1),
        inv_bias_correction2: correction(settings.beta2),
        learning_rate: learning_rate as f32,
        weight_decay: if decays { settings.weight_decay as f32 } else { 0.0 },
        step_scale,
    }
}
