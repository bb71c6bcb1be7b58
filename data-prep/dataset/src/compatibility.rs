//! Compatibility of a run with its datasets.

use std::collections::BTreeSet;

use lambert_config::ConfigIssue;
use lambert_config::run::{MaskToken, Pair, RunConfig};
use lambert_store::error::chain;

use super::Dataset;
use crate::tokenizer::TokenizerModel;

/// Describes what a tokenizer does with capital letters.
pub fn text_case(lowercase: bool) -> &'static str {
    if lowercase { "lowercases text" } else { "keeps the case of text" }
}

/// True if the stage of the key `stage.N.data` or `stage.N.mixture.M.data` masks by frequency.
fn weighs_tokens(config: &RunConfig, key: &str) -> bool {
    let index = key.strip_prefix("stage.").and_then(|rest| rest.split('.').next()?.parse::<usize>().ok());
    let stage = index.and_then(|index| config.stage.get(index));
    stage.is_some_and(|stage| stage.objective.of(&config.objective).mask_frequency_exponent > 0.0)
}

/// Vocabulary of a model.
#[derive(Debug, Clone, Copy)]
pub struct ModelVocabulary<'a> {
    /// SHA-256 of the vocabulary.
    pub sha256: &'a str,
    /// True if the tokenizer lowercases text. `None` if that is not known.
    pub lowercase: Option<bool>,
}

/// Adds an issue for every dataset that cannot train the configured model. `used` lists each dataset with the
/// configuration key that names it. Every dataset must have the vocabulary of the model, `vocabulary`. If it is `None`, all
/// datasets must have the vocabulary of the first dataset.
pub fn check_compatibility(
    config: &RunConfig,
    used: &[(String, &Dataset)],
    vocabulary: Option<ModelVocabulary<'_>>,
    issues: &mut Vec<ConfigIssue>,
) {
    let Some((first_key, first)) = used.first().map(|(key, dataset)| (key, dataset.manifest())) else { return };
    let expected = vocabulary.map_or(first.vocabulary.sha256.as_str(), |vocabulary| vocabulary.sha256);
    let (lowercase, with_case) = match vocabulary.and_then(|vocabulary| vocabulary.lowercase) {
        Some(lowercase) => (lowercase, "the model"),
        None => (first.lowercase, first_key.as_str()),
    };
    let first_special = &first.special;
    let mut seen = BTreeSet::new();
    let (positions, required) = (config.model.positions, config.objective.pair);
    for (key, dataset) in used {
        let manifest = dataset.manifest();
        let (length, prepared) = (manifest.sequence_length, manifest.samples.pair);
        let mut issue = |message: String| issues.push(ConfigIssue::new(key, message));
        if length > positions {
            issue(format!("has samples of up to {length} tokens, but model.positions is {positions}"));
        }
        if required != Pair::None && prepared != required {
            issue(format!("was prepared with pair = \"{prepared}\", but objective.pair is \"{required}\""));
        }
        let model = manifest.vocabulary.model;
        if model == TokenizerModel::Bpe && config.objective.mask_token == MaskToken::Unk {
            issue("has no token for unknown text (byte-level BPE): set objective.mask_token = \"mask\"".to_owned());
        }
        if weighs_tokens(config, key) {
            dataset.token_counts().err().into_iter().for_each(|error| issue(chain(&error)));
        }
        if dataset.rows() == 0 {
            issue("has no samples".to_owned());
        }
        if manifest.vocabulary.sha256 != expected {
            let other = if vocabulary.is_some() { "the model" } else { first_key };
            issue(format!("its vocabulary differs from that of {other}"));
        } else if &manifest.special != first_special {
            issue(format!("its special tokens differ from those of {first_key}"));
        } else if manifest.lowercase != lowercase {
            let (own, other) = (text_case(manifest.lowercase), text_case(lowercase));
            issue(format!(
                "its tokenizer {own}, that of {with_case} {other}; prepare the dataset with vocabulary.lowercase = {lowercase}"
            ));
        }
        let mixture = key.split_once(".mixture.").map(|(stage, _)| stage);
        if mixture.is_some_and(|stage| !seen.insert((stage, dataset.manifest_sha256()))) {
            issue("appears twice in this mixture".to_owned());
        }
    }
}
