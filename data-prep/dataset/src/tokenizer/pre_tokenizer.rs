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
