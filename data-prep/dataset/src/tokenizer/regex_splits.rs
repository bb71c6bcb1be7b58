//! Regular expressions of a pre-tokenizer.
//!
//! `tokenizers` 1.0.0-rc.3 does not compile the expressions of a `Split` that it reads from JSON. It knows the
//! expressions of a few models, and fails to encode text with any other one. This module compiles these expressions.

use tokenizers::models::bpe::PipelineBPE;
use tokenizers::pipeline::{
    PipelineModel, PipelineNormalizer, PipelinePostProcessor, PipelinePreTokenizer, PipelineTokenizer,
};
use tokenizers::pre_tokenizers::sequence::PipelineSequence;
use tokenizers::pre_tokenizers::split::{Search, Split};
use tokenizers::tokenizer::SplitDelimiterBehavior;

/// Returns `built`, or its copy with compiled expressions if it has a `Split` that needs one. Both have neither decoder
/// nor post-processor.
///
/// # Errors
/// An expression is not valid.
pub fn compile_splits(built: PipelineTokenizer) -> Result<PipelineTokenizer, String> {
    let members = match built.get_pre_tokenizer() {
        // The library runs these three expressions as one.
        PipelinePreTokenizer::Sequence(sequence) if sequence.is_deepseek() => return Ok(built),
        PipelinePreTokenizer::Sequence(sequence) => sequence.pre_tokenizers(),
        other => std::slice::from_ref(other),
    };
    let (PipelineModel::BPE(model), true) = (built.get_model(), members.iter().any(needs_expression)) else {
        return Ok(built);
    };
    let compiled = members.iter().map(compile).collect::<Result<Vec<_>, _>>()?;
    let model = model.to_config().and_then(PipelineBPE::from_config).map_err(|error| error.to_string())?;
    Ok(PipelineTokenizer::from_parts(
        built.get_added_vocabulary().clone(),
        built.get_normalizers().iter().map(copy).collect(),
        PipelinePreTokenizer::Sequence(PipelineSequence::new(compiled)),
        PipelineModel::BPE(model),
        PipelinePostProcessor::default(),
        None,
        built.get_role_to_token().clone(),
        None,
        None,
    ))
}

/// True if the library cannot split text without the compiled expression.
fn needs_expression(member: &PipelinePreTokenizer) -> bool {
    let PipelinePreTokenizer::Split(split) = member else { return false };
    let is_known = split.grammar().is_some() && split.behavior == SplitDelimiterBehavior::Isolated && !split.invert;
    matches!(split.search, Search::Unavailable) && !is_known
}

fn compile(member: &PipelinePreTokenizer) -> Result<PipelinePreTokenizer, String> {
    let PipelinePreTokenizer::Split(split) = member else { return Ok(member.clone()) };
    let compiled = Split::new(split.pattern.clone(), split.behavior, split.invert);
    compiled.map(PipelinePreTokenizer::Split).map_err(|error| format!("pre_tokenizer: {:?}: {error}", split.pattern))
}

