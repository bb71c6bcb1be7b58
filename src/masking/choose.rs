//! Which tokens are hidden: single pieces, whole words, or spans of words.

use std::ops::Range;

use lambert_config::run::MaskUnit;
use lambert_dataset::random::Rng;

use super::Pieces;

/// Words of a span at most, and the parameter of the geometric distribution of their number (arXiv 1907.10529, 3.1).
pub const LONGEST_SPAN: u64 = 10;
const SPAN_STOPS: f64 = 0.2;

/// A hidden token and the number of what was chosen together with it and is replaced alike.
pub type Chosen = (u16, usize);

/// Chooses at most `most` tokens of `ids`, in the order of their positions; special tokens never.
///
/// Words and spans are drawn at random until `most` tokens are chosen; a word that would exceed that number is passed
/// over (as Google's create_pretraining_data does), a span ends before it.
pub fn choose(ids: &[u32], unit: MaskUnit, most: usize, pieces: &Pieces, rng: &mut Rng) -> Vec<Chosen> {
    let mut chosen = match unit {
        MaskUnit::Piece => single(ids, most, pieces, rng),
        MaskUnit::Word => words(ids, most, pieces, rng),
        MaskUnit::Span => spans(ids, most, pieces, rng),
    };
    chosen.sort_unstable();
    chosen
}

fn single(ids: &[u32], most: usize, pieces: &Pieces, rng: &mut Rng) -> Vec<Chosen> {
    let candidates = (0..ids.len() as u16).filter(|position| !pieces.never.contains(&ids[usize::from(*position)]));
    let mut drawn = Drawn(candidates.collect());
    let count = most.min(drawn.0.len());
    (0..count).filter_map(|number| Some((drawn.next(number, rng)?, number))).collect()
}

fn words(ids: &[u32], most: usize, pieces: &Pieces, rng: &mut Rng) -> Vec<Chosen> {
    let words = split(ids, pieces);
    let mut drawn = Drawn((0..words.len()).collect());
    let mut chosen = Vec::with_capacity(most);
    let mut number = 0;
    while chosen.len() < most
        && let Some(word) = drawn.next(number, rng)
    {
        number += 1;
        let word = words[word].clone();
        if chosen.len() + word.len() <= most {
            // Each piece is replaced for itself.
            chosen.extend(word.map(|position| (position, usize::from(position))));
        }
    }
    chosen
}

fn spans(ids: &[u32], most: usize, pieces: &Pieces, rng: &mut Rng) -> Vec<Chosen> {
    let words = split(ids, pieces);
    let mut taken = vec![false; words.len()];
    let mut drawn = Drawn((0..words.len()).collect());
    let mut chosen: Vec<Chosen> = Vec::with_capacity(most);
    let mut number = 0;
    while chosen.len() < most
        && let Some(start) = drawn.next(number, rng)
    {
        number += 1;
        let length = span_length(rng) as usize;
        for word in start..(start + length).min(words.len()) {
            let apart = word > start && words[word].start != words[word - 1].end;
            if taken[word] || apart || chosen.len() + words[word].len() > most {
                break;
            }
            taken[word] = true;
            chosen.extend(words[word].clone().map(|position| (position, number)));
        }
    }
    chosen
}

/// Words of a span: geometric, cut at [`LONGEST_SPAN`] (3.8 on average).
pub fn span_length(rng: &mut Rng) -> u64 {
    loop {
        let length = (1..=LONGEST_SPAN).find(|_| rng.chance(SPAN_STOPS));
        if let Some(length) = length {
            return length;
        }
    }
}

/// The words of a sample: a piece with the continuations behind it. Special tokens are in none.
fn split(ids: &[u32], pieces: &Pieces) -> Vec<Range<u16>> {
    let mut words: Vec<Range<u16>> = Vec::new();
    for (position, id) in (0_u16..).zip(ids) {
        if pieces.never.contains(id) {
            continue;
        }
        match words.last_mut() {
            Some(word) if word.end == position && pieces.is_continuation(*id) => word.end += 1,
            _ => words.push(position..position + 1),
        }
    }
    words
}

/// Draws without replacement (Fisher and Yates, as far as it is asked).
struct Drawn<T>(Vec<T>);

impl<T: Copy> Drawn<T> {
    /// The item drawn at `number`, which counts from 0; `None` when all were drawn.
    fn next(&mut self, number: usize, rng: &mut Rng) -> Option<T> {
        let left = self.0.len().checked_sub(number).filter(|left| *left > 0)?;
        self.0.swap(number, number + rng.below(left as u64) as usize);
        Some(self.0[number])
    }
}
