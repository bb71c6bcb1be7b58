//! Which documents are held out where the draw of whole documents misses the configured share of the tokens.
//!
//! Each document is drawn when it is tokenized, before anything is known of the corpus ([`super::spill`]). With many
//! documents the share comes out close to the one asked for, and the draw stands. With few it may be anything. Then
//! documents are taken in the order of a key, each one if it brings the share closer. Where that is not close enough
//! either, documents are split into blocks of whole sentences, and blocks are taken in the same way.
//!
//! All of this follows from the documents and the seed, not from threads or parts.

use std::collections::BTreeMap;
use std::ops::Range;

use super::PrepError;
use super::duplicates::Removed;
use super::heads::{EXCLUDED, Head};
use super::job::{Job, Run};
use super::spill::record_bytes;
use super::totals::Totals;
use crate::record::{DocumentId, RECORD_HEAD, ends, ids, start_of};
use lambert_dataset::HeldOut;

/// Accepted deviation of the share, as a fraction of it (or of the rest, if that is smaller).
const TOLERANCE: f64 = 0.5;
/// Blocks that the held-out share should consist of, so that it is not a single passage.
const BLOCKS: u64 = 8;
/// Tokens of a block at most, if its sentences allow it.
const LARGEST_BLOCK: u64 = 4096;

/// Whether `held_out` of `all` tokens is close enough to the share `asked`.
pub fn is_met(asked: f64, held_out: u64, all: u64) -> bool {
    (share(held_out, all) - asked).abs() <= TOLERANCE * asked.min(1.0 - asked)
}

/// A share to six decimals; 0 of nothing.
pub fn share(part: u64, all: u64) -> f64 {
    (part as f64 / all.max(1) as f64 * 1e6).round() / 1e6
}

/// The documents or blocks that are held out.
#[derive(Debug, Default)]
pub struct Selection {
    /// Tokens of a block at least, if documents are split.
    block: Option<u64>,
    /// Numbers of the blocks that are held out, ascending; 0 is the whole of a document that is not split.
    chosen: BTreeMap<DocumentId, Vec<u32>>,
    /// What is left for training.
    pub train: Totals,
    /// What is held out.
    pub held_out: Totals,
}

impl Selection {
    /// Chooses whole documents, or blocks where whole documents do not meet the share.
    pub fn new(job: &Job<'_>, runs: &[Run], removed: &Removed) -> Result<Self, PrepError> {
        let asked = job.config.samples.held_out;
        let documents = documents(job, runs, removed)?;
        let all: u64 = documents.iter().map(|unit| unit.totals.tokens).sum();
        let goal = (asked * all as f64).round() as u64;
        let whole = Self::of(None, documents, |units| nearest(units, goal, all));
        if is_met(asked, whole.held_out.tokens, all) {
            return Ok(whole);
        }
        let block = (goal / BLOCKS).max(goal.min(job.config.samples.sequence_length as u64)).clamp(1, LARGEST_BLOCK);
        let blocks = split(job, runs, removed, block)?;
        Ok(Self::of(Some(block), blocks, |units| {
            let taken = nearest(units, goal, all);
            if taken.is_empty() { smallest(units) } else { taken }
        }))
    }

    fn of(block: Option<u64>, mut units: Vec<Unit>, choose: impl Fn(&[Unit]) -> Vec<usize>) -> Self {
        units.sort_unstable_by_key(|unit| (unit.key, unit.id, unit.block));
        let mut selection = Self { block, ..Self::default() };
        for index in choose(&units) {
            let unit = &mut units[index];
            unit.is_held_out = true;
            selection.chosen.entry(unit.id).or_default().push(unit.block);
        }
        selection.chosen.values_mut().for_each(|blocks| blocks.sort_unstable());
        units.sort_unstable_by_key(|unit| (unit.is_held_out, unit.id));
        for same in units.chunk_by(|left, right| (left.is_held_out, left.id) == (right.is_held_out, right.id)) {
            let totals = if same[0].is_held_out { &mut selection.held_out } else { &mut selection.train };
            same.iter().for_each(|unit| *totals += unit.totals);
            // A document counts once in a split, whatever it has of it.
            totals.documents -= same.len() as u64 - 1;
        }
        selection
    }

    /// For the manifest.
    pub fn describe(&self, asked: f64) -> HeldOut {
        let reached = share(self.held_out.tokens, self.held_out.tokens + self.train.tokens);
        HeldOut { asked, reached, block_tokens: self.block }
    }

