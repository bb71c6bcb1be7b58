//! Vocabulary training.
//! A corpus is read once, and its words are counted. The `tokenizers` crate then trains a model on the word counts.
//! Its results depend on the order of hash tables and on the number of threads. The modules of the models make them
//! deterministic.

mod bpe;
mod extend;
mod file;
mod unigram;
mod word_piece;
mod words;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use lambert_config::prep::Source;
use lambert_dataset::tokenizer::TokenizerModel;

pub use self::extend::{ExtendedVocabulary, Extension, WordTokens, extend_with};
use self::words::{WordCounter, WordSplitter};
use crate::extract::Extracted;
use crate::prep::PrepError;
use crate::source;

/// Upper limit on the number of tokens of a trained vocabulary. The trainers reserve memory for all of them, and the
/// unigram trainer starts with as many pieces.
const MAX_SIZE: usize = 1_000_000;

/// Vocabulary training settings.
#[derive(Debug, Clone)]
pub struct VocabSettings {
    /// Tokenization model.
    pub model: TokenizerModel,
    /// Number of tokens, including special tokens. The vocabulary has fewer tokens if the corpus is too small.
    pub size: usize,
    /// If true, text is lowercased. WordPiece also strips accents, as for uncased models.
    pub lowercase: bool,
    /// Upper limit on the number of distinct characters. `None`: as many as 99.95% of the text needs, at least
    /// 1,000, at most a fifth of `size`. WordPiece does not count words with rarer characters. Unigram
    /// cuts words at rarer characters. BPE has bytes instead of characters.
    pub limit_alphabet: Option<usize>,
    /// Smallest frequency of a pair that is merged. Unigram has no merges.
    pub min_frequency: u64,
}

impl Default for VocabSettings {
    fn default() -> Self {
        Self { model: TokenizerModel::WordPiece, size: 30_522, lowercase: true, limit_alphabet: None, min_frequency: 2 }
    }
}

/// A trained vocabulary.
#[derive(Debug, Clone)]
pub struct TrainedVocabulary {
    /// Contents of the vocab.txt or tokenizer.json.
    pub text: String,
    /// Number of tokens, including special tokens.
    pub tokens: usize,
}

/// Word counts of a corpus.
type WordCounts = HashMap<String, u64>;

/// Trains a vocabulary on the documents of `sources` and returns the contents of its file.
///
/// # Errors
/// A source cannot be read, the corpus has no words, or `settings.size` is smaller than the alphabet requires.
pub fn train(sources: &[Source], settings: &VocabSettings) -> Result<String, PrepError> {
    train_with(sources, settings, |_| {}).map(|trained| trained.text)
}

/// Progress of the training of a vocabulary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VocabProgress {
    /// The input is being read.
    Counting {
        /// Bytes read, before decompression.
        done: u64,
        /// Size of the input, bytes.
        total: u64,
    },
    /// All words are counted, and the tokens are being chosen.
    Training,
}

/// Like [`train`], but also returns the number of tokens, and calls `progress` after each document and before the
/// tokens are chosen.
///
/// # Errors
/// As for [`train`].
pub fn train_with(
    sources: &[Source],
    settings: &VocabSettings,
    mut progress: impl FnMut(VocabProgress),
) -> Result<TrainedVocabulary, PrepError> {
    check_max_size(settings.size)?;
    let words = count(sources, splitter(settings)?, &mut progress)?;
    progress(VocabProgress::Training);
    match settings.model {
        TokenizerModel::WordPiece => word_piece::train(&words, settings),
        TokenizerModel::Bpe => bpe::train(&words, settings),
        TokenizerModel::Unigram => unigram::train(&words, settings),
    }
}

/// Counts the words of the documents of `sources`.
fn count(
    sources: &[Source],
    splitter: WordSplitter,
    progress: &mut impl FnMut(VocabProgress),
) -> Result<WordCounts, PrepError> {
    let mut words = WordCounter::new(splitter);
    let files = source::find_files(sources, 1)?;
    let (read, total) = (Arc::new(AtomicU64::new(0)), files.iter().map(|file| file.bytes).sum());
    for file in &files {
        let source = &sources[file.source];
        let mut documents = source::open_reader(source, file, Arc::clone(&read))?;
        while let Some(raw) = documents.next()? {
            progress(VocabProgress::Counting { done: read.load(Ordering::Relaxed), total });
            match source::extract(source, file, &raw, &mut |_| {})? {
                Extracted::Text(text) | Extracted::Sentences(text) => words.count_document(&text),
                Extracted::Rejected(_) => {}
            }
        }
    }
    if words.counts.is_empty() {
        return Err(PrepError::EmptyCorpus { files: files.len(), rejected: None });
    }
    Ok(words.counts)
}

