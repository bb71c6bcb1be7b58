//! A raw document to paragraphs of prose.

mod entities;
mod gutenberg;
mod page;
mod paragraphs;
pub mod wikitext;

use std::borrow::Cow;
use std::sync::Arc;

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

type Extract = dyn Fn(Cow<'_, str>) -> Extracted + Send + Sync;

/// The way from a raw document's text to its prose; the same for all documents of a file.
#[derive(Clone)]
pub struct Extractor(Arc<Extract>);

impl std::fmt::Debug for Extractor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Extractor")
    }
}

impl Extractor {
    /// An extractor of a format's own.
    pub fn new(extract: impl Fn(Cow<'_, str>) -> Extracted + Send + Sync + 'static) -> Self {
        Self(Arc::new(extract))
    }

    /// Running text: lines that were wrapped are joined, what Project Gutenberg puts around a book goes.
    pub fn running_text() -> Self {
        Self::new(|text| Extracted::Text(paragraphs::join(gutenberg::body(&text))))
    }

    /// A paragraph a line.
    pub fn paragraphs() -> Self {
        Self::new(|text| Extracted::Text(text.into_owned()))
    }

    /// A sentence a line.
    pub fn sentences() -> Self {
        Self::new(|text| Extracted::Sentences(text.into_owned()))
    }

    /// A `<page>` of a dump of the wiki `site`.
    pub fn wiki_page(keep: wikitext::Keep, site: wikitext::Site) -> Self {
        Self::new(move |text| page::extract(&text, keep, &site))
    }

    /// Takes the prose out of a document.
    #[must_use]
    pub fn extract(&self, text: Cow<'_, str>) -> Extracted {
        (self.0)(text)
    }
}
