//! The encoder for words of Unigram gives the ids of the tokenizers crate.

use crate::common::{corpora, source};
use lambert_config::prep::Documents;
use lambert_data_prep::vocab::{VocabSettings, train};
use lambert_dataset::random::{Key, Rng};
use lambert_dataset::tokenizer::{Tokenizer, TokenizerModel};
use serde_json::{Value, json};

fn lines() -> Vec<String> {
    let golden: Value = serde_json::from_str(include_str!("golden/tokenizer.json")).unwrap();
    serde_json::from_value(golden["lines"].clone()).unwrap()
}

/// Unigram tokenizers of tests/golden.
fn files() -> Vec<Value> {
    let golden: Value = serde_json::from_str(include_str!("golden/tokenizer_files.json")).unwrap();
    let kinds = golden["kinds"].as_object().unwrap().values();
    kinds.map(|kind| kind["file"].clone()).filter(|file| file["model"]["type"] == "Unigram").collect()
}

fn read(file: &Value) -> Tokenizer {
    Tokenizer::named(file.to_string().as_bytes(), false, "t.json").unwrap()
}

/// Checks texts, each as a word and within words.
fn check(tokenizer: &Tokenizer, texts: impl Iterator<Item = String>) {
    let mut encoder = tokenizer.encoder();
    for text in texts {
        for text in [format!("a {text} b"), text] {
            assert_eq!(encoder.encode(&text), tokenizer.encode(&text), "{text:?}");
        }
    }
}

/// A text of tokens and of other characters, some in uppercase or cut off.
fn random_text(tokens: &[String], characters: &[char], rng: &mut Rng) -> String {
    let mut text = String::new();
    for _ in 0..1 + rng.below(6) {
        match rng.below(4) {
            0 => text.push(characters[rng.below(characters.len() as u64) as usize]),
            _ => text += tokens[rng.below(tokens.len() as u64) as usize].trim_start_matches('▁'),
        }
    }
    match rng.below(6) {
        0 => text.to_uppercase(),
        1 => text.chars().skip(1).collect(),
        2 => text.replace('e', "▁"),
        3 => text + "``''",
        _ => text,
    }
}

#[test]
fn words_are_encoded_like_the_library() {
    let lines = lines();
    let characters: Vec<char> = lines.concat().chars().chain("abc'’—`\u{301}\0▁\u{a0}😀\u{10ffff}".chars()).collect();
    let files = files();
    assert_eq!(files.len(), 3);
    for file in &files {
        let tokenizer = read(file);
        assert_eq!(tokenizer.tokens().model(), TokenizerModel::Unigram);
        let tokens = tokenizer.tokens().texts();
        check(&tokenizer, lines.iter().cloned());
        check(&tokenizer, tokens.iter().cloned());
        check(&tokenizer, (0..20_000).map(|seed| random_text(tokens, &characters, &mut Key::new(seed).rng())));
        check(&tokenizer, [30_000, 70_000].map(|length| "Long—☃wörd".repeat(length / 12)).into_iter());
    }
}

/// Scores with ties, of different sizes, above 0, and so low that two unknown characters are better than a token.
#[test]
fn unusual_scores_give_the_ids_of_the_library() {
    let scores: [fn(&mut Rng) -> f64; 5] = [
        |_| -1.0,
        |rng| -(rng.below(3) as f64),
        |rng| rng.below(1000) as f64 * 0.1 - 50.0,
        |rng| 1e17 * (rng.below(3) as f64 - 1.0) + rng.below(100) as f64,
        |rng| 100.0 + rng.below(2) as f64 * 90.0,
    ];
    let mut file = files().remove(0);
    let mut texts: Vec<String> = (0..600_u64)
        .map(|seed| {
            let mut rng = Key::new(seed).rng();
            (0..1 + rng.below(5)).map(|_| ['a', 'b', 'c', 'é', '▁', '😀'][rng.below(6) as usize]).collect()
        })
        .collect();
    texts.sort_unstable();
    texts.dedup();
    for (number, score) in scores.into_iter().enumerate() {
        let mut rng = Key::new(number as u64).rng();
        // Some characters have no token of their own.
        let texts = texts.iter().filter(|text| number != 4 || text.chars().count() > 1);
        let tokens = texts.map(|text| json!([text, score(&mut rng)]));
        let mut special = file["model"]["vocab"].as_array().unwrap()[..5].to_vec();
        special.iter_mut().for_each(|token| token[1] = json!(if number == 4 { 100.0 } else { 0.0 }));
        file["model"]["vocab"] = special.into_iter().chain(tokens).collect();
        let tokenizer = read(&file);
        let text = |seed| {
            let mut rng = Key::new(seed).rng();
            (0..rng.below(12)).map(|_| ['a', 'b', 'c', 'é', '▁', '😀', 'z', '☃'][rng.below(8) as usize]).collect()
        };
        check(&tokenizer, (0..5_000).map(text));
        check(&tokenizer, ["<unk>", "<unk>z☃", "z<unk><unk>a"].into_iter().map(str::to_owned));
    }
}

/// A replacement, and a normalizer that maps ASCII characters alone.
#[test]
fn normalized_ascii_words_have_the_ids_of_the_library() {
    let replace =
        |pattern: &str, content: &str| json!({"type": "Replace", "pattern": {"String": pattern}, "content": content});
    let mut file = files().remove(0);
    let pieces = read(&file).tokens().texts().to_vec();
    for normalizers in [
        json!([{"type": "Lowercase"}, replace("th", "T"), {"type": "Lowercase"}]),
        json!([replace("T", "th"), replace("x", "yy"), replace("q", "u")]),
        json!([{"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true, "strip_accents": true,
                "lowercase": true}, {"type": "NFKC"}, {"type": "Nmt"}]),
        json!([]),
    ] {
        file["normalizer"] = json!({"type": "Sequence", "normalizers": normalizers});
        let characters: Vec<char> = "tThHqxyu``中é".chars().collect();
        check(&read(&file), (0..3_000).map(|seed| random_text(&pieces, &characters, &mut Key::new(seed).rng())));
    }
}

/// Each tenth line of the books in seven languages, with a vocabulary of three of them.
#[test]
fn lines_of_books_have_the_ids_of_the_library() {
    let Some(corpora) = corpora() else { return };
    let books = ["de/goethe_werther.txt", "en/doyle_hound_1902.txt", "ja/soseki_botchan.txt"];
    let sources = books.map(|book| source(&corpora.join("books").join(book), "text", Documents::File));
    let settings = VocabSettings { model: TokenizerModel::Unigram, size: 4_000, ..VocabSettings::default() };
    let vocabulary = train(&sources, &VocabSettings { lowercase: false, ..settings }).unwrap();
    let tokenizer = Tokenizer::named(vocabulary.as_bytes(), false, "t.json").unwrap();
    let mut encoder = tokenizer.encoder();
    let mut lines = 0;
    for language in std::fs::read_dir(corpora.join("books")).unwrap() {
        for book in std::fs::read_dir(language.unwrap().path()).unwrap() {
            let bytes = std::fs::read(book.unwrap().path()).unwrap();
            for line in String::from_utf8_lossy(&bytes).lines().step_by(10) {
                assert_eq!(encoder.encode(line), tokenizer.encode(line), "{line:?}");
                lines += 1;
            }
        }
    }
    assert!(lines > 10_000, "{lines} lines");
}
