//! Models of SentencePiece (`spiece.model`, `spm.model`) as a tokenizer.json.
//!
//! The result has the rules that the Hugging Face Transformers converters add for a family. At the end of a text it
//! removes spaces as SentencePiece does.

use std::collections::{HashMap, HashSet};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use prost::Message;
use serde_json::{Value as Json, json};

use super::json::added_token;
use super::special_tokens::NAMES;
use super::token_table::WORD_START;

/// `ModelProto` of SentencePiece, with the fields that are read.
#[derive(Clone, PartialEq, Message)]
struct ModelProto {
    #[prost(message, repeated, tag = "1")]
    pieces: Vec<Piece>,
    #[prost(message, optional, tag = "2")]
    trainer: Option<TrainerSpec>,
    #[prost(message, optional, tag = "3")]
    normalizer: Option<NormalizerSpec>,
}

#[derive(Clone, PartialEq, Message)]
struct Piece {
    #[prost(string, optional, tag = "1")]
    text: Option<String>,
    #[prost(float, optional, tag = "2")]
    score: Option<f32>,
    #[prost(int32, optional, tag = "3")]
    kind: Option<i32>,
}

#[derive(Clone, PartialEq, Message)]
struct TrainerSpec {
    #[prost(int32, optional, tag = "3")]
    model: Option<i32>,
    #[prost(bool, optional, tag = "24")]
    space_is_suffix: Option<bool>,
}

#[derive(Clone, PartialEq, Message)]
struct NormalizerSpec {
    #[prost(bytes = "vec", optional, tag = "2")]
    rules: Option<Vec<u8>>,
    #[prost(bool, optional, tag = "3")]
    adds_space: Option<bool>,
    #[prost(bool, optional, tag = "4")]
    joins_spaces: Option<bool>,
    #[prost(bool, optional, tag = "5")]
    escapes_spaces: Option<bool>,
}

/// Value of `TrainerSpec::model` for Unigram.
const UNIGRAM: i32 = 1;
// Values of `Piece::kind`.
const NORMAL: i32 = 1;
const UNKNOWN: i32 = 2;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;

/// Rules of a family of models that its SentencePiece model does not contain.
#[derive(Debug, Clone, Copy, Default)]
pub struct SentencePieceRules {
    /// True if the ids are `<s>`, `<pad>`, `</s>`, `<unk>`, the pieces from the fourth, and `<mask>`, as in fairseq
    /// (XLM-RoBERTa). Otherwise the pieces have their own ids, and missing special tokens come after them.
    pub fairseq: bool,
    /// True if quotes are unified and accents are removed (ALBERT).
    pub albert: bool,
    /// True if text is lowercased.
    pub lowercase: bool,
}

/// Writes the tokenizer.json of a SentencePiece model.
///
/// # Errors
/// The bytes are no such model, or the model is not Unigram, or it has a setting that is not supported.
pub fn tokenizer_json(bytes: &[u8], rules: SentencePieceRules) -> Result<String, String> {
    let model = ModelProto::decode(bytes).map_err(|error| format!("not a SentencePiece model: {error}"))?;
    let (trainer, normalizer) = (model.trainer.unwrap_or_default(), model.normalizer.unwrap_or_default());
    check_settings(&trainer, &normalizer)?;
    let mut list = PieceList::read(&model.pieces)?;
    list.arrange(rules.fairseq)?;
    let special = list.add_special(rules.fairseq);
    let ids = list.ids();
    let id = |name: &str| ids.get(name).copied().unwrap_or_default();
    let [_, unk, cls, sep, _] = special;
    let value = json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": added_tokens(&list.added, special, id),
        "normalizer": {"type": "Sequence", "normalizers": normalizers(&normalizer, rules)},
        "pre_tokenizer": metaspace(),
        "post_processor": template((cls, id(cls)), (sep, id(sep)), rules.fairseq),
        "decoder": metaspace(),
        "model": {"type": "Unigram", "unk_id": id(unk), "vocab": list.pieces, "byte_fallback": false},
    });
    Ok(format!("{value:#}\n"))
}

/// Rejects a model that is not Unigram, and settings that are not supported.
fn check_settings(trainer: &TrainerSpec, normalizer: &NormalizerSpec) -> Result<(), String> {
    if trainer.model.is_some_and(|model| model != UNIGRAM) {
        return Err("it is not a Unigram model; expected model_type=unigram".to_owned());
    }
    for (is_set, name, expected) in [
        (trainer.space_is_suffix == Some(true), "treat_whitespace_as_suffix", false),
        (normalizer.adds_space == Some(false), "add_dummy_prefix", true),
        (normalizer.escapes_spaces == Some(false), "escape_whitespaces", true),
    ] {
        if is_set {
            return Err(format!("{name} is {}; expected {expected}", !expected));
        }
    }
    Ok(())
}

/// Pieces of a model, in the order of their ids.
struct PieceList {
    /// Texts and scores.
    pieces: Vec<(String, f64)>,
    /// Texts of control pieces and user-defined pieces. True for a control piece.
    added: Vec<(String, bool)>,
    /// Index of the piece for unknown characters.
    unknown: usize,
}

