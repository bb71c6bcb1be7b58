//! Tokenizer files of a folder: the vocabulary and its case handling.

mod class;
mod word_piece;

use std::path::PathBuf;

use lambert_dataset::VocabularyInfo;
use lambert_dataset::tokenizer::{
    SentencePieceRules, Tokenizer, TokenizerError, TokenizerModel, tokenizer_json_of_sentence_piece,
};
use lambert_store::run::{TOKENIZER, TOKENIZER_FILES, VOCABULARY};
use serde_json::{Value as Json, json};

use super::ImportError;
use super::folder::Folder;
use class::SentencePieceClass;

const TOKENIZER_CONFIG: &str = "tokenizer_config.json";
/// Names of SentencePiece models.
const SENTENCE_PIECE: [&str; 4] = ["spiece.model", "spm.model", "sentencepiece.bpe.model", "tokenizer.model"];

/// Tokenizer of a folder.
pub struct ImportedTokenizer {
    /// Model.
    pub model: TokenizerModel,
    /// Content of a vocab.txt or tokenizer.json.
    pub vocabulary: Vec<u8>,
    /// Size of the vocabulary, and case handling.
    pub info: VocabularyInfo,
    /// Id of the padding token.
    pub pad: u32,
    /// Files that an export writes again.
    pub files: Vec<(&'static str, Vec<u8>)>,
}

impl ImportedTokenizer {
    /// Reads the tokenizer of a folder.
    ///
    /// # Errors
    /// The folder has no tokenizer that lambert supports, or its files contradict each other.
    pub fn read(folder: &Folder) -> Result<Self, ImportError> {
        let settings = folder.json(TOKENIZER_CONFIG)?.unwrap_or_else(|| json!({}));
        let file = folder.json(TOKENIZER)?;
        match &file {
            Some(file) if file["model"]["type"] == "BPE" || file["model"]["type"] == "Unigram" => {
                Self::of_json(folder, &settings)
            }
            None if folder.bytes(VOCABULARY)?.is_none() => Self::of_sentence_piece(folder, &settings),
            file => word_piece::read(folder, &settings, file.as_ref()),
        }
    }

    /// Reads a SentencePiece model. Its rules are those of the class of the tokenizer.
    fn of_sentence_piece(folder: &Folder, settings: &Json) -> Result<Self, ImportError> {
        let mut found = None;
        for name in SENTENCE_PIECE {
            found = found.or(folder.bytes(name)?.map(|bytes| (name, bytes)));
        }
        let Some((name, bytes)) = found else {
            return Err(ImportError::NoFile { folder: folder.file(""), name: TOKENIZER });
        };
        let wrong = |name: &str, why: String| ImportError::Tokenizer { path: folder.file(name), why };
        let class = SentencePieceClass::of_folder(settings, &folder.config).map_err(|(name, why)| wrong(name, why))?;
        let lowercase = class.lowercase(settings).map_err(|why| wrong(TOKENIZER_CONFIG, why))?;
        let rules = SentencePieceRules {
            fairseq: class == SentencePieceClass::XlmRoberta,
            albert: class == SentencePieceClass::Albert,
            lowercase,
        };
        let vocabulary = tokenizer_json_of_sentence_piece(&bytes, rules).map_err(|why| wrong(name, why))?.into_bytes();
        let tokenizer =
            Tokenizer::from_vocab(&vocabulary, false).map_err(|source| unreadable(folder.file(name), source))?;
        let info = VocabularyInfo { size: tokenizer.size(), lowercase: tokenizer.lowercase() };
        let pad = tokenizer.special().pad;
        // Classes of transformers would not read the converted file.
        Ok(Self { model: TokenizerModel::Unigram, vocabulary, info, pad, files: Vec::new() })
    }

