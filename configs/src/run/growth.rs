//! How a stage that is deeper than the one before makes its new layers (progressive stacking, Gong et al. 2019,
//! proceedings.mlr.press/v97/gong19a).

use serde::{Deserialize, Serialize};

/// Which layer a layer of the deeper model is made from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Order {
    /// The old layers, and above them the same again from the bottom, as often as it takes: layer i from layer i mod L.
    #[default]
    Stack,
    /// Each old layer, and copies of it above it: layer i from layer i L / L'. L' is a multiple of L.
    Interleave,
}

/// What becomes of the optimizer's moments.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Moments {
    /// A new layer has those of the layer that it is made from.
    Copy,
    /// A new layer has none, and counts its updates from here on for the bias correction.
    Zero,
    /// Of the n layers made from one, each has 1/n of the first moment and 1/n² of the second: as if each had its share
    /// of the gradient.
    #[default]
    Scale,
}

/// How new layers are made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Growth {
    /// What a layer is made from.
    pub order: Order,
    /// What becomes of the moments; `scale` if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub moments: Option<Moments>,
    /// New layers begin with output projections of zero, so that what goes in comes out and no answer of the model changes.
    pub identity: bool,
    /// For so many steps of the stage only the new layers are trained.
    pub new_layers_only: u64,
}

impl Growth {
    /// Whether nothing is said about it.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// What becomes of the moments.
    pub fn moments(&self) -> Moments {
        self.moments.unwrap_or_default()
    }

    /// For each of `to` layers the one of `from` that it is made from, and whether it is new.
    pub fn sources(&self, from: usize, to: usize) -> Vec<(usize, bool)> {
        let copies = (to / from.max(1)).max(1);
        let source = |layer: usize| match self.order {
            Order::Stack => (layer % from, layer >= from),
            Order::Interleave => (layer / copies, !layer.is_multiple_of(copies)),
        };
        (0..to).map(source).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_and_what_they_are_made_from() {
        let sources = |order, from, to| -> Vec<usize> {
            let sources = Growth { order, ..Growth::default() }.sources(from, to);
            let old = sources.iter().filter(|(_, new)| !new).count();
            assert_eq!(old, from, "each old layer stays once");
            sources.into_iter().map(|(source, _)| source).collect()
        };
        assert_eq!(sources(Order::Stack, 3, 6), [0, 1, 2, 0, 1, 2]);
        assert_eq!(sources(Order::Stack, 3, 5), [0, 1, 2, 0, 1]);
        assert_eq!(sources(Order::Stack, 2, 5), [0, 1, 0, 1, 0]);
        assert_eq!(sources(Order::Interleave, 2, 6), [0, 0, 0, 1, 1, 1]);
        assert_eq!(sources(Order::Interleave, 3, 3), [0, 1, 2]);
    }
}
