//! Selection of the tokens to mask: single tokens, whole words, spans of words, or n-grams.

use std::ops::Range;

use lambert_config::run::MaskUnit;
use lambert_dataset::random::Rng;

use super::MaskVocab;

/// Maximum number of words per span. `SPAN_STOPS` is the parameter of the geometric distribution of span
/// lengths (arXiv 1907.10529, section 3.1).
pub const LONGEST_SPAN: u64 = 10;
const SPAN_STOPS: f64 = 0.2;

/// Maximum number of words of an n-gram.
pub const LONGEST_NGRAM: usize = 3;

/// Position of a selected token, and the number of its replacement group. One random draw
/// decides how all tokens of a group are replaced.
pub type SelectedToken = (u16, usize);

/// Selects at most `max_tokens` tokens of `ids`, sorted by position. Never selects special tokens.
///
/// Draws words or spans until `max_tokens` tokens are selected. A word that would exceed the limit is skipped, as in
/// create_pretraining_data of Google. A span ends before a word that would exceed the limit.
pub fn select(ids: &[u32], unit: MaskUnit, max_tokens: usize, vocab: &MaskVocab, rng: &mut Rng) -> Vec<SelectedToken> {
    let mut selected = match unit {
        MaskUnit::Piece => select_tokens(ids, max_tokens, vocab, rng),
        MaskUnit::Word => select_words(ids, max_tokens, vocab, rng),
        MaskUnit::Span => select_spans(ids, max_tokens, vocab, rng),
        MaskUnit::Ngram => select_ngrams(ids, max_tokens, vocab, rng),
    };
    selected.sort_unstable();
    selected
}

fn select_tokens(ids: &[u32], max_tokens: usize, vocab: &MaskVocab, rng: &mut Rng) -> Vec<SelectedToken> {
    let candidates = (0..ids.len() as u16).filter(|position| !vocab.special_ids.contains(&ids[usize::from(*position)]));
    let mut draws = PartialShuffle(candidates.collect());
    let count = max_tokens.min(draws.0.len());
    (0..count).filter_map(|number| Some((draws.next(number, rng)?, number))).collect()
}

fn select_words(ids: &[u32], max_tokens: usize, vocab: &MaskVocab, rng: &mut Rng) -> Vec<SelectedToken> {
    let words = split_words(ids, vocab);
    let mut draws = PartialShuffle((0..words.len()).collect());
    let mut selected = Vec::with_capacity(max_tokens);
    let mut number = 0;
    while selected.len() < max_tokens
        && let Some(word) = draws.next(number, rng)
    {
        number += 1;
        let word = words[word].clone();
        if selected.len() + word.len() <= max_tokens {
            // Each token has a separate replacement group.
            selected.extend(word.map(|position| (position, usize::from(position))));
        }
    }
    selected
}

fn select_spans(ids: &[u32], max_tokens: usize, vocab: &MaskVocab, rng: &mut Rng) -> Vec<SelectedToken> {
    let words = split_words(ids, vocab);
    let mut taken = vec![false; words.len()];
    let mut draws = PartialShuffle((0..words.len()).collect());
    let mut selected: Vec<SelectedToken> = Vec::with_capacity(max_tokens);
    let mut number = 0;
    while selected.len() < max_tokens
        && let Some(start) = draws.next(number, rng)
    {
        number += 1;
        let length = span_length(rng) as usize;
        for word in start..(start + length).min(words.len()) {
            let is_separated = word > start && words[word].start != words[word - 1].end;
            if taken[word] || is_separated || selected.len() + words[word].len() > max_tokens {
                break;
            }
            taken[word] = true;
            selected.extend(words[word].clone().map(|position| (position, number)));
        }
    }
    selected
}

/// Selects n-grams as create_pretraining_data of ALBERT does: each word is the start of one n-gram, in random order. An
/// n-gram that exceeds the limit is shortened, and skipped if its first word exceeds the limit or if one of its words is
/// already selected. An n-gram ends at a special token.
fn select_ngrams(ids: &[u32], max_tokens: usize, vocab: &MaskVocab, rng: &mut Rng) -> Vec<SelectedToken> {
    let words = split_words(ids, vocab);
    let mut taken = vec![false; words.len()];
    let mut draws = PartialShuffle((0..words.len()).collect());
    let mut selected: Vec<SelectedToken> = Vec::with_capacity(max_tokens);
    let mut number = 0;
    while selected.len() < max_tokens
        && let Some(start) = draws.next(number, rng)
    {
        number += 1;
        let is_adjacent = |word: &usize| words[*word].start == words[*word - 1].end;
        let longest = 1 + (start + 1..words.len()).take(LONGEST_NGRAM - 1).take_while(is_adjacent).count();
        let room = max_tokens - selected.len();
        let tokens = |count: usize| usize::from(words[start + count - 1].end - words[start].start);
        let drawn = ngram_length(longest, rng);
        let Some(count) = (1..=drawn).rev().find(|count| tokens(*count) <= room) else { continue };
        if taken[start..start + count].contains(&true) {
            continue;
        }
        taken[start..start + count].fill(true);
        let positions = words[start].start..words[start + count - 1].end;
        selected.extend(positions.map(|position| (position, usize::from(position))));
    }
    selected
}

/// Draws the number of words of an n-gram, from 1 to `longest`. The probability of n is proportional to 1/n.
pub fn ngram_length(longest: usize, rng: &mut Rng) -> usize {
    let weight = |length: usize| 1.0 / length as f64;
    let mut left = rng.unit_f64() * (1..=longest).map(weight).sum::<f64>();
    let is_end = |length: &usize| {
        left -= weight(*length);
        left < 0.0
    };
    (1..longest).find(is_end).unwrap_or(longest)
}

/// Draws the number of words of a span from a geometric distribution. Draws again if the number is
/// above [`LONGEST_SPAN`]. The mean is 3.8.
pub fn span_length(rng: &mut Rng) -> u64 {
    loop {
        let length = (1..=LONGEST_SPAN).find(|_| rng.chance(SPAN_STOPS));
        if let Some(length) = length {
            return length;
        }
    }
}

/// Splits a sample into words. A word is a token and its continuation tokens. Special tokens are left out.
fn split_words(ids: &[u32], vocab: &MaskVocab) -> Vec<Range<u16>> {
    let mut words: Vec<Range<u16>> = Vec::new();
    for (position, id) in (0_u16..).zip(ids) {
        if vocab.special_ids.contains(id) {
            continue;
        }
        match words.last_mut() {
            Some(word) if word.end == position && vocab.is_continuation(*id) => word.end += 1,
            _ => words.push(position..position + 1),
        }
    }
    words
}

/// Lazy Fisher-Yates shuffle, which draws without replacement.
struct PartialShuffle<T>(Vec<T>);

impl<T: Copy> PartialShuffle<T> {
    /// Returns the item of draw number `index`, counted from 0. `None` if all items have been drawn already.
    fn next(&mut self, index: usize, rng: &mut Rng) -> Option<T> {
        let left = self.0.len().checked_sub(index).filter(|left| *left > 0)?;
        self.0.swap(index, index + rng.below(left as u64) as usize);
        Some(self.0[index])
    }
}
