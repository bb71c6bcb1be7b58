//! Optimizer updates. The module computes the constants of the update of each parameter. The loops over
//! elements are device kernels ([`crate::kernels`]). The code uses no files. Ranks take part through [`Ranks`].
//!
//! - `muon`: updates of matrices by orthogonalized momentum

#[cfg(test)]
mod lamb_variants;
mod muon;

use std::collections::BTreeMap;
use std::ops::Range;

use lambert_config::run::{Muon, Optimizer as Settings, OptimizerKind};
use tch::{Kind, Tensor};

use crate::error::Error;
use crate::kernels::{OptimizerUpdate, ParamUpdate, StepScale};
use crate::state::{ParamSpec, TrainState};
use crate::torch;

/// The ranks that compute an update together.
pub trait Ranks {
    /// Index of this rank.
    fn rank(&self) -> usize;

    /// Number of ranks.
    fn world(&self) -> usize;

    /// Sums elements of the gradients over all ranks. All ranks get the same bits.
    ///
    /// # Errors
    /// The all-reduce fails.
    fn sum(&mut self, state: &mut TrainState, range: Range<usize>) -> Result<(), Error>;
}

/// A rank that computes updates alone.
pub struct SingleRank;

impl Ranks for SingleRank {
    fn rank(&self) -> usize {
        0
    }

    fn world(&self) -> usize {
        1
    }

    fn sum(&mut self, _: &mut TrainState, _: Range<usize>) -> Result<(), Error> {
        Ok(())
    }
}

/// An enqueued update.
pub struct EnqueuedUpdate {
    /// L2 norm of all gradients, f64 \[\].
    pub norm: Tensor,
    scales: StepScales,
}

/// Factors of the learning rate.
enum StepScales {
    /// There are none.
    None,
    /// Step sizes of LAMB and StableAdamW: learning rate times step scale, f32 \[parameters that are not frozen\], and the
    /// constants of these parameters.
    OfKernel(Tensor, Vec<ParamUpdate>),
    /// Muon: [`muon::step_scales`] computes them.
    OfMatrices(Muon),
}

impl EnqueuedUpdate {
    /// Step scale of each tensor that has one, by tensor name: LAMB's trust ratio, the reduction by StableAdamW, or Muon's ratio
    /// of the norms of update and momentum. The gradient norm of the update must be finite, and no pass may have followed.
    pub fn trust_ratios(&self, state: &TrainState) -> BTreeMap<String, f64> {
        let (step_sizes, constants) = match &self.scales {
            StepScales::None => return BTreeMap::new(),
            StepScales::OfMatrices(settings) => return muon::step_scales(state, settings),
            StepScales::OfKernel(step_sizes, constants) => (step_sizes, constants),
        };
        let step_sizes = state.kernels().fetch(&step_sizes.to_kind(Kind::Double));
        let trainable = state.parameters.specs().iter().filter(|spec| !spec.is_frozen);
        let scaled = trainable.zip(constants).zip(step_sizes);
        let scaled = scaled.filter(|((_, constants), _)| constants.step_scale != StepScale::Fixed);
        let ratio = |((spec, constants), step_size): ((&ParamSpec, &ParamUpdate), f64)| {
            (spec.name.clone(), step_size / f64::from(constants.learning_rate))
        };
        scaled.map(ratio).filter(|(_, ratio)| ratio.is_finite()).collect()
    }
}

/// Enqueues an update with the gradients of `state`, which are the same on all `ranks`. The update overwrites the gradients and
/// skips frozen parameters. If the gradient norm is not finite, weights and moments stay unchanged.
///
/// The update is not counted. Call [`TrainState::count_update`] when the step is known to be valid.
///
/// # Errors
/// The device or an all-reduce fails.
pub fn update(
    state: &mut TrainState,
    settings: &Settings,
    learning_rate: f64,
    ranks: &mut dyn Ranks,
) -> Result<EnqueuedUpdate, Error> {
    if settings.kind != OptimizerKind::Muon {
        let enqueued = torch::guard(|| {
            let norm = state.gradient_norm();
            let scales = update_elements(state, settings, learning_rate, &norm);
            EnqueuedUpdate { norm, scales }
        });
        return Ok(enqueued?);
    }
    let norm = torch::guard(|| {
        let norm = state.gradient_norm();
        update_elements(state, settings, learning_rate * settings.muon.adamw_learning_rate_ratio, &norm);
        norm
    })?;
    muon::update(state, settings, learning_rate, &norm, ranks)?;
    Ok(EnqueuedUpdate { norm, scales: StepScales::OfMatrices(settings.muon) })
}

/// Enqueues the kernel that updates parameters element by element. With Muon, these are the parameters outside the matrices.
fn update_elements(state: &mut TrainState, settings: &Settings, learning_rate: f64, norm: &Tensor) -> StepScales {
    let is_matrix = |spec: &ParamSpec| settings.kind == OptimizerKind::Muon && muon::updates(spec);
    let updated = state.parameters.specs().iter().filter(|spec| !spec.is_frozen && !is_matrix(spec));
    let parameter = |spec: &ParamSpec| {
        (spec.range(), param_update(settings, spec.role.decays(), state.updates_of(spec) + 1, learning_rate))
    };
    let parameters: Vec<_> = updated.map(parameter).collect();
    let constants = parameters.iter().map(|(_, constants)| *constants).collect();
    let update = OptimizerUpdate {
        kind: settings.kind,
        clip_norm: settings.clip_norm,
        trust_ratio: settings.trust_ratio,
        norm,
        parameters,
    };
    let kernels = state.parameters.kernels().clone();
    let step_sizes = kernels.update(&mut state.buffers(), &update);
    step_sizes.map_or(StepScales::None, |step_sizes| StepScales::OfKernel(step_sizes, constants))
}

/// Constants of update number `updates` of a parameter, counted from 1. `decays` is true if weight decay applies.
pub fn param_update(settings: &Settings, decays: bool, updates: u64, learning_rate: f64) -> ParamUpdate {
    let correction = |beta: f64| {
        if settings.corrects_bias() { (1.0 / (1.0 - beta.powf(updates as f64))) as f32 } else { 1.0 }
    };
    let step_scale = match settings.kind {
        OptimizerKind::Lamb if decays || settings.trust_undecayed => StepScale::TrustRatio,
        OptimizerKind::StableAdamw => StepScale::Stable,
        OptimizerKind::Lamb | OptimizerKind::Adamw | OptimizerKind::AdamBert | OptimizerKind::Muon => StepScale::Fixed,
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
