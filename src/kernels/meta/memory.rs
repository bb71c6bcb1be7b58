//! The bytes that tensors have on the meta device, whose allocator counts.

use super::*;

unsafe extern "C" {
    fn lambert_live() -> i64;
    fn lambert_peak() -> i64;
}

#[test]
fn what_is_freed_is_counted_no_longer() {
    let device = Nothing::default();
    // SAFETY: counts of this thread.
    let (live, peak) = (|| unsafe { lambert_live() }, || unsafe { lambert_peak() });
    let before = live();
    let numbers = device.zeros(&[1000], Kind::Float);
    assert_eq!(live() - before, 4000);
    let twice = &numbers * 2.0;
    drop((numbers * 3.0, twice));
    assert_eq!((peak() - before, live() - before), (12000, 0));
    // Attention as a card has it keeps no weights: of 4 x 2 x 64 x 64 numbers.
    let kinds = [(Kind::Float, 4), (Kind::BFloat16, 2)];
    for (kind, bytes) in kinds {
        let query = device.zeros(&[4, 64, 2, 32], kind).transpose(1, 2).set_requires_grad(true);
        let before = live();
        let mixed =
            Tensor::scaled_dot_product_attention(&query, &query, &query, None::<Tensor>, 0.1, false, None, false);
        let kept = bytes * 4 * 64 * 2 * 32 + 4 * 4 * 2 * 64 + 16;
        assert_eq!((peak() - before, live() - before), (kept, kept), "{kind:?}");
        drop(mixed);
    }
}
