//! Plain text: a file is a document, or blank lines separate documents.

use super::open::Input;
use super::{DocumentReader, Notes, RawDocument};
use crate::prep::PrepError;

/// A longer document goes on as another one, so that memory stays bounded.
const LONGEST: usize = 16 << 20;

/// Documents of lines.
pub struct Text {
    lines: Lines,
    ordinal: u32,
    blank_lines: bool,
    notes: Notes,
}

impl Text {
    /// The file is a document, or with `blank_lines` what stands between blank lines.
    pub fn new(lines: Lines, blank_lines: bool) -> Self {
        Self { lines, ordinal: 0, blank_lines, notes: Notes::new() }
    }
}

impl DocumentReader for Text {
    fn next(&mut self) -> Result<Option<RawDocument>, PrepError> {
        let mut at = self.lines.at;
        let mut bytes = Vec::new();
        loop {
            let before = bytes.len();
            if self.lines.next(&mut bytes)? == 0 {
                break;
            }
            if self.blank_lines && bytes[before..].iter().all(u8::is_ascii_whitespace) {
                bytes.truncate(before);
                if before > 0 {
                    break;
                }
                at = self.lines.at;
            }
            if bytes.len() >= LONGEST {
                self.notes.push(("text: document of over 16 MiB divided", 1));
                break;
            }
        }
        let ordinal = self.ordinal;
        self.ordinal += 1;
        Ok((!bytes.is_empty()).then_some(RawDocument { ordinal, at, bytes }))
    }

    fn notes(&mut self) -> Notes {
        std::mem::take(&mut self.notes)
    }
}

/// Lines with their ends, of at most about [`LONGEST`] bytes.
pub struct Lines {
    input: Input,
    name: String,
    at: u64,
}

impl Lines {
    /// The lines of `input`; `name` is the file, for errors.
    pub fn new(input: Input, name: &str) -> Self {
        Self { input, name: name.to_owned(), at: 0 }
    }

    /// Bytes of text that were read.
    pub const fn at(&self) -> u64 {
        self.at
    }

    /// The file.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Appends the next line to `bytes`; 0 at the end.
    pub fn next(&mut self, bytes: &mut Vec<u8>) -> Result<usize, PrepError> {
        let mut taken = 0;
        loop {
            let at = self.at;
            let available =
                self.input.fill_buf().map_err(|source| PrepError::Stream { file: self.name.clone(), at, source })?;
            // A line that is too long is cut between two characters, at a space where there is one.
            let cut =
                if taken < LONGEST { None } else { available.iter().position(|&byte| byte == b' ' || byte < 0x80) };
            let (count, ended) = match (memchr::memchr(b'\n', available), cut) {
                (Some(end), _) => (end + 1, true),
                (None, Some(cut)) => (cut, true),
                (None, None) => (available.len(), available.is_empty()),
            };
            bytes.extend_from_slice(&available[..count]);
            self.input.consume(count);
            self.at += count as u64;
            taken += count;
            if ended {
                return Ok(taken);
            }
        }
    }
}
