//! Compatibility of a run with its datasets.

use std::collections::BTreeSet;

use lambert_config::ConfigIssue;
use lambert_config::run::{MaskToken, Pair, RunConfig};
use lambert_store::error::chain;

use super::Dataset;
use crate::tokenizer::TokenizerModel;

/// True if the stage of the key `stage.N.data` or `stage.N.mixture.M.data` masks by frequency.
fn weighs_tokens(config: &RunConfig, key: &str) -> bool {
    let index = key.strip_prefix("stage.").and_then(|rest| rest.split('.').next()?.parse::<usize>().ok());
    let stage = index.and_then(|index| config.stage.get(index));
    stage.is_some_and(|stage| stage.objective.of(&config.objective).mask_frequency_exponent > 0.0)
}

/// Adds an issue for every dataset that cannot train the configured model. `used` lists each dataset with the
/// configuration key that names it. `vocabulary` is the sha256 that the vocabulary of every dataset must have. If it is
/// `None`, all datasets must have the vocabulary of the first dataset.
pub fn check_compatibility(
    config: &RunConfig,
    used: &[(String, &Dataset)],
    vocabulary: Option<&str>,
    issues: &mut Vec<ConfigIssue>,
) {
    let first = used.first().map(|(_, dataset)| dataset.manifest().vocabulary.sha256.as_str());
    let first_special = used.first().map(|(_, dataset)| &dataset.manifest().special);
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
        if vocabulary.or(first).is_some_and(|expected| expected != manifest.vocabulary.sha256) {
            let other = if vocabulary.is_some() { "the model" } else { used[0].0.as_str() };
            issue(format!("its vocabulary differs from that of {other}"));
        } else if first_special.is_some_and(|expected| expected != &manifest.special) {
            issue(format!("its special tokens differ from those of {}", used[0].0));
        }
        let mixture = key.split_once(".mixture.").map(|(stage, _)| stage);
        if mixture.is_some_and(|stage| !seen.insert((stage, dataset.manifest_sha256()))) {
            issue("appears twice in this mixture".to_owned());
        }
    }
}