fn copy(normalizer: &PipelineNormalizer) -> PipelineNormalizer {
    use PipelineNormalizer as N;
    match normalizer {
        N::Metaspace(it) => N::Metaspace(it.clone()),
        N::Replace(it) => N::Replace(it.clone()),
        N::Prepend(it) => N::Prepend(it.clone()),
        N::Strip(it) => N::Strip(*it),
        N::Lowercase(it) => N::Lowercase(*it),
        N::ByteLevel(it) => N::ByteLevel(it.clone()),
        N::Bert(it) => N::Bert(*it),
        N::StripAccents(it) => N::StripAccents(it.clone()),
        N::NFC(it) => N::NFC(*it),
        N::NFD(it) => N::NFD(*it),
        N::NFKC(it) => N::NFKC(*it),
        N::NFKD(it) => N::NFKD(*it),
        N::Nmt(it) => N::Nmt(*it),
        N::Precompiled(it) => N::Precompiled(it.clone()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Map, Value as Json, json};

    use super::super::Tokenizer;
    use super::super::byte_symbols::SYMBOLS;

    /// Expression of GPT-2, which the library implements itself.
    const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
    const TEXT: &str = "It's 1984:  Déjà vu, наука 東京!\n\tabc123 x_1 ";

    /// Byte-level BPE with the merges `ab`, `abc`, `12` and `123`.
    fn read(pattern: &str, behavior: &str, invert: bool) -> Result<Tokenizer, String> {
        let special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"];
        let texts = special.iter().map(|text| (*text).to_owned());
        let texts =
            texts.chain(SYMBOLS.iter().map(char::to_string)).chain(["ab", "abc", "12", "123"].map(str::to_owned));
        let vocabulary: Map<String, Json> = texts.enumerate().map(|(id, text)| (text, json!(id))).collect();
        let added = |(id, text): (usize, &&str)| {
            json!({"id": id, "content": text, "single_word": false, "lstrip": false, "rstrip": false,
                   "normalized": false, "special": true})
        };
        let split = json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": behavior, "invert": invert});
        let bytes = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false});
        let file = json!({
            "version": "1.0", "truncation": null, "padding": null, "post_processor": null, "decoder": null,
            "added_tokens": special.iter().enumerate().map(added).collect::<Vec<_>>(),
            "normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Lowercase"}]},
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, bytes]},
            "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                      "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
                      "vocab": vocabulary, "merges": ["a b", "ab c", "1 2", "12 3"]},
        });
        Tokenizer::named(file.to_string().as_bytes(), false, "t.json")
            .map_err(|error| lambert_store::error::chain(&error))
    }

    fn regex(pattern: &str) -> Tokenizer {
        read(pattern, "Isolated", false).unwrap()
    }

    /// The tokens are those of tokenizers 0.23.3 of Python.
    #[test]
    fn an_expression_splits_text() {
        for (pattern, behavior, invert, expected) in [
            (r"\d+", "Isolated", false, "abc 123 Ġ Ã © Ù £ 12 Ġ x _ ab Ċ Ċ Ġ 123 abc !"),
            (r"\d{1,2}", "Isolated", false, "abc 12 3 Ġ Ã © Ù £ 1 2 Ġ x _ ab Ċ Ċ Ġ 12 3 abc !"),
            (r"\p{N}{1,2}", "Contiguous", false, "abc 123 Ġ Ã © Ù £ 12 Ġ x _ ab Ċ Ċ Ġ 123 abc !"),
            ("b", "MergedWithPrevious", false, "ab c 123 Ġ Ã © Ù £ 12 Ġ x _ ab Ċ Ċ Ġ 123 ab c !"),
            ("b", "MergedWithNext", false, "a b c 123 Ġ Ã © Ù £ 12 Ġ x _ a b Ċ Ċ Ġ 123 a b c !"),
            ("b", "Removed", false, "a c 123 Ġ Ã © Ù £ 12 Ġ x _ a Ċ Ċ Ġ 123 a c !"),
            (
                r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s+(?!\S)|\s+",
                "Removed",
                true,
                "abc 1 2 3 Ġ Ã © Ù £ 1 2 Ġ x _ ab Ċ Ċ Ġ 1 2 3 abc !",
            ),
            (r"\w+|\s+|[^\w\s]+", "Isolated", false, "abc 123 Ġ Ã © Ù £ 12 Ġ x _ ab Ċ Ċ Ġ 123 abc !"),
            (r" ?\p{L}+| ?\p{N}+", "Isolated", false, "abc 123 Ġ Ã © Ù £ 12 Ġ x _ ab Ċ Ċ Ġ 123 abc !"),
            ("(?i:AB)|2(?=3)", "Isolated", false, "ab c 1 2 3 Ġ Ã © Ù £ 12 Ġ x _ ab Ċ Ċ Ġ 1 2 3 ab c !"),
        ] {
            let tokenizer = read(pattern, behavior, invert).unwrap();
            let ids = tokenizer.encode("ABC123 é٣12 x_ab\n\n 123abc!");
            let tokens: Vec<&str> = ids.iter().map(|id| tokenizer.piece(*id)).collect();
            assert_eq!(tokens.join(" "), expected, "{pattern}");
            tokenizer.check().unwrap();
        }
    }

    #[test]
    fn a_compiled_expression_gives_the_tokens_of_the_library() {
        let (of_library, compiled) = (regex(GPT2), regex(&format!("(?:{GPT2})")));
        for text in [TEXT, "abc", "  abc 123  abc", "<mask> ABC", ""] {
            assert_eq!(compiled.encode(text), of_library.encode(text), "{text:?}");
            assert_eq!(compiled.encode_masked(text), of_library.encode_masked(text), "{text:?}");
        }
    }

    #[test]
    fn an_invalid_expression_is_refused() {
        let error = read("(a", "Isolated", false).unwrap_err();
        assert!(error.contains("rejected vocabulary t.json: pre_tokenizer: Regex(\"(a\"): "), "{error}");
    }
}
