//! Selection of the tokens to mask: single tokens, whole words, spans of words, or n-grams.

use std::ops::Range;

use lambert_config::run::MaskUnit;
use lambert_dataset::random::Rng;

use super::MaskVocab;
use super::draws::Draws;

/// Maximum number of words per span. `SPAN_STOPS` is the parameter of the geometric distribution of span
/// lengths (arXiv 1907.10529, section 3.1).
pub const MAX_SPAN_WORDS: u64 = 10;
const SPAN_STOPS: f64 = 0.2;

/// Maximum number of words of an n-gram.
pub const MAX_NGRAM_WORDS: usize = 3;

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
    let is_candidate = |position: &u16| !vocab.special_ids.contains(&ids[usize::from(*position)]);
    let candidates: Vec<u16> = (0..ids.len() as u16).filter(is_candidate).collect();
    let weight = vocab.weights.as_ref().map(|weights| |index: usize| weights.of(ids[usize::from(candidates[index])]));
    let mut draws = Draws::new(candidates.len(), weight);
    (0..max_tokens).map_while(|number| Some((candidates[draws.next(rng)?], number))).collect()
}

fn select_words(ids: &[u32], max_tokens: usize, vocab: &MaskVocab, rng: &mut Rng) -> Vec<SelectedToken> {
    let words = split_words(ids, max_tokens, vocab);
    let mut draws = draw_words(ids, &words, vocab);
    let mut selected = Vec::with_capacity(max_tokens);
    while selected.len() < max_tokens
        && let Some(word) = draws.next(rng)
    {
        let word = words[word].clone();
        if selected.len() + word.len() <= max_tokens {
            // Each token has a separate replacement group.
            selected.extend(word.map(|position| (position, usize::from(position))));
        }
    }
    selected
}

fn select_spans(ids: &[u32], max_tokens: usize, vocab: &MaskVocab, rng: &mut Rng) -> Vec<SelectedToken> {
    let words = split_words(ids, max_tokens, vocab);
    let mut taken = vec![false; words.len()];
    let mut draws = draw_words(ids, &words, vocab);
    let mut selected: Vec<SelectedToken> = Vec::with_capacity(max_tokens);
    let mut number = 0;
    while selected.len() < max_tokens
        && let Some(start) = draws.next(rng)
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
    let words = split_words(ids, max_tokens, vocab);
    let mut taken = vec![false; words.len()];
    let mut draws = draw_words(ids, &words, vocab);
    let mut selected: Vec<SelectedToken> = Vec::with_capacity(max_tokens);
    while selected.len() < max_tokens
        && let Some(start) = draws.next(rng)
    {
        let is_adjacent = |word: &usize| words[*word].start == words[*word - 1].end;
        let longest = 1 + (start + 1..words.len()).take(MAX_NGRAM_WORDS - 1).take_while(is_adjacent).count();
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
/// above [`MAX_SPAN_WORDS`]. The mean is 3.8.
pub fn span_length(rng: &mut Rng) -> u64 {
    loop {
        let length = (1..=MAX_SPAN_WORDS).find(|_| rng.chance(SPAN_STOPS));
        if let Some(length) = length {
            return length;
        }
    }
}

/// Draws words in random order. With weights, a word has the weight of its rarest token.
fn draw_words(ids: &[u32], words: &[Range<u16>], vocab: &MaskVocab) -> Draws {
    let weight = vocab.weights.as_ref().map(|weights| {
        move |index: usize| {
            words[index].clone().map(|position| weights.of(ids[usize::from(position)])).max().unwrap_or(0)
        }
    });
    Draws::new(words.len(), weight)
}

/// Splits a sample into words, of which each is masked as a whole. The words of a phrase of at most `max_tokens` tokens form one
/// word. Special tokens are left out.
fn split_words(ids: &[u32], max_tokens: usize, vocab: &MaskVocab) -> Vec<Range<u16>> {
    let words = split_single_words(ids, vocab);
    let Some(phrases) = &vocab.phrases else { return words };
    let mut joined = Vec::with_capacity(words.len());
    let mut rest = words.as_slice();
    while let [first, others @ ..] = rest {
        // The longest phrase that starts here and ends at the end of a word. Special tokens are in no phrase.
        let ends_at = |count: &usize| {
            let end = first.start + *count as u16;
            rest.iter().take_while(|word| word.end <= end).last().is_some_and(|word| word.end == end)
        };
        let lengths = phrases.lengths(&ids[usize::from(first.start)..]).take_while(|count| *count <= max_tokens);
        let longest = lengths.filter(ends_at).last();
        let word = longest.map_or(first.clone(), |count| first.start..first.start + count as u16);
        rest = &others[others.iter().take_while(|other| other.end <= word.end).count()..];
        joined.push(word);
    }
    joined
}

/// Splits a sample into words. A word is a token and its continuation tokens. Special tokens are left out.
fn split_single_words(ids: &[u32], vocab: &MaskVocab) -> Vec<Range<u16>> {
    let mut words: Vec<Range<u16>> = Vec::new();
    for (position, id) in (0..=u16::MAX).zip(ids) {
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
