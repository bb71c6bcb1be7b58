//! Selection of held-out documents if the assignment by cell misses the configured share of the tokens.
//!
//! Tokenization assigns each document at random to a training cell or a held-out cell, before the corpus size is known
//! ([`super::spill`]). With many documents, the held-out share of the tokens is close to the target, and this
//! assignment is final. With few documents, the share can be far from the target. In that case, this module goes
//! through the documents in the order of their random keys. It holds out each document that brings the share closer to
//! the target. If the share still misses the target, documents are split into blocks of whole sentences, and blocks are
//! selected in the same way.
//!
//! The selection depends on the documents and the seed only, not on threads or parts.

use std::collections::BTreeMap;
use std::ops::Range;

use super::PrepError;
use super::duplicates::RemovedDocuments;
use super::fingerprints::{DocumentFingerprint, EXCLUDED};
use super::job::{JobContext, SpillFile};
use super::spill::record_bytes;
use super::totals::DocumentTotals;
use crate::record::{DocumentId, RECORD_HEADER_BYTES, ids, sentence_ends, sentence_start};
use lambert_dataset::HeldOut;

/// Accepted deviation from the target share. It is a fraction of the target share of the training split or of the
/// held-out split, whichever is smaller.
const TOLERANCE: f64 = 0.5;
/// Target number of held-out blocks. With several blocks, the held-out text is not one contiguous passage.
const TARGET_BLOCKS: u64 = 8;
/// Upper limit on the target size of a block, tokens.
const MAX_BLOCK_TOKENS: u64 = 4096;

/// True if `held_out` of `all` tokens is close enough to the share `target`.
pub fn is_close_enough(target: f64, held_out: u64, all: u64) -> bool {
    (share(held_out, all) - target).abs() <= TOLERANCE * target.min(1.0 - target)
}

/// Returns the share rounded to six decimals, or 0 if `all` is 0.
pub fn share(part: u64, all: u64) -> f64 {
    (part as f64 / all.max(1) as f64 * 1e6).round() / 1e6
}

/// The documents or blocks that are held out.
#[derive(Debug, Default)]
pub struct HeldOutSelection {
    /// Minimum size of a block, tokens, if documents are split.
    block_tokens: Option<u64>,
    /// Sorted indices of the held-out blocks of each document. If documents are not split, block 0 is the whole
    /// document.
    held_out_blocks: BTreeMap<DocumentId, Vec<u32>>,
    /// Counts of the training split.
    pub train: DocumentTotals,
    /// Counts of the held-out split.
    pub held_out: DocumentTotals,
}

impl HeldOutSelection {
    /// Selects whole documents, or blocks if whole documents miss the target.
    pub fn new(job: &JobContext<'_>, spill_files: &[SpillFile], removed: &RemovedDocuments) -> Result<Self, PrepError> {
        let target = job.config.samples.held_out;
        let documents = document_units(job, spill_files, removed)?;
        let all: u64 = documents.iter().map(|unit| unit.totals.tokens).sum();
        let goal = (target * all as f64).round() as u64;
        let whole = Self::from_units(None, documents, |units| take_toward_goal(units, goal, all));
        if is_close_enough(target, whole.held_out.tokens, all) {
            return Ok(whole);
        }
        let block_tokens =
            (goal / TARGET_BLOCKS).max(goal.min(job.config.samples.sequence_length as u64)).clamp(1, MAX_BLOCK_TOKENS);
        let blocks = block_units(job, spill_files, removed, block_tokens)?;
        Ok(Self::from_units(Some(block_tokens), blocks, |units| {
            let taken = take_toward_goal(units, goal, all);
            if taken.is_empty() { smallest(units) } else { taken }
        }))
    }

