//! A raw document to paragraphs of prose.

mod entities;
mod gutenberg;
mod page;
mod paragraphs;
pub mod wikitext;

use std::borrow::Cow;

use lambert_config::prep::{Documents, Format, Invalid, Source};

use crate::source::{RawDocument, SourceError, SourceFile};

/// What became of a raw document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Extracted {
    /// Its text: one paragraph a line, without markup.
    Text(String),
    /// Its sentences, one a line.
    Sentences(String),
    /// It is no document; the reason is a key of the manifest's `rejected`.
    Rejected(&'static str),
}

/// Takes the prose out of a document of `file`, which is of `source`. Tells `notes` what was mended.
pub fn extract(
    source: &Source,
    file: &SourceFile,
    raw: &RawDocument,
    notes: &mut dyn FnMut(&'static str),
) -> Result<Extracted, SourceError> {
    let text = match (std::str::from_utf8(&raw.bytes), source.invalid) {
        (Ok(text), _) => Cow::Borrowed(text),
        (Err(_), Invalid::Replace) => {
            notes("invalid UTF-8 replaced in a document");
            String::from_utf8_lossy(&raw.bytes)
        }
        (Err(error), Invalid::Refuse) => {
            return Err(SourceError::NotUtf8 { file: file.name.clone(), at: raw.at + error.valid_up_to() as u64 });
        }
    };
    Ok(match (file.format, source.documents(file.format)) {
        (Format::Sentences, _) | (_, Documents::Sentence) => Extracted::Sentences(text.into_owned()),
        (Format::Wikipedia, _) => {
            page::extract(&text, wikitext::Keep { lists: source.lists, headings: source.headings }, &file.site)
        }
        (Format::Text | Format::Auto, _) => Extracted::Text(paragraphs::join(gutenberg::body(&text))),
        // Rows are not wrapped at a width; their lines are paragraphs.
        (Format::Jsonl | Format::Parquet, _) => Extracted::Text(text.into_owned()),
    })
}
