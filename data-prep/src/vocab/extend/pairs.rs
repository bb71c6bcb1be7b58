//! Pairs of neighbouring tokens, by number of occurrences.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, HashMap};

use lambert_dataset::tokenizer::replace;

/// Spelling, tokens and number of occurrences of a distinct word.
pub type Word = (String, Vec<u32>, u64);

/// Pairs of neighbouring tokens in the words of a text, with a queue by number of occurrences.
pub struct PairQueue {
    pairs: HashMap<(u32, u32), Pair>,
    /// Numbers of occurrences and pairs. Counts of earlier states remain in the queue.
    queue: BinaryHeap<(u64, Reverse<(u32, u32)>)>,
}

/// A pair of neighbouring tokens.
#[derive(Default)]
struct Pair {
    /// Number of occurrences in the text.
    count: u64,
    /// Indices of words that have it, or had it.
    words: BTreeSet<usize>,
}

impl PairQueue {
    /// Counts the pairs of `words`.
    pub fn new(words: &[Word]) -> Self {
        let mut pairs: HashMap<(u32, u32), Pair> = HashMap::new();
        for (index, (_, tokens, count)) in words.iter().enumerate() {
            for pair in tokens.windows(2) {
                let found = pairs.entry((pair[0], pair[1])).or_default();
                found.count += count;
                found.words.insert(index);
            }
        }
        let queue = pairs.iter().map(|(pair, found)| (found.count, Reverse(*pair))).collect();
        Self { pairs, queue }
    }

    /// Takes the most frequent pair from the queue, and its number of occurrences. Of equal pairs, the one with the lowest
    /// ids is first.
    pub fn pop(&mut self) -> Option<((u32, u32), u64)> {
        while let Some((count, Reverse(pair))) = self.queue.pop() {
            let current = self.count(pair);
            if count == current {
                return Some((pair, count));
            }
            self.push(pair, current);
        }
        None
    }

    /// Replaces `pair` by the token `merged` in all words. Returns the number of replacements in the text.
    pub fn merge(&mut self, words: &mut [Word], pair: (u32, u32), merged: u32) -> u64 {
        let (mut changed, mut merges) = (BTreeSet::new(), 0);
        for index in self.pairs.remove(&pair).unwrap_or_default().words {
            let (_, tokens, count) = &mut words[index];
            for old in tokens.windows(2) {
                let old = (old[0], old[1]);
                if let Some(found) = self.pairs.get_mut(&old) {
                    found.count = found.count.saturating_sub(*count);
                    changed.insert(old);
                }
            }
            let length = tokens.len();
            replace(tokens, pair, merged);
            merges += (length - tokens.len()) as u64 * *count;
            for new in tokens.windows(2) {
                let new = (new[0], new[1]);
                let found = self.pairs.entry(new).or_default();
                found.count += *count;
                found.words.insert(index);
                changed.insert(new);
            }
        }
        for pair in changed {
            self.push(pair, self.count(pair));
        }
        merges
    }

    fn count(&self, pair: (u32, u32)) -> u64 {
        self.pairs.get(&pair).map_or(0, |found| found.count)
    }

    fn push(&mut self, pair: (u32, u32), count: u64) {
        if count > 0 {
            self.queue.push((count, Reverse(pair)));
        }
    }
}
