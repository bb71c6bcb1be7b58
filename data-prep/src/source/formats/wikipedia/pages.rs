//! The `<page>` elements of a MediaWiki dump, one after another, never the whole file.

use lambert_config::prep::Damaged;
use memchr::memmem;

use crate::source::damage::Gap;
use crate::source::input::Input;
use crate::source::{DocumentReader, Note, Notes, RawDocument, SourceError};

/// A page longer than this is no page: the closing tag is missing.
const LONGEST: usize = 256 << 20;

const OPEN: &[u8] = b"<page>";
const CLOSE: &[u8] = b"</page>";

/// See the module.
pub struct Pages {
    input: Input,
    name: String,
    damaged: Damaged,
    notes: Notes,
    buffer: Vec<u8>,
    start: usize,
    at: u64,
    ordinal: u32,
    ended: bool,
    seen_root: bool,
}

impl Pages {
    /// The pages of `input`, which has to be a whole dump if `whole`, else a part that begins with a page.
    pub fn new(input: Input, name: &str, whole: bool, damaged: Damaged) -> Self {
        let (name, seen_root) = (name.to_owned(), !whole);
        Self {
            input,
            name,
            damaged,
            notes: Notes::new(),
            buffer: Vec::new(),
            start: 0,
            at: 0,
            ordinal: 0,
            ended: false,
            seen_root,
        }
    }

    /// Reads on. [`More::Gap`] where text is missing: what was read and not used is gone with it.
    fn fill(&mut self) -> Result<More, SourceError> {
        if self.ended {
            return Ok(More::End);
        }
        // What was used goes, so the buffer holds little more than one page.
        self.buffer.drain(..self.start);
        self.at += self.start as u64;
        self.start = 0;
        let at = self.at + self.buffer.len() as u64;
        let available = match self.input.fill_buf() {
            Ok(available) => available,
            Err(source) => {
                let Some(what) = Gap::of(&source) else {
                    return Err(SourceError::Stream { file: self.name.clone(), at, source });
                };
                self.notes.push(Note::new(what, at));
                self.at = at;
                self.buffer.clear();
                return Ok(More::Gap);
            }
        };
        let count = available.len();
        self.buffer.extend_from_slice(available);
        self.input.consume(count);
        self.ended = count == 0;
        Ok(if self.ended { More::End } else { More::Text })
    }

    /// Moves to just behind the next `needle`; `false` if there is none.
    fn skip_past(&mut self, needle: &[u8]) -> Result<bool, SourceError> {
        loop {
            if let Some(found) = memmem::find(&self.buffer[self.start..], needle) {
                self.start += found + needle.len();
                return Ok(true);
            }
            // The needle may lie across the end of what was read.
            self.start = self.buffer.len().saturating_sub(needle.len() - 1).max(self.start);
            if self.fill()? == More::End {
                return Ok(false);
            }
        }
    }

    fn check_root(&mut self) -> Result<(), SourceError> {
        let mut gap = false;
        while self.buffer.len() < 4096 {
            match self.fill()? {
                More::End => break,
                more => gap |= more == More::Gap,
            }
        }
        self.seen_root = true;
        if !gap && memmem::find(&self.buffer, b"<mediawiki").is_none() && !self.buffer.is_empty() {
            let expected = "a MediaWiki dump: XML with a <mediawiki> element".to_owned();
            return Err(SourceError::Format { file: self.name.clone(), at: 0, expected });
        }
        Ok(())
    }
}

/// What came of reading on.
#[derive(PartialEq, Eq)]
enum More {
    Text,
    Gap,
    End,
}

impl Pages {
    /// Bytes of the page that starts here; `None` if it is cut and that is to be passed over.
    fn page(&mut self) -> Result<Option<usize>, SourceError> {
        let mut searched = 0;
        loop {
            let body = &self.buffer[self.start..];
            if let Some(found) = memmem::find(&body[searched..], CLOSE) {
                let length = searched + found;
                // Where a part of the file is missing, the next page begins before this one ends.
                let Some(next) = memmem::rfind(&body[..length], OPEN) else { return Ok(Some(length)) };
                self.cut()?;
                self.start += next + OPEN.len();
                return Ok(Some(length - next - OPEN.len()));
            }
            searched = body.len().saturating_sub(CLOSE.len() - 1);
            if body.len() > LONGEST || self.fill()? != More::Text {
                self.cut()?;
                self.start = self.buffer.len();
                return Ok(None);
            }
        }
    }

    /// Counts a page that is cut, or refuses it.
    fn cut(&mut self) -> Result<(), SourceError> {
        let at = self.at + self.start as u64;
        if self.damaged == Damaged::Skip {
            self.notes.push(Note { title: title(&self.buffer[self.start..]), ..Note::new("wikipedia: cut page", at) });
            return Ok(());
        }
        let expected = "</page> for the <page> that starts here".to_owned();
        Err(SourceError::Format { file: self.name.clone(), at, expected })
    }
}

/// The title of the page that `text` begins with.
fn title(text: &[u8]) -> Option<String> {
    let (open, close) = (b"<title>", b"</title>");
    let start = memmem::find(text, open)? + open.len();
    let length = memmem::find(&text[start..], close)?;
    String::from_utf8(text[start..start + length].to_vec()).ok()
}

impl DocumentReader for Pages {
    fn next(&mut self) -> Result<Option<RawDocument>, SourceError> {
        if !self.seen_root {
            self.check_root()?;
        }
        let length = loop {
            if !self.skip_past(OPEN)? {
                return Ok(None);
            }
            if let Some(length) = self.page()? {
                break length;
            }
        };
        let (at, ordinal) = (self.at + self.start as u64, self.ordinal);
        let bytes = self.buffer[self.start..self.start + length].to_vec();
        self.start += length + CLOSE.len();
        self.ordinal += 1;
        Ok(Some(RawDocument { ordinal, at, bytes }))
    }

    fn notes(&mut self) -> Notes {
        std::mem::take(&mut self.notes)
    }
}
