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
        let parts = parts.map(|text| segmenter.segment_with_unknown(text, unk)).collect();
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
    use serde_json::json;

    use super::*;
    use crate::tokenizer::Tokenizer;
    use crate::tokenizer::json::added_token;

    const BASE: &str = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n##b\n##c\nab\n";

    #[test]
    fn added_tokens_have_the_tokens_that_they_replace() {
        let longer = format!("{BASE}abc\n##bc\nxyz\n");
        let extension = VocabularyExtension::new(BASE.as_bytes(), longer.as_bytes()).unwrap();
        assert_eq!(extension, VocabularyExtension { before: 9, parts: vec![vec![8, 7], vec![6, 7], vec![1]] });
    }

    /// As in the tokenizer, an unknown character is `[UNK]`, and the other characters keep their tokens.
    #[test]
    fn added_tokens_of_unigram_keep_the_tokens_around_unknown_characters() {
        let special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"];
        let known = ["\u{2581}", "b", "\u{2581}x", "er", "e", "r"];
        let added = ["\u{2581}x\u{3b1}\u{3b2}er", "\u{3b2}b", "\u{3b1}\u{3b2}", "\u{2581}xer"];
        let file = |tokens: &[&str]| {
            let vocabulary: Vec<Json> = tokens.iter().map(|token| json!([token, -2.0])).collect();
            let names = special.iter().enumerate().map(|(id, name)| added_token(id as u32, name, false));
            json!({
                "added_tokens": names.collect::<Vec<_>>(),
                "normalizer": null,
                "pre_tokenizer": {"type": "Metaspace", "replacement": "\u{2581}", "prepend_scheme": "always", "split": true},
                "post_processor": null,
                "model": {"type": "Unigram", "unk_id": 1, "vocab": vocabulary, "byte_fallback": false},
            })
            .to_string()
        };
        let shorter = [&special[..], &known].concat();
        let longer = [&shorter[..], &added].concat();
        let (shorter, longer) = (file(&shorter), file(&longer));
        let parts = VocabularyExtension::new(shorter.as_bytes(), longer.as_bytes()).unwrap().parts;
        assert_eq!(parts, [vec![7, 1, 8], vec![1, 6], vec![1], vec![7, 8]]);
        let tokenizer = Tokenizer::from_vocab(shorter.as_bytes(), true).unwrap();
        assert_eq!(tokenizer.encode(&added[0][3..]), parts[0]);
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
