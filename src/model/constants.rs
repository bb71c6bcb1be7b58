//! Tensors that depend only on the sequence length and the padding of a micro-batch. They are computed once per
//! micro-batch, and its layers share them.

use std::cell::RefCell;

use tch::{Kind, Tensor};

use super::relative_range::{RelativeRange, RelativeRows, magnitude};
use super::rotation::Rotation;

/// Reach of attention, and dtype of its mask.
type MaskKey = (Option<usize>, Kind);

/// Constants of a micro-batch that layers have asked for.
#[derive(Default)]
pub struct Constants {
    /// Masks that are added to attention scores, by reach and dtype.
    masks: RefCell<Vec<(MaskKey, Option<Tensor>)>>,
    /// Rotations, by base.
    rotations: RefCell<Vec<(f64, Rotation)>>,
    /// Rows of tables of relative positions.
    relative_rows: RefCell<Vec<(RelativeRange, RelativeRows)>>,
}

impl Constants {
    /// Returns the mask that is added to attention scores, see [`Input::added_mask`](super::input::Input::added_mask).
    /// `ids` are \[batch, sequence\], and `mask` is the attention mask.
    pub fn added_mask(&self, ids: &Tensor, mask: Option<&Tensor>, reach: Option<usize>, kind: Kind) -> Option<Tensor> {
        let make = || match reach {
            Some(reach) => Some(added(&near(ids, mask, reach), kind)),
            None => mask.map(|mask| added(mask, kind)),
        };
        memoized(&self.masks, (reach, kind), make, |mask| mask.as_ref().map(Tensor::shallow_clone))
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

/// Returns true where a query attends to a key at a distance of at most `reach`, \[batch or 1, 1, sequence, sequence\].
fn near(ids: &Tensor, mask: Option<&Tensor>, reach: usize) -> Tensor {
    let positions = numbers(ids, ids.size()[1]);
    let distance = magnitude(&(positions.unsqueeze(1) - positions.unsqueeze(0)));
    let near = distance.le(reach as i64).unsqueeze(0).unsqueeze(0);
    match mask {
        Some(mask) => mask.bitwise_or_tensor(&distance.eq(0)).bitwise_and_tensor(&near),
        None => near,
    }
}

/// Elements to which the rows of a mask are aligned in memory. The fused CUDA attention kernels need aligned rows; without them,
/// libtorch copies the mask in each layer.
const ROW_ALIGNMENT: i64 = 16;

/// Returns 0 where `attends` is true, and minus infinity elsewhere.
fn added(attends: &Tensor, kind: Kind) -> Tensor {
    let mask = attends.zeros_like().to_kind(kind).masked_fill(&attends.logical_not(), f64::NEG_INFINITY);
    let width = *mask.size().last().unwrap_or(&0);
    match width % ROW_ALIGNMENT {
        0 => mask,
        rest => mask.constant_pad_nd([0, ROW_ALIGNMENT - rest]).narrow(-1, 0, width),
    }
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
