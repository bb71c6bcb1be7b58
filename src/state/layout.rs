//! Where each parameter lies in the flat buffers.

use std::ops::Range;

/// A parameter's name (Hugging Face's), shape and place in the flat buffers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spec {
    /// As `bert.encoder.layer.0.attention.self.query.weight`.
    pub name: String,
    /// As \[out, in\].
    pub shape: Vec<i64>,
    /// Its first element in the flat buffers.
    pub first: usize,
    /// Its last rows that stand for no piece of the vocabulary.
    pub padding: usize,
    /// Whether it stays as it is for now, with its moments.
    pub frozen: bool,
}

impl Spec {
    /// Elements.
    pub fn count(&self) -> usize {
        self.shape.iter().product::<i64>() as usize
    }

    /// Its shape, as files have it.
    pub fn sizes(&self) -> Vec<usize> {
        self.shape.iter().map(|size| *size as usize).collect()
    }

    /// Its elements in the flat buffers.
    pub fn range(&self) -> Range<usize> {
        self.first..self.first + self.count()
    }

    /// Weight decay (and LAMB's trust ratio) is for matrices: biases and layer normalisations have none.
    pub fn decays(&self) -> bool {
        !self.name.ends_with("bias") && !self.is_norm()
    }

    /// The encoder layer that it belongs to, and its name within the layer.
    pub fn layer(&self) -> Option<(usize, &str)> {
        let (layer, part) = self.name.strip_prefix("bert.encoder.layer.")?.split_once('.')?;
        Some((layer.parse().ok()?, part))
    }

    /// The parameters that its updates are counted together with: those that are frozen, or grown, with it.
    pub fn group(&self) -> String {
        match self.layer() {
            Some((layer, _)) => format!("layer.{layer}"),
            None => self.name.splitn(3, '.').take(2).collect::<Vec<_>>().join("."),
        }
    }

    /// Whether it belongs to a layer normalisation (`ln` in Megatron-BERT's names).
    pub fn is_norm(&self) -> bool {
        self.name.contains("LayerNorm") || self.name.contains(".ln.")
    }
}

/// Elements from the first parameter's beginning to the last one's end.
pub fn elements(specs: &[Spec]) -> usize {
    specs.iter().map(|spec| spec.range().end).max().unwrap_or(0)
}
