//! XXH3 hashes of the blocks of an object. A process that reads some blocks verifies them without the rest of the object.

use std::ops::Range;

use crate::hash::Xxh3;

/// Size of a block, bytes. The last block of an object may be shorter.
pub const BLOCK_BYTES: u64 = 256 << 10;

/// Hashes the blocks of an object.
pub(super) struct BlockHasher {
    complete: Vec<u64>,
    /// Hash of the bytes after the last complete block.
    block: Xxh3,
    /// Number of these bytes.
    filled: usize,
}

impl BlockHasher {
    /// Creates a hasher without input.
    pub fn new() -> Self {
        Self { complete: Vec::new(), block: Xxh3::new(), filled: 0 }
    }

    /// Hashes the next bytes of the object.
    pub fn update(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let (now, later) = bytes.split_at(bytes.len().min(BLOCK_BYTES as usize - self.filled));
            self.block.update(now);
            self.filled += now.len();
            if self.filled == BLOCK_BYTES as usize {
                self.complete.push(std::mem::take(&mut self.block).finish());
                self.filled = 0;
            }
            bytes = later;
        }
    }

    /// Returns the hashes of all blocks, in order.
    pub fn finish(mut self) -> Vec<u64> {
        if self.filled > 0 {
            self.complete.push(self.block.finish());
        }
        self.complete
    }
}

/// Returns the hashes of the blocks of the byte range `range` of an object. `hashes` are those of the whole object. `None`
/// if the range does not start at a block of the object.
pub(super) fn of_range<'a>(hashes: &'a [u64], range: &Range<u64>) -> Option<&'a [u64]> {
    let first = range.start.is_multiple_of(BLOCK_BYTES).then_some(range.start / BLOCK_BYTES)?;
    hashes.get(first as usize..range.end.div_ceil(BLOCK_BYTES) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hashes(bytes: &[u8], piece: usize) -> Vec<u64> {
        let mut hasher = BlockHasher::new();
        bytes.chunks(piece).for_each(|piece| hasher.update(piece));
        hasher.finish()
    }

    #[test]
    fn hashes_do_not_depend_on_the_pieces() {
        let block = BLOCK_BYTES as usize;
        let bytes: Vec<u8> = (0..3 * block + 5).map(|i| (i % 251) as u8).collect();
        let whole = hashes(&bytes, bytes.len());
        assert_eq!(whole.len(), 4);
        for piece in [1000, block - 1, block, block + 1, 2 * block] {
            assert_eq!(hashes(&bytes, piece), whole, "{piece}");
        }
        assert_eq!(hashes(&bytes[..2 * block], 4096), whole[..2]);
        assert_eq!(hashes(&bytes[block..3 * block], 4096), whole[1..3]);
        assert_eq!(hashes(&[], 1), [0; 0]);
    }

    #[test]
    fn ranges_have_the_hashes_of_their_blocks() {
        let hashes = [1, 2, 3];
        let of = |range: Range<u64>| of_range(&hashes, &range);
        assert_eq!(of(0..BLOCK_BYTES), Some(&[1][..]));
        assert_eq!(of(BLOCK_BYTES..2 * BLOCK_BYTES + 7), Some(&[2, 3][..]));
        assert_eq!(of(1..BLOCK_BYTES), None);
        assert_eq!(of(2 * BLOCK_BYTES..4 * BLOCK_BYTES), None);
    }
}
