//! WordPiece vocabulary training.
//! The `tokenizers` crate computes the merges. It merges the most frequent pair first and breaks ties by ID. But it
//! would number the alphabet in hash-table order. So this module chooses and numbers the alphabet, to make the result
//! deterministic.

use std::borrow::Cow;
use std::collections::BTreeMap;

use lambert_dataset::tokenizer::json::{PREFIX, SPECIAL};
use tokenizers::normalizers::bert::BertNormalizer;
use tokenizers::pipeline::{PipelineNormalizer, PipelinePreTokenizer};
use tokenizers::pre_tokenizers::bert::BertPreTokenizer;
use tokenizers::trainers::BpeTrainer;
use tokenizers::vocab::bucket_added_vocabulary::AddedToken;

use super::words::{LongWords, Normalizers, WordSplitter};
use super::{TrainedVocabulary, VocabSettings, WordCounts, alphabet, check_size, training_failed};
use crate::prep::PrepError;

/// Upper limit on the total word count, because the trainer counts pairs in 32 bits.
const MAX_TOTAL_COUNT: u64 = 1 << 30;

/// Splitter of BERT.
pub fn splitter(lowercase: bool) -> WordSplitter {
    WordSplitter {
        normalizers: Normalizers::Steps(vec![PipelineNormalizer::Bert(BertNormalizer::new(
            true, true, None, lowercase,
        ))]),
        pre_tokenizer: PipelinePreTokenizer::Bert(BertPreTokenizer),
        leading_space: false,
        long_words: LongWords::Skip,
        spelling: |word| Cow::Borrowed(word),
    }
}

/// Trains a vocab.txt.
pub fn train(counts: &WordCounts, settings: &VocabSettings) -> Result<TrainedVocabulary, PrepError> {
    let alphabet = alphabet(counts, settings);
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
    check_size(settings, initial_tokens.len(), "the special tokens and the alphabet")?;
    let trainer = BpeTrainer::builder()
        .continuing_subword_prefix(PREFIX.to_owned())
        .vocab_size(settings.size)
        .min_frequency(settings.min_frequency.div_ceil(divisor))
        .show_progress(false)
        .special_tokens(initial_tokens.into_iter().map(|token| AddedToken::from(token, true)).collect())
        .build();
    let (vocabulary, ..) = trainer.do_train(&word_counts).map_err(training_failed)?;
    let by_id: BTreeMap<u32, String> = vocabulary.into_iter().map(|(token, id)| (id, token)).collect();
    let tokens = by_id.len();
    Ok(TrainedVocabulary { text: by_id.into_values().map(|token| token + "\n").collect(), tokens })
}
