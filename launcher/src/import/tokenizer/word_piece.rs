//! WordPiece tokenizer of a folder: the vocabulary and its case handling.

use lambert_dataset::VocabularyInfo;
use lambert_dataset::tokenizer::{Tokenizer, TokenizerModel};
use lambert_store::run::{TOKENIZER, TOKENIZER_FILES, VOCABULARY};
use serde_json::{Value as Json, json};

use super::class::GENERIC;
use super::{ImportedTokenizer, TOKENIZER_CONFIG, expect};
use crate::import::ImportError;
use crate::import::folder::Folder;

const ADDED_TOKENS: &str = "added_tokens.json";

/// Reads a WordPiece tokenizer. `file` is the content of tokenizer.json, `settings` that of tokenizer_config.json.
///
/// # Errors
/// The files contradict each other, or have a setting that is not supported.
pub fn read(folder: &Folder, settings: &Json, file: Option<&Json>) -> Result<ImportedTokenizer, ImportError> {
    let listed = folder.bytes(VOCABULARY)?;
    let wrong = |name: &str, why: String| ImportError::Tokenizer { path: folder.file(name), why };
    let (vocabulary, lowercase) = match file {
        Some(file) => {
            let (vocabulary, lowercase) = word_piece(file).map_err(|why| wrong(TOKENIZER, why))?;
            if listed.as_deref().is_some_and(|listed| lines(listed) != lines(&vocabulary)) {
                return Err(wrong(VOCABULARY, format!("its tokens are not those of {TOKENIZER}")));
            }
            // The classes of BERT read the case handling from tokenizer_config.json, others from tokenizer.json.
            let class = settings["tokenizer_class"].as_str().unwrap_or("BertTokenizer");
            if !GENERIC.contains(&class) && case(settings).map_err(|why| wrong(TOKENIZER_CONFIG, why))? != lowercase {
                let is_set = settings.get("do_lower_case").is_some_and(|value| !value.is_null());
                let origin = if is_set { "" } else { " by default" };
                let why = format!("do_lower_case is {}{origin}, but {TOKENIZER} has lowercase {lowercase}", !lowercase);
                return Err(wrong(TOKENIZER_CONFIG, why));
            }
            (listed.unwrap_or(vocabulary), lowercase)
        }
        None => {
            let none = || ImportError::NoFile { folder: folder.file(""), name: TOKENIZER };
            let lowercase = case(settings).map_err(|why| wrong(TOKENIZER_CONFIG, why))?;
            (listed.ok_or_else(none)?, lowercase)
        }
    };
    let origin = if folder.file(VOCABULARY).exists() { VOCABULARY } else { TOKENIZER };
    let tokenizer = Tokenizer::from_vocab(&vocabulary, lowercase)
        .map_err(|source| ImportError::Vocabulary { path: folder.file(origin), source })?;
    // Slow tokenizers list their added tokens in these files.
    let decoder = settings["added_tokens_decoder"].as_object().into_iter().flatten();
    let decoder = decoder.map(|(id, token)| (id.parse().ok(), token["content"].as_str()));
    check_added(decoder, tokenizer.tokens().texts()).map_err(|why| wrong(TOKENIZER_CONFIG, why))?;
    let listed = folder.json(ADDED_TOKENS)?.unwrap_or_else(|| json!({}));
    let listed = listed.as_object().into_iter().flatten();
    let listed = listed.map(|(token, id)| (id.as_u64().and_then(|id| usize::try_from(id).ok()), Some(token.as_str())));
    check_added(listed, tokenizer.tokens().texts()).map_err(|why| wrong(ADDED_TOKENS, why))?;
    let mut files = Vec::new();
    for name in TOKENIZER_FILES {
        files.extend(folder.bytes(name)?.map(|content| (name, content)));
    }
    let info = VocabularyInfo { size: tokenizer.size(), lowercase };
    let pad = tokenizer.special().pad;
    Ok(ImportedTokenizer { model: TokenizerModel::WordPiece, vocabulary, info, pad, files })
}

fn lines(vocabulary: &[u8]) -> Vec<&[u8]> {
    vocabulary.strip_suffix(b"\n").unwrap_or(vocabulary).split(|byte| *byte == b'\n').collect()
}

/// True if the settings of a class of BERT lowercase the text.
fn case(settings: &Json) -> Result<bool, String> {
    expect(settings, "do_lower_case", &[json!(true), json!(false)])?;
    let lowercase = settings.get("do_lower_case").and_then(Json::as_bool).unwrap_or(true);
    expect(settings, "tokenize_chinese_chars", &[json!(true)])?;
    expect(settings, "strip_accents", &[Json::Null, json!(lowercase)])?;
    Ok(lowercase)
}

