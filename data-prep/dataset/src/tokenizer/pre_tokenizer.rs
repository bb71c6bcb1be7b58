//! Pre-tokenizers of a tokenizer.json.

use serde_json::{Value as Json, json};

use super::expect::expect;
use super::token_table::WORD_START;

/// True if a byte-level pre-tokenizer starts each text with a space.
pub fn adds_space(pre_tokenizer: &Json) -> Result<bool, String> {
    let is_byte_level = |json: &Json| json["type"] == "ByteLevel";
    match pre_tokenizer["pretokenizers"].as_array().map(Vec::as_slice) {
        Some([before @ .., last]) if is_byte_level(last) => {
            // Digits splits only numbers from other text.
            if before.iter().all(|member| is_byte_level(member) || member["type"] == "Digits") {
                expect(last, "pre_tokenizer", "use_regex", &json!(true))?;
            }
            match last["add_prefix_space"] == true {
                true => Err("pre_tokenizer: add_prefix_space is true in a Sequence; expected false".to_owned()),
                false => Ok(false),
            }
        }
        None if is_byte_level(pre_tokenizer) => {
            expect(pre_tokenizer, "pre_tokenizer", "use_regex", &json!(true))?;
            Ok(pre_tokenizer["add_prefix_space"] == true)
        }
        _ => Err("its pre_tokenizer is not ByteLevel; expected byte-level BPE".to_owned()),
    }
}

/// Checks that the steps of a byte-level BPE file `file` give the sentences of a text the ids that they have in the running
/// text: none changes the start of each text, or joins spaces to the next word.
pub fn check_sentences(file: &Json) -> Result<(), String> {
    let refused = [
        ("normalizer", "normalizers", &["Strip", "Prepend"][..]),
        ("pre_tokenizer", "pretokenizers", &["UnicodeScripts"]),
    ];
    for (key, members, kinds) in refused {
        if let Some(kind) = find_kind(&file[key], members, kinds) {
            return Err(format!(
                "{key}: {kind} tokenizes a sentence differently on its own than within a text; remove it"
            ));
        }
    }
    Ok(())
}

/// Returns the first of `kinds` that is the type of `step` or of one of its members.
fn find_kind<'a>(step: &Json, members: &str, kinds: &[&'a str]) -> Option<&'a str> {
    let own = kinds.iter().copied().find(|kind| step["type"] == *kind);
    let of_members = || step[members].as_array()?.iter().find_map(|member| find_kind(member, members, kinds));
    own.or_else(of_members)
}

/// Checks that words start at spaces, and that each text starts with one.
pub fn check_metaspace(pre_tokenizer: &Json) -> Result<(), String> {
    let metaspace = match pre_tokenizer["pretokenizers"].as_array().map(Vec::as_slice) {
        Some([only]) => only,
        Some([first, second]) if first["type"] == "WhitespaceSplit" => second,
        _ => pre_tokenizer,
    };
    if metaspace["type"] != "Metaspace" {
        return Err("its pre_tokenizer is not Metaspace".to_owned());
    }
    if metaspace["replacement"] != WORD_START.to_string() {
        return Err(format!("pre_tokenizer: replacement is {}; expected \"{WORD_START}\"", metaspace["replacement"]));
    }
    expect(metaspace, "pre_tokenizer", "split", &json!(true))?;
    expect(metaspace, "pre_tokenizer", "add_prefix_space", &json!(true))?;
    match metaspace["prepend_scheme"] == "never" {
        true => Err("pre_tokenizer: prepend_scheme is \"never\"; expected \"always\" or \"first\"".to_owned()),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_that_change_the_start_of_each_text_are_refused() {
        let strip = json!({"type": "Strip", "strip_left": true, "strip_right": true});
        let nested = json!({"type": "Sequence", "normalizers": [{"type": "NFC"}, strip]});
        let scripts = json!({"type": "Sequence", "pretokenizers": [{"type": "UnicodeScripts"}, {"type": "ByteLevel"}]});
        for (file, named) in [
            (json!({"normalizer": strip}), "normalizer: Strip"),
            (json!({"normalizer": nested}), "normalizer: Strip"),
            (json!({"normalizer": {"type": "Prepend", "prepend": "x"}}), "normalizer: Prepend"),
            (json!({"pre_tokenizer": scripts}), "pre_tokenizer: UnicodeScripts"),
        ] {
            let message = check_sentences(&file).unwrap_err();
            assert!(message.starts_with(named), "{message}");
        }
        let usual = json!({"normalizer": {"type": "NFC"}, "pre_tokenizer": {"type": "ByteLevel"}});
        assert_eq!(check_sentences(&usual), Ok(()));
    }
}
