//! `tokenizer.json` of Hugging Face with a byte-level BPE or Unigram model, as a vocabulary.

use serde_json::{Value as Json, json};
use tokenizers::pipeline::PipelineTokenizer;

use super::TokenizerError;
use super::file_tokens::{append_added, bpe_tokens, check_added_words, merge_parts, unigram_tokens};
use super::json::SPECIAL;
use super::normalizer::Normalizer;
use super::pre_tokenizer::{adds_space, check_metaspace, check_sentences};
use super::regex_splits::compile_splits;
use super::special_tokens::{Template, mask_strips, special, special_ids};
use super::token_table::{TokenTable, TokenizerModel};

/// Content of a tokenizer.json.
#[derive(Debug, Clone)]
pub struct TokenizerFile {
    /// Tokens.
    pub tokens: TokenTable,
    /// True if the text is lowercased.
    pub lowercase: bool,
    /// True if each text starts with a space (`add_prefix_space` of byte-level BPE).
    pub adds_space: bool,
    /// True if the mask token takes the spaces before it, and if it takes those after it.
    pub mask_strips: (bool, bool),
    /// True if it has added tokens that are not special.
    pub has_added_words: bool,
    /// True if the normalizer has the same effect on a word in any context.
    pub keeps_words: bool,
    /// True if two separators stand between the segments of a pair, as in RoBERTa.
    pub has_double_separator: bool,
    file: Json,
}

impl TokenizerFile {
    /// True if the bytes are a JSON object and not a vocab.txt. No line of a JSON object is the name of a special token.
    #[must_use]
    pub fn is_json(bytes: &[u8]) -> bool {
        let start = bytes.trim_ascii_start().strip_prefix(b"{");
        let is_special = |line: &[u8]| SPECIAL.iter().any(|name| name.as_bytes() == line);
        start.is_some_and(|rest| rest.trim_ascii_start().starts_with(b"\""))
            && !bytes.split(|byte| *byte == b'\n').any(|line| is_special(line.strip_suffix(b"\r").unwrap_or(line)))
    }

    /// Reads the bytes of a tokenizer.json. `origin` is its name in error messages.
    ///
    /// # Errors
    /// The bytes are not such a file, or its model or one of its settings is not supported.
    pub fn read(bytes: &[u8], origin: &str) -> Result<Self, TokenizerError> {
        let why = |why: String| TokenizerError::File { origin: origin.to_owned(), why };
        let file: Json = serde_json::from_slice(bytes).map_err(|error| why(error.to_string()))?;
        Self::parse(file).map_err(why)
    }

    fn parse(file: Json) -> Result<Self, String> {
        let model = match file["model"]["type"].as_str() {
            Some("BPE") => TokenizerModel::Bpe,
            Some("Unigram") => TokenizerModel::Unigram,
            Some("WordPiece") => return Err("its model is WordPiece; use its vocab.txt".to_owned()),
            _ => return Err(format!("its model.type is {}; expected BPE or Unigram", file["model"]["type"])),
        };
        let (mut texts, adds_space) = match model {
            TokenizerModel::Bpe => {
                check_sentences(&file)?;
                (bpe_tokens(&file)?, adds_space(&file["pre_tokenizer"])?)
            }
            _ => {
                check_metaspace(&file["pre_tokenizer"])?;
                (unigram_tokens(&file["model"])?, false)
            }
        };
        let added = file["added_tokens"].as_array().map_or(&[][..], Vec::as_slice);
        append_added(&mut texts, added)?;
        let template = Template::of(&file["post_processor"]);
        let special = special(added, &texts, template.as_ref())?;
        let unk_id = &file["model"]["unk_id"];
        if model == TokenizerModel::Unigram && *unk_id != special.unk {
            return Err(format!("model.unk_id is {unk_id}, but the special token has the id {}", special.unk));
        }
        let is_other = |id: &u32| !special.contains(*id);
        let mut other_special: Vec<u32> = special_ids(added).filter(is_other).collect();
        other_special.sort_unstable();
        let tokens = TokenTable { model, texts, special, other_special };
        if tokens.replacements().is_empty() {
            return Err("it has only special tokens; expected ordinary tokens, too".to_owned());
        }
        let normalizer = Normalizer::read(&file["normalizer"]).map_err(|why| format!("normalizer: {why}"))?;
        let has_added_words = added.iter().any(|token| token["special"] != true);
        check_added_words(model, adds_space, added)?;
        Ok(Self {
            tokens,
            lowercase: normalizer.lowercase,
            keeps_words: normalizer.keeps_words,
            adds_space,
            mask_strips: mask_strips(added, special.mask),
            has_added_words,
            has_double_separator: template.is_some_and(|template| template.separators > 1),
            file,
        })
    }