    fn from_units(
        block_tokens: Option<u64>,
        mut units: Vec<SelectionUnit>,
        choose: impl Fn(&[SelectionUnit]) -> Vec<usize>,
    ) -> Self {
        units.sort_unstable_by_key(|unit| (unit.key, unit.id, unit.block));
        let mut selection = Self { block_tokens, ..Self::default() };
        for index in choose(&units) {
            let unit = &mut units[index];
            unit.is_held_out = true;
            selection.held_out_blocks.entry(unit.id).or_default().push(unit.block);
        }
        selection.held_out_blocks.values_mut().for_each(|blocks| blocks.sort_unstable());
        units.sort_unstable_by_key(|unit| (unit.is_held_out, unit.id));
        for same in units.chunk_by(|left, right| (left.is_held_out, left.id) == (right.is_held_out, right.id)) {
            let totals = if same[0].is_held_out { &mut selection.held_out } else { &mut selection.train };
            same.iter().for_each(|unit| *totals += unit.totals);
            // A document counts once per split, whatever the number of its blocks.
            totals.documents -= same.len() as u64 - 1;
        }
        selection
    }

    /// Summary for the manifest.
    pub fn summary(&self, target: f64) -> HeldOut {
        let achieved = share(self.held_out.tokens, self.held_out.tokens + self.train.tokens);
        HeldOut { configured: target, achieved, block_tokens: self.block_tokens }
    }

    /// True if at least one block of the document is held out.
    pub fn includes(&self, id: DocumentId) -> bool {
        self.held_out_blocks.contains_key(&id)
    }

    /// Returns the sentences of a document that are in one split: the held-out sentences if `is_held_out`, otherwise
    /// the training sentences. Merges adjacent ranges of sentences. `ends` has the end offset of each sentence, in
    /// tokens.
    pub fn sentence_ranges(&self, id: DocumentId, ends: &[u32], is_held_out: bool) -> Vec<Range<usize>> {
        let whole = std::iter::once(0..ends.len()).collect();
        match (self.held_out_blocks.get(&id), self.block_tokens) {
            (Some(_), None) if is_held_out => whole,
            (None, _) if !is_held_out => whole,
            (Some(chosen), Some(block_tokens)) => {
                let is_in_split = |number: usize| chosen.binary_search(&(number as u32)).is_ok() == is_held_out;
                let blocks = split_into_blocks(ends, block_tokens).into_iter().enumerate();
                merge_adjacent(blocks.filter(|(number, _)| is_in_split(*number)).map(|(_, block)| block))
            }
            _ => Vec::new(),
        }
    }
}

/// A document, or a block of a document.
#[derive(Debug, Clone, Copy)]
struct SelectionUnit {
    key: u64,
    id: DocumentId,
    block: u32,
    totals: DocumentTotals,
    is_held_out: bool,
}

impl SelectionUnit {
    fn new(job: &JobContext<'_>, id: DocumentId, block: usize, totals: DocumentTotals) -> Self {
        let key = id.key(job.config.samples.seed, "held-out").with(block as u64).value();
        Self { key, id, block: block as u32, totals, is_held_out: false }
    }
}

/// Takes, in order, each unit that brings the token sum closer to `goal`. Never takes all units.
fn take_toward_goal(units: &[SelectionUnit], goal: u64, all: u64) -> Vec<usize> {
    let (mut taken, mut sum) = (Vec::new(), 0);
    for (index, unit) in units.iter().enumerate() {
        let tokens = unit.totals.tokens;
        if sum < goal && tokens < 2 * (goal - sum) && sum + tokens < all {
            taken.push(index);
            sum += tokens;
        }
    }
    taken
}

/// Returns the unit with the fewest tokens, or no unit if there is only one.
fn smallest(units: &[SelectionUnit]) -> Vec<usize> {
    let least = units.iter().enumerate().min_by_key(|(_, unit)| unit.totals.tokens);
    least.filter(|_| units.len() > 1).map(|(index, _)| index).into_iter().collect()
}

