//! Normalizers of a tokenizer.json.

use serde_json::Value as Json;

use super::charsmap::Charsmap;
use super::segments::plain_characters;
use super::token_table::WORD_START;

/// Regular expressions whose replacement leaves a single space between two words as it is, with the replacements.
const SPACE_RULES: [(&str, &str); 4] = [(" {2,}", " "), (" {2,}", "\u{2581}"), (" +$", ""), (r"\s{2,}|[\n\r\t]", " ")];

/// Properties of the normalizer of a tokenizer.json.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Normalizer {
    /// True if it lowercases the text.
    pub lowercase: bool,
    /// True if it has the same effect on a word in any context. The words are those of [`super::segments::SpaceSegments`].
    pub keeps_words: bool,
}

impl Normalizer {
    /// Reads a normalizer.
    ///
    /// # Errors
    /// A character map is damaged.
    pub fn read(normalizer: &Json) -> Result<Self, String> {
        let mut found = Self { lowercase: false, keeps_words: true };
        found.add(normalizer).map(|()| found)
    }

    fn add(&mut self, normalizer: &Json) -> Result<(), String> {
        let keeps_words = match normalizer["type"].as_str() {
            Some("Sequence") => {
                let members = normalizer["normalizers"].as_array().map_or(&[][..], Vec::as_slice);
                return members.iter().try_for_each(|member| self.add(member));
            }
            // Each character, or each base character with its marks, is changed alone.
            Some("Lowercase" | "NFC" | "NFD" | "NFKC" | "NFKD" | "StripAccents" | "Nmt" | "BertNormalizer") => true,
            // Spaces at the ends of the text belong to the first and the last word.
            Some("Strip") => true,
            Some("Replace") => is_within_words(normalizer),
            Some("Precompiled") => {
                let map = normalizer["precompiled_charsmap"].as_str().ok_or("it is not a string".to_owned());
                let map =
                    map.and_then(Charsmap::read).map_err(|why| format!("precompiled_charsmap is damaged: {why}"))?;
                map_keeps_words(&map)
            }
            _ => normalizer.is_null(),
        };
        self.keeps_words &= keeps_words;
        self.lowercase |= normalizer["type"] == "Lowercase" || normalizer["lowercase"] == true;
        Ok(())
    }
}

/// True if a replacement neither joins words nor splits a word.
fn is_within_words(replace: &Json) -> bool {
    let Some(content) = replace["content"].as_str() else { return false };
    let is_plain = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic());
    let pattern = &replace["pattern"];
    match (pattern["String"].as_str(), pattern["Regex"].as_str()) {
        (Some(text), _) => is_plain(text) && is_plain(content),
        (None, Some(regex)) => SPACE_RULES.contains(&(regex, content)),
        (None, None) => false,
    }
}

/// True if a map leaves spaces as they are, and if plain characters become neither spaces nor nothing.
fn map_keeps_words(map: &Charsmap) -> bool {
    let is_word_end = |c: Option<char>| c.is_some_and(|c| !c.is_whitespace() && !c.is_control() && c != WORD_START);
    let is_kept = |character: char| {
        let text = map.get(character.encode_utf8(&mut [0; 4]));
        text.is_none_or(|text| is_word_end(text.chars().next()) && is_word_end(text.chars().next_back()))
    };
    map.get(" ").is_none_or(|text| text == " ") && plain_characters().all(is_kept)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn keeps_words(normalizers: Json) -> bool {
        Normalizer::read(&json!({"type": "Sequence", "normalizers": normalizers})).unwrap().keeps_words
    }

    fn replace(kind: &str, pattern: &str, content: &str) -> Json {
        json!({"type": "Replace", "pattern": {kind: pattern}, "content": content})
    }

    #[test]
    fn only_known_normalizers_keep_words() {
        let strip = json!({"type": "Strip", "strip_left": true, "strip_right": true});
        assert!(Normalizer::read(&Json::Null).unwrap().keeps_words);
        assert!(keeps_words(json!([{"type": "NFKC"}, {"type": "Lowercase"}, strip, replace("String", "``", "\"")])));
        assert!(keeps_words(json!([replace("Regex", " {2,}", " "), replace("Regex", " +$", "")])));
        for other in [
            json!({"type": "Prepend", "prepend": "x"}),
            json!({"type": "ByteLevel"}),
            json!({"type": "Unknown"}),
            replace("Regex", " ?-", "-"),
            replace("Regex", " {2,}", ""),
            replace("String", " ", "_"),
            replace("String", "b c", "x"),
            replace("String", "\u{2581}", "x"),
            replace("String", "-", ""),
            replace("String", "-", " "),
            json!({"type": "Replace", "pattern": {"String": "x"}}),
        ] {
            assert!(!keeps_words(json!([{"type": "NFC"}, other.clone()])), "{other}");
            assert!(!Normalizer::read(&other).unwrap().keeps_words, "{other}");
        }
    }

    #[test]
    fn a_nested_normalizer_lowercases() {
        let lowercase = |members: Json| Normalizer::read(&json!({"type": "Sequence", "normalizers": members}));
        assert!(lowercase(json!([{"type": "Sequence", "normalizers": [{"type": "Lowercase"}]}])).unwrap().lowercase);
        assert!(!lowercase(json!([{"type": "NFC"}])).unwrap().lowercase);
        let damaged = json!([{"type": "Precompiled", "precompiled_charsmap": "AAAA"}]);
        assert!(lowercase(damaged).unwrap_err().contains("precompiled_charsmap is damaged"));
    }
}
