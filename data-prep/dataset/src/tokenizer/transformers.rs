//! Tokenizer files of a model for Hugging Face Transformers.

use serde_json::{Value as Json, json};

use super::json::{SPECIAL, tokenizer_json};
use super::{Tokenizer, TokenizerError, TokenizerModel};

/// Roles of the special tokens in transformers, in the order of [`super::Special`].
const ROLES: [&str; 5] = ["pad_token", "unk_token", "cls_token", "sep_token", "mask_token"];

/// Name of a file, and its content.
type File = (&'static str, Vec<u8>);

/// Class of transformers that reads the files of a tokenizer.
#[must_use]
pub fn class(model: TokenizerModel) -> &'static str {
    match model {
        TokenizerModel::WordPiece => "BertTokenizerFast",
        TokenizerModel::Bpe | TokenizerModel::Unigram => "PreTrainedTokenizerFast",
    }
}

/// Returns the files of a tokenizer. `vocabulary` is its vocab.txt or tokenizer.json, `positions` the maximum length of
/// a sample. `segments` is the number of segment embeddings of the model: a model with fewer than two takes no segment
/// ids.
///
/// # Errors
/// The vocabulary is not valid.
pub fn files(
    tokenizer: &Tokenizer,
    vocabulary: &[u8],
    positions: usize,
    segments: usize,
) -> Result<Vec<File>, TokenizerError> {
    let model = tokenizer.tokens().model();
    let names = match model {
        TokenizerModel::WordPiece => SPECIAL,
        _ => tokenizer.special().all().map(|id| tokenizer.piece(id)),
    };
    let special: serde_json::Map<String, Json> =
        ROLES.iter().zip(names).map(|(role, name)| ((*role).to_owned(), json!(name))).collect();
    let mut config = match model {
        TokenizerModel::WordPiece => json!({
            "tokenizer_class": "BertTokenizer",
            "do_lower_case": tokenizer.lowercase(),
            "model_max_length": positions,
            "tokenize_chinese_chars": true,
            "strip_accents": null,
            "clean_up_tokenization_spaces": true,
        }),
        // Other transformers classes write their own rules and ignore those of tokenizer.json.
        _ => json!({
            "tokenizer_class": class(model),
            "model_max_length": positions,
            "clean_up_tokenization_spaces": false,
        }),
    };
    if let Json::Object(config) = &mut config {
        config.extend(special.clone());
        // The transformers classes differ in their default.
        let inputs = match segments {
            0 | 1 => json!(["input_ids", "attention_mask"]),
            _ => json!(["input_ids", "token_type_ids", "attention_mask"]),
        };
        config.insert("model_input_names".to_owned(), inputs);
    }
    let mut files = vec![(model.file(), vocabulary.to_vec())];
    if model.is_word_piece() {
        files.push((crate::TOKENIZER, tokenizer_json(vocabulary, tokenizer.lowercase())?.into_bytes()));
    }
    files.push(("tokenizer_config.json", pretty(&config)));
    files.push(("special_tokens_map.json", pretty(&Json::Object(special))));
    Ok(files)
}

fn pretty(value: &Json) -> Vec<u8> {
    format!("{value:#}\n").into_bytes()
}
