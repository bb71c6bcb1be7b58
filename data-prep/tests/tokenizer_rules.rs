//! Tokenizer files with unusual and with damaged settings: variations of the tokenizers of tests/golden.

use lambert_dataset::tokenizer::{
    SentencePieceRules, TokenTable, Tokenizer, TokenizerFile, tokenizer_json_of_sentence_piece,
};
use serde_json::{Value, json};

fn lines() -> Vec<String> {
    let golden: Value = serde_json::from_str(include_str!("golden/tokenizer.json")).unwrap();
    serde_json::from_value(golden["lines"].clone()).unwrap()
}

fn file(kind: &str) -> Value {
    let golden: Value = serde_json::from_str(include_str!("golden/tokenizer_files.json")).unwrap();
    golden["kinds"][kind]["file"].clone()
}

fn read(file: &Value) -> Result<Tokenizer, String> {
    Tokenizer::named(file.to_string().as_bytes(), true, "t.json").map_err(|error| error.to_string())
}

/// Adds a token, with the next id unless `id` is given.
fn add(file: &mut Value, content: &str, id: Option<usize>, special: bool) -> u32 {
    let next = read(file).unwrap().size();
    let token = json!({"id": id.unwrap_or(next), "content": content, "single_word": false, "lstrip": false,
                       "rstrip": false, "normalized": false, "special": special});
    file["added_tokens"].as_array_mut().unwrap().push(token);
    next as u32
}

#[test]
fn long_tokens_are_refused() {
    let with_token = |length: usize| {
        let mut file = file("albert");
        file["model"]["vocab"][9] = json!(["x".repeat(length), -1.0]);
        read(&file)
    };
    let tokenizer = with_token(1000).unwrap();
    assert!(tokenizer.encode(&"x".repeat(1000)).contains(&9));
    let error = with_token(100_000).unwrap_err();
    assert!(error.contains("t.json: token 9 (\"xxxxxxxxxxxxxxxxxxxx\"...) has 100000 bytes; expected at most 1000"));
    let mut file = file("roberta");
    add(&mut file, &"y".repeat(70_000), None, false);
    assert!(read(&file).unwrap_err().contains("has 70000 bytes; expected at most 1000"));
}

#[test]
fn damaged_character_maps_are_refused() {
    let mut file = file("xlm-roberta");
    // An empty trie, and one whose root refers to unit 4 of 1.
    for (map, message) in
        [("AAAAAA==", "the trie is empty"), ("BAAAAAAQAAA=", "refers to unit 4; expected one below 1")]
    {
        file["normalizer"]["normalizers"][0]["precompiled_charsmap"] = json!(map);
        let error = read(&file).unwrap_err();
        assert!(error.contains("t.json: normalizer: precompiled_charsmap is damaged: "), "{error}");
        assert!(error.contains(message), "{error}");
    }
}

#[test]
fn files_that_the_library_would_misread_are_refused() {
    let refused = |kind: &str, change: &dyn Fn(&mut Value)| {
        let mut file = file(kind);
        change(&mut file);
        read(&file).unwrap_err()
    };
    let error = refused("roberta", &|file| _ = add(file, "a", None, false));
    assert!(error.contains("added_tokens: \"a\" has the id 600, but the token"), "{error}");
    let error = refused("roberta", &|file| file["added_tokens"][0]["lstrip"] = json!(null));
    assert!(error.contains("added_tokens: lstrip of \"<s>\" is null; expected true or false"), "{error}");
    let error = refused("albert", &|file| file["model"]["vocab"].as_array_mut().unwrap().truncate(5));
    assert!(error.contains("it has only special tokens"), "{error}");
    let error = refused("roberta-prefix", &|file| _ = add(file, "addedword", None, false));
    assert!(error.contains("add_prefix_space is true and added_tokens has tokens that are not special"), "{error}");
    let sequence = |members: Value| {
        let mut file = file("roberta");
        file["pre_tokenizer"] = json!({"type": "Sequence", "pretokenizers": members});
        read(&file)
    };
    let bytes = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false});
    let digits = json!({"type": "Digits", "individual_digits": true});
    for members in [json!([bytes]), json!([digits, bytes])] {
        let error = sequence(members).unwrap_err();
        assert!(error.contains("pre_tokenizer.use_regex is false; expected true"), "{error}");
    }
    let split = json!({"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithNext", "invert": false});
    assert!(!sequence(json!([split, bytes])).unwrap().encode("a b").is_empty());
}

