//! K-way merge of sorted sample files, with a few kilobytes of each file in memory.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fs::File;
use std::io::{Error, ErrorKind, Result};
use std::ops::Range;
use std::os::unix::fs::FileExt;

use super::sample_file::sample_bytes;

/// Bytes per read.
const BUFFER: usize = 1 << 16;

/// A position in a file of sorted samples.
pub struct SampleCursor<'a> {
    file: &'a File,
    /// Byte range of the file that has not been read yet.
    unread: Range<u64>,
    width: usize,
    buffer: Vec<u8>,
    /// Range of the current sample in `buffer`.
    sample: Range<usize>,
}

impl<'a> SampleCursor<'a> {
    /// Creates a cursor over the bytes `range` of `file`, whose token IDs have `width` bytes each.
    pub fn new(file: &'a File, range: Range<u64>, width: usize) -> Self {
        Self { file, unread: range, width, buffer: Vec::new(), sample: 0..0 }
    }

    /// Moves to the next sample. Returns false at the end.
    fn advance(&mut self) -> Result<bool> {
        loop {
            let start = self.sample.end;
            let buffered = &self.buffer[start..];
            match sample_bytes(buffered, self.width) {
                Some(bytes) if bytes <= buffered.len() => {
                    self.sample = start..start + bytes;
                    return Ok(true);
                }
                _ if !self.unread.is_empty() => self.fill(start)?,
                _ if buffered.is_empty() => return Ok(false),
                _ => return Err(Error::new(ErrorKind::UnexpectedEof, "truncated sample")),
            }
        }
    }

    /// Reads more bytes into the buffer and discards the bytes before `start`.
    fn fill(&mut self, start: usize) -> Result<()> {
        self.buffer.drain(..start);
        self.sample = 0..0;
        let (filled, count) = (self.buffer.len(), (self.unread.end - self.unread.start).min(BUFFER as u64));
        self.buffer.resize(filled + count as usize, 0);
        self.file.read_exact_at(&mut self.buffer[filled..], self.unread.start)?;
        self.unread.start += count;
        Ok(())
    }

    fn sample(&self) -> &[u8] {
        &self.buffer[self.sample.clone()]
    }

    fn key(&self) -> u64 {
        self.sample().first_chunk().map_or(0, |key| u64::from_le_bytes(*key))
    }
}

/// Passes the samples of all cursors to `each` in key order until it returns false. Samples with equal keys keep the
/// order of their cursors.
pub fn merge(mut cursors: Vec<SampleCursor<'_>>, mut each: impl FnMut(&[u8]) -> Result<bool>) -> Result<()> {
    let mut next = BinaryHeap::new();
    for (index, cursor) in cursors.iter_mut().enumerate() {
        if cursor.advance()? {
            next.push(Reverse((cursor.key(), index)));
        }
    }
    while let Some(Reverse((_, index))) = next.pop() {
        let cursor = &mut cursors[index];
        if !each(cursor.sample())? {
            return Ok(());
        }
        if cursor.advance()? {
            next.push(Reverse((cursor.key(), index)));
        }
    }
    Ok(())
}
