//! Classes of tokenizers in transformers, which decide the rules of a SentencePiece model and the settings that are read.

use lambert_store::run::TRANSFORMERS_CONFIG as CONFIG;
use serde_json::{Value as Json, json};

use super::{TOKENIZER_CONFIG, expect};

/// Key that names the class.
const KEY: &str = "tokenizer_class";

/// Classes that read their rules from tokenizer.json.
pub const GENERIC: [&str; 2] = ["PreTrainedTokenizerFast", "TokenizersBackend"];

/// Classes that do not read `do_lower_case`.
const WITHOUT_CASE: [&str; 6] = [
    "XLMRobertaTokenizer",
    "CamembertTokenizer",
    "RobertaTokenizer",
    "GPT2Tokenizer",
    "BartTokenizer",
    "LongformerTokenizer",
];

/// Classes with byte-level BPE that add no space before a text by default.
const BYTE_LEVEL: [&str; 5] =
    ["RobertaTokenizer", "GPT2Tokenizer", "BartTokenizer", "LongformerTokenizer", "DebertaTokenizer"];

/// Class with SentencePiece models.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SentencePieceClass {
    /// Unifies quotes, removes accents, and lowercases by default.
    Albert,
    /// Has the ids of fairseq, and keeps the case.
    XlmRoberta,
    /// Has the ids of the model. Also for families whose own tokenizer is another one.
    DebertaV2,
}

/// Name of the class without `Fast`. `None` if the folder names none, or a class without rules of its own.
pub fn name<'a>(settings: &'a Json, config: &'a Json) -> Option<&'a str> {
    let name = settings[KEY].as_str().or(config[KEY].as_str())?;
    (!GENERIC.contains(&name)).then(|| name.strip_suffix("Fast").unwrap_or(name))
}

/// Name of the class that reads a `tokenizer.json`: that of the folder, else that of the family. `None` for a class without rules
/// of its own.
pub fn reader<'a>(settings: &'a Json, config: &'a Json) -> Option<&'a str> {
    if settings[KEY].is_string() || config[KEY].is_string() {
        return name(settings, config);
    }
    match config["model_type"].as_str()? {
        "albert" => Some("AlbertTokenizer"),
        "deberta-v2" => Some("DebertaV2Tokenizer"),
        "roberta" => Some("RobertaTokenizer"),
        _ => None,
    }
}

/// Value of `do_lower_case` for a class that reads it, if the key is absent. `None`: not known.
pub fn default_case(class: &str) -> Option<bool> {
    match class {
        "AlbertTokenizer" => Some(true),
        "DebertaV2Tokenizer" => Some(false),
        _ => None,
    }
}

/// Value of `add_prefix_space` for a class with byte-level BPE, if the key is absent. `None`: not known.
pub fn default_prefix_space(class: &str) -> Option<bool> {
    BYTE_LEVEL.contains(&class).then_some(false)
}

/// True if the class obeys `do_lower_case`.
pub fn reads_case(class: &str) -> bool {
    !WITHOUT_CASE.contains(&class)
}

/// Rejects settings of DeBERTa-v2 that lambert does not have.
pub fn check_punctuation(class: &str, settings: &Json) -> Result<(), String> {
    if class == "DebertaV2Tokenizer" { expect(settings, "split_by_punct", &[json!(false)]) } else { Ok(()) }
}

impl SentencePieceClass {
    /// Selects the class that the folder names, else that of the family in `config`.
    ///
    /// # Errors
    /// The name of a file, and the reason for which its class is not supported.
    pub fn of_folder(settings: &Json, config: &Json) -> Result<Self, (&'static str, String)> {
        match name(settings, config) {
            Some("AlbertTokenizer") => Ok(Self::Albert),
            Some("XLMRobertaTokenizer") => Ok(Self::XlmRoberta),
            Some("DebertaV2Tokenizer") => Ok(Self::DebertaV2),
            Some(other) => {
                let file = if settings[KEY].is_string() { TOKENIZER_CONFIG } else { CONFIG };
                let why = format!(
                    "{KEY} is {other}; expected AlbertTokenizer, XLMRobertaTokenizer or DebertaV2Tokenizer for a SentencePiece \
                     model; AutoTokenizer.from_pretrained and save_pretrained of transformers write a tokenizer.json"
                );
                Err((file, why))
            }
            None => Ok(match config["model_type"].as_str() {
                Some("albert") => Self::Albert,
                Some("xlm-roberta") => Self::XlmRoberta,
                _ => Self::DebertaV2,
            }),
        }
    }

