//! Lines of a text, with what is missing between them.

use super::SourceError;
use super::damage::Gap;
use super::input::Input;

/// A longer line is cut, so that memory stays bounded.
pub const LONGEST: usize = 16 << 20;
/// A longer line that cannot be cut is not read.
const LONGEST_WHOLE: usize = 256 << 20;

/// What ended a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// Its end, or that of the file.
    Line,
    /// There was no line any more.
    File,
    /// Damage, and what is missing. Nothing was appended: the pieces of the broken line are of no use.
    Gap(&'static str),
    /// The end of a line that must not be cut and is longer than so many bytes. Nothing was appended.
    TooLong(usize),
}

/// Lines with their ends.
pub struct Lines {
    input: Input,
    name: String,
    at: u64,
    /// Whether a long line is cut in several; otherwise it is passed over.
    cuts: bool,
    /// Behind a gap: the rest of a line comes first.
    broken: bool,
}

impl Lines {
    /// The lines of `input`, those of over 16 MiB cut in several; `name` is the file, for errors.
    pub fn new(input: Input, name: &str) -> Self {
        Self { input, name: name.to_owned(), at: 0, cuts: true, broken: false }
    }

    /// The lines of `input`, whole; those of over 256 MiB are passed over as [`End::TooLong`].
    pub fn whole(input: Input, name: &str) -> Self {
        Self { cuts: false, ..Self::new(input, name) }
    }

    /// Bytes of text that were read.
    pub const fn at(&self) -> u64 {
        self.at
    }

    /// The file.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Appends the next line to `bytes`.
    pub fn next(&mut self, bytes: &mut Vec<u8>) -> Result<End, SourceError> {
        let before = bytes.len();
        if self.broken {
            self.broken = false;
            let end = self.append(bytes)?;
            bytes.truncate(before);
            if end != End::Line {
                return Ok(end);
            }
        }
        self.append(bytes)
    }

    fn append(&mut self, bytes: &mut Vec<u8>) -> Result<End, SourceError> {
        let (before, mut taken) = (bytes.len(), 0);
        loop {
            let at = self.at;
            let available = match self.input.fill_buf() {
                Ok(available) => available,
                Err(source) => match Gap::of(&source) {
                    None => return Err(SourceError::Stream { file: self.name.clone(), at, source }),
                    Some(what) => {
                        bytes.truncate(before);
                        self.broken = true;
                        return Ok(End::Gap(what));
                    }
                },
            };
            // A line that is too long is cut between two characters, at a space where there is one.
            let cut = if self.cuts && taken >= LONGEST {
                available.iter().position(|&byte| byte == b' ' || byte < 0x80)
            } else {
                None
            };
            let (count, ended) = match (memchr::memchr(b'\n', available), cut) {
                (Some(end), _) => (end + 1, true),
                (None, Some(cut)) => (cut, true),
                (None, None) => (available.len(), available.is_empty()),
            };
            taken += count;
            let too_long = !self.cuts && taken > LONGEST_WHOLE;
            if !too_long {
                bytes.extend_from_slice(&available[..count]);
            }
            self.input.consume(count);
            self.at += count as u64;
            if ended && too_long {
                bytes.truncate(before);
                return Ok(End::TooLong(LONGEST_WHOLE));
            }
            if ended {
                return Ok(if taken == 0 { End::File } else { End::Line });
            }
        }
    }
}
