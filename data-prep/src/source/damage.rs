//! Gaps: damaged parts of a file after which reading continues.

use std::collections::VecDeque;
use std::io::{BufRead, Error, ErrorKind, Read, Result};

use super::input::{BoxedReader, read_buffered};
use super::stored::StorageError;

/// Error that marks missing text. The next read returns the text after the gap.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Gap(&'static str);

impl Gap {
    /// Creates a gap as an I/O error. `reason` is a key of `rejected` in the manifest.
    pub fn error(reason: &'static str) -> Error {
        Error::new(ErrorKind::InvalidData, Self(reason))
    }

    /// Returns the reason if `error` is a gap.
    pub fn of(error: &Error) -> Option<&'static str> {
        error.get_ref()?.downcast_ref::<Self>().map(|gap| gap.0)
    }
}

/// Reader that turns an error of damaged input into a gap, after which the text ends. Errors of the disk or the store
/// are returned unchanged.
pub struct TolerantReader {
    input: BoxedReader,
    has_ended: bool,
    /// Gaps that [`TolerantReader::peek`] found and that `fill_buf` has not returned yet.
    pending_gaps: VecDeque<&'static str>,
}

impl TolerantReader {
    /// Creates a reader of `input` that ends at the first error other than a gap.
    pub fn new(input: BoxedReader) -> Self {
        Self { input, has_ended: false, pending_gaps: VecDeque::new() }
    }

    /// Returns the first readable text without consuming it.
    pub fn peek(&mut self) -> Result<&[u8]> {
        loop {
            match self.check_input() {
                Ok(()) => return if self.has_ended { Ok(&[]) } else { self.input.fill_buf() },
                Err(error) => self.pending_gaps.push_back(Gap::of(&error).ok_or(error)?),
            }
        }
    }

    /// Checks that text is available or the input has ended.
    fn check_input(&mut self) -> Result<()> {
        if self.has_ended {
            return Ok(());
        }
        self.input.fill_buf().map(drop).map_err(|error| self.map_error(error))
    }

    fn map_error(&mut self, error: Error) -> Error {
        let storage = error.get_ref().is_some_and(|inner| inner.is::<StorageError>());
        if storage || Gap::of(&error).is_some() {
            return error;
        }
        self.has_ended = true;
        Gap::error("damaged file: the rest of it")
    }
}

impl Read for TolerantReader {
    fn read(&mut self, buffer: &mut [u8]) -> Result<usize> {
        read_buffered(self, buffer)
    }
}

impl BufRead for TolerantReader {
    fn fill_buf(&mut self) -> Result<&[u8]> {
        if let Some(reason) = self.pending_gaps.pop_front() {
            return Err(Gap::error(reason));
        }
        self.check_input()?;
        // `check_input` has filled the buffer, so `fill_buf` cannot fail.
        if self.has_ended { Ok(&[]) } else { self.input.fill_buf() }
    }

    fn consume(&mut self, count: usize) {
        self.input.consume(count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::BufReader;

    /// Returns four bytes, then fails once.
    struct Failing(Option<Error>, bool);

    impl Read for Failing {
        fn read(&mut self, buffer: &mut [u8]) -> Result<usize> {
            match std::mem::replace(&mut self.1, true) {
                false => {
                    buffer[..4].copy_from_slice(b"text");
                    Ok(4)
                }
                true => self.0.take().map_or(Ok(0), Err),
            }
        }
    }

    fn read(error: Error) -> Error {
        let mut input = TolerantReader::new(Box::new(BufReader::new(Failing(Some(error), false))));
        assert_eq!(input.peek().unwrap(), b"text");
        input.read_to_end(&mut Vec::new()).unwrap_err()
    }

    #[test]
    fn damage_is_a_gap_and_a_disk_error_is_not() {
        let damage = Error::new(ErrorKind::InvalidData, "no such code");
        assert_eq!(Gap::of(&read(damage)), Some("damaged file: the rest of it"));
        assert_eq!(Gap::of(&read(Gap::error("a block"))), Some("a block"));
        let disk = Error::other(StorageError(Error::other("the disk is on fire")));
        let error = read(disk);
        assert!(Gap::of(&error).is_none() && error.to_string().contains("on fire"), "{error}");
    }
}
