//! Extraction of prose from raw documents.

mod entities;
mod gutenberg;
mod page;
mod paragraphs;
pub mod wikitext;

use std::borrow::Cow;
use std::sync::Arc;

/// Result of extracting a raw document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Extracted {
    /// Text without markup, one paragraph per line.
    Text(String),
    /// Sentences, one per line.
    Sentences(String),
    /// No usable prose. Contains the reason, which becomes a key of `rejected` in the manifest.
    Rejected(&'static str),
}

type Extract = dyn Fn(Cow<'_, str>) -> Extracted + Send + Sync;

/// Extracts the prose of raw documents. One extractor serves all documents of a file.
#[derive(Clone)]
pub struct Extractor(Arc<Extract>);

impl std::fmt::Debug for Extractor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Extractor")
    }
}

impl Extractor {
    /// Creates an extractor from a function.
    pub fn new(extract: impl Fn(Cow<'_, str>) -> Extracted + Send + Sync + 'static) -> Self {
        Self(Arc::new(extract))
    }

    /// Extractor for running text. Joins hard-wrapped lines and removes the Project Gutenberg header and license.
    pub fn running_text() -> Self {
        Self::new(|text| Extracted::Text(paragraphs::join(&gutenberg::body(&text))))
    }

    /// Extractor for text with one paragraph per line.
    pub fn paragraphs() -> Self {
        Self::new(|text| Extracted::Text(text.into_owned()))
    }

    /// Extractor for text with one sentence per line.
    pub fn sentences() -> Self {
        Self::new(|text| Extracted::Sentences(text.into_owned()))
    }

    /// Extractor for the `<page>` elements of a dump of the wiki `site`.
    pub fn wiki_page(keep: wikitext::KeepOptions, site: wikitext::WikiSite) -> Self {
        Self::new(move |text| page::extract(&text, keep, &site))
    }

    /// Extracts the prose of a document.
    #[must_use]
    pub fn extract(&self, text: Cow<'_, str>) -> Extracted {
        (self.0)(text)
    }
}
