//! The `tokenizer.json` of a trained model, in the format of Hugging Face tokenizers.

use lambert_dataset::tokenizer::json::{MASK, SPECIAL, added_token, template};
use serde_json::{Value, json};

/// Ids of `[CLS]` and `[SEP]`: their indices in [`SPECIAL`].
const CLS: u32 = 2;
const SEP: u32 = 3;

/// Parts of a tokenizer that depend on its model, as JSON.
pub struct TokenizerParts {
    /// Normalizers, in order.
    pub normalizers: Vec<Value>,
    /// Pre-tokenizer.
    pub pre_tokenizer: Value,
    /// Decoder.
    pub decoder: Value,
    /// Model.
    pub model: Value,
    /// If true, `[MASK]` includes the space before it.
    pub mask_includes_space: bool,
}

impl TokenizerParts {
    /// Contents of the file. The special tokens have the ids from 0, in the order of [`SPECIAL`].
    pub fn into_text(mut self) -> String {
        let added: Vec<Value> = (0..)
            .zip(SPECIAL)
            .map(|(id, token)| added_token(id, token, token == MASK && self.mask_includes_space))
            .collect();
        let normalizer = match self.normalizers.len() {
            1 => self.normalizers.remove(0),
            _ => json!({"type": "Sequence", "normalizers": self.normalizers}),
        };
        let value = json!({
            "version": "1.0",
            "truncation": null,
            "padding": null,
            "added_tokens": added,
            "normalizer": normalizer,
            "pre_tokenizer": self.pre_tokenizer,
            "post_processor": template(CLS, SEP),
            "decoder": self.decoder,
            "model": self.model,
        });
        format!("{value:#}\n")
    }
}