    /// Reads a byte-level BPE or Unigram tokenizer, which tokenizer.json describes.
    fn of_json(folder: &Folder, settings: &Json) -> Result<Self, ImportError> {
        let vocabulary = folder.bytes(TOKENIZER)?.unwrap_or_default();
        let tokenizer =
            Tokenizer::from_vocab(&vocabulary, false).map_err(|source| unreadable(folder.file(TOKENIZER), source))?;
        let file = tokenizer.file();
        // Generic classes read these keys from tokenizer.json only.
        if let Some(class) = class::reader(settings, &folder.config) {
            let wrong = |why: String| ImportError::Tokenizer { path: folder.file(TOKENIZER_CONFIG), why };
            let is_bpe = tokenizer.tokens().model() == TokenizerModel::Bpe;
            for (key, is_read, default, found) in [
                ("do_lower_case", class::reads_case(class), class::default_case(class), tokenizer.lowercase()),
                ("add_prefix_space", is_bpe, class::default_prefix_space(class), file.is_some_and(|it| it.adds_space)),
            ] {
                let (set, origin) = match settings[key].as_bool() {
                    Some(set) => (Some(set), String::new()),
                    None => (default, format!(" by default for {class}")),
                };
                if let Some(set) = set.filter(|set| is_read && *set != found) {
                    return Err(wrong(format!("{key} is {set}{origin}, but {TOKENIZER} has {found}")));
                }
            }
            class::check_punctuation(class, settings).map_err(wrong)?;
        }
        let mut files = Vec::new();
        // The vocabulary is tokenizer.json.
        for name in TOKENIZER_FILES.into_iter().filter(|name| *name != TOKENIZER) {
            files.extend(folder.bytes(name)?.map(|content| (name, content)));
        }
        let info = VocabularyInfo { size: tokenizer.size(), lowercase: tokenizer.lowercase() };
        let (model, pad) = (tokenizer.tokens().model(), tokenizer.special().pad);
        Ok(Self { model, vocabulary, info, pad, files })
    }
}

fn unreadable(path: PathBuf, source: TokenizerError) -> ImportError {
    match source {
        TokenizerError::File { why, .. } => ImportError::Tokenizer { path, why },
        source => ImportError::Vocabulary { path, source },
    }
}

/// Rejects all values of a key but these. An absent key is null.
fn expect(settings: &Json, key: &str, expected: &[Json]) -> Result<(), String> {
    let found = settings.get(key).unwrap_or(&Json::Null);
    // Absent keys have the default of their class, which is the first value.
    if found.is_null() || expected.contains(found) {
        return Ok(());
    }
    Err(format!("{key} is {found}; expected {}", expected[0]))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A model of 700 pieces, without a padding token.
    const MODEL: &[u8] = include_bytes!("../../../../data-prep/tests/golden/fairseq.model");

    fn read(folder: &std::path::Path, settings: &Json) -> Result<ImportedTokenizer, String> {
        std::fs::write(folder.join("config.json"), r#"{"model_type": "bert"}"#).unwrap();
        std::fs::write(folder.join(TOKENIZER_CONFIG), settings.to_string()).unwrap();
        ImportedTokenizer::read(&Folder::open(folder).unwrap()).map_err(|error| error.to_string())
    }

    #[test]
    fn a_sentence_piece_model_has_the_rules_of_its_class() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("sentencepiece.bpe.model"), MODEL).unwrap();
        let class = |name: &str| json!({"tokenizer_class": name, "do_lower_case": true});
        // The name of the file does not decide.
        let plain = read(folder.path(), &json!({})).unwrap();
        let fairseq = read(folder.path(), &class("XLMRobertaTokenizer")).unwrap();
        assert_eq!((plain.info.lowercase, fairseq.info.lowercase), (false, false));
        assert_eq!([plain.pad, fairseq.pad], [700, 1]);
        for (name, lowercase) in [("DebertaV2TokenizerFast", true), ("AlbertTokenizer", true)] {
            assert_eq!(read(folder.path(), &class(name)).unwrap().info.lowercase, lowercase, "{name}");
        }
        for (settings, message) in [
            (class("CamembertTokenizer"), "tokenizer_config.json: tokenizer_class is CamembertTokenizer; expected"),
            (
                json!({"tokenizer_class": "DebertaV2Tokenizer", "split_by_punct": true}),
                "tokenizer_config.json: split_by_punct is true; expected false",
            ),
        ] {
            let error = read(folder.path(), &settings).err().unwrap();
            assert!(error.contains(message), "{error}");
        }
    }

