//! Tokens of a tokenizer.json, by id.

use std::collections::HashMap;

use serde_json::{Value as Json, json};

use super::byte_symbols;
use super::expect::expect;
use super::token_table::TokenizerModel;

/// Maximum length of a token, bytes. The tokenizers library calls itself once per byte of a Unigram token.
const MAX_TOKEN_BYTES: usize = 1000;

/// Tokens of a BPE model, by id. Ids that only added tokens have are empty.
pub fn bpe_tokens(file: &Json) -> Result<Vec<String>, String> {
    let model = &file["model"];
    expect(model, "model", "byte_fallback", &json!(false))?;
    for key in ["dropout", "continuing_subword_prefix", "end_of_word_suffix"] {
        let value = &model[key];
        // Python writes an absent prefix as null or as an empty string.
        if !value.is_null() && value != "" {
            return Err(format!("model.{key} is {value}; expected null"));
        }
    }
    let vocabulary = model["vocab"].as_object().ok_or("model.vocab is missing")?;
    let most = vocabulary.len() + file["added_tokens"].as_array().map_or(0, Vec::len);
    let mut texts = vec![String::new(); vocabulary.len()];
    for (text, value) in vocabulary {
        let place = value.as_u64().and_then(|id| usize::try_from(id).ok()).filter(|id| *id < most);
        let Some(place) = place.filter(|_| !text.is_empty()) else {
            return Err(format!("model.vocab: {text:?} has the id {value}; expected a string and an id below {most}"));
        };
        if place >= texts.len() {
            texts.resize(place + 1, String::new());
        }
        let before = std::mem::replace(&mut texts[place], text.clone());
        if !before.is_empty() {
            return Err(format!("model.vocab: {before:?} and {text:?} have the id {place}"));
        }
    }
    let missing = byte_symbols::SYMBOLS.iter().find(|symbol| !vocabulary.contains_key(symbol.encode_utf8(&mut [0; 4])));
    if let Some(symbol) = missing {
        return Err(format!("model.vocab lacks {symbol:?}; expected a symbol for each byte"));
    }
    for (number, merge) in model["merges"].as_array().ok_or("model.merges is missing")?.iter().enumerate() {
        let parts = merge_parts(merge);
        let is_known = |text: &str| vocabulary.contains_key(text);
        if !parts.is_some_and(|(left, right)| is_known(left) && is_known(right) && is_known(&[left, right].concat())) {
            return Err(format!("model.merges: number {number}, {merge}, is not a merge of tokens of model.vocab"));
        }
    }
    Ok(texts)
}

/// Tokens of a merge, which is written as a text or as a list.
pub fn merge_parts(merge: &Json) -> Option<(&str, &str)> {
    match merge {
        Json::String(text) => text.split_once(' ').filter(|(_, right)| !right.contains(' ')),
        _ => match merge.as_array().map(Vec::as_slice) {
            Some([left, right]) => left.as_str().zip(right.as_str()),
            _ => None,
        },
    }
}

/// Tokens of a Unigram model, by id.
pub fn unigram_tokens(model: &Json) -> Result<Vec<String>, String> {
    expect(model, "model", "byte_fallback", &json!(false))?;
    let vocabulary = model["vocab"].as_array().ok_or("model.vocab is missing")?;
    let mut seen = HashMap::new();
    let mut texts = Vec::with_capacity(vocabulary.len());
    for (id, piece) in vocabulary.iter().enumerate() {
        let score = piece[1].as_f64().filter(|score| score.is_finite());
        let (Some(text), Some(_)) = (piece[0].as_str().filter(|text| !text.is_empty()), score) else {
            return Err(format!("model.vocab: number {id} is {piece}; expected a token and its score"));
        };
        if let Some(first) = seen.insert(text, id) {
            return Err(format!("model.vocab: {text:?} has the ids {first} and {id}"));
        }
        texts.push(text.to_owned());
    }
    if model["unk_id"].as_u64().is_none_or(|id| id >= texts.len() as u64) {
        return Err(format!("model.unk_id is {}; expected the id of a token", model["unk_id"]));
    }
    Ok(texts)
}

/// Adds the added tokens that the model does not have.
pub fn append_added(texts: &mut Vec<String>, added: &[Json]) -> Result<(), String> {
    let most = texts.len() + added.len();
    let known = texts.iter().enumerate().filter(|(_, text)| !text.is_empty());
    let mut ids: HashMap<&str, usize> = known.map(|(id, text)| (text.as_str(), id)).collect();
    let mut tokens = Vec::with_capacity(added.len());
    for token in added {
        let content = token["content"].as_str().filter(|content| !content.is_empty());
        let content = content.ok_or("added_tokens: a token has no content")?;
        let id = token["id"].as_u64().and_then(|id| usize::try_from(id).ok()).filter(|id| *id < most);
        let id = id.ok_or_else(|| format!("added_tokens: {content:?} has the id {}", token["id"]))?;
        for key in ["special", "single_word", "lstrip", "rstrip", "normalized"] {
            if !token[key].is_boolean() {
                return Err(format!("added_tokens: {key} of {content:?} is {}; expected true or false", token[key]));
            }
        }
        if let Some(other) = ids.insert(content, id).filter(|other| *other != id) {
            return Err(format!("added_tokens: {content:?} has the id {id}, but the token {other} has the same text"));
        }
        tokens.push((id, content));
    }
    for (id, content) in tokens {
        if id >= texts.len() {
            texts.resize(id + 1, String::new());
        }
        if texts[id].is_empty() {
            content.clone_into(&mut texts[id]);
        } else if texts[id] != content {
            return Err(format!("added_tokens: {content:?} has the id {id}, which is that of {:?}", texts[id]));
        }
    }
    if let Some((id, text)) = texts.iter().enumerate().find(|(_, text)| text.len() > MAX_TOKEN_BYTES) {
        let start: String = text.chars().take(20).collect();
        return Err(format!("token {id} ({start:?}...) has {} bytes; expected at most {MAX_TOKEN_BYTES}", text.len()));
    }
    match texts.iter().position(String::is_empty) {
        Some(id) => Err(format!("no token has the id {id}; expected each id below {}", texts.len())),
        None => Ok(()),
    }
}

/// Checks that the added tokens that are not special have the same ids in the tokenizers library of Python.
pub fn check_added_words(model: TokenizerModel, adds_space: bool, added: &[Json]) -> Result<(), String> {
    let mut words = added.iter().filter(|token| token["special"] != true).peekable();
    if adds_space && words.peek().is_some() {
        return Err("add_prefix_space is true and added_tokens has tokens that are not special; \
                    this combination is not supported"
            .to_owned());
    }
    // The versions of the library differ in the spaces around an added token that is found in normalized text.
    let normalized = words.find(|token| model == TokenizerModel::Unigram && token["normalized"] == true);
    normalized.map_or(Ok(()), |token| {
        let content = &token["content"];
        Err(format!(
            "added_tokens: {content} is not special, and its \"normalized\" is true; expected false in a Unigram model; \
             add the token with AddedToken({content}, normalized=False)"
        ))
    })
}
