//! Vocabularies that extend another one: all its tokens with the same ids, then more tokens.

use serde_json::Value as Json;

use super::segmenter::Segmenter;
use super::{TokenTable, TokenizerFile};

/// Tokens that a vocabulary has in addition to another one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VocabularyExtension {
    /// Number of tokens of the shorter vocabulary.
    pub before: usize,
    /// Tokens of the shorter vocabulary that make up each added token, in id order.
    pub parts: Vec<Vec<u32>>,
}

impl VocabularyExtension {
    /// Compares the bytes of two vocabularies, each a vocab.txt or a tokenizer.json.
    ///
    /// # Errors
    /// The reason why `longer` does not extend `shorter`: it is of another model, lacks a token, gives a token another
    /// id, or has other rules.
    pub fn new(shorter: &[u8], longer: &[u8]) -> Result<Self, String> {
        let read = |bytes, name| TokenTable::read(bytes, name).map_err(|error| error.to_string());
        let (before, after) = (read(shorter, "the shorter vocabulary")?, read(longer, "the longer vocabulary")?);
        if before.model() != after.model() {
            return Err(format!("its model is {}, not {}", after.model(), before.model()));
        }
        if after.size() <= before.size() {
            return Err(format!("it has {} tokens, not more than {}", after.size(), before.size()));
        }
        let pairs = before.texts().iter().zip(after.texts()).enumerate();
        if let Some((id, (expected, found))) = pairs.into_iter().find(|(_, (expected, found))| expected != found) {
            return Err(format!("its token {id} is {found:?}, not {expected:?}"));
        }
        if before.special() != after.special() {
            return Err("its special tokens have other ids".to_owned());
        }
        if TokenizerFile::is_json(shorter) {
            compare_rules(shorter, longer)?;
        }
        let segmenter = Segmenter::read(shorter, "the shorter vocabulary").map_err(|error| error.to_string())?;
        let unk = before.special().unk;
        let parts = after.texts()[before.size()..].iter();
        let parts = parts.map(|text| segmenter.segment(text).unwrap_or_else(|| vec![unk])).collect();
        Ok(Self { before: before.size(), parts })
    }
}

/// Compares all members of two tokenizer.json except the tokens, whose number differs.
fn compare_rules(shorter: &[u8], longer: &[u8]) -> Result<(), String> {
    let read = |bytes| serde_json::from_slice::<Json>(bytes).map_err(|error| error.to_string());
    let (before, after) = (read(shorter)?, read(longer)?);
    for key in ["normalizer", "pre_tokenizer", "post_processor", "added_tokens"] {
        if before[key] != after[key] {
            return Err(format!("its {key} differs"));
        }
    }
    let begins = |key: &str, before: &Json, after: &Json| {
        let list = |json: &Json| json.as_array().cloned().unwrap_or_default();
        match list(after).starts_with(&list(before)) {
            true => Ok(()),
            false => Err(format!("its model.{key} does not begin with that of the other")),
        }
    };
    let (before, after) = (&before["model"], &after["model"]);
    begins("merges", &before["merges"], &after["merges"])?;
    if before["vocab"].is_array() {
        begins("vocab", &before["vocab"], &after["vocab"])?;
    }
    let members = |model: &Json| {
        let mut rest = model.as_object().cloned().unwrap_or_default();
        rest.retain(|key, _| key != "merges" && key != "vocab");
        rest
    };
    match members(before) == members(after) {
        true => Ok(()),
        false => Err("other settings of its model differ".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: &str = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n##b\n##c\nab\n";

    #[test]
    fn added_tokens_have_the_tokens_that_they_replace() {
        let longer = format!("{BASE}abc\n##bc\nxyz\n");
        let extension = VocabularyExtension::new(BASE.as_bytes(), longer.as_bytes()).unwrap();
        assert_eq!(extension, VocabularyExtension { before: 9, parts: vec![vec![8, 7], vec![6, 7], vec![1]] });
    }

    #[test]
    fn other_vocabularies_are_refused() {
        for (longer, why) in [
            (BASE.to_owned(), "it has 9 tokens, not more than 9"),
            (BASE.replace("ab\n", "ac\n") + "ab\n", "its token 8 is \"ac\", not \"ab\""),
            ("{\"a\"".to_owned(), ""),
        ] {
            let found = VocabularyExtension::new(BASE.as_bytes(), longer.as_bytes()).unwrap_err();
            assert!(found.contains(why), "{found}");
        }
    }
}