    #[test]
    fn keys_that_a_class_does_not_read_may_contradict_the_tokenizer_file() {
        let folder = tempfile::tempdir().unwrap();
        let rules = SentencePieceRules { fairseq: true, ..SentencePieceRules::default() };
        std::fs::write(folder.path().join(TOKENIZER), tokenizer_json_of_sentence_piece(MODEL, rules).unwrap()).unwrap();
        let read = |settings: Json| read(folder.path(), &settings).map(|tokenizer| tokenizer.info.lowercase);
        for class in ["XLMRobertaTokenizer", "XLMRobertaTokenizerFast", "CamembertTokenizerFast", "TokenizersBackend"] {
            assert_eq!(read(json!({"tokenizer_class": class, "do_lower_case": true})), Ok(false), "{class}");
        }
        for (settings, message) in [
            (
                json!({"tokenizer_class": "AlbertTokenizer", "do_lower_case": true}),
                "do_lower_case is true, but tokenizer.json",
            ),
            (json!({"tokenizer_class": "DebertaV2Tokenizer", "split_by_punct": true}), "split_by_punct is true"),
        ] {
            let error = read(settings).unwrap_err();
            assert!(error.contains(message), "{error}");
        }
    }

    #[test]
    fn absent_keys_have_the_default_of_their_class() {
        let folder = tempfile::tempdir().unwrap();
        let unigram = |lowercase| {
            let rules = SentencePieceRules { lowercase, ..SentencePieceRules::default() };
            tokenizer_json_of_sentence_piece(MODEL, rules).unwrap()
        };
        let byte_level = |adds_space: bool| {
            let bytes = (33..=126).chain(161..=172).chain(174..=323).filter_map(char::from_u32).map(String::from);
            let names = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"];
            let tokens = names.map(str::to_owned).into_iter().chain(bytes);
            let vocab: serde_json::Map<String, Json> =
                tokens.enumerate().map(|(id, token)| (token, id.into())).collect();
            let added: Vec<Json> = names.iter().enumerate().map(|(id, name)| added_token(id, name)).collect();
            json!({
                "version": "1.0", "truncation": null, "padding": null, "added_tokens": added, "normalizer": null,
                "pre_tokenizer": {
                    "type": "ByteLevel", "add_prefix_space": adds_space, "trim_offsets": true, "use_regex": true
                },
                "post_processor": null, "decoder": null,
                "model": {"type": "BPE", "vocab": vocab, "merges": []},
            })
            .to_string()
        };
        let read_as = |file: String, settings: Json, model_type: &str| {
            std::fs::write(folder.path().join(TOKENIZER), file).unwrap();
            std::fs::write(folder.path().join("config.json"), json!({"model_type": model_type}).to_string()).unwrap();
            std::fs::write(folder.path().join(TOKENIZER_CONFIG), settings.to_string()).unwrap();
            ImportedTokenizer::read(&Folder::open(folder.path()).unwrap())
                .map(|_| ())
                .map_err(|error| error.to_string())
        };
        let class = |name: &str| json!({"tokenizer_class": name});
        let (albert, deberta, roberta) =
            (class("AlbertTokenizerFast"), class("DebertaV2Tokenizer"), class("RobertaTokenizer"));
        let generic = class("PreTrainedTokenizerFast");
        for (file, settings, model_type, message) in [
            (unigram(true), &albert, "albert", None),
            (unigram(false), &albert, "albert", Some("do_lower_case is true by default for AlbertTokenizer")),
            (unigram(false), &json!({}), "albert", Some("do_lower_case is true by default for AlbertTokenizer")),
            (unigram(false), &generic, "albert", None),
            (unigram(false), &deberta, "deberta-v2", None),
            (unigram(true), &deberta, "bert", Some("do_lower_case is false by default for DebertaV2Tokenizer")),
            (unigram(true), &json!({}), "xlm-roberta", None),
            (byte_level(false), &roberta, "roberta", None),
            (byte_level(true), &roberta, "bert", Some("add_prefix_space is false by default for RobertaTokenizer")),
            (
                byte_level(true),
                &json!({}),
                "roberta",
                Some("add_prefix_space is false by default for RobertaTokenizer"),
            ),
            (byte_level(true), &json!({"add_prefix_space": true}), "roberta", None),
            (byte_level(true), &generic, "roberta", None),
            (byte_level(true), &json!({}), "modernbert", None),
        ] {
            let found = read_as(file, settings.clone(), model_type);
            match message {
                None => assert_eq!(found, Ok(()), "{settings} {model_type}"),
                Some(message) => {
                    let error = found.unwrap_err();
                    assert!(error.contains(message), "{settings} {model_type}: {error}");
                }
            }
        }
    }

    fn added_token(id: usize, name: &str) -> Json {
        json!({
            "id": id, "content": name, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
            "special": true,
        })
    }
}
