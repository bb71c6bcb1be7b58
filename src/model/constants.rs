//! Tensors that depend only on the sequence length and the padding of a micro-batch. They are computed once per
//! micro-batch, and its layers share them.

use std::cell::RefCell;

use tch::{Kind, Tensor};

use super::relative_range::{RelativeRange, RelativeRows, magnitude};
use super::rotation::Rotation;

/// Constants of a micro-batch that layers have asked for.
#[derive(Default)]
pub struct Constants {
    /// Masks of local attention, by reach and dtype.
    masks: RefCell<Vec<((usize, Kind), Tensor)>>,
    /// Rotations, by base.
    rotations: RefCell<Vec<(f64, Rotation)>>,
    /// Rows of tables of relative positions.
    relative_rows: RefCell<Vec<(RelativeRange, RelativeRows)>>,
}

impl Constants {
    /// Returns the mask of local attention, see [`Input::local_attention_mask`](super::input::Input::local_attention_mask).
    /// `ids` are \[batch, sequence\], and `mask` is the mask of global attention.
    pub fn local_attention_mask(&self, ids: &Tensor, mask: Option<&Tensor>, reach: usize, kind: Kind) -> Tensor {
        let make = || local_scores(ids, mask, reach).to_kind(kind);
        memoized(&self.masks, (reach, kind), make, Tensor::shallow_clone)
    }

    /// Returns the rows of the table of relative positions for all distances of two tokens of a sample.
    pub fn relative_rows(&self, ids: &Tensor, range: RelativeRange) -> RelativeRows {
        let seq_len = ids.size()[1];
        let make = || range.rows(&(numbers(ids, 2 * seq_len - 1) - (seq_len - 1)));
        memoized(&self.relative_rows, range, make, RelativeRows::shallow_clone)
    }

    /// Returns the rotation of attention heads of `head_size` elements by `positions`, i64 \[sequence\].
    pub fn rotation(&self, positions: &Tensor, base: f64, head_size: i64) -> Rotation {
        let make = || Rotation::new(positions, &numbers(positions, head_size / 2), base);
        memoized(&self.rotations, base, make, Rotation::shallow_clone)
    }
}

fn local_scores(ids: &Tensor, mask: Option<&Tensor>, reach: usize) -> Tensor {
    let positions = numbers(ids, ids.size()[1]);
    let distance = magnitude(&(positions.unsqueeze(1) - positions.unsqueeze(0)));
    let near = distance.le(reach as i64).unsqueeze(0).unsqueeze(0);
    let attends = match mask {
        Some(mask) => mask.bitwise_or_tensor(&distance.eq(0)).bitwise_and_tensor(&near),
        None => near,
    };
    attends.zeros_like().to_kind(Kind::Float).masked_fill(&attends.logical_not(), f64::NEG_INFINITY)
}

/// Returns the numbers 0, 1, ..., `count` - 1, i64, on the device of `ids`.
pub fn numbers(ids: &Tensor, count: i64) -> Tensor {
    ids.flatten(0, -1).narrow(0, 0, 1).ones_like().expand([count], false).cumsum(0, Kind::Int64) - 1
}

/// Returns a handle to the value of `key`. Makes the value at the first call.
fn memoized<K: PartialEq, V>(
    values: &RefCell<Vec<(K, V)>>,
    key: K,
    make: impl FnOnce() -> V,
    handle: fn(&V) -> V,
) -> V {
    let mut values = values.borrow_mut();
    if let Some((_, value)) = values.iter().find(|(other, _)| *other == key) {
        return handle(value);
    }
    let value = make();
    let copy = handle(&value);
    values.push((key, value));
    copy
}