impl PieceList {
    fn read(pieces: &[Piece]) -> Result<Self, String> {
        let mut list = Self { pieces: Vec::with_capacity(pieces.len() + NAMES.len()), added: Vec::new(), unknown: 0 };
        let mut unknown = None;
        for (index, piece) in pieces.iter().enumerate() {
            let text = piece.text.clone().unwrap_or_default();
            let (score, kind) = (f64::from(piece.score.unwrap_or_default()), piece.kind.unwrap_or(NORMAL));
            match kind {
                NORMAL => {}
                UNKNOWN => unknown = Some(index),
                CONTROL | USER_DEFINED => list.added.push((text.clone(), kind == CONTROL)),
                _ => {
                    let why = "byte and unused pieces are not supported";
                    return Err(format!("piece {text:?} has the type {kind}; {why}"));
                }
            }
            list.pieces.push((text, score));
        }
        list.unknown = unknown.ok_or("it has no piece for unknown characters")?;
        Ok(list)
    }

    /// Replaces the first pieces by those of fairseq, or checks the piece for unknown characters.
    fn arrange(&mut self, fairseq: bool) -> Result<(), String> {
        if !fairseq {
            let unk = &self.pieces[self.unknown].0;
            return match NAMES[1].contains(&unk.as_str()) {
                true => Ok(()),
                false => Err(format!("the piece for unknown characters is {unk:?}; expected \"[UNK]\" or \"<unk>\"")),
            };
        }
        if self.pieces.len() < 3 || self.unknown > 2 {
            return Err("the first three pieces are not those of fairseq".to_owned());
        }
        let known: HashSet<&str> = self.pieces[3..].iter().map(|(text, _)| text.as_str()).collect();
        self.added.retain(|(text, _)| known.contains(text.as_str()));
        let first = ["<s>", "<pad>", "</s>", "<unk>"].map(|text| (text.to_owned(), 0.0));
        self.pieces.splice(..3, first);
        self.pieces.push(("<mask>".to_owned(), 0.0));
        Ok(())
    }

    /// Adds the missing special tokens. Returns the names of all, in the order of [`NAMES`].
    fn add_special(&mut self, fairseq: bool) -> [&'static str; NAMES.len()] {
        NAMES.map(|names| {
            let found = names.into_iter().find(|name| self.pieces.iter().any(|(text, _)| text == name));
            found.unwrap_or_else(|| {
                let name = if fairseq { names[1] } else { names[0] };
                self.pieces.push((name.to_owned(), 0.0));
                name
            })
        })
    }

    fn ids(&self) -> HashMap<&str, u32> {
        let mut ids = HashMap::with_capacity(self.pieces.len());
        for ((text, _), id) in self.pieces.iter().zip(0..) {
            ids.entry(text.as_str()).or_insert(id);
        }
        ids
    }
}

/// Special tokens, control pieces and user-defined pieces, sorted by id. A special token is not part of a user-defined
/// piece.
fn added_tokens(added: &[(String, bool)], special: [&str; NAMES.len()], id: impl Fn(&str) -> u32) -> Vec<Json> {
    let words = added.iter().filter(|(text, is_control)| !is_control && !special.contains(&text.as_str()));
    let controls = added.iter().filter(|(text, is_control)| *is_control && !special.contains(&text.as_str()));
    let mut tokens: Vec<Json> = special.iter().map(|name| added_token(id(name), name, *name == special[4])).collect();
    tokens.extend(controls.map(|(text, _)| added_token(id(text), text, false)));
    tokens.extend(words.map(|(text, _)| {
        let mut token = added_token(id(text), text, false);
        token["special"] = json!(false);
        token
    }));
    tokens.sort_by_key(|token| token["id"].as_u64());
    tokens
}

fn metaspace() -> Json {
    json!({"type": "Metaspace", "replacement": WORD_START, "prepend_scheme": "always", "split": true})
}

fn normalizers(spec: &NormalizerSpec, rules: SentencePieceRules) -> Vec<Json> {
    let replace = |pattern: Json, content: &str| json!({"type": "Replace", "pattern": pattern, "content": content});
    let mut found = Vec::new();
    if rules.albert {
        found.push(replace(json!({"String": "``"}), "\""));
        found.push(replace(json!({"String": "''"}), "\""));
        found.push(json!({"type": "NFKD"}));
        found.push(json!({"type": "StripAccents"}));
    }
    if rules.lowercase {
        found.push(json!({"type": "Lowercase"}));
    }
    if let Some(table) = spec.rules.as_ref().filter(|table| !table.is_empty()) {
        found.push(json!({"type": "Precompiled", "precompiled_charsmap": STANDARD.encode(table)}));
    }
    if spec.joins_spaces != Some(false) {
        // Unlike transformers, SentencePiece keeps other spaces than U+0020 at the end.
        found.push(replace(json!({"Regex": " +$"}), ""));
        found.push(replace(json!({"Regex": " {2,}"}), " "));
    }
    found
}

/// Post-processor with these special tokens around the text, and one or two separators between the segments of a pair.
fn template((cls, cls_id): (&str, u32), (sep, sep_id): (&str, u32), double: bool) -> Json {
    let special = |name: &str, type_id: u8| json!({"SpecialToken": {"id": name, "type_id": type_id}});
    let sequence = |name: &str, type_id: u8| json!({"Sequence": {"id": name, "type_id": type_id}});
    let second = u8::from(!double);
    let mut pair = vec![special(cls, 0), sequence("A", 0), special(sep, 0)];
    pair.extend(double.then(|| special(sep, 0)));
    pair.extend([sequence("B", second), special(sep, second)]);
    json!({
        "type": "TemplateProcessing",
        "single": [special(cls, 0), sequence("A", 0), special(sep, 0)],
        "pair": pair,
        "special_tokens": {
            cls: {"id": cls, "ids": [cls_id], "tokens": [cls]},
            sep: {"id": sep, "ids": [sep_id], "tokens": [sep]},
        },
    })
}
