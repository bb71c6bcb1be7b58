//! `tokenizer.json` of Hugging Face with a byte-level BPE or Unigram model, as a vocabulary.

use serde_json::{Value as Json, json};

use super::token_table::{TokenTable, TokenizerModel, WORD_START};
use super::{Special, TokenizerError, byte_symbols};

/// Names of each special token, in the order of [`Special`].
pub(super) const NAMES: [[&str; 2]; 5] =
    [["[PAD]", "<pad>"], ["[UNK]", "<unk>"], ["[CLS]", "<s>"], ["[SEP]", "</s>"], ["[MASK]", "<mask>"]];

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
    /// True if two separators stand between the segments of a pair, as in RoBERTa.
    pub has_double_separator: bool,
    file: Json,
}

impl TokenizerFile {
    /// True if the bytes are a JSON object and not a vocab.txt.
    #[must_use]
    pub fn is_json(bytes: &[u8]) -> bool {
        let start = bytes.trim_ascii_start().strip_prefix(b"{");
        start.is_some_and(|rest| rest.trim_ascii_start().starts_with(b"\""))
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
            TokenizerModel::Bpe => (bpe_tokens(&file)?, adds_space(&file["pre_tokenizer"])?),
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
        let has_added_words = added.iter().any(|token| token["special"] != true);
        if has_added_words && adds_space {
            return Err("add_prefix_space is true and added_tokens has tokens that are not special; \
                        this combination is not supported"
                .to_owned());
        }
        Ok(Self {
            tokens: TokenTable { model, texts, special },
            lowercase: has_lowercase(&file["normalizer"]),
            adds_space,
            mask_strips: mask_strips(added, special.mask),
            has_added_words,
            has_double_separator: template.is_some_and(|template| template.separators > 1),
            file,
        })
    }

    /// Writes the JSON for `tokenizers` 1.0. No text gives a special token except the one for unknown text: the JSON has
    /// no special added tokens, and the special tokens of a Unigram model have other texts.
    ///
    /// # Errors
    /// `tokenizers` does not support the file.
    pub fn plain_json(&self) -> Result<String, String> {
        let mut file = self.file.clone();
        if let Some(added) = file.get_mut("added_tokens").and_then(Json::as_array_mut) {
            added.retain(|token| token["special"] != true);
        }
        if self.tokens.model == TokenizerModel::Unigram {
            let Special { pad, cls, sep, mask, .. } = self.tokens.special;
            for id in [pad, cls, sep, mask] {
                // No word contains a space.
                if let Some(text) = file.pointer_mut(&format!("/model/vocab/{id}/0")) {
                    *text = json!(format!(" {id}"));
                }
            }
        }
        self.library_json(file)
    }

    /// Writes the JSON for `tokenizers` 1.0 with the special tokens, whose texts give their ids.
    ///
    /// # Errors
    /// As for [`TokenizerFile::plain_json`].
    pub fn special_json(&self) -> Result<String, String> {
        self.library_json(self.file.clone())
    }