    /// True if the class lowercases text with these settings.
    ///
    /// # Errors
    /// A setting that lambert does not have.
    pub fn lowercase(self, settings: &Json) -> Result<bool, String> {
        let default = self == Self::Albert;
        if self == Self::XlmRoberta {
            return Ok(false);
        }
        expect(settings, "do_lower_case", &[json!(default), json!(!default)])?;
        match self {
            Self::Albert => expect(settings, "keep_accents", &[json!(false)])?,
            _ => expect(settings, "split_by_punct", &[json!(false)])?,
        }
        Ok(settings["do_lower_case"].as_bool().unwrap_or(default))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(class: Json, model_type: &str) -> Result<SentencePieceClass, (&'static str, String)> {
        SentencePieceClass::of_folder(&json!({ KEY: class }), &json!({"model_type": model_type}))
    }

    #[test]
    fn the_class_decides_before_the_family() {
        for (name, model_type, expected) in [
            (json!("XLMRobertaTokenizerFast"), "bert", SentencePieceClass::XlmRoberta),
            (json!("XLMRobertaTokenizer"), "deberta-v2", SentencePieceClass::XlmRoberta),
            (json!("AlbertTokenizer"), "roberta", SentencePieceClass::Albert),
            (json!("DebertaV2TokenizerFast"), "xlm-roberta", SentencePieceClass::DebertaV2),
            (Json::Null, "albert", SentencePieceClass::Albert),
            (json!("PreTrainedTokenizerFast"), "xlm-roberta", SentencePieceClass::XlmRoberta),
            (Json::Null, "roberta", SentencePieceClass::DebertaV2),
        ] {
            assert_eq!(of(name.clone(), model_type), Ok(expected), "{name} {model_type}");
        }
        let config = json!({"model_type": "bert", KEY: "XLMRobertaTokenizer"});
        assert_eq!(SentencePieceClass::of_folder(&json!({}), &config), Ok(SentencePieceClass::XlmRoberta));
        let (file, why) = of(json!("CamembertTokenizer"), "roberta").unwrap_err();
        assert!(
            file == TOKENIZER_CONFIG && why.starts_with("tokenizer_class is CamembertTokenizer; expected"),
            "{why}"
        );
        let config = json!({"model_type": "bert", KEY: "T5Tokenizer"});
        assert_eq!(SentencePieceClass::of_folder(&json!({}), &config).unwrap_err().0, CONFIG);
    }

    #[test]
    fn settings_that_a_class_reads_are_obeyed_or_refused() {
        use SentencePieceClass::{Albert, DebertaV2, XlmRoberta};
        for (class, settings, expected) in [
            (Albert, json!({}), Ok(true)),
            (Albert, json!({"do_lower_case": false}), Ok(false)),
            (Albert, json!({"keep_accents": true}), Err("keep_accents is true; expected false")),
            (DebertaV2, json!({}), Ok(false)),
            (DebertaV2, json!({"do_lower_case": true, "split_by_punct": false}), Ok(true)),
            (DebertaV2, json!({"split_by_punct": true}), Err("split_by_punct is true; expected false")),
            (DebertaV2, json!({"do_lower_case": "no"}), Err("do_lower_case is \"no\"; expected false")),
            (XlmRoberta, json!({"do_lower_case": true, "keep_accents": true}), Ok(false)),
        ] {
            assert_eq!(class.lowercase(&settings), expected.map_err(str::to_owned), "{class:?} {settings}");
        }
    }
}
