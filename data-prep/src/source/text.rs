//! Plain text: a file is a document, or blank lines separate documents.

use std::io::BufRead;

use super::{DocumentReader, RawDocument};
use crate::prep::PrepError;

/// A longer document goes on as another one, so that memory stays bounded.
const LONGEST: usize = 32 << 20;

/// A file is a document.
pub struct WholeFile {
    lines: Lines,
    ordinal: u32,
}

impl WholeFile {
    pub fn new(input: Box<dyn BufRead + Send>, name: String) -> Self {
        Self { lines: Lines { input, name, at: 0 }, ordinal: 0 }
    }
}

impl DocumentReader for WholeFile {
    fn next(&mut self) -> Result<Option<RawDocument>, PrepError> {
        let at = self.lines.at;
        let mut bytes = Vec::new();
        while bytes.len() < LONGEST && self.lines.next(&mut bytes)? > 0 {}
        let ordinal = self.ordinal;
        self.ordinal += 1;
        Ok((!bytes.is_empty()).then_some(RawDocument { ordinal, at, bytes }))
    }
}

/// Blank lines separate documents.
pub struct Blocks {
    lines: Lines,
    ordinal: u32,
}

impl Blocks {
    pub fn new(input: Box<dyn BufRead + Send>, name: String) -> Self {
        Self { lines: Lines { input, name, at: 0 }, ordinal: 0 }
    }
}

impl DocumentReader for Blocks {
    fn next(&mut self) -> Result<Option<RawDocument>, PrepError> {
        let mut at = self.lines.at;
        let mut bytes = Vec::new();
        while bytes.len() < LONGEST {
            let before = bytes.len();
            if self.lines.next(&mut bytes)? == 0 {
                break;
            }
            if bytes[before..].iter().all(u8::is_ascii_whitespace) {
                bytes.truncate(before);
                if before > 0 {
                    break;
                }
                at = self.lines.at;
            }
        }
        let ordinal = self.ordinal;
        self.ordinal += 1;
        Ok((!bytes.is_empty()).then_some(RawDocument { ordinal, at, bytes }))
    }
}

/// Lines with their ends, of at most [`LONGEST`] bytes.
struct Lines {
    input: Box<dyn BufRead + Send>,
    name: String,
    at: u64,
}

impl Lines {
    /// Appends the next line to `bytes`; 0 at the end.
    fn next(&mut self, bytes: &mut Vec<u8>) -> Result<usize, PrepError> {
        let mut taken = 0;
        while taken < LONGEST {
            let at = self.at;
            let available =
                self.input.fill_buf().map_err(|source| PrepError::Stream { file: self.name.clone(), at, source })?;
            let (count, ended) = match memchr::memchr(b'\n', available) {
                Some(end) => (end + 1, true),
                None => (available.len(), available.is_empty()),
            };
            bytes.extend_from_slice(&available[..count]);
            self.input.consume(count);
            self.at += count as u64;
            taken += count;
            if ended {
                break;
            }
        }
        Ok(taken)
    }
}
