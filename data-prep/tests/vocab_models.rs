//! Vocabularies of BPE and Unigram as `tokenizer.json`.

use std::collections::HashSet;
use std::path::Path;

use crate::common::{corpora, generated, source};
use lambert_config::prep::{Documents, Source};
use lambert_data_prep::prep::PrepError;
use lambert_data_prep::vocab::{TrainedVocabulary, VocabProgress, VocabSettings, train, train_with};
use lambert_dataset::tokenizer::TokenizerModel;
use lambert_dataset::tokenizer::TokenizerModel::{Bpe, Unigram, WordPiece};
use serde_json::{Value, json};

const SPECIAL: [&str; 5] = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"];

fn settings(model: TokenizerModel, size: usize) -> VocabSettings {
    VocabSettings { model, size, lowercase: false, ..VocabSettings::default() }
}

/// The generated text. If the development corpora are available, also German and Japanese novels.
fn sources(folder: &Path) -> Vec<Source> {
    generated(folder, 600);
    let mut sources = vec![source(&folder.join("corpus.txt"), "text", Documents::BlankLine)];
    if let Some(corpora) = corpora() {
        let books = ["books/de/goethe_werther.txt", "books/ja/soseki_botchan.txt"].map(|name| corpora.join(name));
        sources.extend(books.iter().map(|path| source(path, "text", Documents::File)));
    }
    sources
}

/// Trains on `text`, documents between blank lines.
fn trained(text: &str, settings: &VocabSettings) -> Result<TrainedVocabulary, PrepError> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("text.txt");
    std::fs::write(&path, text).unwrap();
    train_with(&[source(&path, "text", Documents::BlankLine)], settings, |_: VocabProgress| {})
}

fn parsed(text: &str) -> Value {
    assert!(text.ends_with("}\n"));
    serde_json::from_str(text).unwrap()
}

fn pair(merge: &Value) -> (&str, &str) {
    (merge[0].as_str().unwrap(), merge[1].as_str().unwrap())
}

fn pieces(tokenizer: &Value) -> Vec<(&str, f64)> {
    let vocab = tokenizer["model"]["vocab"].as_array().unwrap();
    vocab.iter().map(|piece| (piece[0].as_str().unwrap(), piece[1].as_f64().unwrap())).collect()
}

/// Checks the parts that both models have, and that the `tokenizers` crate loads the file.
fn check_frame(text: &str, mask_includes_space: bool) -> Value {
    let tokenizer = parsed(text);
    assert_eq!(tokenizer["version"], "1.0");
    for (id, token) in SPECIAL.into_iter().enumerate() {
        let lstrip = mask_includes_space && token == "[MASK]";
        let expected = json!({"id": id, "content": token, "single_word": false, "lstrip": lstrip, "rstrip": false,
                              "normalized": false, "special": true});
        assert_eq!(tokenizer["added_tokens"][id], expected);
    }
    assert_eq!(tokenizer["added_tokens"].as_array().unwrap().len(), SPECIAL.len());
    let special = &tokenizer["post_processor"]["special_tokens"];
    assert_eq!((&special["[CLS]"]["ids"], &special["[SEP]"]["ids"]), (&json!([2]), &json!([3])));
    tokenizers::from_json(&tokenizers::canonicalize_str(text).unwrap()).unwrap();
    tokenizer
}

/// The crate has one pool of threads for each test here. Hash tables have a different order in each training.
#[test]
fn the_vocabulary_does_not_depend_on_threads_or_hash_tables() {
    let folder = tempfile::tempdir().unwrap();
    let sources = sources(folder.path());
    for (model, size) in [(Bpe, 2_000), (Unigram, 2_000)] {
        let first = train(&sources, &settings(model, size)).unwrap();
        for threads in [1, 3] {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            let again = pool.install(|| train(&sources, &settings(model, size))).unwrap();
            assert!(first == again, "{model:?} with {threads} threads");
        }
    }
}

