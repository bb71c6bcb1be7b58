//! Attention of an unpadded micro-batch.

use tch::Tensor;

use super::{Failed, made};

unsafe extern "C" {
    fn lambert_unpadded_attention(
        query: *const torch_sys::C_tensor,
        key: *const torch_sys::C_tensor,
        value: *const torch_sys::C_tensor,
        bounds: *const torch_sys::C_tensor,
        lengths: *const i64,
        count: usize,
        reach: i64,
        dropped: f64,
        failed: Failed,
    ) -> *mut torch_sys::C_tensor;
}

/// Returns softmax(Q K^T / sqrt(head size)) V within each sample, \[tokens, heads, head size\]. Queries, keys and values have
/// the same shape. `lengths` are the numbers of tokens of the samples. `bounds` are their cumulative sums, starting at
/// 0, i32 \[samples + 1\] (cu_seqlens). A token attends to tokens at a distance of at most `reach`. `dropped` is the
/// dropout probability of the attention weights. A GPU needs bf16.
pub fn unpadded(
    [query, key, value]: [&Tensor; 3],
    bounds: &Tensor,
    lengths: &[i64],
    reach: Option<i64>,
    dropped: f64,
) -> Tensor {
    let (query, key, value) = (query.as_ptr(), key.as_ptr(), value.as_ptr());
    let (first, count, reach) = (lengths.as_ptr(), lengths.len(), reach.unwrap_or(-1));
    // SAFETY: all tensors are live at::Tensor objects for the whole call, and `first` points to `count` numbers.
    made(|failed| unsafe {
        lambert_unpadded_attention(query, key, value, bounds.as_ptr(), first, count, reach, dropped, failed)
    })
}
