//! Streaming reader of the `<page>` elements of a MediaWiki dump.

use lambert_config::prep::Damaged;
use memchr::memmem;

use crate::source::damage::Gap;
use crate::source::input::BoxedReader;
use crate::source::{DocumentReader, RawDocument, SkipNotice, SkipNotices, SourceError};

/// Upper limit on the size of a page, bytes. A larger page is treated as truncated.
const MAX_PAGE_BYTES: usize = 256 << 20;

const OPEN: &[u8] = b"<page>";
const CLOSE: &[u8] = b"</page>";

/// Streaming reader of the `<page>` elements of a MediaWiki dump.
pub struct PageReader {
    input: BoxedReader,
    name: String,
    damaged: Damaged,
    notices: SkipNotices,
    buffer: Vec<u8>,
    start: usize,
    offset: u64,
    ordinal: u32,
    has_ended: bool,
    has_checked_root: bool,
}

impl PageReader {
    /// Reads the pages of `input`. `input` is a whole dump if `is_whole`, otherwise a range of a dump that starts with
    /// a page.
    pub fn new(input: BoxedReader, name: &str, is_whole: bool, damaged: Damaged) -> Self {
        let (name, has_checked_root) = (name.to_owned(), !is_whole);
        Self {
            input,
            name,
            damaged,
            notices: SkipNotices::new(),
            buffer: Vec::new(),
            start: 0,
            offset: 0,
            ordinal: 0,
            has_ended: false,
            has_checked_root,
        }
    }

    /// Reads more text. On [`FillResult::Gap`] the buffered text is discarded.
    fn fill(&mut self) -> Result<FillResult, SourceError> {
        if self.has_ended {
            return Ok(FillResult::End);
        }
        // The consumed text is dropped, so the buffer contains little more than one page.
        self.buffer.drain(..self.start);
        self.offset += self.start as u64;
        self.start = 0;
        let at = self.offset + self.buffer.len() as u64;
        let available = match self.input.fill_buf() {
            Ok(available) => available,
            Err(source) => {
                let Some(reason) = Gap::of(&source) else {
                    return Err(SourceError::Stream { file: self.name.clone(), offset: at, source });
                };
                self.notices.push(SkipNotice::new(reason, at));
                self.offset = at;
                self.buffer.clear();
                return Ok(FillResult::Gap);
            }
        };
        let count = available.len();
        self.buffer.extend_from_slice(available);
        self.input.consume(count);
        self.has_ended = count == 0;
        Ok(if self.has_ended { FillResult::End } else { FillResult::Text })
    }

    /// Moves past the next `needle`. Returns false if the rest of the input has no `needle`.
    fn skip_past(&mut self, needle: &[u8]) -> Result<bool, SourceError> {
        loop {
            if let Some(found) = memmem::find(&self.buffer[self.start..], needle) {
                self.start += found + needle.len();
                return Ok(true);
            }
            // The needle may straddle two reads.
            self.start = self.buffer.len().saturating_sub(needle.len() - 1).max(self.start);
            if self.fill()? == FillResult::End {
                return Ok(false);
            }
        }
    }

    fn check_root(&mut self) -> Result<(), SourceError> {
        let mut has_gap = false;
        while self.buffer.len() < 4096 {
            match self.fill()? {
                FillResult::End => break,
                result => has_gap |= result == FillResult::Gap,
            }
        }
        self.has_checked_root = true;
        if !has_gap && memmem::find(&self.buffer, b"<mediawiki").is_none() && !self.buffer.is_empty() {
            let expected = "a MediaWiki dump: XML with a <mediawiki> element".to_owned();
            return Err(SourceError::Format { file: self.name.clone(), offset: 0, expected });
        }
        Ok(())
    }
}

/// Result of reading more text.
#[derive(PartialEq, Eq)]
enum FillResult {
    Text,
    Gap,
    End,
}

impl PageReader {
    /// Returns the length of the page at the current position, or `None` if it is truncated and skipped.
    fn page_length(&mut self) -> Result<Option<usize>, SourceError> {
        let mut searched = 0;
        loop {
            let body = &self.buffer[self.start..];
            if let Some(found) = memmem::find(&body[searched..], CLOSE) {
                let length = searched + found;
                // If a part of the file is missing, the next page starts before this page ends.
                let Some(next) = memmem::rfind(&body[..length], OPEN) else { return Ok(Some(length)) };
                self.report_truncated()?;
                self.start += next + OPEN.len();
                return Ok(Some(length - next - OPEN.len()));
            }
            searched = body.len().saturating_sub(CLOSE.len() - 1);
            if body.len() > MAX_PAGE_BYTES || self.fill()? != FillResult::Text {
                self.report_truncated()?;
                self.start = self.buffer.len();
                return Ok(None);
            }
        }
    }

    /// Adds a notice about a truncated page if damage is skipped. Otherwise returns an error.
    fn report_truncated(&mut self) -> Result<(), SourceError> {
        let at = self.offset + self.start as u64;
        if self.damaged == Damaged::Skip {
            self.notices.push(SkipNotice {
                title: title(&self.buffer[self.start..]),
                ..SkipNotice::new("wikipedia: cut page", at)
            });
            return Ok(());
        }
        let expected = "a </page> tag for the <page> at this position".to_owned();
        Err(SourceError::Format { file: self.name.clone(), offset: at, expected })
    }
}

/// Title of the page at the start of `text`.
fn title(text: &[u8]) -> Option<String> {
    let (open, close) = (b"<title>", b"</title>");
    let start = memmem::find(text, open)? + open.len();
    let length = memmem::find(&text[start..], close)?;
    String::from_utf8(text[start..start + length].to_vec()).ok()
}

impl DocumentReader for PageReader {
    fn next(&mut self) -> Result<Option<RawDocument>, SourceError> {
        if !self.has_checked_root {
            self.check_root()?;
        }
        let length = loop {
            if !self.skip_past(OPEN)? {
                return Ok(None);
            }
            if let Some(length) = self.page_length()? {
                break length;
            }
        };
        let (at, ordinal) = (self.offset + self.start as u64, self.ordinal);
        let bytes = self.buffer[self.start..self.start + length].to_vec();
        self.start += length + CLOSE.len();
        self.ordinal += 1;
        Ok(Some(RawDocument { ordinal, offset: at, bytes }))
    }

    fn take_notices(&mut self) -> SkipNotices {
        std::mem::take(&mut self.notices)
    }
}