    /// Merges of a BPE model, in order.
    #[must_use]
    pub fn merges(&self) -> Vec<(String, String)> {
        let merges = self.file["model"]["merges"].as_array().map_or(&[][..], Vec::as_slice);
        merges.iter().filter_map(merge).map(|(left, right)| (left.to_owned(), right.to_owned())).collect()
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

/// Tokens of a BPE model, by id. Ids that only added tokens have are empty.
fn bpe_tokens(file: &Json) -> Result<Vec<String>, String> {
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
            return Err(format!("model.vocab: {text:?} has the id {value}; expected a text and an id below {most}"));
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
        let parts = self::merge(merge);
        let is_known = |text: &str| vocabulary.contains_key(text);
        if !parts.is_some_and(|(left, right)| is_known(left) && is_known(right) && is_known(&[left, right].concat())) {
            return Err(format!("model.merges: number {number}, {merge}, is not a merge of tokens of model.vocab"));
        }
    }
    Ok(texts)
}

/// Tokens of a merge, which is written as a text or as a list.
fn merge(merge: &Json) -> Option<(&str, &str)> {
    match merge {
        Json::String(text) => text.split_once(' ').filter(|(_, right)| !right.contains(' ')),
        _ => match merge.as_array().map(Vec::as_slice) {
            Some([left, right]) => left.as_str().zip(right.as_str()),
            _ => None,
        },
    }
}

/// Tokens of a Unigram model, by id.
fn unigram_tokens(model: &Json) -> Result<Vec<String>, String> {
    expect(model, "model", "byte_fallback", &json!(false))?;
    let vocabulary = model["vocab"].as_array().ok_or("model.vocab is missing")?;
    let mut seen = std::collections::HashMap::new();
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

/// True if a byte-level pre-tokenizer starts each text with a space.
fn adds_space(pre_tokenizer: &Json) -> Result<bool, String> {
    let is_byte_level = |json: &Json| json["type"] == "ByteLevel";
    match pre_tokenizer["pretokenizers"].as_array().map(Vec::as_slice) {
        Some([.., last]) if is_byte_level(last) => match last["add_prefix_space"] == true {
            true => Err("pre_tokenizer: add_prefix_space is true in a Sequence; expected false".to_owned()),
            false => Ok(false),
        },
        None if is_byte_level(pre_tokenizer) => {
            expect(pre_tokenizer, "pre_tokenizer", "use_regex", &json!(true))?;
            Ok(pre_tokenizer["add_prefix_space"] == true)
        }
        _ => Err("its pre_tokenizer is not ByteLevel; expected byte-level BPE".to_owned()),
    }
}

/// Checks that words start at spaces, and that each text starts with one.
fn check_metaspace(pre_tokenizer: &Json) -> Result<(), String> {
    let metaspace = match pre_tokenizer["pretokenizers"].as_array().map(Vec::as_slice) {
        Some([only]) => only,
        Some([first, second]) if first["type"] == "WhitespaceSplit" => second,
        _ => pre_tokenizer,
    };
    if metaspace["type"] != "Metaspace" {
        return Err("its pre_tokenizer is not Metaspace".to_owned());
    }
    if metaspace["replacement"] != WORD_START.to_string() {
        return Err(format!("pre_tokenizer: replacement is {}; expected \"{WORD_START}\"", metaspace["replacement"]));
    }
    expect(metaspace, "pre_tokenizer", "split", &json!(true))?;
    expect(metaspace, "pre_tokenizer", "add_prefix_space", &json!(true))?;
    match metaspace["prepend_scheme"] == "never" {
        true => Err("pre_tokenizer: prepend_scheme is \"never\"; expected \"always\" or \"first\"".to_owned()),
        false => Ok(()),
    }
}

/// Adds the added tokens that the model does not have.
fn append_added(texts: &mut Vec<String>, added: &[Json]) -> Result<(), String> {
    let most = texts.len() + added.len();
    for token in added {
        let content = token["content"].as_str().filter(|content| !content.is_empty());
        let content = content.ok_or("added_tokens: a token has no content")?;
        let id = token["id"].as_u64().and_then(|id| usize::try_from(id).ok()).filter(|id| *id < most);
        let id = id.ok_or_else(|| format!("added_tokens: {content:?} has the id {}", token["id"]))?;
        if id >= texts.len() {
            texts.resize(id + 1, String::new());
        }
        if texts[id].is_empty() {
            content.clone_into(&mut texts[id]);
        } else if texts[id] != content {
            return Err(format!("added_tokens: {content:?} has the id {id}, which is that of {:?}", texts[id]));
        }
    }
    match texts.iter().position(String::is_empty) {
        Some(id) => Err(format!("no token has the id {id}; expected each id below {}", texts.len())),
        None => Ok(()),
    }
}

/// Special tokens around the text.
struct Template {
    cls: u32,
    sep: u32,
    /// Number of separators between the segments of a pair.
    separators: usize,
}

impl Template {
    /// Reads a post-processor that writes a token before the text and one after it.
    fn of(post_processor: &Json) -> Option<Self> {
        if let Some(members) = post_processor["processors"].as_array() {
            return members.iter().find_map(Self::of);
        }
        let mut file = post_processor.clone();
        tokenizers::canonicalize_post_processor(&mut file).ok()?;
        let ids =
            |part: &Json| part["ids"].as_array().map(|ids| ids.iter().filter_map(Json::as_u64).collect::<Vec<_>>());
        let [first, _, last] = file["single"].as_array()?.as_slice() else { return None };
        let ([cls], [sep]) = (ids(first)?.as_slice().try_into().ok()?, ids(last)?.as_slice().try_into().ok()?);
        let (cls, sep): (u64, u64) = (cls, sep);
        let pair = file["pair"].as_array()?;
        let is_text = |part: &&Json| part.get("seq").is_some();
        let between = pair.iter().skip_while(|part| !is_text(part)).skip(1).take_while(|part| !is_text(part));
        let separators = between.filter_map(ids).map(|ids| ids.len()).sum();
        Some(Self { cls: u32::try_from(cls).ok()?, sep: u32::try_from(sep).ok()?, separators })
    }
}

/// Ids of the special tokens: those of the template, and special added tokens with the names of BERT or of RoBERTa.
fn special(added: &[Json], texts: &[String], template: Option<&Template>) -> Result<Special, String> {
    let named = |names: [&str; 2]| {
        let found = names.into_iter().find_map(|name| {
            added.iter().find(|token| token["content"] == name && token["special"] == true)?["id"].as_u64()
        });
        found.and_then(|id| u32::try_from(id).ok())
    };
    let [pad, unk, cls, sep, mask] = NAMES.map(named);
    let known = |id: &u32| (*id as usize) < texts.len();
    let cls = template.map(|template| template.cls).filter(known).or(cls);
    let sep = template.map(|template| template.sep).filter(known).or(sep);
    match (pad, unk, cls, sep, mask) {
        (Some(pad), Some(unk), Some(cls), Some(sep), Some(mask)) => Ok(Special { pad, unk, cls, sep, mask }),
        found => {
            let found = [found.0, found.1, found.2, found.3, found.4];
            let missing =
                NAMES.iter().zip(found).filter(|(_, id)| id.is_none()).map(|([a, b], _)| format!("{a} or {b}"));
            Err(format!("added_tokens lacks the special tokens {}", missing.collect::<Vec<_>>().join(", ")))
        }
    }
}

/// Spaces that the mask token takes.
fn mask_strips(added: &[Json], mask: u32) -> (bool, bool) {
    let token = added.iter().find(|token| token["id"] == mask);
    token.map_or((false, false), |token| (token["lstrip"] == true, token["rstrip"] == true))
}

/// True if a normalizer lowercases the text.
fn has_lowercase(normalizer: &Json) -> bool {
    let members = normalizer["normalizers"].as_array().map_or(std::slice::from_ref(normalizer), Vec::as_slice);
    members.iter().any(|member| member["type"] == "Lowercase" || member["lowercase"] == true)
}

/// Rejects all values of a key but one. Null is the default.
fn expect(object: &Json, name: &str, key: &str, expected: &Json) -> Result<(), String> {
    match object.get(key) {
        Some(found) if !found.is_null() && found != expected => {
            Err(format!("{name}.{key} is {found}; expected {expected}"))
        }
        _ => Ok(()),
    }
}
