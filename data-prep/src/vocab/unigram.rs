//! Unigram vocabulary training.
//! The `tokenizers` crate computes the pieces and their scores. It adds up in an order that depends on the number of
//! threads, so it has one thread. Its list of pieces is in hash-table order where scores are equal, so this module
//! sorts the pieces.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use lambert_dataset::tokenizer::json::{SPECIAL, UNK};
use serde_json::json;
use tokenizers::models::unigram::Unigram;
use tokenizers::normalizers::{Lowercase, NFKC, Nmt};
use tokenizers::pipeline::{PipelineNormalizer, PipelinePreTokenizer};
use tokenizers::pre_tokenizers::whitespace::WhitespaceSplit;
use tokenizers::trainers::UnigramTrainer;
use tokenizers::vocab::bucket_added_vocabulary::AddedToken;
use twox_hash::XxHash3_64;

use super::file::TokenizerParts;
use super::words::{LongWords, Normalizers, WordSplitter};
use super::{MAX_SIZE, TrainedVocabulary, VocabSettings, WordCounts, alphabet, check_size, training_failed};
use crate::prep::PrepError;

/// Character before each word, instead of a space.
const SPACE: &str = "▁";
/// Name that the trainer gives to unknown characters. Words that contain it have no likelihood.
const TRAINER_UNK: &str = "<UNK>";
/// Upper limit on the total count of characters, because the trainer counts characters in 32 bits.
const MAX_TOTAL_CHARACTERS: u64 = 1 << 31;
/// Upper limit on the number of characters in distinct words, which decides the memory and time of the training.
const MAX_TRAINED_CHARACTERS: usize = 32 << 20;
/// Decimal digits of the scores, as a power of ten. Many JSON readers are inexact with more than 15 significant digits.
const SCORE_DIGITS: f64 = 1e12;
/// Difference between the scores of two characters without a piece.
const PENALTY: f64 = 0.0001;

/// Rounds a score to twelve decimals.
pub fn round_score(score: f64) -> f64 {
    (score * SCORE_DIGITS).round() / SCORE_DIGITS
}

/// A piece and its score, the natural logarithm of its probability.
type Piece = (String, f64);

/// Splitter at whitespace. Words start with [`SPACE`].
pub fn splitter(lowercase: bool) -> WordSplitter {
    let mut normalizers = vec![PipelineNormalizer::Nmt(Nmt), PipelineNormalizer::NFKC(NFKC)];
    if lowercase {
        normalizers.push(PipelineNormalizer::Lowercase(Lowercase));
    }
    WordSplitter {
        normalizers: Normalizers::Steps(normalizers),
        pre_tokenizer: PipelinePreTokenizer::WhitespaceSplit(WhitespaceSplit),
        leading_space: false,
        long_words: LongWords::Cut,
        spelling: |word| Cow::Owned(format!("{SPACE}{word}")),
    }
}

