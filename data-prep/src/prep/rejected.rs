//! Examples of rejected items: for each reason, the first items of the corpus. They do not depend on the thread or the
//! part that read a file.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::source::{RawDocument, SkipNotice};

/// Maximum number of examples per reason.
pub const EXAMPLES: usize = 5;
/// Maximum length of the text of an example, characters.
const TEXT_CHARS: usize = 200;

/// Rejected item of an input file.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct RejectedItem {
    /// File number.
    pub file: u32,
    /// Position in the file: byte offset in the decompressed text, or row.
    pub offset: u64,
    /// Title of the page, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// Start of the text. Empty if the reader did not return the item.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub text: String,
}

impl RejectedItem {
    /// Creates an item with the start of a text.
    pub fn with_text(file: u32, offset: u64, text: &str) -> Self {
        Self { file, offset, title: None, text: excerpt(text) }
    }

    /// Creates an item from a document whose text was not extracted.
    pub fn with_document(file: u32, raw: &RawDocument) -> Self {
        // A character has at most four bytes, so this many bytes are enough unless most are white space.
        let start = &raw.bytes[..raw.bytes.len().min(16 * TEXT_CHARS)];
        Self::with_text(file, raw.offset, &String::from_utf8_lossy(start))
    }

    /// Creates an item from a notice of a reader.
    pub fn with_notice(file: u32, notice: &SkipNotice) -> Self {
        Self { file, offset: notice.offset, title: notice.title.clone(), text: String::new() }
    }
}

/// Returns the first words of a text, with single spaces between them.
fn excerpt(text: &str) -> String {
    let mut words = String::new();
    for word in text.split_whitespace() {
        if !words.is_empty() {
            words.push(' ');
        }
        words.push_str(word);
        if let Some((end, _)) = words.char_indices().nth(TEXT_CHARS) {
            words.truncate(end);
            words.push('…');
            break;
        }
    }
    words
}

/// First items by reason, in corpus order.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct FirstRejected(BTreeMap<String, Vec<RejectedItem>>);

impl FirstRejected {
    /// Adds an item unless [`EXAMPLES`] earlier items with this reason are known.
    pub fn add(&mut self, reason: &str, file: u32, offset: u64, item: impl FnOnce() -> RejectedItem) {
        let last = self.0.get(reason).and_then(|items| items.get(EXAMPLES - 1));
        if last.is_some_and(|last| (last.file, last.offset) <= (file, offset)) {
            return;
        }
        let items = self.0.entry(reason.to_owned()).or_default();
        let index = items.partition_point(|other| (other.file, other.offset) <= (file, offset));
        items.insert(index, item());
        items.truncate(EXAMPLES);
    }

    /// Adds the items of another part of the corpus.
    pub fn merge(&mut self, other: &Self) {
        for (reason, items) in &other.0 {
            items.iter().for_each(|item| self.add(reason, item.file, item.offset, || item.clone()));
        }
    }

    /// Returns the items with their reasons, by reason and in corpus order.
    pub fn into_items(self) -> impl Iterator<Item = (String, RejectedItem)> {
        let of_a_reason =
            |(reason, items): (String, Vec<RejectedItem>)| items.into_iter().map(move |item| (reason.clone(), item));
        self.0.into_iter().flat_map(of_a_reason)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(file: u32, offset: u64) -> RejectedItem {
        RejectedItem { file, offset, title: None, text: String::new() }
    }

    #[test]
    fn the_first_items_are_kept_in_any_order_of_reading() {
        let places: Vec<(u32, u64)> = (0..4).flat_map(|file| (0..3).map(move |offset| (file, 10 * offset))).collect();
        let read = |places: &[(u32, u64)]| {
            let mut first = FirstRejected::default();
            places.iter().for_each(|&(file, offset)| first.add("short", file, offset, || item(file, offset)));
            first
        };
        let forward = read(&places);
        let expected: Vec<RejectedItem> = places[..EXAMPLES].iter().map(|&(file, offset)| item(file, offset)).collect();
        assert_eq!(forward.0["short"], expected);
        let backward: Vec<(u32, u64)> = places.iter().rev().copied().collect();
        assert_eq!(read(&backward), forward);
        let mut merged = read(&places[7..]);
        merged.merge(&read(&places[..7]));
        assert_eq!(merged, forward);
    }

    #[test]
    fn excerpts_have_single_spaces_and_a_limited_length() {
        assert_eq!(excerpt("  a\n\n b\tc "), "a b c");
        let long = excerpt(&"ä b ".repeat(300));
        assert_eq!((long.chars().count(), long.ends_with('…')), (TEXT_CHARS + 1, true));
        let raw = RawDocument { ordinal: 0, offset: 7, bytes: b"x\xffy".to_vec() };
        assert_eq!(RejectedItem::with_document(2, &raw), RejectedItem { text: "x\u{fffd}y".to_owned(), ..item(2, 7) });
    }
}
