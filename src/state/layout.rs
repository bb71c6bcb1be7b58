//! Where each parameter lies in the flat buffers.

use std::ops::Range;

use lambert_config::architecture::{Role, TensorId};

/// A parameter's name (Hugging Face's), shape and place in the flat buffers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spec {
    /// What it is.
    pub id: TensorId,
    /// What it is for.
    pub role: Role,
    /// As `bert.encoder.layer.0.attention.self.query.weight`.
    pub name: String,
    /// As \[out, in\].
    pub shape: Vec<i64>,
    /// Its first element in the flat buffers.
    pub first: usize,
    /// Its last rows that stand for no token of the vocabulary; `None` if its rows are not tokens.
    pub padding: Option<usize>,
    /// Whether it lies directly behind the one before, so that both are one matrix, or one vector.
    pub joined: bool,
    /// Whether it stays as it is for now, with its moments.
    pub frozen: bool,
    /// The number of segments that the backward pass goes through until its gradient is final.
    pub final_after: usize,
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

    /// The parameters that its updates are counted together with: those that are frozen, or grown, with it.
    pub fn group(&self) -> String {
        match self.id.layer {
            Some(layer) => format!("layer.{layer}"),
            None => self.name.splitn(3, '.').take(2).collect::<Vec<_>>().join("."),
        }
    }
}

/// Parameters begin at a multiple of so many elements: 128 bytes.
const ALIGNMENT: usize = 32;

/// Gives each of `specs` its place, in their order. Gaps between them are zero, and in no checkpoint.
pub fn place(specs: &mut [Spec]) {
    let mut end = 0_usize;
    for spec in specs {
        spec.first = if spec.joined { end } else { end.next_multiple_of(ALIGNMENT) };
        end = spec.range().end;
    }
}

/// Elements from the first parameter's beginning to the last one's end.
pub fn elements(specs: &[Spec]) -> usize {
    specs.iter().map(|spec| spec.range().end).max().unwrap_or(0)
}
