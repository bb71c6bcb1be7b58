//! Special tokens of a tokenizer.json.

use serde_json::Value as Json;

use super::Special;

/// Names of each special token, in the order of [`Special`].
pub const NAMES: [[&str; 2]; 5] =
    [["[PAD]", "<pad>"], ["[UNK]", "<unk>"], ["[CLS]", "<s>"], ["[SEP]", "</s>"], ["[MASK]", "<mask>"]];

/// Special tokens around the text.
pub struct Template {
    cls: u32,
    sep: u32,
    /// Number of separators between the segments of a pair.
    pub separators: usize,
}

impl Template {
    /// Reads a post-processor that writes a token before the text and one after it.
    pub fn of(post_processor: &Json) -> Option<Self> {
        if let Some(members) = post_processor["processors"].as_array() {
            return members.iter().find_map(Self::of);
        }
        let mut file = post_processor.clone();
        tokenizers::canonicalize_post_processor(&mut file).ok()?;
        let ids =
            |part: &Json| part["ids"].as_array().map(|ids| ids.iter().filter_map(Json::as_u64).collect::<Vec<_>>());
        let [first, _, last] = file["single"].as_array()?.as_slice() else { return None };
        let ([cls], [sep]) = (ids(first)?.as_slice().try_into().ok()?, ids(last)?.as_slice().try_into().ok()?);
        let (cls, sep): (u64, u64) = (cls, sep);
        let pair = file["pair"].as_array()?;
        let is_text = |part: &&Json| part.get("seq").is_some();
        let between = pair.iter().skip_while(|part| !is_text(part)).skip(1).take_while(|part| !is_text(part));
        let separators = between.filter_map(ids).map(|ids| ids.len()).sum();
        Some(Self { cls: u32::try_from(cls).ok()?, sep: u32::try_from(sep).ok()?, separators })
    }
}

/// Ids of the special tokens: those of the template, and special added tokens with the names of BERT or of RoBERTa.
pub fn special(added: &[Json], texts: &[String], template: Option<&Template>) -> Result<Special, String> {
    let named = |names: [&str; 2]| {
        let found = names.into_iter().find_map(|name| {
            added.iter().find(|token| token["content"] == name && token["special"] == true)?["id"].as_u64()
        });
        found.and_then(|id| u32::try_from(id).ok())
    };
    let [pad, unk, cls, sep, mask] = NAMES.map(named);
    let known = |id: &u32| (*id as usize) < texts.len();
    let cls = template.map(|template| template.cls).filter(known).or(cls);
    let sep = template.map(|template| template.sep).filter(known).or(sep);
    match (pad, unk, cls, sep, mask) {
        (Some(pad), Some(unk), Some(cls), Some(sep), Some(mask)) => Ok(Special { pad, unk, cls, sep, mask }),
        found => {
            let found = [found.0, found.1, found.2, found.3, found.4];
            let missing =
                NAMES.iter().zip(found).filter(|(_, id)| id.is_none()).map(|([a, b], _)| format!("{a} or {b}"));
            Err(format!("added_tokens lacks the special tokens {}", missing.collect::<Vec<_>>().join(", ")))
        }
    }
}

/// Ids of all special added tokens.
pub fn special_ids(added: &[Json]) -> impl Iterator<Item = u32> {
    let special = added.iter().filter(|token| token["special"] == true);
    special.filter_map(|token| token["id"].as_u64().and_then(|id| u32::try_from(id).ok()))
}

/// Spaces that the mask token takes.
pub fn mask_strips(added: &[Json], mask: u32) -> (bool, bool) {
    let token = added.iter().find(|token| token["id"] == mask);
    token.map_or((false, false), |token| (token["lstrip"] == true, token["rstrip"] == true))
}
