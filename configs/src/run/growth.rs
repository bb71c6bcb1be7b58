//! Initialization of new layers in a stage with more layers than the previous stage (progressive stacking, Gong et al.
//! 2019, proceedings.mlr.press/v97/gong19a).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Mapping from each new layer to the old layer from which it is copied. L and L' are the numbers of layers before and
/// after growth.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum GrowthOrder {
    /// Repeats the stack of old layers: layer i copies layer i mod L.
    #[default]
    Stack,
    /// Repeats each old layer in place: layer i of L' copies layer floor(i * L / L'). L' must be a multiple of L.
    Interleave,
}

/// Optimizer moments after growth.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Moments {
    /// New layers copy the moments of their source layers.
    Copy,
    /// New layers start with zero moments and their own update count for bias correction.
    Zero,
    /// If n layers are copies of one layer, each copy gets 1/n of the first moment and 1/n² of the second moment of
    /// that layer, as if the gradient were divided among the copies.
    #[default]
    Scale,
}

/// Initialization of new layers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Growth {
    /// Source layer of each new layer.
    ///
    /// L and L' are the numbers of layers before and after growth.
    pub order: GrowthOrder,
    /// Optimizer moments of new layers. Absent: `scale`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub moments: Option<Moments>,
    /// Zeroes the output projections of new layers, so that the outputs of the model do not change.
    pub identity: bool,
    /// Number of steps at the start of the stage that train only the new layers.
    pub new_layers_only: u64,
}

impl Growth {
    /// True if all values are defaults.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// Returns the configured rule for the moments, or the default.
    pub fn moments(&self) -> Moments {
        self.moments.unwrap_or_default()
    }

    /// Returns a pair for each of the `to` layers: the index of its source among the `from` layers, and true if the
    /// layer is new.
    pub fn sources(&self, from: usize, to: usize) -> Vec<(usize, bool)> {
        let copies = (to / from.max(1)).max(1);
        let source = |layer: usize| match self.order {
            GrowthOrder::Stack => (layer % from, layer >= from),
            GrowthOrder::Interleave => (layer / copies, !layer.is_multiple_of(copies)),
        };
        (0..to).map(source).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_are_mapped_to_sources() {
        let sources = |order, from, to| -> Vec<usize> {
            let sources = Growth { order, ..Growth::default() }.sources(from, to);
            let old = sources.iter().filter(|(_, new)| !new).count();
            assert_eq!(old, from, "each old layer occurs exactly once");
            sources.into_iter().map(|(source, _)| source).collect()
        };
        assert_eq!(sources(GrowthOrder::Stack, 3, 6), [0, 1, 2, 0, 1, 2]);
        assert_eq!(sources(GrowthOrder::Stack, 3, 5), [0, 1, 2, 0, 1]);
        assert_eq!(sources(GrowthOrder::Stack, 2, 5), [0, 1, 0, 1, 0]);
        assert_eq!(sources(GrowthOrder::Interleave, 2, 6), [0, 0, 0, 1, 1, 1]);
        assert_eq!(sources(GrowthOrder::Interleave, 3, 3), [0, 1, 2]);
    }
}