/// Lists all documents that are neither excluded nor removed.
fn document_units(
    job: &JobContext<'_>,
    spill_files: &[SpillFile],
    removed: &RemovedDocuments,
) -> Result<Vec<SelectionUnit>, PrepError> {
    let mut units = Vec::new();
    for spill_file in spill_files {
        spill_file.for_each_fingerprint(|_, bytes| {
            let fingerprint = DocumentFingerprint::read(bytes);
            if fingerprint.cell != EXCLUDED && !removed.contains(fingerprint.id) {
                units.push(SelectionUnit::new(job, fingerprint.id, 0, fingerprint.totals));
            }
        })?;
    }
    Ok(units)
}

/// Lists the blocks of all documents that are neither excluded nor removed. Reads sentence lengths only for documents
/// that can have several blocks.
fn block_units(
    job: &JobContext<'_>,
    spill_files: &[SpillFile],
    removed: &RemovedDocuments,
    size: u64,
) -> Result<Vec<SelectionUnit>, PrepError> {
    let width = ids::width(job.tokenizer.size());
    let mut units = Vec::new();
    for spill_file in spill_files {
        let mut at = 0;
        let mut long = Vec::new();
        // Records are in the order of the fingerprints. The fingerprints of excluded documents come last and have no
        // record.
        spill_file.for_each_fingerprint(|_, bytes| {
            let fingerprint = DocumentFingerprint::read(bytes);
            let start = at;
            at += record_bytes(&fingerprint.totals, width);
            if fingerprint.cell == EXCLUDED || removed.contains(fingerprint.id) {
            } else if is_one_block(fingerprint.totals.tokens, size) {
                units.push(SelectionUnit::new(job, fingerprint.id, 0, fingerprint.totals));
            } else {
                long.push((fingerprint, start));
            }
        })?;
        for (fingerprint, start) in long {
            let lengths =
                spill_file.file.read(start + RECORD_HEADER_BYTES as u64, 2 * fingerprint.totals.sentences as usize)?;
            let ends = sentence_ends(&lengths);
            for (number, block) in split_into_blocks(&ends, size).into_iter().enumerate() {
                let tokens = u64::from(ends[block.end - 1] - sentence_start(&ends, block.start));
                let totals = DocumentTotals { documents: 1, sentences: block.len() as u64, tokens };
                units.push(SelectionUnit::new(job, fingerprint.id, number, totals));
            }
        }
    }
    Ok(units)
}

/// True if [`split_into_blocks`] returns one block, whatever the sentence lengths are.
const fn is_one_block(tokens: u64, size: u64) -> bool {
    2 * tokens < 3 * size
}

/// Splits a document into blocks, as ranges of sentences. Each block has at least `size` tokens, except for the last
/// block. A remainder of at least half of `size` forms the last block. A shorter remainder is appended to the previous
/// block.
fn split_into_blocks(ends: &[u32], size: u64) -> Vec<Range<usize>> {
    let mut blocks: Vec<Range<usize>> = Vec::new();
    let mut first = 0;
    for sentence in 0..ends.len() {
        if u64::from(ends[sentence] - sentence_start(ends, first)) >= size {
            blocks.push(first..sentence + 1);
            first = sentence + 1;
        }
    }
    let left = ends.last().map_or(0, |end| u64::from(end - sentence_start(ends, first)));
    match blocks.last_mut() {
        Some(last) if 2 * left < size => last.end = ends.len(),
        _ if first < ends.len() => blocks.push(first..ends.len()),
        _ => {}
    }
    blocks
}

/// Merges adjacent ranges.
fn merge_adjacent(ranges: impl Iterator<Item = Range<usize>>) -> Vec<Range<usize>> {
    let mut joined: Vec<Range<usize>> = Vec::new();
    for range in ranges {
        match joined.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => joined.push(range),
        }
    }
    joined
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init, reason = "a piece of a document is a range")]
mod tests {
    use super::*;
    use lambert_dataset::random::Key;

    fn unit(ordinal: u32, tokens: u64) -> SelectionUnit {
        let id = DocumentId { file: 0, ordinal };
        let totals = DocumentTotals { documents: 1, sentences: 2, tokens };
        SelectionUnit { key: u64::from(ordinal), id, block: 0, totals, is_held_out: false }
    }