#[test]
fn bpe_has_all_bytes_and_every_merge() {
    let folder = tempfile::tempdir().unwrap();
    let trained = train_with(&sources(folder.path()), &settings(Bpe, 1_000), |_| {}).unwrap();
    let tokenizer = check_frame(&trained.text, true);
    let model = &tokenizer["model"];
    let vocab = model["vocab"].as_object().unwrap();
    assert_eq!((trained.tokens, vocab.len()), (1_000, 1_000));
    // Ids are in file order: special tokens, bytes, merges.
    assert!(vocab.values().enumerate().all(|(id, value)| value == id));
    let tokens: Vec<&str> = vocab.keys().map(String::as_str).collect();
    assert_eq!(tokens[..5], SPECIAL);
    assert_eq!((tokens[5], tokens[5 + 32], tokens[5 + 97], tokens[5 + 255]), ("Ā", "Ġ", "a", "ÿ"));
    assert!(tokens[5..261].iter().all(|token| token.chars().count() == 1));
    let merges: Vec<(&str, &str)> = model["merges"].as_array().unwrap().iter().map(pair).collect();
    assert_eq!(merges.iter().collect::<HashSet<_>>().len(), merges.len());
    let mut known: Vec<&str> = tokens[5..261].to_vec();
    for (left, right) in merges {
        assert!(known.contains(&left) && known.contains(&right), "{left} {right}");
        let merged = vocab.get_key_value(&format!("{left}{right}")).unwrap().0.as_str();
        if !known.contains(&merged) {
            known.push(merged);
        }
    }
    assert_eq!(known, tokens[5..]);
    assert_eq!(tokenizer["normalizer"], json!({"type": "NFC"}));
    let lines = "The The The The\nthe\nTHE THE THE";
    let lower = trained_text(lines, &VocabSettings { lowercase: true, ..settings(Bpe, 300) });
    assert_eq!(lower["normalizer"]["normalizers"], json!([{"type": "NFC"}, {"type": "Lowercase"}]));
    assert!(lower["model"]["vocab"]["Ġthe"].is_u64() && lower["model"]["vocab"]["The"].is_null(), "{lower}");
}

fn trained_text(text: &str, settings: &VocabSettings) -> Value {
    parsed(&trained(text, settings).unwrap().text)
}

/// The first line of a document has no space before it. All other lines have one.
#[test]
fn lines_of_a_document_follow_a_space() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("text.txt");
    std::fs::write(&path, "abab\n  cdcd  \ncdcd\n\nabab\n").unwrap();
    let of = |documents| {
        let settings = settings(Bpe, 300);
        parsed(&train(&[source(&path, "sentences", documents)], &settings).unwrap())["model"]["vocab"].clone()
    };
    let vocab = of(Documents::BlankLine);
    assert!(vocab["abab"].is_u64() && vocab["Ġcdcd"].is_u64(), "{vocab}");
    assert!(vocab["Ġabab"].is_null() && vocab["ĠĠ"].is_null(), "{vocab}");
}

#[test]
fn unigram_pieces_are_sorted() {
    let folder = tempfile::tempdir().unwrap();
    let trained = train_with(&sources(folder.path()), &settings(Unigram, 3_000), |_| {}).unwrap();
    let tokenizer = check_frame(&trained.text, false);
    assert_eq!(tokenizer["model"]["unk_id"], 1);
    let pieces = pieces(&tokenizer);
    assert_eq!(trained.tokens, pieces.len());
    if corpora().is_some() {
        assert_eq!(trained.tokens, 3_000);
    }
    assert_eq!(pieces[..5], SPECIAL.map(|token| (token, 0.0)));
    let distinct: HashSet<&str> = pieces.iter().map(|(piece, _)| *piece).collect();
    assert_eq!(distinct.len(), pieces.len());
    for pair in pieces[5..].windows(2) {
        let ((piece, score), (next, next_score)) = (pair[0], pair[1]);
        assert!(score > next_score || (score == next_score && piece < next), "{pair:?}");
        assert!(score < 0.0);
    }
}

