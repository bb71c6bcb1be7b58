//! Byte-level BPE and Unigram: token IDs equal those of the tokenizers library of Python. tests/golden/tokenizer_files.py
//! wrote the tokenizers and the expected ids.

use lambert_dataset::random::Key;
use lambert_dataset::tokenizer::{
    SentencePieceRules, Special, TokenTable, Tokenizer, TokenizerModel, tokenizer_json_of_sentence_piece, transformers,
};
use serde_json::{Value, json};

fn golden() -> Value {
    serde_json::from_str(include_str!("golden/tokenizer_files.json")).unwrap()
}

fn lines() -> Vec<String> {
    let golden: Value = serde_json::from_str(include_str!("golden/tokenizer.json")).unwrap();
    serde_json::from_value(golden["lines"].clone()).unwrap()
}

fn ids(value: &Value) -> Vec<u32> {
    serde_json::from_value(value.clone()).unwrap()
}

fn kinds(golden: &Value) -> Vec<(String, Tokenizer, Value)> {
    let kind = |(name, kind): (&String, &Value)| {
        let tokenizer = Tokenizer::named(kind["file"].to_string().as_bytes(), true, name).unwrap();
        (name.clone(), tokenizer, kind.clone())
    };
    golden["kinds"].as_object().unwrap().iter().map(kind).collect()
}

#[test]
fn ids_match_hugging_face() {
    let (golden, lines) = (golden(), lines());
    let kinds = kinds(&golden);
    assert_eq!(kinds.len(), 6);
    for (name, tokenizer, kind) in &kinds {
        let special = tokenizer.special();
        let mut encoder = tokenizer.encoder();
        for (line, expected) in lines.iter().zip(kind["ids"].as_array().unwrap()) {
            let expected = ids(expected);
            // The library finds special tokens of a Unigram model in the text; see below.
            let is_special = |id: &u32| special.contains(*id) && *id != special.unk;
            if expected.iter().any(is_special) && tokenizer.tokens().model() == TokenizerModel::Unigram {
                assert!(line.contains("[MASK]"), "{name}: {line:?}");
                continue;
            }
            assert_eq!(tokenizer.encode(line), expected, "{name}: {line:?}");
            assert_eq!(encoder.encode(line), expected, "{name}: {line:?}");
            assert!(!expected.iter().any(is_special), "{name}: {line:?}");
        }
    }
}

#[test]
fn models_of_sentence_piece_give_its_ids() {
    let (golden, lines) = (golden(), lines());
    let models: [(&str, &[u8], [u32; 5]); 2] = [
        ("fairseq", include_bytes!("golden/fairseq.model"), [1, 3, 0, 2, 700]),
        ("bert", include_bytes!("golden/bert.model"), [0, 3, 1, 2, 700]),
    ];
    for (name, bytes, [pad, unk, cls, sep, mask]) in models {
        let rules = SentencePieceRules { fairseq: name == "fairseq", ..SentencePieceRules::default() };
        let file = tokenizer_json_of_sentence_piece(bytes, rules).unwrap();
        let tokenizer = Tokenizer::named(file.as_bytes(), true, name).unwrap();
        let special = Special { pad, unk, cls, sep, mask: mask + u32::from(name == "fairseq") };
        assert_eq!(tokenizer.special(), special, "{name}");
        let mut encoder = tokenizer.encoder();
        for (line, expected) in lines.iter().zip(golden["sentence_piece"][name].as_array().unwrap()) {
            // As in the tokenizers library, the name of the token for unknown text gives its id.
            if !line.contains("[UNK]") {
                assert_eq!(encoder.encode(line), ids(expected), "{name}: {line:?}");
            }
        }
    }
    let refused = |bytes: &[u8]| tokenizer_json_of_sentence_piece(bytes, SentencePieceRules::default()).unwrap_err();
    assert!(refused(b"not a model").contains("not a SentencePiece model"));
    assert!(refused(b"").contains("it has no piece for unknown characters"));
    // TrainerSpec { model_type: BPE }, a piece of bytes, and NormalizerSpec { add_dummy_prefix: false }.
    assert!(refused(b"\x12\x02\x18\x02").contains("it is not a Unigram model"));
    assert!(refused(b"\x0a\x05\x0a\x01a\x18\x06").contains("piece \"a\" has the type 6"));
    assert!(refused(b"\x1a\x02\x18\x00").contains("add_dummy_prefix is false; expected true"));
}

#[test]
fn no_text_gives_a_special_token() {
    for (name, tokenizer, _) in kinds(&golden()) {
        let special = tokenizer.special();
        let text: String = special.all().iter().map(|id| format!("{} x", tokenizer.piece(*id))).collect();
        let found = tokenizer.encode(&text);
        assert_eq!(tokenizer.encoder().encode(&text), found);
        assert!(found.iter().all(|id| *id == special.unk || !special.contains(*id)), "{name}: {found:?}");
        assert!(found.len() > 5, "{name}: {found:?}");
    }
}

