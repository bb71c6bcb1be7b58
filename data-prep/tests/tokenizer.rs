//! Token ids equal the ids of Hugging Face's `BertTokenizerFast`. tests/golden/tokenizer.py wrote the expected values.

use lambert_dataset::random::{Key, Rng};
use lambert_dataset::tokenizer::{Tokenizer, tokenizer_json};
use serde_json::Value;

fn golden() -> Value {
    serde_json::from_str(include_str!("golden/tokenizer.json")).unwrap()
}

fn strings(value: &Value) -> Vec<&str> {
    value.as_array().unwrap().iter().map(|item| item.as_str().unwrap()).collect()
}

#[test]
fn ids_match_hugging_face() {
    let golden = golden();
    let lines = strings(&golden["lines"]);
    assert!(lines.len() > 40);
    for (name, lowercase) in [("cased", false), ("uncased", true)] {
        let vocabulary = strings(&golden[name]["pieces"]).join("\n");
        let tokenizer = Tokenizer::from_vocab(vocabulary.as_bytes(), lowercase).unwrap();
        let mut encoder = tokenizer.encoder();
        for (line, expected) in lines.iter().zip(golden[name]["ids"].as_array().unwrap()) {
            let expected: Vec<u32> =
                expected.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect();
            assert_eq!(encoder.encode(line), expected, "{name}: {line:?}");
            assert_eq!(tokenizer.encode(line), expected, "{name}: {line:?}");
            // No text encodes to [PAD], [CLS], [SEP] or [MASK].
            assert!(expected.iter().all(|&id| id == 1 || id > 4), "{name}: {line:?}");
        }
    }
}

#[test]
fn the_exported_json_has_the_post_processor_and_the_special_tokens() {
    let golden = golden();
    let vocabulary = strings(&golden["uncased"]["pieces"]).join("\n");
    let json: Value = serde_json::from_str(&tokenizer_json(vocabulary.as_bytes(), true).unwrap()).unwrap();
    assert_eq!(json["model"]["vocab"]["[MASK]"], 4);
    assert_eq!(json["added_tokens"].as_array().unwrap().len(), 5);
    assert_eq!(json["post_processor"]["single"][0]["SpecialToken"]["id"], "[CLS]");
    assert_eq!(json["normalizer"]["lowercase"], true);
    assert!(tokenizer_json(b"[PAD]\n", true).is_err());
}

/// Words of one to five concatenated tokens, most of which the encoder splits without the library. Some words are in
/// uppercase, truncated, extended by a character, or too long for the encoder.
#[test]
fn words_are_encoded_like_the_library() {
    let golden = golden();
    for (name, lowercase) in [("cased", false), ("uncased", true)] {
        let pieces = strings(&golden[name]["pieces"]);
        let tokenizer = Tokenizer::from_vocab(pieces.join("\n").as_bytes(), lowercase).unwrap();
        let mut encoder = tokenizer.encoder();
        let mut unknown = 0;
        for seed in 0..50_000 {
            let mut rng = Key::new(seed).rng();
            let piece =
                |rng: &mut Rng| pieces[5 + rng.below(pieces.len() as u64 - 5) as usize].trim_start_matches("##");
            let mut word: String = (0..1 + rng.below(5)).map(|_| piece(&mut rng)).collect();
            match rng.below(4) {
                0 => word = word.to_uppercase(),
                1 => drop(word.pop()),
                2 => word.push(['z', '7', 'Q', 'é'][rng.below(4) as usize]),
                _ => {}
            }
            let expected = tokenizer.encode(&word);
            unknown += usize::from(expected == [tokenizer.special().unk]);
            assert_eq!(encoder.encode(&word), expected, "{name}: {word:?}");
        }
        assert!(unknown > 100, "{unknown} words are unknown");
    }
}

/// The encoder splits text into words and caches the words. This must not change the result.
#[test]
fn the_caching_encoder_matches_the_library() {
    let golden = golden();
    let characters: Vec<char> = strings(&golden["lines"]).concat().chars().chain("abc'’—  \u{301}\0".chars()).collect();
    for (name, lowercase) in [("cased", false), ("uncased", true)] {
        let vocabulary = strings(&golden[name]["pieces"]).join("\n");
        let tokenizer = Tokenizer::from_vocab(vocabulary.as_bytes(), lowercase).unwrap();
        let mut encoder = tokenizer.encoder();
        for seed in 0..20_000 {
            let mut rng = Key::new(seed).rng();
            let pick = |rng: &mut Rng| match rng.below(3) {
                0 => ['a', 'B', ' ', ',', '’', '\u{301}'][rng.below(6) as usize],
                _ => characters[rng.below(characters.len() as u64) as usize],
            };
            let text: String = (0..rng.below(30)).map(|_| pick(&mut rng)).collect();
            assert_eq!(encoder.encode(&text), tokenizer.encode(&text), "{name}: {text:?}");
        }
    }
}