    /// Whether anything of a document is held out.
    pub fn has(&self, id: DocumentId) -> bool {
        self.chosen.contains_key(&id)
    }

    /// The sentences of a document that are held out, or those that are not, as few ranges as possible. `ends` says where
    /// each sentence ends, in tokens of the document.
    pub fn pieces(&self, id: DocumentId, ends: &[u32], held_out: bool) -> Vec<Range<usize>> {
        let whole = std::iter::once(0..ends.len()).collect();
        match (self.chosen.get(&id), self.block) {
            (Some(_), None) if held_out => whole,
            (None, _) if !held_out => whole,
            (Some(chosen), Some(size)) => {
                let wanted = |number: usize| chosen.binary_search(&(number as u32)).is_ok() == held_out;
                let blocks = blocks(ends, size).into_iter().enumerate();
                join(blocks.filter(|(number, _)| wanted(*number)).map(|(_, block)| block))
            }
            _ => Vec::new(),
        }
    }
}

/// A document or a block of one.
#[derive(Debug, Clone, Copy)]
struct Unit {
    key: u64,
    id: DocumentId,
    block: u32,
    totals: Totals,
    is_held_out: bool,
}

impl Unit {
    fn new(job: &Job<'_>, id: DocumentId, block: usize, totals: Totals) -> Self {
        let key = id.key(job.config.samples.seed, "held-out").with(block as u64).value();
        Self { key, id, block: block as u32, totals, is_held_out: false }
    }
}

