//! Extension of a vocabulary by tokens of a text. The old tokens keep their ids, and so does text without a new token.
//!
//! Characters that the vocabulary lacks become tokens. The words of the text are split into tokens. Then the most frequent pair of neighbours becomes a token, again
//! and again. In BPE the pairs are appended to the merges, so they are merged after all others.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, HashMap, HashSet};
use std::path::Path;

use lambert_config::prep::Source;
use lambert_dataset::tokenizer::{Segmenter, TokenizerError, TokenizerFile, replace};
use serde_json::{Value as Json, json};
use tokenizers::pipeline::PipelineNormalizer;

use super::words::{LongWords, Normalizers, WordSplitter};
use super::{VocabProgress, WordCounts, bpe, count, invalid_size, training_failed, word_piece};
use crate::prep::PrepError;

/// Upper limit on the length of a word, characters, as in WordPiece. Longer words are left out.
const MAX_WORD_CHARACTERS: usize = 100;
/// Decimal digits of the scores, as a power of ten.
const SCORE_DIGITS: f64 = 1e12;
/// Maximum number of new characters.
const MAX_CHARACTERS: usize = 1000;
/// Maximum number of times that unused tokens are replaced.
const ROUNDS: usize = 10;

/// Settings of an extension.
#[derive(Debug, Clone)]
pub struct Extension<'a> {
    /// vocab.txt or tokenizer.json.
    pub file: &'a Path,
    /// Case handling of a vocab.txt.
    pub lowercase: bool,
    /// Number of tokens of the extended vocabulary.
    pub size: usize,
    /// Smallest frequency of a new token.
    pub min_frequency: u64,
}

/// Result of an extension.
#[derive(Debug, Clone)]
pub struct ExtendedVocabulary {
    /// Contents of the file, of the same kind as the old one.
    pub text: String,
    /// Number of tokens.
    pub tokens: usize,
    /// Number of new tokens.
    pub added: usize,
    /// The words of the text with the old vocabulary.
    pub before: WordTokens,
    /// The words of the text with the new vocabulary.
    pub after: WordTokens,
}

/// Words of a text as tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WordTokens {
    /// Number of tokens. An unknown word counts as one token.
    pub tokens: u64,
    /// Number of words that the vocabulary cannot represent.
    pub unknown: u64,
}

/// Extends a vocabulary by tokens of the documents of `sources`. Calls `progress` after each document and before the
/// tokens are chosen.
///
/// # Errors
/// The vocabulary or a source cannot be read, the corpus has no words, or `settings.size` is not above the size of the
/// vocabulary.
pub fn extend_with(
    sources: &[Source],
    settings: &Extension<'_>,
    mut progress: impl FnMut(VocabProgress),
) -> Result<ExtendedVocabulary, PrepError> {
    let origin = settings.file.display().to_string();
    let bytes = std::fs::read(settings.file)
        .map_err(|source| TokenizerError::Read { path: settings.file.to_owned(), source })
        .map_err(PrepError::Extended)?;
    let mut segmenter = Segmenter::read(&bytes, &origin).map_err(PrepError::Extended)?;
    let old = segmenter.texts().len();
    if settings.size <= old {
        return Err(invalid_size(format!("must be above {old}, the number of tokens of {origin}")));
    }
    let counts = count(sources, splitter(&bytes, &origin, settings.lowercase)?, &mut progress)?;
    progress(VocabProgress::Training);
    let before = Words::new(&counts, &segmenter).total();
    add_characters(&mut segmenter, &counts, settings);
    let words = Words::new(&counts, &segmenter);
    let (extended, after) = choose(segmenter, words, settings);
    let text = write(&bytes, &extended, old).map_err(training_failed)?;
    let tokens = extended.segmenter.texts().len();
    Ok(ExtendedVocabulary { text, tokens, added: tokens - old, before, after })
}

