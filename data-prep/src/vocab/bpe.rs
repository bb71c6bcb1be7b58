//! Byte-level BPE vocabulary training.
//! Words are spelled in the symbols of GPT-2, one for each byte. All 256 symbols are tokens, so no text needs `[UNK]`.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashSet};
use std::sync::LazyLock;

use lambert_dataset::tokenizer::json::SPECIAL;
use serde_json::{Map, Value, json};
use tokenizers::SplitDelimiterBehavior;
use tokenizers::normalizers::{Lowercase, NFC};
use tokenizers::pipeline::{PipelineNormalizer, PipelinePreTokenizer};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::trainers::BpeTrainer;
use tokenizers::utils::byte_level::GPT2_REGEX_STR;
use tokenizers::vocab::bucket_added_vocabulary::AddedToken;

use super::file::TokenizerParts;
use super::words::{LongWords, Normalizers, WordSplitter};
use super::{TrainedVocabulary, VocabSettings, WordCounts, check_size, training_failed};
use crate::prep::PrepError;

/// Upper limit on the total count of symbols, because the trainer counts pairs in 32 bits, with a sign.
const MAX_TOTAL_SYMBOLS: u64 = 1 << 30;

/// Symbols of the bytes, in byte order.
static SYMBOLS: LazyLock<[char; 256]> = LazyLock::new(ByteLevel::alphabet);

/// Splitter of GPT-2. Words include the space before them.
pub fn splitter(lowercase: bool) -> Result<WordSplitter, tokenizers::Error> {
    let mut normalizers = vec![PipelineNormalizer::NFC(NFC)];
    if lowercase {
        normalizers.push(PipelineNormalizer::Lowercase(Lowercase));
    }
    let pattern = SplitPattern::Regex(GPT2_REGEX_STR.to_owned());
    Ok(WordSplitter {
        normalizers: Normalizers::Steps(normalizers),
        pre_tokenizer: PipelinePreTokenizer::Split(Split::native(pattern, SplitDelimiterBehavior::Isolated, false)?),
        leading_space: true,
        long_words: LongWords::Skip,
        spelling,
    })
}

/// Byte symbols of a word.
pub fn spelling(word: &str) -> Cow<'_, str> {
    Cow::Owned(word.bytes().map(|byte| SYMBOLS[usize::from(byte)]).collect())
}

/// Trains a tokenizer.json. The ids are those of the special tokens, of the byte symbols in byte order, and of the
/// merges in order.
pub fn train(counts: &WordCounts, settings: &VocabSettings) -> Result<TrainedVocabulary, PrepError> {
    let initial_tokens: Vec<String> =
        SPECIAL.iter().map(ToString::to_string).chain(SYMBOLS.iter().map(ToString::to_string)).collect();
    check_size(settings, initial_tokens.len(), "the special tokens and the bytes")?;
    let total: u64 = counts.iter().map(|(word, count)| count * word.chars().count() as u64).sum();
    let divisor = total / MAX_TOTAL_SYMBOLS + 1;
    let word_counts = counts.iter().map(|(word, count)| (word.as_str().into(), count.div_ceil(divisor))).collect();
    let trainer = BpeTrainer::builder()
        .vocab_size(settings.size)
        .min_frequency(settings.min_frequency.div_ceil(divisor))
        .show_progress(false)
        .special_tokens(initial_tokens.into_iter().map(|token| AddedToken::from(token, true)).collect())
        .build();
    let (vocabulary, mut merges, _) = trainer.do_train(&word_counts).map_err(training_failed)?;
    // The trainer can merge a pair twice, if the pair contains a token that two pairs merge to.
    let mut merged = HashSet::new();
    merges.retain(|pair| merged.insert(pair.clone()));
    let by_id: BTreeMap<u32, String> = vocabulary.into_iter().map(|(token, id)| (id, token)).collect();
    let tokens = by_id.len();
    let vocabulary: Map<String, Value> = by_id.into_iter().map(|(id, token)| (token, json!(id))).collect();
    let mut normalizers = vec![json!({"type": "NFC"})];
    if settings.lowercase {
        normalizers.push(json!({"type": "Lowercase"}));
    }
    let byte_level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
    let parts = TokenizerParts {
        normalizers,
        pre_tokenizer: byte_level.clone(),
        decoder: byte_level,
        model: json!({
            "type": "BPE",
            "dropout": null,
            "unk_token": null,
            "continuing_subword_prefix": null,
            "end_of_word_suffix": null,
            "fuse_unk": false,
            "byte_fallback": false,
            "ignore_merges": false,
            "vocab": vocabulary,
            "merges": merges,
        }),
        mask_includes_space: true,
    };
    Ok(TrainedVocabulary { text: parts.into_text(), tokens })
}
