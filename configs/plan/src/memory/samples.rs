//! Host memory of data loading: prefetched batches, and the row groups from which the batches are read.

use lambert_config::run::Stage;

/// Shape of a dataset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DatasetShape {
    /// Vocabulary size, in tokens.
    pub vocabulary: usize,
    /// Maximum sample length, in tokens.
    pub sequence_length: usize,
    /// Mean sample length, in tokens.
    pub mean_length: usize,
    /// Number of samples.
    pub rows: u64,
    /// Maximum number of samples in a row group.
    pub row_group: u64,
}

impl DatasetShape {
    /// Returns the shape of a mixture of datasets with these shapes. A reader caches row groups of all datasets, so their
    /// sizes are added. The mean sample length is that of all samples; set it if their shares in the mixture are known.
    pub fn of_mixture(shapes: impl IntoIterator<Item = Self>) -> Self {
        let add = |sum: Self, one: Self| Self {
            vocabulary: sum.vocabulary.max(one.vocabulary),
            sequence_length: sum.sequence_length.max(one.sequence_length),
            mean_length: match sum.rows.saturating_add(one.rows) {
                0 => 0,
                rows => (sum.tokens().saturating_add(one.tokens()) / u128::from(rows)) as usize,
            },
            rows: sum.rows.saturating_add(one.rows),
            row_group: sum.row_group.saturating_add(one.row_group),
        };
        let none = Self { vocabulary: 0, sequence_length: 0, mean_length: 0, rows: 0, row_group: 0 };
        shapes.into_iter().fold(none, add)
    }

    fn tokens(&self) -> u128 {
        self.mean_length as u128 * u128::from(self.rows)
    }
}

/// Bytes per token of a prefetched batch: token id and segment, 8 bytes each, and the masked tokens.
const PREFETCHED: u64 = 20;
/// Bytes per token while a batch is assembled: the token id.
const ASSEMBLING: u64 = 4;
/// Bytes per sample of the global batch while the batch is assembled: row, length and rank.
const SAMPLE_ENTRY: u64 = 64;
/// Bytes per token of a decoded row group.
const DECODED: u64 = 4;
/// Additional bytes per token during decoding: Parquet values and levels.
const DECODING: u64 = 8;
/// Number of row groups in a shuffle window. A reader caches these row groups between batches.
pub const WINDOW: usize = 16;
const CACHED_GROUPS: u64 = WINDOW as u64;
/// Maximum number of decoding threads per rank.
pub const READERS: usize = 8;
const DECODING_GROUPS: u64 = READERS as u64;

/// Maximum size of the prefetched batches, in bytes. One batch is always prefetched, even if it is larger.
const PREFETCH_LIMIT: u64 = 32 << 20;

/// Returns the maximum number of tokens in a rank batch.
fn tokens(global_batch: usize, world: usize, data: DatasetShape) -> u64 {
    (global_batch.div_ceil(world.max(1)) as u64).saturating_mul(data.sequence_length as u64)
}

/// Returns the number of global batches that each of `world` ranks prefetches. The upper bound is the number of batches
/// in a shuffle window plus two. If the samples of a rank are spread over the window, the rank decodes all row groups
/// of the window.
pub fn batches_ahead(global_batch: usize, world: usize, data: DatasetShape) -> usize {
    let bytes = PREFETCHED.saturating_mul(tokens(global_batch, world, data));
    let window = CACHED_GROUPS.saturating_mul(data.row_group).min(data.rows).div_ceil(global_batch.max(1) as u64);
    (PREFETCH_LIMIT / bytes.max(1)).clamp(1, window.saturating_add(2)) as usize
}

/// Returns the bytes of samples on one of `world` ranks in a stage. These are the batches that are prefetched, in use
/// or being assembled, and the cached row groups.
pub fn samples(stage: &Stage, world: usize, data: DatasetShape) -> u64 {
    let (tokens, batch) = (tokens(stage.global_batch, world, data), stage.global_batch as u64);
    let held = batches_ahead(stage.global_batch, world, data) as u64 + 2;
    let waiting = PREFETCHED.saturating_mul(tokens).saturating_add(2 * batch).saturating_mul(held);
    let making = ASSEMBLING.saturating_mul(tokens).saturating_add(SAMPLE_ENTRY.saturating_mul(batch));
    let row = data.sequence_length as u64;
    let groups =
        |groups: u64, bytes: u64| groups.saturating_mul(data.row_group).min(data.rows).saturating_mul(row * bytes);
    let decoded = groups(CACHED_GROUPS + DECODING_GROUPS, DECODED).saturating_add(groups(DECODING_GROUPS, DECODING));
    [making, decoded].into_iter().fold(waiting, u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_batches_are_prefetched_one_at_a_time() {
        let data =
            DatasetShape { vocabulary: 30522, sequence_length: 128, mean_length: 128, rows: 1 << 30, row_group: 1024 };
        assert_eq!([256, 8192, 65536].map(|batch| batches_ahead(batch, 1, data)), [51, 1, 1]);
        assert_eq!([256, 8192, 65536].map(|batch| batches_ahead(batch, 64, data)), [66, 4, 3]);
        let bytes =
            |global_batch, world| samples(&Stage { global_batch, ..Stage::default() }, world, data) as f64 / 1e6;
        // The sum covers three batches of 65,536 samples of 128 tokens, the token ids of one batch, and 24 row groups.
        assert!((bytes(65536, 1) - 562.0).abs() < 5.0, "{}", bytes(65536, 1));
        assert!(bytes(65536, 64) < 50.0 && bytes(256, 1) < 60.0, "{} {}", bytes(65536, 64), bytes(256, 1));
        assert!(samples(&Stage { global_batch: usize::MAX >> 2, ..Stage::default() }, 1, data) > 1 << 60);
    }
}