    #[test]
    fn the_tolerance_is_half_of_the_smaller_share() {
        let close = |asked, held_out| is_close_enough(asked, held_out, 1000);
        assert!(close(0.05, 50) && close(0.05, 25) && close(0.05, 75) && !close(0.05, 24) && !close(0.05, 76));
        assert!(close(0.9, 851) && close(0.9, 949) && !close(0.9, 849) && !close(0.9, 951));
        assert!(!close(0.05, 270) && !close(0.05, 999) && !close(0.05, 0));
    }

    #[test]
    fn documents_are_taken_if_they_bring_the_share_closer() {
        let units = [unit(0, 500), unit(1, 30), unit(2, 400), unit(3, 15), unit(4, 12), unit(5, 43)];
        assert_eq!(take_toward_goal(&units, 50, 1000), [1, 3]);
        assert_eq!(take_toward_goal(&units, 10, 1000), [3]);
        assert_eq!(take_toward_goal(&[unit(0, 1000)], 900, 1000), [0; 0], "something is left to train on");
        assert_eq!(smallest(&units), [4]);
        assert_eq!(smallest(&units[..1]), [0; 0]);
    }

    #[test]
    fn blocks_cover_a_document_and_end_at_sentence_ends() {
        assert_eq!(split_into_blocks(&[40, 90, 110, 160, 200, 230], 100), [0..3, 3..6]);
        assert_eq!(split_into_blocks(&[40, 90, 110, 160, 200, 210], 100), [0..3, 3..6]);
        assert_eq!(split_into_blocks(&[40, 90, 110, 149], 100), [0..4]);
        assert_eq!(split_into_blocks(&[1000, 1010], 100), [0..2]);
        assert_eq!(split_into_blocks(&[10], 100), [0..1]);
        let mut rng = Key::new(5).rng();
        for _ in 0..500 {
            let lengths: Vec<u8> =
                (0..1 + rng.below(60)).flat_map(|_| (1 + rng.below(90) as u16).to_le_bytes()).collect();
            let (ends, size) = (sentence_ends(&lengths), 1 + rng.below(400));
            let blocks = split_into_blocks(&ends, size);
            assert_eq!(merge_adjacent(blocks.iter().cloned()), [0..ends.len()]);
            assert!(blocks.iter().all(|block| !block.is_empty()));
            let tokens = u64::from(ends[ends.len() - 1]);
            assert!(!is_one_block(tokens, size) || blocks.len() == 1, "{tokens} tokens in {blocks:?} of {size}");
        }
    }

    #[test]
    fn the_ranges_of_both_splits_cover_a_document() {
        let id = DocumentId { file: 0, ordinal: 3 };
        let (other, ends) = (DocumentId { file: 1, ..id }, [40, 110, 160, 210, 260, 310]);
        let selection = |block, blocks| HeldOutSelection {
            block_tokens: block,
            held_out_blocks: [(id, blocks)].into(),
            ..HeldOutSelection::default()
        };
        let halves = selection(Some(100), vec![1]);
        assert_eq!(
            (halves.sentence_ranges(id, &ends, true), halves.sentence_ranges(id, &ends, false)),
            (vec![2..4], vec![0..2, 4..6])
        );
        assert_eq!(
            (halves.sentence_ranges(other, &ends, true), halves.sentence_ranges(other, &ends, false)),
            (vec![], vec![0..6])
        );
        let neighbours = selection(Some(100), vec![0, 1]);
        assert_eq!(neighbours.sentence_ranges(id, &ends, true), [0..4]);
        let whole = selection(None, vec![0]);
        assert_eq!(
            (whole.sentence_ranges(id, &ends, true), whole.sentence_ranges(id, &ends, false)),
            (vec![0..6], vec![])
        );
        assert_eq!(
            (whole.sentence_ranges(other, &ends, true), whole.sentence_ranges(other, &ends, false)),
            (vec![], vec![0..6])
        );
    }
}
