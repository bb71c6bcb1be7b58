//! What reading ahead takes: the batches that wait for the training loop, and the row groups that they are taken from.

use lambert_config::run::Stage;

/// Sizes of a dataset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Data {
    /// Pieces of the vocabulary.
    pub pieces: usize,
    /// Tokens of a sample at most.
    pub longest: usize,
    /// Samples.
    pub rows: u64,
    /// Samples of a row group at most.
    pub row_group: u64,
}

/// Bytes a token of a batch that waits: id and segment, 8 bytes each, and its share of what is hidden.
const WAITING: u64 = 20;
/// Bytes a token while a batch is made: its id.
const MASKED: u64 = 4;
/// Bytes a sample of the whole global batch while it is made: its place, its length, whose it is.
const DRAWN: u64 = 64;
/// Bytes a token of a row group that is decoded.
const DECODED: u64 = 4;
/// Bytes a token more while it is decoded: as Parquet has it, with its levels.
const DECODING: u64 = 8;
/// Row groups of a window of the order of samples: what a reader keeps from one batch to the next.
pub const WINDOW: usize = 16;
const KEPT: u64 = WINDOW as u64;
/// Threads of a rank that decode at the same time at most.
pub const READERS: usize = 8;
const THREADS: u64 = READERS as u64;

/// Bytes of the batches that wait, where that is more than one.
const ROOM: u64 = 32 << 20;

/// Tokens of one rank's part of a global batch at most.
fn tokens(global_batch: usize, world: usize, data: Data) -> u64 {
    (global_batch.div_ceil(world.max(1)) as u64).saturating_mul(data.longest as u64)
}

/// Global batches that wait for the training loop of each of `world` ranks at most: as many as there are in a window of row
/// groups, because a rank decodes them all where its samples lie in all of them, and two more.
pub fn batches_ahead(global_batch: usize, world: usize, data: Data) -> usize {
    let bytes = WAITING.saturating_mul(tokens(global_batch, world, data));
    let window = KEPT.saturating_mul(data.row_group).min(data.rows).div_ceil(global_batch.max(1) as u64);
    (ROOM / bytes.max(1)).clamp(1, window.saturating_add(2)) as usize
}

/// Bytes of the samples of one of `world` ranks in a stage: those that wait, those in use, those that are being made.
pub fn samples(stage: &Stage, world: usize, data: Data) -> u64 {
    let (tokens, batch) = (tokens(stage.global_batch, world, data), stage.global_batch as u64);
    let held = batches_ahead(stage.global_batch, world, data) as u64 + 2;
    let waiting = WAITING.saturating_mul(tokens).saturating_add(2 * batch).saturating_mul(held);
    let making = MASKED.saturating_mul(tokens).saturating_add(DRAWN.saturating_mul(batch));
    let row = data.longest as u64;
    let groups =
        |groups: u64, bytes: u64| groups.saturating_mul(data.row_group).min(data.rows).saturating_mul(row * bytes);
    let decoded = groups(KEPT + THREADS, DECODED).saturating_add(groups(THREADS, DECODING));
    [making, decoded].into_iter().fold(waiting, u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_batches_wait_one_at_a_time() {
        let data = Data { pieces: 30522, longest: 128, rows: 1 << 30, row_group: 1024 };
        assert_eq!([256, 8192, 65536].map(|batch| batches_ahead(batch, 1, data)), [51, 1, 1]);
        assert_eq!([256, 8192, 65536].map(|batch| batches_ahead(batch, 64, data)), [66, 4, 3]);
        let bytes =
            |global_batch, world| samples(&Stage { global_batch, ..Stage::default() }, world, data) as f64 / 1e6;
        // Three times 65,536 samples of 128 tokens, the ids of one, and 24 row groups.
        assert!((bytes(65536, 1) - 562.0).abs() < 5.0, "{}", bytes(65536, 1));
        assert!(bytes(65536, 64) < 50.0 && bytes(256, 1) < 60.0, "{} {}", bytes(65536, 64), bytes(256, 1));
        assert!(samples(&Stage { global_batch: usize::MAX >> 2, ..Stage::default() }, 1, data) > 1 << 60);
    }
}
