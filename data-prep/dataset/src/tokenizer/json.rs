//! `tokenizer.json`, generated from a vocab.txt, in two forms. The tokenizers library of this program reads one form,
//! and Hugging Face's `BertTokenizerFast` loads the other form.

use std::collections::HashMap;

use serde_json::{Value, json};

use super::TokenizerError;

/// Prefix of tokens that continue a word.
pub const PREFIX: &str = "##";

/// Special tokens, in the order of [`super::Special`].
pub const SPECIAL: [&str; 5] = [PAD, UNK, CLS, SEP, MASK];
const PAD: &str = "[PAD]";
/// Token for unknown words.
pub const UNK: &str = "[UNK]";
const CLS: &str = "[CLS]";
const SEP: &str = "[SEP]";
/// Mask token.
pub const MASK: &str = "[MASK]";

/// Maximum length of a word, in characters, as in BERT. Longer words become `[UNK]`.
pub const MAX_WORD_CHARS: usize = 100;

/// Parses the tokens of a vocab.txt, in id order. `origin` is the name of the vocabulary in error messages.
pub fn pieces(bytes: &[u8], origin: &str) -> Result<Vec<String>, TokenizerError> {
    let text = std::str::from_utf8(bytes)
        .map_err(|error| TokenizerError::NotUtf8 { origin: origin.to_owned(), at: error.valid_up_to() })?;
    let mut first_lines = HashMap::new();
    let mut pieces = Vec::new();
    for (index, line) in text.strip_suffix('\n').unwrap_or(text).split('\n').enumerate() {
        let (piece, line) = (line.strip_suffix('\r').unwrap_or(line), index + 1);
        if piece.is_empty() && !text.is_empty() {
            return Err(TokenizerError::EmptyLine { origin: origin.to_owned(), line });
        }
        if let Some(first) = first_lines.insert(piece, line) {
            return Err(TokenizerError::Doubled { origin: origin.to_owned(), line, first, piece: piece.to_owned() });
        }
        pieces.push(piece.to_owned());
    }
    Ok(pieces)
}

/// Writes the JSON for `tokenizers` 1.0. The JSON has no added tokens and no post-processor. So every input is plain
/// text, and no special tokens are added.
pub(super) fn canonical(pieces: &[String], lowercase: bool) -> String {
    json!({
        "version": "2.0",
        "normalizer": normalizer(lowercase),
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "model": model(pieces),
    })
    .to_string()
}

/// Writes `tokenizer.json` for Hugging Face's `BertTokenizerFast` from the bytes of a vocab.txt, with the template
/// `[CLS] A [SEP] B [SEP]`.
pub fn tokenizer_json(vocab: &[u8], lowercase: bool) -> Result<String, TokenizerError> {
    let pieces = pieces(vocab, "the vocabulary")?;
    let special = super::special(&pieces, "the vocabulary")?;
    let mut added: Vec<(u32, &str)> = special.all().into_iter().zip(SPECIAL).collect();
    added.sort_unstable();
    let added: Vec<Value> = added.into_iter().map(|(id, content)| added_token(id, content, false)).collect();
    let value = json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": added,
        "normalizer": normalizer(lowercase),
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": template(special.cls, special.sep),
        "decoder": {"type": "WordPiece", "prefix": PREFIX, "cleanup": true},
        "model": model(&pieces),
    });
    Ok(format!("{value:#}\n"))
}

fn normalizer(lowercase: bool) -> Value {
    json!({"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true, "strip_accents": null,
           "lowercase": lowercase})
}

fn model(pieces: &[String]) -> Value {
    let vocab: serde_json::Map<String, Value> =
        pieces.iter().enumerate().map(|(id, piece)| (piece.clone(), json!(id))).collect();
    json!({"type": "WordPiece", "unk_token": UNK, "continuing_subword_prefix": PREFIX,
           "max_input_chars_per_word": MAX_WORD_CHARS, "vocab": vocab})
}

/// Returns an element of `added_tokens` for a special token. If `lstrip` is true, the token includes the whitespace
/// before it.
pub fn added_token(id: u32, content: &str, lstrip: bool) -> Value {
    json!({"id": id, "content": content, "single_word": false, "lstrip": lstrip, "rstrip": false,
           "normalized": false, "special": true})
}

/// Returns the post-processor with the template `[CLS] A [SEP] B [SEP]`. `cls` and `sep` are the ids of the special
/// tokens.
pub fn template(cls: u32, sep: u32) -> Value {
    let special = |name: &str, type_id: u8| json!({"SpecialToken": {"id": name, "type_id": type_id}});
    let sequence = |name: &str, type_id: u8| json!({"Sequence": {"id": name, "type_id": type_id}});
    let single = [special(CLS, 0), sequence("A", 0), special(SEP, 0)];
    let mut pair = single.to_vec();
    pair.extend([sequence("B", 1), special(SEP, 1)]);
    json!({
        "type": "TemplateProcessing",
        "single": single,
        "pair": pair,
        "special_tokens": {
            CLS: {"id": CLS, "ids": [cls], "tokens": [CLS]},
            SEP: {"id": SEP, "ids": [sep], "tokens": [SEP]},
        },
    })
}