/// Takes units in their order, each if it brings the sum of tokens closer to `goal`; never all.
fn nearest(units: &[Unit], goal: u64, all: u64) -> Vec<usize> {
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

/// The unit with the fewest tokens, if there is another one to train on.
fn smallest(units: &[Unit]) -> Vec<usize> {
    let least = units.iter().enumerate().min_by_key(|(_, unit)| unit.totals.tokens);
    least.filter(|_| units.len() > 1).map(|(index, _)| index).into_iter().collect()
}

/// All documents that are used.
fn documents(job: &Job<'_>, runs: &[Run], removed: &Removed) -> Result<Vec<Unit>, PrepError> {
    let mut units = Vec::new();
    for run in runs {
        run.each_head(|_, bytes| {
            let head = Head::read(bytes);
            if head.cell != EXCLUDED && !removed.contains(head.id) {
                units.push(Unit::new(job, head.id, 0, head.totals));
            }
        })?;
    }
    Ok(units)
}

/// The blocks of all documents that are used. Of long documents the lengths of the sentences are read.
fn split(job: &Job<'_>, runs: &[Run], removed: &Removed, size: u64) -> Result<Vec<Unit>, PrepError> {
    let width = ids::width(job.tokenizer.size());
    let mut units = Vec::new();
    for run in runs {
        let mut at = 0;
        let mut long = Vec::new();
        // The records stand in the order of the heads; an excluded document has none, and is among the last.
        run.each_head(|_, bytes| {
            let head = Head::read(bytes);
            let start = at;
            at += record_bytes(&head.totals, width);
            if head.cell == EXCLUDED || removed.contains(head.id) {
            } else if is_one_block(head.totals.tokens, size) {
                units.push(Unit::new(job, head.id, 0, head.totals));
            } else {
                long.push((head, start));
            }
        })?;
        for (head, start) in long {
            let lengths = run.file.read(start + RECORD_HEAD as u64, 2 * head.totals.sentences as usize)?;
            let ends = ends(&lengths);
            for (number, block) in blocks(&ends, size).into_iter().enumerate() {
                let tokens = u64::from(ends[block.end - 1] - start_of(&ends, block.start));
                let totals = Totals { documents: 1, sentences: block.len() as u64, tokens };
                units.push(Unit::new(job, head.id, number, totals));
            }
        }
    }
    Ok(units)
}

/// Whether [`blocks`] gives one block, whatever the sentences are.
const fn is_one_block(tokens: u64, size: u64) -> bool {
    2 * tokens < 3 * size
}

/// The blocks of a document, as ranges of sentences: each has `size` tokens or a few more, so that it ends with a sentence. The
/// rest of a document is a block if it has half of that, and otherwise part of the block before.
fn blocks(ends: &[u32], size: u64) -> Vec<Range<usize>> {
    let mut blocks: Vec<Range<usize>> = Vec::new();
    let mut first = 0;
    for sentence in 0..ends.len() {
        if u64::from(ends[sentence] - start_of(ends, first)) >= size {
            blocks.push(first..sentence + 1);
            first = sentence + 1;
        }
    }
    let left = ends.last().map_or(0, |end| u64::from(end - start_of(ends, first)));
    match blocks.last_mut() {
        Some(last) if 2 * left < size => last.end = ends.len(),
        _ if first < ends.len() => blocks.push(first..ends.len()),
        _ => {}
    }
    blocks
}

/// Joins ranges that touch.
fn join(ranges: impl Iterator<Item = Range<usize>>) -> Vec<Range<usize>> {
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

    fn unit(ordinal: u32, tokens: u64) -> Unit {
        let id = DocumentId { file: 0, ordinal };
        let totals = Totals { documents: 1, sentences: 2, tokens };
        Unit { key: u64::from(ordinal), id, block: 0, totals, is_held_out: false }
    }

    #[test]
    fn the_tolerance_is_half_of_the_smaller_side() {
        let met = |asked, held_out| is_met(asked, held_out, 1000);
        assert!(met(0.05, 50) && met(0.05, 25) && met(0.05, 75) && !met(0.05, 24) && !met(0.05, 76));
        assert!(met(0.9, 851) && met(0.9, 949) && !met(0.9, 849) && !met(0.9, 951));
        assert!(!met(0.05, 270) && !met(0.05, 999) && !met(0.05, 0));
    }

    #[test]
    fn documents_are_taken_while_they_bring_the_share_closer() {
        let units = [unit(0, 500), unit(1, 30), unit(2, 400), unit(3, 15), unit(4, 12), unit(5, 43)];
        assert_eq!(nearest(&units, 50, 1000), [1, 3]);
        assert_eq!(nearest(&units, 10, 1000), [3]);
        assert_eq!(nearest(&[unit(0, 1000)], 900, 1000), [0; 0], "something is left to train on");
        assert_eq!(smallest(&units), [4]);
        assert_eq!(smallest(&units[..1]), [0; 0]);
    }

    #[test]
    fn blocks_cover_a_document_and_end_with_a_sentence() {
        assert_eq!(blocks(&[40, 90, 110, 160, 200, 230], 100), [0..3, 3..6]);
        assert_eq!(blocks(&[40, 90, 110, 160, 200, 210], 100), [0..3, 3..6]);
        assert_eq!(blocks(&[40, 90, 110, 149], 100), [0..4]);
        assert_eq!(blocks(&[1000, 1010], 100), [0..2]);
        assert_eq!(blocks(&[10], 100), [0..1]);
        let mut rng = Key::new(5).rng();
        for _ in 0..500 {
            let lengths: Vec<u8> =
                (0..1 + rng.below(60)).flat_map(|_| (1 + rng.below(90) as u16).to_le_bytes()).collect();
            let (ends, size) = (ends(&lengths), 1 + rng.below(400));
            let blocks = blocks(&ends, size);
            assert_eq!(join(blocks.iter().cloned()), [0..ends.len()]);
            assert!(blocks.iter().all(|block| !block.is_empty()));
            let tokens = u64::from(ends[ends.len() - 1]);
            assert!(!is_one_block(tokens, size) || blocks.len() == 1, "{tokens} tokens in {blocks:?} of {size}");
        }
    }

    #[test]
    fn the_pieces_of_both_splits_make_up_a_document() {
        let id = DocumentId { file: 0, ordinal: 3 };
        let (other, ends) = (DocumentId { file: 1, ..id }, [40, 110, 160, 210, 260, 310]);
        let selection = |block, blocks| Selection { block, chosen: [(id, blocks)].into(), ..Selection::default() };
        let halves = selection(Some(100), vec![1]);
        assert_eq!((halves.pieces(id, &ends, true), halves.pieces(id, &ends, false)), (vec![2..4], vec![0..2, 4..6]));
        assert_eq!((halves.pieces(other, &ends, true), halves.pieces(other, &ends, false)), (vec![], vec![0..6]));
        let neighbours = selection(Some(100), vec![0, 1]);
        assert_eq!(neighbours.pieces(id, &ends, true), [0..4]);
        let whole = selection(None, vec![0]);
        assert_eq!((whole.pieces(id, &ends, true), whole.pieces(id, &ends, false)), (vec![0..6], vec![]));
        assert_eq!((whole.pieces(other, &ends, true), whole.pieces(other, &ends, false)), (vec![], vec![0..6]));
    }
}