/// A Unigram model gives such a token other ids in the tokenizers library of Python: no `▁` starts the text before it.
#[test]
fn added_words_of_normalized_text_are_refused_in_unigram() {
    for kind in ["albert", "deberta-v2", "xlm-roberta", "modernbert"] {
        for (special, normalized) in [(false, true), (true, true), (false, false)] {
            let mut file = file(kind);
            add(&mut file, "addedword", None, special);
            let token = file["added_tokens"].as_array_mut().unwrap().last_mut().unwrap();
            token["normalized"] = json!(normalized);
            let is_refused = kind != "modernbert" && normalized && !special;
            match read(&file) {
                Ok(_) => assert!(!is_refused, "{kind}"),
                Err(error) => assert!(
                    is_refused && error.contains("AddedToken(\"addedword\", normalized=False)"),
                    "{kind}: {error}"
                ),
            }
        }
    }
}

#[test]
fn normalizers_of_common_models_keep_words() {
    let bytes = |file: String| file.into_bytes();
    let mut files = ["albert", "deberta-v2", "xlm-roberta"].map(|kind| bytes(file(kind).to_string())).to_vec();
    for albert in [false, true] {
        let rules = SentencePieceRules { albert, lowercase: albert, ..SentencePieceRules::default() };
        files.push(bytes(tokenizer_json_of_sentence_piece(include_bytes!("golden/bert.model"), rules).unwrap()));
    }
    for file in files {
        assert!(TokenizerFile::read(&file, "t.json").unwrap().keeps_words);
    }
}

/// A normalizer that acts across a space, or at the start of each text: the encoder must not cache words.
#[test]
fn words_are_cached_only_if_the_normalizer_keeps_them() {
    let lines = lines();
    for normalizer in [
        json!({"type": "Prepend", "prepend": "x"}),
        json!({"type": "Replace", "pattern": {"String": "e t"}, "content": "o"}),
        json!({"type": "Replace", "pattern": {"Regex": "[a-z] "}, "content": "s"}),
        json!({"type": "Replace", "pattern": {"String": "the"}, "content": ""}),
    ] {
        let mut file = file("albert");
        file["normalizer"] = normalizer.clone();
        let tokenizer = read(&file).unwrap();
        let mut encoder = tokenizer.encoder();
        for line in lines.iter().map(String::as_str).chain(["the cat the end", "a  b", "like the taste of tea"]) {
            assert_eq!(encoder.encode(line), tokenizer.encode(line), "{normalizer} {line:?}");
        }
    }
}

#[test]
fn other_special_tokens_come_neither_from_text_nor_at_random() {
    for (kind, name) in [("roberta", "<|endoftext|>"), ("albert", "extraid"), ("modernbert", "<|endoftext|>")] {
        let mut file = file(kind);
        if kind == "albert" {
            file["model"]["vocab"].as_array_mut().unwrap().push(json!([name, 0.0]));
        }
        let id = match kind {
            "albert" => add(&mut file, name, Some(700), true) - 1,
            _ => add(&mut file, name, None, true),
        };
        for word in [None, Some("addedword")] {
            let word = word.map(|word| add(&mut file, word, None, false));
            let tokenizer = read(&file).unwrap();
            let tokens = tokenizer.tokens();
            assert!(tokens.is_special(id) && tokens.text(id) == name, "{kind}");
            let replacements = tokens.replacements();
            assert_eq!(replacements.len(), tokenizer.size() - 6, "{kind}");
            assert!(!replacements.contains(&id) && word.is_none_or(|word| replacements.contains(&word)), "{kind}");
            for text in [name, "x extraid <|endoftext|>y", "an extraid"] {
                assert!(!tokenizer.encode(text).contains(&id), "{kind}: {text}");
                assert!(!tokenizer.encoder().encode(text).contains(&id), "{kind}: {text}");
            }
            // An added token after a special one keeps its id.
            if let Some(word) = word {
                assert_eq!(tokenizer.encode("addedword"), [word], "{kind}");
            }
            assert_eq!(tokenizer.decode(&[id]), name, "{kind}");
        }
    }
}