#[test]
fn masks_take_the_spaces_that_the_tokenizer_says() {
    let golden = golden();
    let texts: Vec<String> = serde_json::from_value(golden["masked"].clone()).unwrap();
    for (name, tokenizer, kind) in kinds(&golden) {
        let mask = tokenizer.piece(tokenizer.special().mask);
        for (text, expected) in texts.iter().zip(kind["masked"].as_array().unwrap()) {
            assert_eq!(tokenizer.encode_masked(text), ids(expected), "{name}: {text:?}");
            assert_eq!(tokenizer.encode_masked(&text.replace("[MASK]", mask)), ids(expected), "{name}: {text:?}");
        }
    }
}

/// The encoder splits text into words and caches the words. This must not change the result.
#[test]
fn the_caching_encoder_matches_the_library() {
    let characters: Vec<char> = lines().concat().chars().chain("abc'’—  \u{301}\0▁\u{a0}".chars()).collect();
    for (name, tokenizer, _) in kinds(&golden()) {
        let mut encoder = tokenizer.encoder();
        for seed in 0..5_000 {
            let mut rng = Key::new(seed).rng();
            let mut text = String::new();
            for _ in 0..rng.below(30) {
                text.push(match rng.below(3) {
                    0 => ['a', 'B', ' ', ' ', '’', '\u{301}', '▁', 'é'][rng.below(8) as usize],
                    _ => characters[rng.below(characters.len() as u64) as usize],
                });
            }
            assert_eq!(encoder.encode(&text), tokenizer.encode(&text), "{name}: {text:?}");
        }
    }
}

#[test]
fn sentences_have_the_ids_of_the_running_text() {
    let sentences = ["The first sentence, don't.", "É and 'quotes' follow.", "“Third”, 1,000 times!", "x"];
    for (name, tokenizer, _) in kinds(&golden()) {
        let mut encoder = tokenizer.encoder();
        let mut found = encoder.encode(sentences[0]).to_vec();
        sentences[1..].iter().for_each(|sentence| found.extend_from_slice(encoder.encode_next(sentence)));
        assert_eq!(found, tokenizer.encode(&sentences.join(" ")), "{name}");
    }
}

#[test]
fn decoded_text_is_the_normalized_text() {
    for (name, tokenizer, _) in kinds(&golden()) {
        let text = "The cats sat, café; don't.";
        let expected = match name.as_str() {
            "albert" => "the cats sat, cafe; don't.",
            "roberta-prefix" => " The cats sat, café; don't.",
            _ => text,
        };
        assert_eq!(tokenizer.decode(&tokenizer.encode(text)), expected, "{name}");
        let special = tokenizer.special();
        let framed = tokenizer.decode(&[special.cls, special.mask]);
        assert_eq!(framed, format!("{}{}", tokenizer.piece(special.cls), tokenizer.piece(special.mask)), "{name}");
    }
}

#[test]
fn words_start_at_spaces_and_in_unigram_at_marks() {
    for (name, tokenizer, _) in kinds(&golden()) {
        let found = tokenizer.encode("He said: don't go");
        let starts: Vec<&str> =
            found.iter().filter(|id| !tokenizer.is_continuation(**id)).map(|id| tokenizer.piece(*id)).collect();
        let is_unigram = tokenizer.tokens().model() == TokenizerModel::Unigram;
        // The first word of a byte-level BPE starts without a space.
        let spaces = match name.as_str() {
            "roberta-prefix" => 4,
            _ if is_unigram => 4,
            _ => 3,
        };
        assert_eq!(starts.iter().filter(|start| start.starts_with(['▁', 'Ġ'])).count(), spaces, "{name}: {starts:?}");
        assert_eq!(starts.contains(&":"), is_unigram, "{name}: {starts:?}");
        assert!(!starts.contains(&"'"), "{name}: {starts:?}");
        assert!(!tokenizer.is_continuation(tokenizer.special().mask));
    }
}

#[test]
fn random_replacements_are_no_special_tokens() {
    for (name, tokenizer, _) in kinds(&golden()) {
        let replacements = tokenizer.tokens().replacements();
        assert_eq!(replacements.len(), tokenizer.size() - 5, "{name}");
        assert!(!replacements.iter().any(|id| tokenizer.special().contains(*id)), "{name}");
    }
    let pieces = TokenTable::read(b"[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n", "v").unwrap();
    assert_eq!(pieces.replacements(), [0, 1, 2, 3, 4, 5]);
}

