//! Reader whose first bytes can be examined before they are read.

use std::io::{BufRead, Error, Read, Result};

use super::input::{BoxedReader, read_buffered};

/// Number of bytes that can be examined. Detection of a tar archive needs 512.
const HEAD_BYTES: usize = 4096;

/// Reader whose first bytes can be examined before they are read.
pub struct PeekReader {
    head: Vec<u8>,
    consumed: usize,
    /// Error that occurred while the head was read.
    error: Option<Error>,
    input: BoxedReader,
}

impl PeekReader {
    /// Reads the head of `input`. An error or a gap in the head is returned when the reader reaches its position.
    pub fn new(mut input: BoxedReader) -> Self {
        let (mut head, mut error) = (Vec::with_capacity(HEAD_BYTES), None);
        while head.len() < HEAD_BYTES && error.is_none() {
            match input.fill_buf() {
                Ok([]) => break,
                Ok(available) => {
                    let count = available.len().min(HEAD_BYTES - head.len());
                    head.extend_from_slice(&available[..count]);
                    input.consume(count);
                }
                Err(found) => error = Some(found),
            }
        }
        Self { head, consumed: 0, error, input }
    }

    /// First bytes.
    pub fn head(&self) -> &[u8] {
        &self.head
    }

    /// Returns the error that occurred while the head was read, if any.
    pub fn into_error(self) -> Option<Error> {
        self.error
    }
}

impl Read for PeekReader {
    fn read(&mut self, buffer: &mut [u8]) -> Result<usize> {
        read_buffered(self, buffer)
    }
}

impl BufRead for PeekReader {
    fn fill_buf(&mut self) -> Result<&[u8]> {
        if self.consumed < self.head.len() {
            return Ok(&self.head[self.consumed..]);
        }
        match self.error.take() {
            Some(error) => Err(error),
            None => self.input.fill_buf(),
        }
    }

    fn consume(&mut self, count: usize) {
        if self.consumed < self.head.len() {
            self.consumed += count;
        } else {
            self.input.consume(count);
        }
    }
}