#[test]
fn a_space_has_a_label() {
    for (kind, tokens) in [("roberta", ["Ġ", "Ċ"]), ("albert", ["▁", "▁"])] {
        let tokenizer = read(&file(kind)).unwrap();
        for token in tokens {
            let id = tokenizer.tokens().texts().iter().position(|text| text == token).unwrap() as u32;
            assert_eq!(tokenizer.tokens().label(id), token, "{kind}");
        }
        let word = tokenizer.encode("The a")[0];
        assert!(!tokenizer.tokens().label(word).starts_with(['Ġ', '▁', ' ']), "{kind}");
    }
}

#[test]
fn a_vocabulary_of_lines_is_no_json() {
    let vocabulary = b"{\n\"\n[PAD]\r\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n";
    assert!(!TokenizerFile::is_json(vocabulary));
    let table = TokenTable::read(vocabulary, "v.txt").unwrap();
    assert_eq!((table.text(0), table.text(1), table.special().pad, table.size()), ("{", "\"", 2, 8));
    let pretty = format!("{:#}", file("albert"));
    for json in [&pretty[..], &pretty[..pretty.len() / 2], "{\"version\": \"1.0\"", " {\n  \"model\""] {
        assert!(TokenizerFile::is_json(json.as_bytes()), "{:?}", &json[..10]);
    }
    assert!(!TokenizerFile::is_json(b"{\n}\n[PAD]\n"));
}

/// Two special tokens that the library takes for the same token.
#[test]
fn masks_are_found_in_a_file_whose_special_tokens_the_library_refuses() {
    let mut file = file("modernbert");
    file["normalizer"] = json!({"type": "Lowercase"});
    let tokens = file["added_tokens"].as_array_mut().unwrap();
    tokens.retain(|token| token["special"] == true);
    tokens.iter_mut().zip(600..).for_each(|(token, id)| token["id"] = json!(id));
    for name in ["<Extra>", "<extra>"] {
        add(&mut file, name, None, true);
        file["added_tokens"].as_array_mut().unwrap().last_mut().unwrap()["normalized"] = json!(true);
    }
    let tokenizer = read(&file).unwrap();
    let found = tokenizer.encode_masked("The [MASK] sat.");
    let expected = [tokenizer.encode("The"), vec![tokenizer.special().mask], tokenizer.encode(" sat.")].concat();
    assert_eq!(found, expected);
}

#[test]
fn sentences_without_a_space_between_have_the_ids_of_the_running_text() {
    for kind in ["roberta", "roberta-prefix", "modernbert"] {
        let tokenizer = read(&file(kind)).unwrap();
        let mut encoder = tokenizer.encoder();
        let mut found = encoder.encode("猫である。").to_vec();
        found.extend_from_slice(encoder.encode_joined("名前はまだ無い。"));
        found.extend_from_slice(encoder.encode_next("He said."));
        assert_eq!(found, tokenizer.encode("猫である。名前はまだ無い。 He said."), "{kind}");
    }
}

/// The time is linear in the number of pieces: a quadratic conversion of this model takes more than 20 s.
#[test]
fn a_model_with_many_user_defined_pieces_is_converted() {
    let mut model = Vec::new();
    let mut piece = |text: &str, kind: u8| {
        model.extend([0x0a, text.len() as u8 + 4, 0x0a, text.len() as u8]);
        model.extend(text.as_bytes());
        model.extend([0x18, kind]);
    };
    ["<unk>", "<s>", "</s>"].into_iter().zip([2, 3, 3]).for_each(|(text, kind)| piece(text, kind));
    let count = 100_000;
    (0..count).for_each(|number| piece(&format!("piece-number-{number}"), 4));
    let start = std::time::Instant::now();
    for fairseq in [false, true] {
        let rules = SentencePieceRules { fairseq, ..SentencePieceRules::default() };
        let file: Value = serde_json::from_str(&tokenizer_json_of_sentence_piece(&model, rules).unwrap()).unwrap();
        let last = &file["added_tokens"].as_array().unwrap()[count];
        assert_eq!(file["model"]["vocab"][last["id"].as_u64().unwrap() as usize][0], last["content"]);
    }
    assert!(start.elapsed().as_secs() < 20, "{:?}", start.elapsed());
}