#[test]
fn files_that_contradict_themselves_are_refused() {
    let golden = golden();
    let set = |kind: &str, pointer: &str, value: Value| {
        let mut file = golden["kinds"][kind]["file"].clone();
        let (parent, key) = pointer.rsplit_once('/').unwrap();
        match file.pointer_mut(parent).unwrap() {
            Value::Array(list) => list[key.parse::<usize>().unwrap()] = value,
            parent => parent[key] = value,
        }
        Tokenizer::named(file.to_string().as_bytes(), true, "t.json").unwrap_err().to_string()
    };
    for (kind, pointer, value, message) in [
        ("roberta", "/model/type", json!("WordPiece"), "its model is WordPiece; use its vocab.txt"),
        ("roberta", "/model/type", json!("WordLevel"), "its model.type is \"WordLevel\"; expected BPE or Unigram"),
        ("roberta", "/model/byte_fallback", json!(true), "model.byte_fallback is true; expected false"),
        ("roberta", "/model/dropout", json!(0.1), "model.dropout is 0.1; expected null"),
        ("roberta", "/model/merges/3", json!(["a", "zzz"]), "model.merges: number 3, [\"a\",\"zzz\"], is not a merge"),
        ("roberta", "/model/merges/3", json!("a b c"), "number 3, \"a b c\", is not a merge"),
        ("roberta", "/model/vocab/Ġ", json!(7), "have the id 7"),
        ("roberta", "/model/vocab/Ġ", json!(-7), "\"Ġ\" has the id -7; expected a string and an id below"),
        ("roberta", "/model/vocab/Ġ", json!(604), "no token has the id"),
        ("roberta", "/pre_tokenizer", json!({"type": "Whitespace"}), "its pre_tokenizer is not ByteLevel"),
        ("roberta", "/pre_tokenizer", json!(null), "its pre_tokenizer is not ByteLevel"),
        ("roberta", "/pre_tokenizer/use_regex", json!(false), "pre_tokenizer.use_regex is false; expected true"),
        ("roberta", "/added_tokens/0/content", json!("<start>"), "added_tokens: \"<start>\" has the id 0"),
        ("roberta", "/added_tokens/0/id", json!(70_000_000), "added_tokens: \"<s>\" has the id 70000000"),
        ("roberta", "/added_tokens/4/special", json!(false), "lacks the special tokens [MASK] or <mask>"),
        ("roberta", "/added_tokens", json!([]), "lacks the special tokens [PAD] or <pad>, [UNK] or <unk>"),
        ("roberta", "/normalizer", json!({"type": "Unknown"}), "rejected vocabulary t.json"),
        ("albert", "/model/vocab/9", json!(["x"]), "model.vocab: number 9 is [\"x\"]; expected a token and its score"),
        ("albert", "/model/vocab/9", json!(["", -1.0]), "number 9 is [\"\",-1.0]; expected a token and its score"),
        ("albert", "/model/unk_id", json!(null), "model.unk_id is null; expected the id of a token"),
        ("albert", "/model/unk_id", json!(8), "model.unk_id is 8, but the special token has the id 1"),
        (
            "deberta-v2",
            "/pre_tokenizer/pretokenizers/0/replacement",
            json!("_"),
            "replacement is \"_\"; expected \"▁\"",
        ),
        ("xlm-roberta", "/pre_tokenizer/prepend_scheme", json!("never"), "prepend_scheme is \"never\""),
        ("xlm-roberta", "/pre_tokenizer/split", json!(false), "pre_tokenizer.split is false; expected true"),
    ] {
        let error = set(kind, pointer, value);
        assert!(error.contains(message) && error.contains("t.json"), "{kind} {pointer}: {error}");
    }
    let mut file = golden["kinds"]["albert"]["file"].clone();
    file["model"]["vocab"][9] = file["model"]["vocab"][8].clone();
    let error = Tokenizer::named(file.to_string().as_bytes(), true, "t.json").unwrap_err().to_string();
    assert!(error.contains("has the ids 8 and 9"), "{error}");
    for (bytes, message) in [
        (&b"{\"version\": \"1.0\""[..], "EOF while parsing"),
        (b"{\"version\": 3}", "its model.type is null; expected BPE or Unigram"),
        (b"{\"model\": [\"BPE\"]}", "its model.type is null; expected BPE or Unigram"),
        (b"{\"model\": {\"type\": \"BPE\"}}", "model.vocab is missing"),
    ] {
        let error = Tokenizer::named(bytes, true, "t.json").unwrap_err().to_string();
        assert!(error.contains(message), "{error}");
    }
}

/// The transformers classes differ in the inputs that they return without this key.
#[test]
fn exports_name_the_inputs_of_the_model() {
    let vocabulary = b"[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nthe\n".to_vec();
    let word_piece = (Tokenizer::named(&vocabulary, true, "vocab.txt").unwrap(), vocabulary);
    let golden = golden();
    let others =
        kinds(&golden).into_iter().map(|(_, tokenizer, kind)| (tokenizer, kind["file"].to_string().into_bytes()));
    for (tokenizer, vocabulary) in others.chain([word_piece]) {
        for (segments, expected) in
            [(1, vec!["input_ids", "attention_mask"]), (2, vec!["input_ids", "token_type_ids", "attention_mask"])]
        {
            let files = transformers::files(&tokenizer, &vocabulary, 64, segments).unwrap();
            let (_, config) = files.iter().find(|(name, _)| *name == "tokenizer_config.json").unwrap();
            let config: Value = serde_json::from_slice(config).unwrap();
            assert_eq!(config["model_input_names"], json!(expected), "{}", config["tokenizer_class"]);
        }
    }
}
