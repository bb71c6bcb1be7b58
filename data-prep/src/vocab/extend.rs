//! Extension of a vocabulary by tokens of a text. Old tokens keep their ids, and text that contains no new token is
//! tokenized as before.
//!
//! Characters that the vocabulary lacks become tokens. The words of the text are split into tokens. Then the most
//! frequent pair of neighbors becomes a token, repeatedly (`choose`). In BPE the pairs are appended to the merges,
//! so they are merged after all others.

mod choose;
mod pairs;

use std::borrow::Cow;
use std::collections::HashMap;
use std::path::Path;

use lambert_config::prep::Source;
use lambert_dataset::tokenizer::{Segmenter, TokenizerError, TokenizerFile, TokenizerModel};
use serde_json::{Value as Json, json};
use tokenizers::pipeline::PipelineNormalizer;

use self::choose::{Extended, Words, choose};
use super::unigram::round_score;
use super::words::{LongWords, Normalizers, WordSplitter};
use super::{VocabProgress, WordCounts, bpe, check_max_size, count, invalid_size, training_failed, word_piece};
use crate::prep::PrepError;

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
    check_max_size(settings.size)?;
    let counts = count(sources, splitter(&bytes, &origin, settings.lowercase)?, &mut progress)?;
    progress(VocabProgress::Training);
    let before = Words::new(&counts, &segmenter).total();
    add_characters(&mut segmenter, &counts, settings);
    let words = Words::new(&counts, &segmenter);
    let (extended, after) = choose(segmenter, words, settings);
    let text = write(&bytes, &extended, old).map_err(training_failed)?;
    check(&text, &origin)?;
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
    let is_bpe = file.tokens.model() == TokenizerModel::Bpe;
    let spells = is_bpe && !tokenizer.get_normalizers().iter().any(is_bytes);
    Ok(WordSplitter {
        pre_tokenizer: tokenizer.get_pre_tokenizer().clone(),
        normalizers: Normalizers::Of(tokenizer),
        leading_space: is_bpe,
        long_words: if is_bpe { LongWords::Skip } else { LongWords::Cut },
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
    let lowest = segmenter.lowest_score();
    for (token, count) in missing.into_iter().take(room) {
        segmenter.add_text(token, score(count, total, lowest));
    }
}

/// Score of a token: the logarithm of its share, but not below the lowest old one, which decides the score of unknown
/// characters.
fn score(count: u64, total: u64, lowest: Option<f64>) -> f64 {
    let score = round_score((count as f64 / total as f64).ln());
    lowest.map_or(score, |lowest| score.max(lowest))
}

/// Checks that the tokenizers library reads the file.
fn check(text: &str, origin: &str) -> Result<(), PrepError> {
    if TokenizerFile::is_json(text.as_bytes()) {
        let file = TokenizerFile::read(text.as_bytes(), origin).map_err(PrepError::Extended)?;
        file.build_plain().and_then(|_| file.build_special()).map_err(training_failed)?;
    }
    Ok(())
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
            // The library numbers added tokens from the size of the model on. As tokens of the model they keep their ids.
            vocabulary.extend(texts.iter().enumerate().map(|(id, text)| (text.clone(), json!(id))));
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
