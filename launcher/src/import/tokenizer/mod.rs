//! Tokenizer files of a folder: the vocabulary and its case handling.

mod word_piece;

use std::path::PathBuf;

use lambert_dataset::VocabularyFacts;
use lambert_dataset::tokenizer::{
    SentencePieceRules, Tokenizer, TokenizerError, TokenizerModel, tokenizer_json_of_sentence_piece,
};
use lambert_store::run::{TOKENIZER, TOKENIZER_FILES, VOCABULARY};
use serde_json::{Value as Json, json};

use super::ImportError;
use super::folder::Folder;

const TOKENIZER_CONFIG: &str = "tokenizer_config.json";
/// Names of SentencePiece models.
const SENTENCE_PIECE: [&str; 4] = ["spiece.model", "spm.model", "sentencepiece.bpe.model", "tokenizer.model"];

/// Classes that read their rules from tokenizer.json.
const GENERIC: [&str; 2] = ["PreTrainedTokenizerFast", "TokenizersBackend"];

/// Tokenizer of a folder.
pub struct ImportedTokenizer {
    /// Model.
    pub model: TokenizerModel,
    /// Content of a vocab.txt or tokenizer.json.
    pub vocabulary: Vec<u8>,
    /// Size of the vocabulary, and case handling.
    pub facts: VocabularyFacts,
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

    /// Reads a SentencePiece model. Its rules are those of the family of the model.
    fn of_sentence_piece(folder: &Folder, settings: &Json) -> Result<Self, ImportError> {
        let mut found = None;
        for name in SENTENCE_PIECE {
            found = found.or(folder.bytes(name)?.map(|bytes| (name, bytes)));
        }
        let Some((name, bytes)) = found else {
            return Err(ImportError::NoFile { folder: folder.file(""), name: TOKENIZER });
        };
        let wrong = |name: &str, why: String| ImportError::Tokenizer { path: folder.file(name), why };
        expect(settings, "keep_accents", &[json!(false)]).map_err(|why| wrong(TOKENIZER_CONFIG, why))?;
        let family = folder.config["model_type"].as_str().unwrap_or_default();
        let albert = family == "albert";
        let lowercase = settings["do_lower_case"].as_bool().unwrap_or(albert);
        let rules = SentencePieceRules { fairseq: family == "xlm-roberta", albert, lowercase };
        let vocabulary = tokenizer_json_of_sentence_piece(&bytes, rules).map_err(|why| wrong(name, why))?.into_bytes();
        let tokenizer =
            Tokenizer::from_vocab(&vocabulary, false).map_err(|source| unreadable(folder.file(name), source))?;
        let facts = VocabularyFacts { size: tokenizer.size(), lowercase: tokenizer.lowercase() };
        // Classes of transformers would not read the converted file.
        Ok(Self { model: TokenizerModel::Unigram, vocabulary, facts, files: Vec::new() })
    }

    /// Reads a byte-level BPE or Unigram tokenizer, which tokenizer.json describes.
    fn of_json(folder: &Folder, settings: &Json) -> Result<Self, ImportError> {
        let vocabulary = folder.bytes(TOKENIZER)?.unwrap_or_default();
        let tokenizer =
            Tokenizer::from_vocab(&vocabulary, false).map_err(|source| unreadable(folder.file(TOKENIZER), source))?;
        let file = tokenizer.file();
        // Classes of transformers other than the generic ones obey these keys.
        let class = settings["tokenizer_class"].as_str().unwrap_or(GENERIC[0]);
        let pairs =
            [("do_lower_case", tokenizer.lowercase()), ("add_prefix_space", file.is_some_and(|it| it.adds_space))];
        let is_bpe = tokenizer.tokens().model() == TokenizerModel::Bpe;
        for (key, found) in pairs {
            let is_obeyed = !GENERIC.contains(&class) && (is_bpe || key == "do_lower_case");
            if is_obeyed && settings[key].as_bool().is_some_and(|expected| expected != found) {
                let why = format!("{key} is {}, but {TOKENIZER} has {found}", settings[key]);
                return Err(ImportError::Tokenizer { path: folder.file(TOKENIZER_CONFIG), why });
            }
        }
        let mut files = Vec::new();
        // The vocabulary is tokenizer.json.
        for name in TOKENIZER_FILES.into_iter().filter(|name| *name != TOKENIZER) {
            files.extend(folder.bytes(name)?.map(|content| (name, content)));
        }
        let facts = VocabularyFacts { size: tokenizer.size(), lowercase: tokenizer.lowercase() };
        Ok(Self { model: tokenizer.tokens().model(), vocabulary, facts, files })
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
