//! Row groups and the samples in them.

use super::Shard;

/// Row group, with its position in the dataset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowGroup {
    /// Index of the shard in the manifest.
    pub shard: usize,
    /// Index of the row group in the shard.
    pub index: usize,
    /// Number of rows.
    pub rows: u64,
    /// Index of the first row of the row group in the dataset.
    pub first_row: u64,
}

/// Samples of a row group.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Samples {
    /// Concatenated token IDs of all rows, unmasked and with special tokens.
    pub input_ids: Vec<u32>,
    /// Row offsets. Row `r` is `input_ids[offsets[r]..offsets[r + 1]]`, so there is one more offset than rows.
    pub offsets: Vec<usize>,
    /// Start of the second segment of each row, in tokens. 0 = the row has one segment.
    pub segment_b_start: Vec<u16>,
    /// Pair label of each row: 1 = the second segment was replaced (NSP) or swapped (SOP), 0 = it was not,
    /// [`NO_PAIR`](crate::NO_PAIR) = no pair objective.
    pub pair_label: Vec<u8>,
}

impl Samples {
    /// Returns the number of rows.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.segment_b_start.len()
    }

    /// Returns the token IDs of a row.
    #[must_use]
    pub fn ids(&self, row: usize) -> &[u32] {
        &self.input_ids[self.offsets[row]..self.offsets[row + 1]]
    }
}

/// Returns the row groups of `shards`, in row order.
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
