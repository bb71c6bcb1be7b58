//! Extensions of vocabularies of all models.

use std::path::Path;

use crate::common::{corpora, generated, source};
use lambert_config::prep::{Documents, Source};
use lambert_data_prep::prep::PrepError;
use lambert_data_prep::vocab::{ExtendedVocabulary, Extension, VocabProgress, VocabSettings, extend_with, train};
use lambert_dataset::tokenizer::{Segmenter, TokenTable, Tokenizer, TokenizerModel, VocabularyExtension};
use serde_json::{Value, json};

const MODELS: [TokenizerModel; 3] = [TokenizerModel::WordPiece, TokenizerModel::Bpe, TokenizerModel::Unigram];

/// Words that the generated text does not have.
const DOMAIN: &str = "The cardiomyopathy of the patient.\nIschemic cardiomyopathy, and pericarditis.\n\n\
    Pericarditis is not cardiomyopathy. Do not confuse pericarditis with myocarditis, β-blockers and αβ.\n";

fn domain(folder: &Path) -> Vec<Source> {
    let path = folder.join("domain.txt");
    std::fs::write(&path, DOMAIN.repeat(3)).unwrap();
    vec![source(&path, "text", Documents::BlankLine)]
}

/// Trains a vocabulary on the generated text and writes it to `folder`.
fn base(folder: &Path, model: TokenizerModel) -> std::path::PathBuf {
    generated(folder, 300);
    let sources = [source(&folder.join("corpus.txt"), "text", Documents::BlankLine)];
    let settings = VocabSettings { model, size: 500, lowercase: true, ..VocabSettings::default() };
    let path = folder.join("base");
    std::fs::write(&path, train(&sources, &settings).unwrap()).unwrap();
    path
}

fn extended(file: &Path, sources: &[Source], size: usize) -> Result<ExtendedVocabulary, PrepError> {
    let settings = Extension { file, lowercase: true, size, min_frequency: 2 };
    extend_with(sources, &settings, |_: VocabProgress| {})
}

/// Checks that each line has a new token or the same ids as before. Returns the number of lines with a new token.
fn check_ids(old: &[u8], new: &[u8], lines: &str) -> usize {
    let [old, new] = [old, new].map(|bytes| Tokenizer::from_vocab(bytes, true).unwrap());
    let (mut before, mut after) = (old.encoder(), new.encoder());
    let mut changed = 0;
    for line in lines.lines() {
        let (before, after) = (before.encode(line), after.encode(line));
        match after.iter().any(|id| *id as usize >= old.size()) {
            true => changed += 1,
            false => assert_eq!(before, after, "{line}"),
        }
    }
    changed
}

#[test]
fn new_tokens_follow_and_text_without_them_keeps_its_ids() {
    for model in MODELS {
        let folder = tempfile::tempdir().unwrap();
        let (file, sources) = (base(folder.path(), model), domain(folder.path()));
        let old = std::fs::read(&file).unwrap();
        let found = extended(&file, &sources, 520).unwrap();
        let new = found.text.as_bytes();
        let extension = VocabularyExtension::new(&old, new).unwrap();
        assert_eq!((extension.before, extension.parts.len()), (found.tokens - found.added, found.added), "{model}");
        let unk = Tokenizer::from_vocab(&old, true).unwrap().special().unk;
        let is_new = |parts: &Vec<u32>| parts.len() >= 2 || parts[..] == [unk];
        assert!(extension.parts.iter().all(is_new), "{model}: {:?}", extension.parts);
        let tokenizer = Tokenizer::from_vocab(new, true).unwrap();
        assert_eq!(tokenizer.size(), found.tokens);
        // The words of the text become shorter by as many tokens as the library says.
        let library = |bytes: &[u8]| {
            let tokenizer = Tokenizer::from_vocab(bytes, true).unwrap();
            let lines = DOMAIN.lines().filter(|line| !line.is_empty());
            3 * lines.map(|line| tokenizer.encode(line).len() as u64).sum::<u64>()
        };
        // In BPE the second line of a document has a space before it. Unigram has several tokens for an unknown word.
        if model != TokenizerModel::Bpe {
            assert_eq!(found.after.tokens, library(new), "{model}");
        }
        if model == TokenizerModel::WordPiece {
            assert_eq!(found.before.tokens, library(&old));
        }
        assert!(found.after.tokens < found.before.tokens, "{model}: {:?} {:?}", found.before, found.after);
        let unknown = if model == TokenizerModel::Bpe { 0 } else { 6 };
        assert!(found.before.unknown >= unknown && found.after.unknown == 0, "{model}: {:?}", found.before);
        let whole = tokenizer.encode("cardiomyopathy").len();
        assert!(whole < Tokenizer::from_vocab(&old, true).unwrap().encode("cardiomyopathy").len(), "{model}: {whole}");
        let corpus = std::fs::read_to_string(folder.path().join("corpus.txt")).unwrap();
        check_ids(&old, new, &corpus);
        assert!(check_ids(&old, new, DOMAIN) > 0);
        // The same text gives the same file.
        assert_eq!(extended(&file, &sources, 520).unwrap().text, found.text);
    }
}