/// Trains a tokenizer.json. The ids are those of the special tokens, then of the pieces by descending score.
pub fn train(counts: &WordCounts, settings: &VocabSettings) -> Result<TrainedVocabulary, PrepError> {
    let mut alphabet = alphabet(counts, settings);
    alphabet.retain(|&character| character != '\0'); // The trainer separates words with it.
    check_size(settings, SPECIAL.len() + alphabet.len(), "the special tokens and the alphabet")?;
    let pieces = trained_pieces(training_words(counts, &alphabet), settings.size)?;
    let special = SPECIAL.map(|token| (token.to_owned(), 0.0));
    let vocabulary: Vec<Piece> = special.into_iter().chain(pieces).collect();
    let tokens = vocabulary.len();
    let mut normalizers = vec![json!({"type": "Nmt"}), json!({"type": "NFKC"})];
    if settings.lowercase {
        normalizers.push(json!({"type": "Lowercase"}));
    }
    let metaspace = json!({"type": "Metaspace", "replacement": SPACE, "prepend_scheme": "always", "split": true});
    let parts = TokenizerParts {
        normalizers,
        pre_tokenizer: json!({"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, metaspace]}),
        decoder: metaspace,
        model: json!({
            "type": "Unigram",
            "unk_id": SPECIAL.iter().position(|&token| token == UNK),
            "vocab": vocabulary,
            "byte_fallback": false,
        }),
        mask_includes_space: false,
    };
    Ok(TrainedVocabulary { text: parts.into_text(), tokens })
}

/// Returns the words to train on, sorted except for the last one. Words are cut at characters that are not in
/// `alphabet`, because no piece contains these.
fn training_words(counts: &WordCounts, alphabet: &[char]) -> Vec<(String, u32)> {
    let mut parts: BTreeMap<&str, u64> = BTreeMap::new();
    let reserved = |word: &str| word.contains(TRAINER_UNK) || SPECIAL.iter().any(|token| word.contains(token));
    for (word, count) in counts.iter().filter(|(word, _)| !reserved(word)) {
        let known = word.split(|character| alphabet.binary_search(&character).is_err());
        known.filter(|part| !part.is_empty()).for_each(|part| *parts.entry(part).or_default() += count);
    }
    let mut words: Vec<(&str, u64)> = parts.into_iter().collect();
    if words.iter().map(|(word, _)| word.chars().count()).sum::<usize>() > MAX_TRAINED_CHARACTERS {
        words.sort_by_cached_key(|&(word, count)| (Reverse(count), XxHash3_64::oneshot(word.as_bytes())));
        let mut characters = 0;
        words.retain(|(word, _)| {
            characters += word.chars().count();
            characters <= MAX_TRAINED_CHARACTERS
        });
        words.sort_unstable();
    }
    let total: u64 = words.iter().map(|(word, count)| count * word.chars().count() as u64).sum();
    let divisor = total / MAX_TOTAL_CHARACTERS + 1;
    let scaled = |count: u64| u32::try_from(count.div_ceil(divisor)).unwrap_or(u32::MAX);
    // The suffix array of the trainer indexes out of bounds for some texts. No text is known for which it does so with
    // this word at the end. A count of 0 has no effect on the pieces.
    let last = (SPACE.to_owned(), 0);
    words.into_iter().map(|(word, count)| (word.to_owned(), scaled(count))).chain([last]).collect()
}

/// Returns the pieces of a vocabulary of `size` tokens, by descending score.
fn trained_pieces(words: Vec<(String, u32)>, size: usize) -> Result<Vec<Piece>, PrepError> {
    let mut builder = UnigramTrainer::builder();
    builder
        .vocab_size(u32::try_from(size).map_err(training_failed)?)
        .special_tokens(SPECIAL.iter().map(|&token| AddedToken::from(token.to_owned(), true)).collect())
        .unk_token(Some(UNK.to_owned()))
        .seed_size(MAX_SIZE)
        .show_progress(false);
    let trainer = match builder.build() {
        Ok(trainer) => trainer,
        Err(never) => match never {},
    };
    let thread = rayon::ThreadPoolBuilder::new().num_threads(1).build().map_err(training_failed)?;
    let mut trained = Unigram::default();
    let training = AssertUnwindSafe(|| thread.install(|| trainer.do_train(words, &mut trained)));
    catch_unwind(training).map_err(|_| training_failed("the trainer panicked"))?.map_err(training_failed)?;
    let pieces = trained.iter().skip(SPECIAL.len()).cloned();
    let (mut characters, mut others): (Vec<Piece>, Vec<Piece>) =
        pieces.partition(|(piece, _)| piece.chars().nth(1).is_none());
    others.retain(|(piece, _)| !SPECIAL.contains(&piece.as_str()));
    sort(&mut others);
    others.truncate(size.saturating_sub(SPECIAL.len() + characters.len()));
    reassign_penalties(&mut characters);
    characters.append(&mut others);
    characters.iter_mut().for_each(|(_, score)| *score = round_score(*score));
    sort(&mut characters);
    Ok(characters)
}

/// Reassigns the scores of the characters that have no piece of their own after the training. The trainer gives them
/// the lowest score of a piece, and adds [`PENALTY`] from one to the next, in hash-table order. This function gives
/// the same scores in the order of the characters.
fn reassign_penalties(characters: &mut [Piece]) {
    let lowest = characters.iter().map(|(_, score)| *score).fold(f64::INFINITY, f64::min);
    let (mut penalty, mut missing) = (0.0, Vec::new());
    loop {
        let known = missing.len();
        missing.extend((0..characters.len()).filter(|&index| characters[index].1 == lowest + penalty));
        if missing.len() == known {
            break;
        }
        penalty += PENALTY;
    }
    let scores: Vec<f64> = missing.iter().map(|&index| characters[index].1).collect();
    missing.sort_unstable_by(|&one, &other| characters[one].0.cmp(&characters[other].0));
    for (index, score) in missing.into_iter().zip(scores) {
        characters[index].1 = score;
    }
}

fn sort(pieces: &mut [Piece]) {
    pieces.sort_unstable_by(|(piece, score), (other, other_score)| {
        other_score.total_cmp(score).then_with(|| piece.cmp(other))
    });
}