/// Splitter of the words of a vocabulary.
fn splitter(bytes: &[u8], origin: &str, lowercase: bool) -> Result<WordSplitter, PrepError> {
    if !TokenizerFile::is_json(bytes) {
        return Ok(word_piece::splitter(lowercase));
    }
    let file = TokenizerFile::read(bytes, origin).map_err(PrepError::Extended)?;
    let tokenizer = file.build_plain().map_err(training_failed)?;
    let is_bytes = |step: &PipelineNormalizer| matches!(step, PipelineNormalizer::ByteLevel(_));
    let is_bpe = !file.merges().is_empty();
    let spells = is_bpe && !tokenizer.get_normalizers().iter().any(is_bytes);
    Ok(WordSplitter {
        pre_tokenizer: tokenizer.get_pre_tokenizer().clone(),
        normalizers: Normalizers::Of(tokenizer),
        leading_space: is_bpe,
        long_words: LongWords::Skip,
        spelling: if spells { bpe::spelling } else { |word| Cow::Borrowed(word) },
    })
}

/// Adds the characters of words that the vocabulary cannot represent, the most frequent first.
fn add_characters(segmenter: &mut Segmenter, counts: &WordCounts, settings: &Extension<'_>) {
    let mut missing: HashMap<String, u64> = HashMap::new();
    let mut total = 0;
    for (word, count) in counts {
        total += count * word.chars().count() as u64;
        if segmenter.segment(word).is_none() {
            for token in segmenter.characters(word).into_iter().filter(|token| !segmenter.has(token)) {
                *missing.entry(token).or_default() += count;
            }
        }
    }
    let mut missing: Vec<(String, u64)> = missing.into_iter().collect();
    missing.retain(|(_, count)| *count >= settings.min_frequency);
    missing.sort_unstable_by(|(one, count), (other, other_count)| other_count.cmp(count).then_with(|| one.cmp(other)));
    let room = settings.size - segmenter.texts().len();
    for (token, count) in missing.into_iter().take(room.min(MAX_CHARACTERS)) {
        segmenter.add_text(token, score(count, total));
    }
}

/// Score of a token: the logarithm of its share.
fn score(count: u64, total: u64) -> f64 {
    ((count as f64 / total as f64).ln() * SCORE_DIGITS).round() / SCORE_DIGITS
}

/// Vocabulary with new tokens, and the pairs that they merge.
struct Extended {
    segmenter: Segmenter,
    pairs: Vec<(u32, u32)>,
}