#[test]
fn an_extension_is_extended() {
    for model in MODELS {
        let folder = tempfile::tempdir().unwrap();
        let (file, sources) = (base(folder.path(), model), domain(folder.path()));
        let size = TokenTable::count(&std::fs::read(&file).unwrap()).unwrap();
        let first = extended(&file, &sources, size + 4).unwrap();
        assert_eq!(first.added, 4);
        let longer = folder.path().join("longer");
        std::fs::write(&longer, &first.text).unwrap();
        let second = extended(&longer, &sources, first.tokens + 3).unwrap();
        assert_eq!(second.added, 3);
        VocabularyExtension::new(first.text.as_bytes(), second.text.as_bytes()).unwrap();
        VocabularyExtension::new(&std::fs::read(&file).unwrap(), second.text.as_bytes()).unwrap();
        let why = VocabularyExtension::new(second.text.as_bytes(), first.text.as_bytes()).unwrap_err();
        assert!(why.contains("not more than"), "{why}");
    }
}

#[test]
fn a_size_that_is_not_larger_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (file, sources) = (base(folder.path(), TokenizerModel::Bpe), domain(folder.path()));
    let refused = extended(&file, &sources, 500).unwrap_err().to_string();
    assert!(refused.contains("must be above 500, the number of tokens of"), "{refused}");
    std::fs::write(&file, "{\"model\":{}}").unwrap();
    let refused = std::error::Error::source(&extended(&file, &sources, 600).unwrap_err()).unwrap().to_string();
    assert!(refused.contains("model.type"), "{refused}");
}

/// The tokens that only `added_tokens` has keep their ids, as `[MASK]` of DeBERTa-v2 and of ModernBERT.
#[test]
fn added_tokens_after_the_model_keep_their_ids() {
    for model in [TokenizerModel::Bpe, TokenizerModel::Unigram] {
        let folder = tempfile::tempdir().unwrap();
        let (file, sources) = (base(folder.path(), model), domain(folder.path()));
        let mut json: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
        let last = match &mut json["model"]["vocab"] {
            Value::Array(tokens) => {
                tokens.remove(4);
                tokens.len()
            }
            tokens => {
                let tokens = tokens.as_object_mut().unwrap();
                tokens.remove("[MASK]");
                tokens
                    .values_mut()
                    .for_each(|id| *id = (id.as_u64().unwrap() - u64::from(id.as_u64() > Some(4))).into());
                tokens.len()
            }
        };
        for token in json["added_tokens"].as_array_mut().unwrap() {
            if token["content"] == "[MASK]" {
                token["id"] = last.into();
            }
        }
        // A word that is added after all others and is not special.
        let word = json!({"id": last + 1, "content": "aorta", "single_word": false, "lstrip": false, "rstrip": false,
                          "normalized": false, "special": false});
        json["added_tokens"].as_array_mut().unwrap().push(word);
        std::fs::write(&file, json.to_string()).unwrap();
        let old = std::fs::read(&file).unwrap();
        let found = extended(&file, &sources, 512).unwrap();
        let tokenizer = Tokenizer::from_vocab(found.text.as_bytes(), true).unwrap();
        assert_eq!(tokenizer.special().mask as usize, last, "{model}");
        let aorta = last as u32 + 1;
        assert!(
            tokenizer.encode("the aorta").contains(&aorta)
                && tokenizer.encode_masked("the [MASK]").contains(&(aorta - 1))
        );
        VocabularyExtension::new(&old, found.text.as_bytes()).unwrap();
        check_ids(&old, found.text.as_bytes(), &std::fs::read_to_string(folder.path().join("corpus.txt")).unwrap());
    }
}

