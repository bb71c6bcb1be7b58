//! A MediaWiki pages-articles dump (XML): a page is a document. A multistream dump is read in parts.

mod multistream;
mod pages;

use std::io::BufRead;
use std::ops::Range;
use std::path::Path;

use lambert_config::prep::Documents;
use memchr::memmem;

use crate::extract::Extractor;
use crate::extract::wikitext::{Keep, Site};
use crate::source::format::{Head, InputFile, InputFormat};
use crate::source::{DocumentReader, SourceError, SourceFile, Stored};
use pages::Pages;

/// Text in a byte of XML, about.
const TEXT_PER_BYTE: f64 = 0.6;
/// Bytes in which the `<siteinfo>` of a dump ends.
const LONGEST_HEAD: usize = 1 << 18;

/// The format `wikipedia`.
pub struct Wikipedia;

impl InputFormat for Wikipedia {
    fn name(&self) -> &'static str {
        "wikipedia"
    }

    fn documents(&self) -> &'static [Documents] {
        &[Documents::Row]
    }

    fn options(&self) -> &'static [&'static str] {
        &["lists", "headings"]
    }

    fn recognizes(&self, head: Head<'_>) -> bool {
        let Head::Text(text) = head else { return false };
        text.trim_ascii_start().starts_with(b"<") && memmem::find(text, b"<mediawiki").is_some()
    }

    fn looks_like(&self) -> Option<&'static str> {
        Some("a MediaWiki dump")
    }

    fn text_per_byte(&self) -> f64 {
        TEXT_PER_BYTE
    }

    /// The index that comes with a multistream dump is no text, and not needed (see [`multistream`]).
    fn ignores(&self, name: &str) -> bool {
        name.contains("multistream-index")
    }

    fn parts(&self, file: &SourceFile) -> Result<Vec<Range<u64>>, SourceError> {
        if file.is_remote() {
            return Ok(std::iter::once(0..file.bytes).collect());
        }
        multistream::divide(Path::new(&file.name), file.bytes)
    }

    fn extractor(&self, file: &InputFile<'_>) -> Result<Extractor, SourceError> {
        let keep = Keep { lists: file.source.lists, headings: file.source.headings };
        Ok(Extractor::wiki_page(keep, site(file)?))
    }

    fn open(&self, file: &InputFile<'_>, stored: Stored) -> Result<Box<dyn DocumentReader>, SourceError> {
        let (whole, damaged) = (file.file.start == 0, file.source.damaged);
        Ok(Box::new(Pages::new(Box::new(file.text(stored)?), &file.file.name, whole, damaged)))
    }
}

/// The wiki whose dump `file` is.
fn site(file: &InputFile<'_>) -> Result<Site, SourceError> {
    let mut text = file.peek()?;
    let mut head = Vec::new();
    while head.len() < LONGEST_HEAD && memmem::find(&head, b"</siteinfo>").is_none() {
        match text.fill_buf() {
            Ok([]) => break,
            Ok(available) => {
                let count = available.len();
                head.extend_from_slice(available);
                text.consume(count);
            }
            // Whoever reads the pages meets it again.
            Err(_) => break,
        }
    }
    let end = memmem::find(&head, b"</siteinfo>").unwrap_or(0);
    Ok(Site::new(&String::from_utf8_lossy(&head[..end]), &file.file.name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dumps_are_told_from_texts_about_them() {
        assert!(Wikipedia.recognizes(Head::Text(b"\n<?xml version='1.0'?>\n<mediawiki xmlns='x'>")));
        assert!(!Wikipedia.recognizes(Head::Text(b"About <mediawiki> elements")));
    }
}