/// Returns the content of a vocab.txt for the WordPiece tokenizer of a tokenizer.json, and true if it lowercases the text.
fn word_piece(file: &Json) -> Result<(Vec<u8>, bool), String> {
    let model = &file["model"];
    if model["type"] != "WordPiece" {
        return Err(format!("its model is {}; expected WordPiece, BPE or Unigram", model["type"]));
    }
    expect(model, "unk_token", &[json!("[UNK]")])?;
    expect(model, "continuing_subword_prefix", &[json!("##")])?;
    expect(model, "max_input_chars_per_word", &[json!(100)])?;
    let normalizer = &file["normalizer"];
    if normalizer["type"] != "BertNormalizer" || file["pre_tokenizer"]["type"] != "BertPreTokenizer" {
        return Err("expected a BertNormalizer and a BertPreTokenizer".to_owned());
    }
    let lowercase = normalizer["lowercase"].as_bool().ok_or("normalizer.lowercase is not true or false")?;
    expect(normalizer, "clean_text", &[json!(true)])?;
    expect(normalizer, "handle_chinese_chars", &[json!(true)])?;
    expect(normalizer, "strip_accents", &[Json::Null, json!(lowercase)])?;
    let vocabulary = model["vocab"].as_object().ok_or("model.vocab is missing")?;
    let mut pieces = vec![""; vocabulary.len()];
    for (piece, id) in vocabulary {
        let place = id.as_u64().and_then(|id| pieces.get_mut(usize::try_from(id).ok()?));
        match place {
            Some(place) if place.is_empty() && !piece.is_empty() && !piece.contains(['\n', '\r']) => *place = piece,
            _ => {
                return Err(format!(
                    "token {piece:?} has the id {id}; expected tokens without line breaks, and each id below {} once",
                    vocabulary.len()
                ));
            }
        }
    }
    let added = file["added_tokens"].as_array().into_iter().flatten();
    let added = added.map(|token| {
        let id = token["id"].as_u64().and_then(|id| usize::try_from(id).ok());
        (id, token["content"].as_str())
    });
    check_added(added, &pieces)?;
    Ok((pieces.iter().flat_map(|piece| [piece.as_bytes(), b"\n"].concat()).collect(), lowercase))
}

/// Rejects added tokens that the vocabulary does not have at their ids.
fn check_added<'a>(
    added: impl Iterator<Item = (Option<usize>, Option<&'a str>)>,
    pieces: &[impl AsRef<str>],
) -> Result<(), String> {
    for (id, content) in added {
        let content = content.ok_or("an added token has no content")?;
        if id.and_then(|id| pieces.get(id)).map(AsRef::as_ref) != Some(content) {
            return Err(format!("the added token {content:?} is not in the vocabulary"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use lambert_dataset::tokenizer::tokenizer_json;

    use super::*;

    const VOCAB: &[u8] = b"[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nthe\n##m\n";

    #[test]
    fn own_files_give_their_vocabulary() {
        for lowercase in [true, false] {
            let file: Json = serde_json::from_str(&tokenizer_json(VOCAB, lowercase).unwrap()).unwrap();
            assert_eq!(word_piece(&file).unwrap(), (VOCAB.to_vec(), lowercase));
        }
    }

    #[test]
    fn other_tokenizers_are_refused() {
        let file: Json = serde_json::from_str(&tokenizer_json(VOCAB, true).unwrap()).unwrap();
        for (pointer, value, message) in [
            ("/model/type", json!("BPE"), "its model is \"BPE\"; expected WordPiece, BPE or Unigram"),
            ("/model/continuing_subword_prefix", json!("@@"), "continuing_subword_prefix is \"@@\"; expected \"##\""),
            ("/normalizer/strip_accents", json!(false), "strip_accents is false; expected null"),
            ("/normalizer/type", json!("Lowercase"), "expected a BertNormalizer"),
            ("/model/vocab/the", json!(4), "each id below 7 once"),
            ("/model/vocab/the", json!(70), "has the id 70"),
            ("/added_tokens/0/content", json!("<pad>"), "the added token \"<pad>\" is not in the vocabulary"),
        ] {
            let mut changed = file.clone();
            *changed.pointer_mut(pointer).unwrap() = value;
            let error = word_piece(&changed).unwrap_err();
            assert!(error.contains(message), "{error}");
        }
    }
}
