//! Where a file is damaged and reading goes on: a gap.

use std::collections::VecDeque;
use std::io::{BufRead, Error, ErrorKind, Read, Result};

use super::input::{Input, read_buffered};
use super::stored::StorageError;

/// What a reader meets where a part of the text is missing. The next call reads what comes behind it.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Gap(&'static str);

impl Gap {
    /// As the error of a reader; `what` is what is missing, a key of the manifest's `rejected`.
    pub fn error(what: &'static str) -> Error {
        Error::new(ErrorKind::InvalidData, Self(what))
    }

    /// What is missing, if `error` is a gap and not an error that ends the file.
    pub fn of(error: &Error) -> Option<&'static str> {
        error.get_ref()?.downcast_ref::<Self>().map(|gap| gap.0)
    }
}

/// An input whose damaged end is a gap. That the disk or the store fails stays an error.
pub struct Tolerant {
    input: Input,
    ended: bool,
    /// Gaps at the start, which the reader has yet to meet.
    pending: VecDeque<&'static str>,
}

impl Tolerant {
    /// Reads `input` as far as it goes.
    pub fn new(input: Input) -> Self {
        Self { input, ended: false, pending: VecDeque::new() }
    }

    /// The first text that can be read, to look at.
    pub fn start(&mut self) -> Result<&[u8]> {
        loop {
            match self.next() {
                Ok(()) => return if self.ended { Ok(&[]) } else { self.input.fill_buf() },
                Err(error) => self.pending.push_back(Gap::of(&error).ok_or(error)?),
            }
        }
    }

    /// Whether there is text to be had, or the end.
    fn next(&mut self) -> Result<()> {
        if self.ended {
            return Ok(());
        }
        self.input.fill_buf().map(drop).map_err(|error| self.tolerate(error))
    }

    fn tolerate(&mut self, error: Error) -> Error {
        let storage = error.get_ref().is_some_and(|inner| inner.is::<StorageError>());
        if storage || Gap::of(&error).is_some() {
            return error;
        }
        self.ended = true;
        Gap::error("damaged file: the rest of it")
    }
}

impl Read for Tolerant {
    fn read(&mut self, buffer: &mut [u8]) -> Result<usize> {
        read_buffered(self, buffer)
    }
}

impl BufRead for Tolerant {
    fn fill_buf(&mut self) -> Result<&[u8]> {
        if let Some(what) = self.pending.pop_front() {
            return Err(Gap::error(what));
        }
        self.next()?;
        // What is buffered by now comes at once and without an error.
        if self.ended { Ok(&[]) } else { self.input.fill_buf() }
    }

    fn consume(&mut self, count: usize) {
        self.input.consume(count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::BufReader;

    /// Fails once, behind four bytes.
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
        let mut input = Tolerant::new(Box::new(BufReader::new(Failing(Some(error), false))));
        assert_eq!(input.start().unwrap(), b"text");
        input.read_to_end(&mut Vec::new()).unwrap_err()
    }

    #[test]
    fn damage_is_a_gap_and_a_failing_disk_is_not() {
        let damage = Error::new(ErrorKind::InvalidData, "no such code");
        assert_eq!(Gap::of(&read(damage)), Some("damaged file: the rest of it"));
        assert_eq!(Gap::of(&read(Gap::error("a block"))), Some("a block"));
        let disk = Error::other(StorageError(Error::other("the disk is on fire")));
        let error = read(disk);
        assert!(Gap::of(&error).is_none() && error.to_string().contains("on fire"), "{error}");
    }
}