/// Chooses the new tokens. Returns them, and the tokens of the text.
fn choose(old: Segmenter, mut words: Words, settings: &Extension<'_>) -> (Extended, WordTokens) {
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
struct Words {
    /// Spelling, tokens and number of occurrences.
    words: Vec<(String, Vec<u32>, u64)>,
    /// Number of words that the vocabulary cannot represent.
    unknown: u64,
}

impl Words {
    /// Words that the vocabulary can represent, sorted.
    fn new(counts: &WordCounts, segmenter: &Segmenter) -> Self {
        let mut sorted: Vec<(&String, &u64)> = counts.iter().collect();
        sorted.sort_unstable();
        let is_short = |word: &str| word.chars().nth(MAX_WORD_CHARACTERS).is_none();
        let mut found = Self { words: Vec::new(), unknown: 0 };
        for (word, count) in sorted.into_iter().filter(|(word, _)| is_short(word)) {
            match segmenter.segment(word) {
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
    fn total(&self) -> WordTokens {
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

    /// Adds tokens, each the most frequent pair at its time, until the vocabulary has its size or all pairs are rarer
    /// than the minimum. Of equal pairs, the one with the lowest ids is first. Returns the tokens from id `first` on that
    /// are in the text. Only they count for the size, and those of `rare` do not. In BPE all tokens count.
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
        let mut pairs: HashMap<(u32, u32), Pair> = HashMap::new();
        for (index, (_, tokens, count)) in self.words.iter().enumerate() {
            for pair in tokens.windows(2) {
                let found = pairs.entry((pair[0], pair[1])).or_default();
                found.count += count;
                found.words.insert(index);
            }
        }
        let mut queue: BinaryHeap<_> = pairs.iter().map(|(pair, found)| (found.count, Reverse(*pair))).collect();
        let mut total = self.tokens();
        while size < settings.size {
            let Some((count, Reverse(pair))) = queue.pop() else { break };
            let current = pairs.get(&pair).map_or(0, |found| found.count);
            if count != current {
                if current > 0 {
                    queue.push((current, Reverse(pair)));
                }
                continue;
            }
            if count < settings.min_frequency.max(1) {
                break;
            }
            let text = extended.segmenter.merged(pair);
            let score = score(count, total);
            let is_better = extended.segmenter.score(pair.0).zip(extended.segmenter.score(pair.1));
            if extended.segmenter.has(&text) || is_better.is_some_and(|(left, right)| score <= left + right) {
                continue;
            }
            let merged = extended.segmenter.add(pair, score);
            extended.pairs.push(pair);
            size += usize::from(is_bpe || is_counted(merged, &text));
            let Some(found) = pairs.remove(&pair) else { continue };
            let mut changed = BTreeSet::new();
            for index in found.words {
                let (_, tokens, count) = &mut self.words[index];
                for old in tokens.windows(2) {
                    let old = (old[0], old[1]);
                    if let Some(found) = pairs.get_mut(&old) {
                        found.count = found.count.saturating_sub(*count);
                        changed.insert(old);
                    }
                }
                let length = tokens.len();
                replace(tokens, pair, merged);
                let merges = (length - tokens.len()) as u64 * *count;
                total -= merges;
                *counts.entry(merged).or_default() += merges;
                for part in [pair.0, pair.1] {
                    let left = counts.entry(part).or_default();
                    let before = std::mem::replace(left, left.saturating_sub(merges));
                    let is_gone = before > 0 && *left == 0 && !is_bpe;
                    size -= usize::from(is_gone && is_counted(part, &extended.segmenter.texts()[part as usize]));
                }
                for new in tokens.windows(2) {
                    let new = (new[0], new[1]);
                    let found = pairs.entry(new).or_default();
                    found.count += *count;
                    found.words.insert(index);
                    changed.insert(new);
                }
            }
            for pair in changed {
                let count = pairs.get(&pair).map_or(0, |found| found.count);
                if count > 0 {
                    queue.push((count, Reverse(pair)));
                }
            }
        }
        let mut used = self.used(&extended.segmenter, first).0;
        used.retain(|(text, _)| !rare.contains(text));
        used
    }
}

/// Neighbouring tokens.
#[derive(Default)]
struct Pair {
    /// Number of occurrences in the text.
    count: u64,
    /// Indices of words that have it, or had it.
    words: BTreeSet<usize>,
}

/// Contents of the extended file. `old` is the number of old tokens.
fn write(bytes: &[u8], extended: &Extended, old: usize) -> Result<String, serde_json::Error> {
    let new = &extended.segmenter.texts()[old..];
    if !TokenizerFile::is_json(bytes) {
        let mut text = String::from_utf8_lossy(bytes).into_owned();
        if !text.ends_with('\n') {
            text.push('\n');
        }
        new.iter().for_each(|token| text.extend([token, "\n"]));
        return Ok(text);
    }
    let mut file: Json = serde_json::from_slice(bytes)?;
    let texts = extended.segmenter.texts();
    let model = &mut file["model"];
    if let Some(merges) = model["merges"].as_array_mut() {
        let is_text = merges.first().is_some_and(Json::is_string);
        for &(left, right) in &extended.pairs {
            let (left, right) = (&texts[left as usize], &texts[right as usize]);
            merges.push(if is_text { json!(format!("{left} {right}")) } else { json!([left, right]) });
        }
    }
    match &mut model["vocab"] {
        Json::Object(vocabulary) => {
            vocabulary.extend((old..).zip(new).map(|(id, text)| (text.clone(), json!(id))));
        }
        Json::Array(vocabulary) => {
            // Added tokens may have the ids after those of the model. As tokens of the model they keep them.
            let lowest = vocabulary.iter().filter_map(|token| token[1].as_f64()).fold(0.0, f64::min);
            let added = texts[vocabulary.len().min(old)..old].iter().map(|text| json!([text, lowest]));
            vocabulary.extend(added);
            let scored = (old as u32..).zip(new);
            vocabulary.extend(scored.map(|(id, text)| json!([text, extended.segmenter.score(id)])));
        }
        _ => {}
    }
    Ok(format!("{file:#}\n"))
}
