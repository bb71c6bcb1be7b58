//! MediaWiki pages-articles dumps (XML). Each page is a document. Multistream dumps are read in ranges.

mod multistream;
mod pages;

use std::io::BufRead;
use std::ops::Range;
use std::path::Path;

use lambert_config::prep::Documents;
use memchr::memmem;

use crate::extract::Extractor;
use crate::extract::wikitext::{KeepOptions, WikiSite};
use crate::source::format::{FileHead, InputFile, InputFormat};
use crate::source::{DocumentReader, SourceError, SourceFile, StoredReader};
use pages::PageReader;

/// Estimated bytes of text per byte of XML.
const TEXT_PER_BYTE: f64 = 0.6;
/// Upper limit on the offset at which `<siteinfo>` ends.
const MAX_SITEINFO_BYTES: usize = 1 << 18;

/// The format `wikipedia`.
pub struct WikipediaFormat;

impl InputFormat for WikipediaFormat {
    fn name(&self) -> &'static str {
        "wikipedia"
    }

    fn documents(&self) -> &'static [Documents] {
        &[Documents::Row]
    }

    fn options(&self) -> &'static [&'static str] {
        &["lists", "headings", "encoding"]
    }

    fn recognizes(&self, head: FileHead<'_>) -> bool {
        let FileHead::Text(text) = head else { return false };
        text.trim_ascii_start().starts_with(b"<") && memmem::find(text, b"<mediawiki").is_some()
    }

    fn looks_like(&self) -> Option<&'static str> {
        Some("a MediaWiki dump")
    }

    fn text_per_byte(&self) -> f64 {
        TEXT_PER_BYTE
    }

    /// The index of a multistream dump is not needed (see [`multistream`]).
    fn ignores(&self, name: &str) -> bool {
        name.contains("multistream-index")
    }

    fn parts(&self, file: &SourceFile) -> Result<Vec<Range<u64>>, SourceError> {
        if file.is_remote() {
            return Ok(std::iter::once(0..file.bytes).collect());
        }
        multistream::split_ranges(Path::new(&file.name), file.bytes)
    }

    fn extractor(&self, file: &InputFile<'_>) -> Result<Extractor, SourceError> {
        let keep = KeepOptions { lists: file.source.lists, headings: file.source.headings };
        Ok(Extractor::wiki_page(keep, read_site(file)?))
    }

    fn open(&self, file: &InputFile<'_>, stored: StoredReader) -> Result<Box<dyn DocumentReader>, SourceError> {
        let (is_whole, damaged) = (file.file.start == 0, file.source.damaged);
        Ok(Box::new(PageReader::new(Box::new(file.text(stored)?), &file.file.name, is_whole, damaged)))
    }
}

/// Identifies the wiki of a dump.
fn read_site(file: &InputFile<'_>) -> Result<WikiSite, SourceError> {
    let mut text = file.peek()?;
    let mut head = Vec::new();
    while head.len() < MAX_SITEINFO_BYTES && memmem::find(&head, b"</siteinfo>").is_none() {
        match text.fill_buf() {
            Ok([]) => break,
            Ok(available) => {
                let count = available.len();
                head.extend_from_slice(available);
                text.consume(count);
            }
            // The page reader will meet and report the same error.
            Err(_) => break,
        }
    }
    let end = memmem::find(&head, b"</siteinfo>").unwrap_or(0);
    Ok(WikiSite::from_siteinfo(&String::from_utf8_lossy(&head[..end]), &file.file.name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dumps_are_distinguished_from_text_about_them() {
        assert!(WikipediaFormat.recognizes(FileHead::Text(b"\n<?xml version='1.0'?>\n<mediawiki xmlns='x'>")));
        assert!(!WikipediaFormat.recognizes(FileHead::Text(b"About <mediawiki> elements")));
    }
}
