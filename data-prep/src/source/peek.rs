//! A look at the first bytes of a stream, which are read again afterwards.

use std::io::{BufRead, Error, Read, Result};

use super::input::{Input, read_buffered};

/// Bytes that are looked at: a tar archive shows itself in the first 512.
const HEAD: usize = 4096;

/// See the module.
pub struct Peeked {
    head: Vec<u8>,
    taken: usize,
    /// Met behind the head.
    error: Option<Error>,
    input: Input,
}

impl Peeked {
    /// Reads the head of `input`; an error or a gap in it is met again by who reads on.
    pub fn new(mut input: Input) -> Self {
        let (mut head, mut error) = (Vec::with_capacity(HEAD), None);
        while head.len() < HEAD && error.is_none() {
            match input.fill_buf() {
                Ok([]) => break,
                Ok(available) => {
                    let count = available.len().min(HEAD - head.len());
                    head.extend_from_slice(&available[..count]);
                    input.consume(count);
                }
                Err(met) => error = Some(met),
            }
        }
        Self { head, taken: 0, error, input }
    }

    /// The first bytes.
    pub fn head(&self) -> &[u8] {
        &self.head
    }

    /// Why there are no more.
    pub fn into_error(self) -> Option<Error> {
        self.error
    }
}

impl Read for Peeked {
    fn read(&mut self, buffer: &mut [u8]) -> Result<usize> {
        read_buffered(self, buffer)
    }
}

impl BufRead for Peeked {
    fn fill_buf(&mut self) -> Result<&[u8]> {
        if self.taken < self.head.len() {
            return Ok(&self.head[self.taken..]);
        }
        match self.error.take() {
            Some(error) => Err(error),
            None => self.input.fill_buf(),
        }
    }

    fn consume(&mut self, count: usize) {
        if self.taken < self.head.len() {
            self.taken += count;
        } else {
            self.input.consume(count);
        }
    }
}
