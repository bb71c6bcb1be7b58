//! Validation of stages.

use super::{MAX_DIMENSION, not_negative, positive};
use crate::load::ConfigIssue;
use crate::run::{Decay, GrowthOrder, Model, Stage};

/// Upper limit of the global batch size, samples. A plan lists the samples of a batch.
const MAX_BATCH: usize = 1 << 24;

impl Stage {
    /// Number of steps. `u64::MAX` until a number of tokens has been converted to steps.
    fn max_steps(&self) -> u64 {
        if self.tokens.is_some() { u64::MAX } else { self.steps }
    }

    pub(super) fn check(&self, index: usize, issues: &mut Vec<ConfigIssue>) {
        let key = |name: &str| format!("stage.{index}.{name}");
        if self.name.is_empty() {
            issues.push(ConfigIssue::new(key("name"), "missing: expected a name"));
        }
        self.check_data(index, issues);
        if !(1..=MAX_DIMENSION).contains(&self.layers.unwrap_or(1)) {
            issues.push(ConfigIssue::new(key("layers"), format!("must be from 1 to {MAX_DIMENSION}")));
        }
        match self.tokens {
            None => positive(&key("steps"), self.steps as f64, issues),
            Some(tokens) => {
                token_count(&key("tokens"), tokens, issues);
                if self.steps > 0 {
                    issues.push(ConfigIssue::new(key("tokens"), "conflicts with steps: a stage has one of them"));
                }
            }
        }
        positive(&key("global_batch"), self.global_batch as f64, issues);
        if self.global_batch > MAX_BATCH {
            let message = format!("must be at most {MAX_BATCH}");
            issues.push(ConfigIssue::of_value(key("global_batch"), self.global_batch, message));
        }
        if let Some(ramp) = self.batch_ramp
            && !((1..=self.global_batch).contains(&ramp.start) && (1..=self.max_steps()).contains(&ramp.steps))
        {
            let message = format!(
                "start is {} and steps is {}; start must be from 1 to global_batch, steps from 1 to the stage's steps",
                ramp.start, ramp.steps
            );
            issues.push(ConfigIssue::new(key("batch_ramp"), message));
        }
        positive(&key("micro_batch_tokens"), self.micro_batch_tokens.on_cpu() as f64, issues);
        positive(&key("learning_rate"), self.learning_rate, issues);
        positive(&key("decay_power"), self.decay_power, issues);
        not_negative(&key("learning_rate_end"), self.learning_rate_end, issues);
        if !(0.0..=1.0).contains(&self.warmup) {
            let message = "must be from 0 to 1 (a fraction of the steps)";
            issues.push(ConfigIssue::of_value(key("warmup"), self.warmup, message));
        }
        self.check_decay(&key("decay_fraction"), issues);
    }

    fn check_decay(&self, key: &str, issues: &mut Vec<ConfigIssue>) {
        let Some(part) = self.decay_fraction else { return };
        // 0.9 + 0.1 may round to more than 1.
        if !(0.0..=1.0).contains(&part) || self.warmup + part > 1.0 + 1e-9 {
            let message = format!("must be from 0 to {} (1 - warmup)", 1.0 - self.warmup);
            issues.push(ConfigIssue::of_value(key, part, message));
        }
        if matches!(self.decay, Decay::Constant | Decay::InverseSqrt) {
            let message = "needs a decay with an end: linear, polynomial, cosine or one-minus-sqrt";
            issues.push(ConfigIssue::new(key, message));
        }
    }

    /// Validates the growth of the model from `from` layers to the layers of this stage. `from` is the number of layers
    /// of the previous stage or of the initial checkpoint.
    pub fn check_growth(&self, index: usize, from: usize, model: &Model, issues: &mut Vec<ConfigIssue>) {
        let to = self.depth(model);
        let key = |name: &str| format!("stage.{index}.{name}");
        if to < from {
            issues.push(ConfigIssue::new(
                key("layers"),
                format!("{to} layers after {from}: the number of layers cannot decrease"),
            ));
        }
        if to > from && self.growth.order == GrowthOrder::Interleave && !to.is_multiple_of(from.max(1)) {
            let message = format!("{to} layers after {from}: interleave requires a multiple of {from}");
            issues.push(ConfigIssue::new(key("growth.order"), message));
        }
        let rhythm = if model.attention_window > 0 { model.global_attention_every.max(1) } else { 1 };
        if to > from && rhythm > 1 && self.growth.order == GrowthOrder::Interleave {
            let message = "interleave would copy global attention to layers with local attention";
            issues.push(ConfigIssue::new(key("growth.order"), message));
        } else if to > from && !from.is_multiple_of(rhythm) {
            let message =
                format!("{to} layers after {from}: growth needs a multiple of model.global_attention_every = {rhythm}");
            issues.push(ConfigIssue::new(key("layers"), message));
        }
        if to > from && model.groups > 1 {
            let message =
                format!("{to} layers after {from}: a model with {} groups of layers cannot grow", model.groups);
            issues.push(ConfigIssue::new(key("layers"), message));
        }
        if to > from && model.groups == 1 && !self.growth.is_default() {
            issues.push(ConfigIssue::new(key("growth"), "has no effect: all layers share their weights"));
        }
        if to > from && self.growth.identity && model.enhanced_decoder {
            let message = "would change the outputs: model.enhanced_decoder applies the last layer twice, and the last \
                           layer would be a new one";
            issues.push(ConfigIssue::new(key("growth.identity"), message));
        }
        if to <= from && !self.growth.is_default() {
            issues.push(ConfigIssue::new(key("growth"), "has no effect: the stage does not add layers"));
        }
        if self.restart_optimizer && self.growth.moments.is_some() {
            issues.push(ConfigIssue::new(key("growth.moments"), "has no effect with restart_optimizer"));
        }
        if self.growth.new_layers_only > self.max_steps() {
            let message = format!("must be at most the {} steps of the stage", self.max_steps());
            issues.push(ConfigIssue::of_value(key("growth.new_layers_only"), self.growth.new_layers_only, message));
        }
    }
}

/// Checks a number of tokens.
pub(super) fn token_count(key: &str, tokens: f64, issues: &mut Vec<ConfigIssue>) {
    if !(1.0..=1e18).contains(&tokens) {
        issues.push(ConfigIssue::of_value(key, tokens, "must be from 1 to 1e18"));
    }
}

#[cfg(test)]
mod tests {
    use crate::{Layers, RunConfig};

    #[test]
    fn global_batches_have_a_limit() {
        let issues = |batch: &str| {
            let layers = Layers::from_sets(&[format!("stage.0.global_batch={batch}")]);
            layers.parse::<RunConfig>("[[stage]]\n", "run.toml").unwrap_err().to_string()
        };
        let limit = "stage.0.global_batch = 9223372036854775807: must be at most 16777216";
        assert!(issues("9223372036854775807").contains(limit), "{}", issues("9223372036854775807"));
        assert!(!issues("16777216").contains("global_batch") && issues("16777217").contains("global_batch"));
    }
}