/// Characters that the training leaves without a piece have the lowest scores, in their order.
#[test]
fn unigram_characters_without_a_piece_are_in_order() {
    // Each of these characters is in one word only, and longer pieces replace it.
    let words: Vec<String> = ('α'..='ω').map(|letter| format!("{letter}rstuv -{letter}rstuv.")).collect();
    let text = (words.join(" ") + "\n").repeat(30);
    let first = trained(&text, &settings(Unigram, 120)).unwrap();
    let tokenizer = parsed(&first.text);
    let pieces = pieces(&tokenizer);
    let lowest = pieces.last().unwrap().1;
    let penalties = (0..).map(|index| lowest + f64::from(index) * 0.0001);
    let from_lowest = pieces.iter().rev().filter(|(piece, _)| piece.chars().count() == 1);
    let missing: Vec<&str> = from_lowest
        .zip(penalties)
        .take_while(|((_, score), penalty)| (score - penalty).abs() < 1e-9)
        .map(|((piece, _), _)| *piece)
        .collect();
    assert!(missing.len() > 3 && missing.is_sorted(), "{missing:?} {pieces:?}");
    for _ in 0..5 {
        assert_eq!(trained(&text, &settings(Unigram, 120)).unwrap().text, first.text);
    }
}

/// Text with the names of special tokens, with the name that the trainer has for unknown characters, and with zeros.
#[test]
fn unigram_ignores_reserved_words() {
    let text = "a[UNK]b <UNK> c<UNK>d [MASK] [MASK]x nul\0nul some more words, some more words\n".repeat(20);
    let tokenizer = trained_text(&text, &settings(Unigram, 200));
    let pieces = pieces(&tokenizer);
    assert!(pieces[5..].iter().all(|(piece, _)| !piece.contains(['\0', '[', '<'])), "{pieces:?}");
    assert!(pieces.iter().any(|(piece, _)| *piece == "▁words"), "{pieces:?}");
}

#[test]
fn sizes_out_of_range_are_refused() {
    let text = "some words and more words, and some more\n".repeat(10);
    let refused = |model, size| match trained(&text, &settings(model, size)) {
        Err(PrepError::InvalidSetting { key, message }) => (key, message),
        other => panic!("{other:?}"),
    };
    let message = "must be at least 261 for the special tokens and the bytes";
    assert_eq!(refused(Bpe, 260), ("size".to_owned(), message.to_owned()));
    let message = "must be at least 16 for the special tokens and the alphabet";
    assert_eq!(refused(Unigram, 15), ("size".to_owned(), message.to_owned()));
    let message = "must be at most 1000000";
    for model in [WordPiece, Bpe, Unigram] {
        assert_eq!(refused(model, 1_000_001), ("size".to_owned(), message.to_owned()));
    }
    assert_eq!(trained(&text, &settings(Bpe, 261)).unwrap().tokens, 261);
    for size in 16..30 {
        assert!(trained(&text, &settings(Unigram, size)).unwrap().tokens <= size);
    }
}

/// The suffix array of the trainer indexes out of bounds for these words, unless another word follows them.
#[test]
fn unigram_trains_on_words_that_the_suffix_array_fails_for() {
    let text = "ee ddcd b aeadbe cecca b eead";
    assert!(trained(text, &settings(Unigram, 1_000)).unwrap().tokens > SPECIAL.len());
}

/// A corpus of a few words has fewer tokens than requested.
#[test]
fn small_corpora_have_small_vocabularies() {
    for text in ["a", "aa", "aaaa aaaa", "ab abc abcd", "abcdefgh abcdefgh", "x", "日本語 日本 本日"] {
        for (model, min) in [(Bpe, 261), (Unigram, 6)] {
            let tokens = trained(text, &settings(model, 1_000)).unwrap().tokens;
            assert!((min..1_000).contains(&tokens), "{model:?}: {tokens} tokens of {text}");
        }
    }
    assert!(matches!(trained(" \n ", &settings(Unigram, 1_000)), Err(PrepError::EmptyCorpus { .. })));
}
