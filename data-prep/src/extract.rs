//! A raw document to paragraphs of prose.

mod entities;
mod gutenberg;
mod page;
mod paragraphs;
pub mod wikitext;

use lambert_config::prep::{Format, Source};

use crate::prep::PrepError;
use crate::source::RawDocument;

/// What became of a raw document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Extracted {
    /// Its text: one paragraph a line, without markup.
    Text(String),
    /// It is no document; the reason is a key of the manifest's `rejected`.
    Rejected(&'static str),
}

/// Takes the prose out of a document of `source`; `name` is the file, for errors.
pub fn extract(source: &Source, raw: &RawDocument, name: &str) -> Result<Extracted, PrepError> {
    let bytes = raw.bytes.as_slice();
    // A byte-order mark is no text.
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    let text = std::str::from_utf8(bytes).map_err(|error| {
        let skipped = raw.bytes.len() - bytes.len() + error.valid_up_to();
        PrepError::NotUtf8 { file: name.to_owned(), at: raw.at + skipped as u64 }
    })?;
    Ok(match source.format {
        Format::Text => Extracted::Text(paragraphs::join(gutenberg::body(text))),
        Format::Wikipedia => page::extract(text),
    })
}
