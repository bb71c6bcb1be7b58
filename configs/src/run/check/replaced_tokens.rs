//! Validation of replaced-token detection.

use super::{MAX_DIMENSION, positive};
use crate::load::ConfigIssue;
use crate::run::{Family, RunConfig};

impl RunConfig {
    /// Checks the generator and the family of the discriminator. Rejects stages with different depths.
    pub(super) fn check_replaced_tokens(&self, issues: &mut Vec<ConfigIssue>) {
        let Some(settings) = &self.objective.replaced_tokens else { return };
        let key = |name: &str| format!("objective.replaced_tokens.{name}");
        if self.model.family != Family::Electra {
            let message = format!("needs model.family = \"electra\", the family is {}", self.model.family);
            issues.push(ConfigIssue::new("objective.replaced_tokens", message));
        }
        if self.objective.span_boundary_weight > 0.0 {
            let message = "must be 0 with objective.replaced_tokens";
            issues.push(ConfigIssue::new("objective.span_boundary_weight", message));
        }
        if self.objective.teacher.is_some() {
            issues.push(ConfigIssue::new("objective.teacher", "is not available with objective.replaced_tokens"));
        }
        positive(&key("weight"), settings.weight, issues);
        if self.model.is_sized() {
            let generator = settings.generator(&self.model);
            for (name, value) in [
                ("generator_layers", generator.layers),
                ("generator_hidden", generator.hidden),
                ("generator_heads", generator.heads),
                ("generator_intermediate", generator.intermediate),
            ] {
                positive(&key(name), value as f64, issues);
                if value > MAX_DIMENSION {
                    issues.push(ConfigIssue::of_value(key(name), value, format!("must be at most {MAX_DIMENSION}")));
                }
            }
            if generator.heads > 0 && !generator.hidden.is_multiple_of(generator.heads) {
                let message = format!("{} heads do not divide hidden size {}", generator.heads, generator.hidden);
                issues.push(ConfigIssue::new(key("generator_heads"), message));
            }
        }
        for (index, stage) in self.stage.iter().enumerate().filter(|(_, stage)| stage.layers.is_some()) {
            let layers = stage.depth(&self.model);
            if layers != self.model.layers {
                let message = format!(
                    "must be model.layers ({}), because a model with objective.replaced_tokens cannot grow",
                    self.model.layers
                );
                issues.push(ConfigIssue::of_value(format!("stage.{index}.layers"), layers, message));
            }
        }
    }
}
