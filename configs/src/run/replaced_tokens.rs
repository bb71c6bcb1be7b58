//! Replaced-token detection, and the generator that it trains.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Model;

/// Replaced-token detection (ELECTRA, arXiv 2003.10555). `[model]` is the discriminator. A generator is trained with it, as a
/// masked language model that shares the embeddings.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ReplacedTokens {
    /// Weight of the loss of the discriminator. The loss of the generator has weight 1.
    pub weight: f64,
    /// Number of layers of the generator. Absent: `model.layers`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub generator_layers: Option<usize>,
    /// Hidden size of the generator. Absent: a quarter of `model.hidden`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub generator_hidden: Option<usize>,
    /// Number of attention heads of the generator. Absent: the most that divide its hidden size into at least 64 elements each.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub generator_heads: Option<usize>,
    /// Size of the feed-forward layers of the generator. Absent: four times its hidden size.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub generator_intermediate: Option<usize>,
}

/// Elements of an attention head of the generator.
const HEAD: usize = 64;

/// Returns the largest number of heads of at least [`HEAD`] elements each that divides `hidden`. At least 1.
fn heads(hidden: usize) -> usize {
    (1..=hidden / HEAD).rev().find(|heads| hidden.is_multiple_of(*heads)).unwrap_or(1)
}

impl ReplacedTokens {
    /// Returns the configuration of the generator for the discriminator `model`.
    pub fn generator(&self, model: &Model) -> Model {
        let quarter = (model.hidden / 4).max(1);
        let heads = self.generator_heads.unwrap_or_else(|| match self.generator_hidden {
            Some(hidden) => heads(hidden),
            None => (quarter / HEAD).max(1),
        });
        let hidden = self.generator_hidden.unwrap_or_else(|| quarter.next_multiple_of(heads.max(1)));
        Model {
            layers: self.generator_layers.unwrap_or(model.layers),
            hidden,
            heads,
            intermediate: self.generator_intermediate.unwrap_or(hidden.saturating_mul(4)),
            embedding: Some(model.embedding()),
            ..model.clone()
        }
    }
}

impl Default for ReplacedTokens {
    fn default() -> Self {
        Self {
            weight: 50.0,
            generator_layers: None,
            generator_hidden: None,
            generator_heads: None,
            generator_intermediate: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generator_has_a_quarter_of_the_width() {
        let model = Model::default();
        let of = |settings: &ReplacedTokens, model: &Model| {
            let Model { layers, hidden, heads, intermediate, embedding, .. } = settings.generator(model);
            (layers, hidden, heads, intermediate, embedding)
        };
        assert_eq!(of(&ReplacedTokens::default(), &model), (12, 192, 3, 768, Some(768)));
        let third = ReplacedTokens { generator_hidden: Some(256), ..ReplacedTokens::default() };
        assert_eq!(of(&third, &model), (12, 256, 4, 1024, Some(768)));
        let odd = ReplacedTokens { generator_hidden: Some(200), ..ReplacedTokens::default() };
        assert_eq!(of(&odd, &model), (12, 200, 2, 800, Some(768)), "3 heads do not divide 200");
        let small = Model { hidden: 256, embedding: Some(128), ..model };
        assert_eq!(of(&ReplacedTokens::default(), &small), (12, 64, 1, 256, Some(128)));
    }
}
