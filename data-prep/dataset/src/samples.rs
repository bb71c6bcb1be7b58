//! Row groups and the samples in them.

use super::Shard;

/// A row group, numbered through the whole dataset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowGroup {
    /// Which shard of the manifest, from 0.
    pub shard: usize,
    /// Which row group of that shard, from 0.
    pub index: usize,
    /// Rows.
    pub rows: u64,
    /// The number of its first row in the whole dataset.
    pub first_row: u64,
}

/// The samples of a row group.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Samples {
    /// Token ids of all rows, one after another, special pieces included, unmasked.
    pub input_ids: Vec<u32>,
    /// Row `r` is `input_ids[offsets[r]..offsets[r + 1]]`; one more than there are rows.
    pub offsets: Vec<usize>,
    /// Where the second segment of each row starts; 0 = one segment.
    pub segment_b_start: Vec<u16>,
    /// For each row 1 = the second segment was replaced or swapped, 0 = it was not, [`NO_PAIR`](crate::NO_PAIR) = no pair objective.
    pub pair_label: Vec<u8>,
}

impl Samples {
    /// Rows.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.segment_b_start.len()
    }

    /// The token ids of one row.
    #[must_use]
    pub fn ids(&self, row: usize) -> &[u32] {
        &self.input_ids[self.offsets[row]..self.offsets[row + 1]]
    }
}

/// The row groups of `shards`, in the order of their rows.
pub fn row_groups(shards: &[Shard]) -> Vec<RowGroup> {
    let mut first_row = 0;
    let mut groups = Vec::new();
    for (shard, entry) in shards.iter().enumerate() {
        for (index, &rows) in entry.row_groups.iter().enumerate() {
            groups.push(RowGroup { shard, index, rows, first_row });
            first_row += rows;
        }
    }
    groups
}
