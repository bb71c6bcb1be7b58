//! Training a WordPiece vocabulary.
//!
//! The merges (the most frequent pair first, ties by id) are the `tokenizers` crate's. It would number the alphabet in
//! the order of a hash table, so the alphabet is chosen and numbered here and the result is the same every time.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

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

/// How a vocabulary is trained.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Pieces, the special ones included; fewer come out where the corpus is too small.
    pub size: usize,
    /// Lowercase and strip accents, as the uncased models do.
    pub lowercase: bool,
    /// Different characters at most; words with rarer ones are left out of the count.
    pub limit_alphabet: usize,
    /// A pair that occurs less often is not merged.
    pub min_frequency: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self { size: 30_522, lowercase: true, limit_alphabet: 1000, min_frequency: 2 }
    }
}

/// Words longer than this, in bytes, are no words.
const LONGEST_WORD: usize = 400;
/// Different words that are counted at once; beyond it the rarest go.
const MOST_WORDS: usize = 8 << 20;
/// The trainer counts pairs in 32 bits.
const MOST_COUNTED: u64 = 1 << 30;

/// Trains on the documents of `sources`; the text of a vocab.txt.
///
/// # Errors
/// What a preparation of the same sources would fail with; no word at all; a size that the alphabet alone exceeds.
pub fn train(sources: &[Source], settings: &Settings) -> Result<String, PrepError> {
    let mut words = Words::new(settings.lowercase);
    let files = source::find(sources, 1)?;
    for file in &files {
        let source = &sources[file.source];
        let mut documents = source::reader(source, file, Arc::default())?;
        while let Some(raw) = documents.next()? {
            match source::extract(source, file, &raw, &mut |_| {})? {
                Extracted::Text(text) | Extracted::Sentences(text) => text.lines().for_each(|line| words.count(line)),
                Extracted::Rejected(_) => {}
            }
        }
    }
    if words.counts.is_empty() {
        return Err(PrepError::Empty { files: files.len(), rejected: None });
    }
    pieces(&words.counts, settings)
}

struct Words {
    normalizer: BertNormalizer,
    scratch: PreTokenizerScratch,
    spans: Vec<tokenizers::pipeline::Span>,
    counts: HashMap<String, u64>,
}

impl Words {
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
            if word.len() > LONGEST_WORD {
                continue;
            }
            match self.counts.get_mut(word) {
                Some(count) => *count += 1,
                None => drop(self.counts.insert(word.to_owned(), 1)),
            }
        }
        let mut least = 1;
        while self.counts.len() > MOST_WORDS {
            self.counts.retain(|_, count| *count > least);
            least += 1;
        }
    }
}

fn pieces(counts: &HashMap<String, u64>, settings: &Settings) -> Result<String, PrepError> {
    let alphabet = alphabet(counts, settings.limit_alphabet);
    let known = |word: &str| word.chars().all(|character| alphabet.binary_search(&character).is_ok());
    let divisor = counts.values().sum::<u64>() / MOST_COUNTED + 1;
    let kept = counts
        .iter()
        .filter(|(word, _)| known(word))
        .map(|(word, count)| (word.as_str().into(), count.div_ceil(divisor)))
        .collect();
    let first: Vec<String> = SPECIAL
        .iter()
        .map(ToString::to_string)
        .chain(alphabet.iter().map(ToString::to_string))
        .chain(alphabet.iter().map(|character| format!("{PREFIX}{character}")))
        .collect();
    if settings.size < first.len() {
        let message = format!("must be at least {} for the special pieces and the alphabet", first.len());
        return Err(PrepError::Setting { key: "size".to_owned(), message });
    }
    let trainer = BpeTrainer::builder()
        .continuing_subword_prefix(PREFIX.to_owned())
        .vocab_size(settings.size)
        .min_frequency(settings.min_frequency.div_ceil(divisor))
        .show_progress(false)
        .special_tokens(first.into_iter().map(|piece| AddedToken::from(piece, true)).collect())
        .build();
    let (vocabulary, ..) = trainer.do_train(&kept).map_err(|error| PrepError::Setting {
        key: "size".to_owned(),
        message: format!("the trainer failed: {error}"),
    })?;
    let by_id: BTreeMap<u32, String> = vocabulary.into_iter().map(|(piece, id)| (id, piece)).collect();
    Ok(by_id.into_values().map(|piece| piece + "\n").collect())
}

/// The most frequent characters, sorted.
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