/// The library uses the last of equal merges.
#[test]
fn repeated_merges_are_counted_as_the_library_applies_them() {
    let folder = tempfile::tempdir().unwrap();
    let (file, sources) = (base(folder.path(), TokenizerModel::Bpe), domain(folder.path()));
    let mut json: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    let merges = json["model"]["merges"].as_array_mut().unwrap();
    let first = merges[0].clone();
    merges.push(first);
    std::fs::write(&file, json.to_string()).unwrap();
    let segmenter = Segmenter::read(&std::fs::read(&file).unwrap(), "base").unwrap();
    let tokenizer = Tokenizer::from_vocab(&std::fs::read(&file).unwrap(), true).unwrap();
    for word in std::fs::read_to_string(folder.path().join("corpus.txt")).unwrap().split_whitespace().take(2000) {
        if word.chars().all(|letter| letter.is_ascii_lowercase()) {
            assert_eq!(segmenter.segment(word), Some(tokenizer.encode(word)), "{word}");
        }
    }
    let found = extended(&file, &sources, 510).unwrap();
    check_ids(&std::fs::read(&file).unwrap(), found.text.as_bytes(), DOMAIN);
}

/// Text without spaces, as in Chinese, is not one long word.
#[test]
fn text_without_spaces_has_new_tokens() {
    for model in MODELS {
        let folder = tempfile::tempdir().unwrap();
        let file = base(folder.path(), model);
        let path = folder.path().join("zh.txt");
        std::fs::write(&path, "心肌病是一种心脏疾病。心包炎和心肌炎也是心脏疾病。".repeat(40)).unwrap();
        let found = extended(&file, &[source(&path, "text", Documents::File)], 540).unwrap();
        // The text has 1,000 characters. In WordPiece each is a word.
        let most = if model == TokenizerModel::WordPiece { 1000 } else { 600 };
        assert!(found.after.unknown == 0 && found.after.tokens <= most, "{model}: {:?}", found.after);
        let tokenizer = Tokenizer::from_vocab(found.text.as_bytes(), true).unwrap();
        assert!(!tokenizer.encode("心肌病").contains(&tokenizer.special().unk), "{model}");
    }
}

/// Published vocabularies and real text: the first half of a book decides, the second half is compared.
#[test]
fn real_text_without_new_tokens_keeps_its_ids() {
    let Some(corpora) = corpora() else {
        return println!("skipped: the development corpora are not available");
    };
    let folder = tempfile::tempdir().unwrap();
    let text = std::fs::read_to_string(corpora.join("books/de/goethe_werther.txt")).unwrap();
    let half = folder.path().join("half.txt");
    std::fs::write(&half, &text[..text.floor_char_boundary(text.len() / 2)]).unwrap();
    for model in MODELS {
        let file = base(folder.path(), model);
        let old = std::fs::read(&file).unwrap();
        let found = extended(&file, &[source(&half, "text", Documents::File)], 2000).unwrap();
        assert_eq!(found.tokens, 2000);
        let changed = check_ids(&old, found.text.as_bytes(), &text);
        assert!(changed > 100, "{model}: {changed}");
        println!("{model}: {:?} to {:?}", found.before, found.after);
    }
}
