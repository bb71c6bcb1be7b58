//! Line reader. It bounds the length of lines and reports gaps.

use super::SourceError;
use super::damage::Gap;
use super::input::BoxedReader;

/// Upper limit on the length of a line, bytes. Longer lines are split to bound memory.
pub const MAX_LINE_BYTES: usize = 16 << 20;
/// Length of a line, bytes, from which it is split at any ASCII character, because it has no space after [`MAX_LINE_BYTES`].
const MAX_CUT_BYTES: usize = MAX_LINE_BYTES + (1 << 20);
/// Upper limit on the length of a line that cannot be split, bytes. Longer lines are skipped.
pub const MAX_WHOLE_LINE_BYTES: usize = 256 << 20;

/// Result of reading a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LineEnd {
    /// A line was read.
    Line,
    /// No line was left.
    File,
    /// Damage, with the reason. Nothing is appended, because fragments of a damaged line are dropped.
    Gap(&'static str),
    /// The line exceeds this limit, in bytes, and cannot be split. Nothing is appended.
    TooLong(usize),
}

/// Line reader.
pub struct Lines {
    input: BoxedReader,
    name: String,
    offset: u64,
    /// True if long lines are split. False if they are skipped.
    splits_long_lines: bool,
    /// True after a gap. The next text is then the rest of a damaged line, which is dropped.
    is_mid_line: bool,
}

impl Lines {
    /// Reads the lines of `input` and splits those above 16 MiB. `name` is the file name for error messages.
    pub fn new(input: BoxedReader, name: &str) -> Self {
        Self { input, name: name.to_owned(), offset: 0, splits_long_lines: true, is_mid_line: false }
    }

    /// Reads the lines of `input` without splitting them. A line above 256 MiB is skipped as [`LineEnd::TooLong`].
    pub fn whole(input: BoxedReader, name: &str) -> Self {
        Self { splits_long_lines: false, ..Self::new(input, name) }
    }

    /// Bytes of text read so far.
    pub const fn offset(&self) -> u64 {
        self.offset
    }

    /// File name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Appends the next line to `bytes`.
    pub fn next(&mut self, bytes: &mut Vec<u8>) -> Result<LineEnd, SourceError> {
        let before = bytes.len();
        if self.is_mid_line {
            self.is_mid_line = false;
            let end = self.append_line(bytes)?;
            bytes.truncate(before);
            if end != LineEnd::Line {
                return Ok(end);
            }
        }
        self.append_line(bytes)
    }

    fn append_line(&mut self, bytes: &mut Vec<u8>) -> Result<LineEnd, SourceError> {
        let (before, mut line_bytes) = (bytes.len(), 0);
        loop {
            let offset = self.offset;
            let available = match self.input.fill_buf() {
                Ok(available) => available,
                Err(source) => match Gap::of(&source) {
                    None => return Err(SourceError::Stream { file: self.name.clone(), offset, source }),
                    Some(reason) => {
                        bytes.truncate(before);
                        self.is_mid_line = true;
                        return Ok(LineEnd::Gap(reason));
                    }
                },
            };
            // A line that is too long is split between two characters, if possible at a space.
            let cut = match line_bytes {
                _ if !self.splits_long_lines => None,
                MAX_CUT_BYTES.. => available.iter().position(|&byte| byte < 0x80),
                MAX_LINE_BYTES.. => memchr::memchr(b' ', available),
                _ => None,
            };
            let (count, has_ended) = match (memchr::memchr(b'\n', available), cut) {
                (Some(end), _) => (end + 1, true),
                (None, Some(cut)) => (cut, true),
                (None, None) => (available.len(), available.is_empty()),
            };
            line_bytes += count;
            let is_too_long = !self.splits_long_lines && line_bytes > MAX_WHOLE_LINE_BYTES;
            if !is_too_long {
                bytes.extend_from_slice(&available[..count]);
            }
            self.input.consume(count);
            self.offset += count as u64;
            if has_ended && is_too_long {
                bytes.truncate(before);
                return Ok(LineEnd::TooLong(MAX_WHOLE_LINE_BYTES));
            }
            if has_ended {
                return Ok(if line_bytes == 0 { LineEnd::File } else { LineEnd::Line });
            }
        }
    }
}