    /// Builds the tokenizer of the library. It must encode special tokens as text. Then no text gives a special token
    /// except the one for unknown text: the special tokens of a Unigram model have other texts.
    ///
    /// # Errors
    /// `tokenizers` does not support the file.
    pub fn build_plain(&self) -> Result<PipelineTokenizer, String> {
        let mut file = self.file.clone();
        let is_hidden = |id: u32| self.tokens.is_special(id) && id != self.tokens.special.unk;
        if self.tokens.model == TokenizerModel::Unigram {
            for id in (0..self.tokens.size() as u32).filter(|id| is_hidden(*id)) {
                if let Some(text) = file.pointer_mut(&format!("/model/vocab/{id}/0")) {
                    *text = json!(hidden_text(id));
                }
            }
        }
        if let Some(added) = file.get_mut("added_tokens").and_then(Json::as_array_mut) {
            // Without other added tokens, a search in the text is needless.
            if !self.has_added_words {
                added.clear();
            }
            for token in added {
                let id = token["id"].as_u64().and_then(|id| u32::try_from(id).ok()).filter(|id| is_hidden(*id));
                if let Some(id) = id.filter(|_| self.tokens.model == TokenizerModel::Unigram) {
                    token["content"] = json!(hidden_text(id));
                }
            }
        }
        self.build(file)
    }

    /// Builds the tokenizer of the library with the special tokens, whose texts give their ids.
    ///
    /// # Errors
    /// As for [`TokenizerFile::build_plain`].
    pub fn build_special(&self) -> Result<PipelineTokenizer, String> {
        self.build(self.file.clone())
    }

    fn build(&self, file: Json) -> Result<PipelineTokenizer, String> {
        let added = file["added_tokens"].clone();
        let built = tokenizers::from_json(&self.library_json(file)?).map_err(|error| error.to_string())?;
        let built = compile_splits(built)?;
        // The library counts the ids of added tokens itself.
        let found = built.get_added_vocabulary().get_added_tokens_decoder();
        for token in added.as_array().map_or(&[][..], Vec::as_slice) {
            let id = token["id"].as_u64().and_then(|id| u32::try_from(id).ok());
            if id.and_then(|id| found.get(&id)).is_none_or(|found| token["content"] != found.content) {
                let (text, id) = (&token["content"], &token["id"]);
                return Err(format!("added_tokens: the tokenizers library does not assign {text} the id {id}"));
            }
        }
        Ok(built)
    }

    /// Merges of a BPE model, in order.
    #[must_use]
    pub fn merges(&self) -> Vec<(String, String)> {
        let merges = self.file["model"]["merges"].as_array().map_or(&[][..], Vec::as_slice);
        merges.iter().filter_map(merge_parts).map(|(left, right)| (left.to_owned(), right.to_owned())).collect()
    }

    /// True if a word that is a token of a BPE model is not split.
    #[must_use]
    pub fn ignores_merges(&self) -> bool {
        self.file["model"]["ignore_merges"] == true
    }

    /// Scores of the tokens of a Unigram model.
    #[must_use]
    pub fn scores(&self) -> Vec<f64> {
        let vocabulary = self.file["model"]["vocab"].as_array().map_or(&[][..], Vec::as_slice);
        vocabulary.iter().map(|token| token[1].as_f64().unwrap_or(f64::NEG_INFINITY)).collect()
    }

    fn library_json(&self, mut file: Json) -> Result<String, String> {
        for key in ["post_processor", "decoder", "truncation", "padding"] {
            file[key] = Json::Null;
        }
        // `tokenizers` 1.0 does not read a sequence of one, which transformers writes for DeBERTa-v2.
        let members = file.pointer_mut("/pre_tokenizer/pretokenizers").and_then(Json::as_array_mut);
        if let Some(only) = members.filter(|members| members.len() == 1).and_then(Vec::pop) {
            file["pre_tokenizer"] = only;
        }
        if let Some(adds_space) = file.pointer_mut("/pre_tokenizer/add_prefix_space")
            && self.adds_space
        {
            *adds_space = json!(false);
        }
        tokenizers::canonicalize_value(&mut file).map_err(|error| error.to_string())?;
        Ok(file.to_string())
    }
}

/// Text of a special token that no text contains. No word contains a space.
fn hidden_text(id: u32) -> String {
    format!("\u{10ffff} {id}")
}