fn splitter(settings: &VocabSettings) -> Result<WordSplitter, PrepError> {
    Ok(match settings.model {
        TokenizerModel::WordPiece => word_piece::splitter(settings.lowercase),
        TokenizerModel::Bpe => bpe::splitter(settings.lowercase).map_err(training_failed)?,
        TokenizerModel::Unigram => unigram::splitter(settings.lowercase),
    })
}

/// Checks that `settings.size` is at least `min`, the number of tokens of `contents`.
fn check_size(settings: &VocabSettings, min: usize, contents: &str) -> Result<(), PrepError> {
    if settings.size < min {
        return Err(invalid_size(format!("must be at least {min} for {contents}")));
    }
    Ok(())
}

/// Checks that `size` is at most [`MAX_SIZE`].
fn check_max_size(size: usize) -> Result<(), PrepError> {
    if size > MAX_SIZE { Err(invalid_size(format!("must be at most {MAX_SIZE}"))) } else { Ok(()) }
}

/// Error for a vocabulary that the `tokenizers` crate cannot train.
fn training_failed(error: impl std::fmt::Display) -> PrepError {
    invalid_size(format!("vocabulary training failed: {error}"))
}

fn invalid_size(message: String) -> PrepError {
    PrepError::InvalidSetting { key: "size".to_owned(), message }
}

/// Share of the characters of a text that are in the alphabet.
const COVERAGE: f64 = 0.9995;
/// Minimum size of the alphabet, unless the text has fewer characters.
const MIN_ALPHABET: usize = 1000;

/// Returns the number of the most frequent characters that cover [`COVERAGE`] of the text, within the limits of
/// `settings`. `ranked` are the numbers of occurrences, the most frequent character first.
fn alphabet_size(ranked: &[(char, u64)], settings: &VocabSettings) -> usize {
    if let Some(limit) = settings.limit_alphabet {
        return limit;
    }
    let total: f64 = ranked.iter().map(|(_, count)| *count as f64).sum();
    let mut covered = 0.0;
    let needed = ranked.iter().take_while(|(_, count)| {
        let is_needed = covered < COVERAGE * total;
        covered += *count as f64;
        is_needed
    });
    needed.count().min(settings.size / 5).max(MIN_ALPHABET)
}

/// Returns the most frequent characters, sorted by code point.
fn alphabet(counts: &WordCounts, settings: &VocabSettings) -> Vec<char> {
    let mut characters: HashMap<char, u64> = HashMap::new();
    for (word, count) in counts {
        word.chars().for_each(|character| *characters.entry(character).or_default() += count);
    }
    let mut ranked: Vec<(char, u64)> = characters.into_iter().collect();
    ranked.sort_unstable_by_key(|&(character, count)| (std::cmp::Reverse(count), character));
    let limit = alphabet_size(&ranked, settings);
    let mut alphabet: Vec<char> = ranked.into_iter().take(limit).map(|(character, _)| character).collect();
    alphabet.sort_unstable();
    alphabet
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_alphabet_covers_nearly_all_characters() {
        let settings = VocabSettings { size: 30_000, ..VocabSettings::default() };
        // 4,000 frequent characters, then 50,000 that occur once.
        let text = |frequent: usize| -> Vec<(char, u64)> {
            let characters = (0x4e00_u32..).filter_map(char::from_u32).enumerate();
            characters
                .map(|(rank, character)| (character, if rank < frequent { 10_000_000 } else { 1 }))
                .take(54_000)
                .collect()
        };
        let size = alphabet_size(&text(4_000), &settings);
        assert!((3_990..=4_000).contains(&size), "{size}");
        assert_eq!(alphabet_size(&text(100), &settings), MIN_ALPHABET);
        assert_eq!(alphabet_size(&text(9_000), &settings), 6_000, "a fifth of the vocabulary");
        assert_eq!(alphabet_size(&text(9_000), &VocabSettings { limit_alphabet: Some(70), ..settings }), 70);
    }
}
