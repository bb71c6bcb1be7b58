//! WordPiece vocabulary training.
//! The `tokenizers` crate computes the merges. It merges the most frequent pair first and breaks ties by ID. But it
//! would number the alphabet in hash-table order. So this module chooses and numbers the alphabet, to make the result
//! deterministic.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use lambert_config::prep::Source;
use tokenizers::normalizers::bert::BertNormalizer;
use tokenizers::pipeline::{Normalizer, PreTokenizer, PreTokenizerScratch};
use tokenizers::pre_tokenizers::bert::BertPreTokenizer;
use tokenizers::trainers::BpeTrainer;
use tokenizers::vocab::bucket_added_vocabulary::AddedToken;

use crate::extract::Extracted;
use crate::prep::PrepError;
use crate::source;
use lambert_dataset::tokenizer::json::{PREFIX, SPECIAL};

/// Vocabulary training settings.
#[derive(Debug, Clone)]
pub struct VocabSettings {
    /// Number of tokens, including special tokens. The vocabulary has fewer tokens if the corpus is too small.
    pub size: usize,
    /// If true, text is lowercased and stripped of accents, as for uncased models.
    pub lowercase: bool,
    /// Upper limit on the number of distinct characters. Words with rarer characters are not counted.
    pub limit_alphabet: usize,
    /// Smallest frequency of a pair that is merged.
    pub min_frequency: u64,
}

impl Default for VocabSettings {
    fn default() -> Self {
        Self { size: 30_522, lowercase: true, limit_alphabet: 1000, min_frequency: 2 }
    }
}

/// Upper limit on the length of a word, bytes. Longer words are skipped.
const MAX_WORD_BYTES: usize = 400;
/// Upper limit on the number of distinct words counted at a time. Above the limit, the rarest words are dropped.
const MAX_COUNTED_WORDS: usize = 8 << 20;
/// Upper limit on the total word count, because the trainer counts pairs in 32 bits.
const MAX_TOTAL_COUNT: u64 = 1 << 30;

/// Trains a vocabulary on the documents of `sources` and returns the contents of a vocab.txt.
///
/// # Errors
/// A source cannot be read, the corpus has no words, or `settings.size` is smaller than the alphabet requires.
pub fn train(sources: &[Source], settings: &VocabSettings) -> Result<String, PrepError> {
    train_with(sources, settings, |_| {})
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
    /// All words are counted, and pairs of tokens are being merged.
    Merging,
}

/// Like [`train`], and calls `progress` after each document and before the merges.
///
/// # Errors
/// As for [`train`].
pub fn train_with(
    sources: &[Source],
    settings: &VocabSettings,
    mut progress: impl FnMut(VocabProgress),
) -> Result<String, PrepError> {
    let mut words = WordCounter::new(settings.lowercase);
    let files = source::find_files(sources, 1)?;
    let (read, total) = (Arc::new(AtomicU64::new(0)), files.iter().map(|file| file.bytes).sum());
    for file in &files {
        let source = &sources[file.source];
        let mut documents = source::open_reader(source, file, Arc::clone(&read))?;
        while let Some(raw) = documents.next()? {
            progress(VocabProgress::Counting { done: read.load(Ordering::Relaxed), total });
            match source::extract(source, file, &raw, &mut |_| {})? {
                Extracted::Text(text) | Extracted::Sentences(text) => text.lines().for_each(|line| words.count(line)),
                Extracted::Rejected(_) => {}
            }
        }
    }
    if words.counts.is_empty() {
        return Err(PrepError::EmptyCorpus { files: files.len(), rejected: None });
    }
    progress(VocabProgress::Merging);
    train_on_counts(&words.counts, settings)
}

struct WordCounter {
    normalizer: BertNormalizer,
    scratch: PreTokenizerScratch,
    spans: Vec<tokenizers::pipeline::Span>,
    counts: HashMap<String, u64>,
}

impl WordCounter {
    fn new(lowercase: bool) -> Self {
        let normalizer = BertNormalizer::new(true, true, None, lowercase);
        Self { normalizer, scratch: PreTokenizerScratch::default(), spans: Vec::new(), counts: HashMap::new() }
    }

    fn count(&mut self, line: &str) {
        let Ok(line) = self.normalizer.normalize(line, 0) else { return };
        self.spans.clear();
        if BertPreTokenizer.pre_tokenize(&line, &mut self.scratch, &mut self.spans).is_err() {
            return;
        }
        for span in &self.spans {
            let word = &line[span.range()];
            if word.len() > MAX_WORD_BYTES {
                continue;
            }
            match self.counts.get_mut(word) {
                Some(count) => *count += 1,
                None => drop(self.counts.insert(word.to_owned(), 1)),
            }
        }
        let mut min_count = 1;
        while self.counts.len() > MAX_COUNTED_WORDS {
            self.counts.retain(|_, count| *count > min_count);
            min_count += 1;
        }
    }
}

fn train_on_counts(counts: &HashMap<String, u64>, settings: &VocabSettings) -> Result<String, PrepError> {
    let alphabet = alphabet(counts, settings.limit_alphabet);
    let known = |word: &str| word.chars().all(|character| alphabet.binary_search(&character).is_ok());
    let divisor = counts.values().sum::<u64>() / MAX_TOTAL_COUNT + 1;
    let word_counts = counts
        .iter()
        .filter(|(word, _)| known(word))
        .map(|(word, count)| (word.as_str().into(), count.div_ceil(divisor)))
        .collect();
    let initial_tokens: Vec<String> = SPECIAL
        .iter()
        .map(ToString::to_string)
        .chain(alphabet.iter().map(ToString::to_string))
        .chain(alphabet.iter().map(|character| format!("{PREFIX}{character}")))
        .collect();
    if settings.size < initial_tokens.len() {
        let message = format!("must be at least {} for the special tokens and the alphabet", initial_tokens.len());
        return Err(PrepError::InvalidSetting { key: "size".to_owned(), message });
    }
    let trainer = BpeTrainer::builder()
        .continuing_subword_prefix(PREFIX.to_owned())
        .vocab_size(settings.size)
        .min_frequency(settings.min_frequency.div_ceil(divisor))
        .show_progress(false)
        .special_tokens(initial_tokens.into_iter().map(|token| AddedToken::from(token, true)).collect())
        .build();
    let (vocabulary, ..) = trainer.do_train(&word_counts).map_err(|error| PrepError::InvalidSetting {
        key: "size".to_owned(),
        message: format!("vocabulary training failed: {error}"),
    })?;
    let by_id: BTreeMap<u32, String> = vocabulary.into_iter().map(|(token, id)| (id, token)).collect();
    Ok(by_id.into_values().map(|token| token + "\n").collect())
}

/// Returns the most frequent characters, sorted by code point.
fn alphabet(counts: &HashMap<String, u64>, limit: usize) -> Vec<char> {
    let mut characters: HashMap<char, u64> = HashMap::new();
    for (word, count) in counts {
        word.chars().for_each(|character| *characters.entry(character).or_default() += count);
    }
    let mut ranked: Vec<(char, u64)> = characters.into_iter().collect();
    ranked.sort_unstable_by_key(|&(character, count)| (std::cmp::Reverse(count), character));
    let mut alphabet: Vec<char> = ranked.into_iter().take(limit).map(|(character, _)| character).collect();
    alphabet.sort_unstable();
    alphabet
}
