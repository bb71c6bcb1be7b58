//! Choice of new tokens: the most frequent pairs of neighbouring tokens.

use std::collections::{HashMap, HashSet};

use lambert_dataset::tokenizer::{MAX_WORD_CHARS, Segmenter};

use super::super::WordCounts;
use super::pairs::{PairQueue, Word};
use super::{Extension, WordTokens, score};

/// Maximum number of times that unused tokens are replaced.
const ROUNDS: usize = 10;

/// Vocabulary with new tokens, and the pairs that they merge.
pub struct Extended {
    pub segmenter: Segmenter,
    pub pairs: Vec<(u32, u32)>,
}

/// Chooses the new tokens. Returns them, and the tokens of the text.
pub fn choose(old: Segmenter, mut words: Words, settings: &Extension<'_>) -> (Extended, WordTokens) {
    let mut rare = HashSet::new();
    let mut extended = Extended { segmenter: old.clone(), pairs: Vec::new() };
    for _ in 0..ROUNDS {
        let used = words.merge(&mut extended, old.texts().len(), settings, &rare);
        // In BPE, the text is split as it was merged, and later merges need the earlier ones.
        if old.has_merges() {
            break;
        }
        extended = Extended::with(&old, used);
        words.segment(&extended.segmenter);
        // A token that the model does not choose in any word gives its place to another.
        let (kept, unused) = words.used(&extended.segmenter, old.texts().len());
        if unused.is_empty() {
            break;
        }
        rare.extend(unused);
        extended = Extended::with(&old, kept);
        words.segment(&extended.segmenter);
    }
    let total = words.total();
    (extended, total)
}

/// Token and its score.
type Scored = (String, f64);

impl Extended {
    /// Vocabulary with more tokens.
    fn with(old: &Segmenter, tokens: Vec<Scored>) -> Self {
        let mut segmenter = old.clone();
        for (text, score) in tokens {
            segmenter.add_text(text, score);
        }
        Self { segmenter, pairs: Vec::new() }
    }
}

/// Distinct words of a text, as tokens.
pub struct Words {
    words: Vec<Word>,
    /// Number of words that the vocabulary cannot represent.
    unknown: u64,
}

impl Words {
    /// Words that the vocabulary can represent, sorted.
    pub fn new(counts: &WordCounts, segmenter: &Segmenter) -> Self {
        let mut sorted: Vec<(&String, &u64)> = counts.iter().collect();
        sorted.sort_unstable();
        let is_known = |word: &str| !segmenter.is_word_piece() || word.chars().nth(MAX_WORD_CHARS).is_none();
        let mut found = Self { words: Vec::new(), unknown: 0 };
        for (word, count) in sorted {
            match segmenter.segment(word).filter(|_| is_known(word)) {
                Some(tokens) => found.words.push((word.clone(), tokens, *count)),
                None => found.unknown += count,
            }
        }
        found
    }

    /// Splits all words again.
    fn segment(&mut self, segmenter: &Segmenter) {
        for (word, tokens, _) in &mut self.words {
            if let Some(found) = segmenter.segment(word) {
                *tokens = found;
            }
        }
    }

    /// Tokens of the text.
    pub fn total(&self) -> WordTokens {
        WordTokens { tokens: self.tokens() + self.unknown, unknown: self.unknown }
    }

    /// Number of tokens of the known words.
    fn tokens(&self) -> u64 {
        self.words.iter().map(|(_, tokens, count)| tokens.len() as u64 * count).sum()
    }

    /// Number of occurrences of each token in the text.
    fn token_counts(&self) -> HashMap<u32, u64> {
        let mut counts = HashMap::new();
        for (_, tokens, count) in &self.words {
            tokens.iter().for_each(|token| *counts.entry(*token).or_default() += count);
        }
        counts
    }

    /// Tokens from id `first` on that are in the text, and those that are not.
    fn used(&self, segmenter: &Segmenter, first: usize) -> (Vec<Scored>, Vec<String>) {
        let counts = self.token_counts();
        let (mut used, mut unused) = (Vec::new(), Vec::new());
        for (id, text) in (0_u32..).zip(segmenter.texts()).skip(first) {
            match counts.get(&id).is_some_and(|count| *count > 0) {
                true => used.push((text.clone(), segmenter.score(id).unwrap_or(0.0))),
                false => unused.push(text.clone()),
            }
        }
        (used, unused)
    }

    /// Repeatedly merges the currently most frequent pair into a new token, until the vocabulary has its size or all
    /// pairs are rarer than the minimum. Of equal pairs, the one with the lowest ids is first. Returns the tokens from
    /// id `first` on that are in the text. Only they count for the size, and those of `rare` do not. In BPE all tokens
    /// count.
    fn merge(
        &mut self,
        extended: &mut Extended,
        first: usize,
        settings: &Extension<'_>,
        rare: &HashSet<String>,
    ) -> Vec<Scored> {
        let is_bpe = extended.segmenter.has_merges();
        let mut counts = self.token_counts();
        let is_counted = |id: u32, text: &str| id as usize >= first && !rare.contains(text);
        let mut size = extended.segmenter.texts().len();
        let mut pairs = PairQueue::new(&self.words);
        let mut total = self.tokens();
        let lowest = extended.segmenter.lowest_score();
        while size < settings.size {
            let Some((pair, count)) = pairs.pop() else { break };
            if count < settings.min_frequency.max(1) {
                break;
            }
            let text = extended.segmenter.merged(pair);
            let score = score(count, total, lowest);
            let part_scores = extended.segmenter.score(pair.0).zip(extended.segmenter.score(pair.1));
            if extended.segmenter.has(&text) || part_scores.is_some_and(|(left, right)| score <= left + right) {
                continue;
            }
            let merged = extended.segmenter.add(pair, score);
            extended.pairs.push(pair);
            size += usize::from(is_bpe || is_counted(merged, &text));
            let merges = pairs.merge(&mut self.words, pair, merged);
            total -= merges;
            *counts.entry(merged).or_default() += merges;
            for part in [pair.0, pair.1] {
                let left = counts.entry(part).or_default();
                let before = std::mem::replace(left, left.saturating_sub(merges));
                let is_gone = before > 0 && *left == 0 && !is_bpe;
                size -= usize::from(is_gone && is_counted(part, &extended.segmenter.texts()[part as usize]));
            }
        }
        let mut used = self.used(&extended.segmenter, first).0;
        used.retain(|(text, _)| !rare.contains(text));
        used
    }
}
