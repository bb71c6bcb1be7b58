//! Counts of samples by length, of tokens by ID, and of words.

use lambert_dataset::Manifest;
use lambert_dataset::tokenizer::Tokenizer;

/// Kind of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TokenKind {
    /// `[PAD]`, `[CLS]`, `[SEP]` or `[MASK]`.
    Special,
    /// `[UNK]`.
    Unknown,
    /// First token of a word.
    Start,
    /// Token that continues a word: `##ing`.
    Continuation,
}

/// Kinds of all tokens of a vocabulary, by ID.
#[derive(Debug)]
pub struct TokenKinds(Vec<TokenKind>);

impl TokenKinds {
    /// Returns the kinds of the vocabulary of a tokenizer.
    pub fn new(tokenizer: &Tokenizer) -> Self {
        let special = tokenizer.special();
        let kind = |id: u32| match () {
            () if id == special.unk => TokenKind::Unknown,
            () if special.contains(id) => TokenKind::Special,
            () if tokenizer.is_continuation(id) => TokenKind::Continuation,
            () => TokenKind::Start,
        };
        Self((0..tokenizer.size() as u32).map(kind).collect())
    }
}

/// Counts over samples.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tally {
    /// Number of samples by length in tokens.
    pub lengths: Vec<u64>,
    /// Number of tokens by ID.
    pub tokens: Vec<u64>,
    /// Number of words, with unknown words.
    pub words: u64,
    /// Number of words that are one token.
    pub single_token_words: u64,
    /// Number of tokens that continue a word.
    pub continuations: u64,
}

impl Tally {
    /// Creates an empty tally for the samples of a dataset.
    pub fn new(manifest: &Manifest) -> Self {
        let (lengths, tokens) = (vec![0; manifest.sequence_length + 1], vec![0; manifest.vocabulary.size]);
        Self { lengths, tokens, ..Self::default() }
    }

    /// Adds a sample. Its IDs are in the vocabulary, and its length does not exceed the maximum length.
    pub fn add(&mut self, ids: &[u32], kinds: &TokenKinds) {
        self.lengths[ids.len()] += 1;
        let mut previous = TokenKind::Special;
        for &id in ids {
            self.tokens[id as usize] += 1;
            let kind = kinds.0[id as usize];
            match kind {
                TokenKind::Special => {}
                TokenKind::Unknown => self.words += 1,
                TokenKind::Start => {
                    self.words += 1;
                    self.single_token_words += 1;
                }
                TokenKind::Continuation => {
                    self.continuations += 1;
                    self.single_token_words -= u64::from(previous == TokenKind::Start);
                }
            }
            previous = kind;
        }
    }

    /// Adds the counts of another tally of the same dataset.
    pub fn merge(&mut self, other: &Self) {
        let add = |sums: &mut [u64], counts: &[u64]| sums.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
        add(&mut self.lengths, &other.lengths);
        add(&mut self.tokens, &other.tokens);
        self.words += other.words;
        self.single_token_words += other.single_token_words;
        self.continuations += other.continuations;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_one_token_are_distinguished_from_longer_words() {
        let vocabulary = b"[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nplay\n##ing\nstar\n.\n";
        let kinds = TokenKinds::new(&Tokenizer::from_vocab(vocabulary, true).unwrap());
        let mut tally = Tally { lengths: vec![0; 13], tokens: vec![0; 9], ..Tally::default() };
        // [CLS] play ##ing ##ing star [UNK] play [SEP] ##ing . play [SEP]
        tally.add(&[2, 5, 6, 6, 7, 1, 5, 3, 6, 8, 5, 3], &kinds);
        assert_eq!((tally.words, tally.single_token_words, tally.continuations), (6, 4, 3));
        let once = tally.clone();
        tally.merge(&once);
        assert_eq!((tally.lengths[12], tally.tokens[6], tally.words, tally.single_token_words), (2, 6, 12, 8));
    }
}
