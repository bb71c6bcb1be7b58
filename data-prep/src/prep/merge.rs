//! Sorted samples of several files to one sorted row, a few kilobytes of each file in memory.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fs::File;
use std::io::{Error, ErrorKind, Result};
use std::ops::Range;
use std::os::unix::fs::FileExt;

use super::sample_file::sample_bytes;

/// Bytes of a file that are read at once.
const BUFFER: usize = 1 << 16;

/// A place in a file of sorted samples.
pub struct Cursor<'a> {
    file: &'a File,
    /// What has not been read yet.
    left: Range<u64>,
    width: usize,
    buffer: Vec<u8>,
    /// The sample in the buffer.
    sample: Range<usize>,
}

impl<'a> Cursor<'a> {
    /// The samples in the bytes `range` of `file`, whose ids have `width` bytes.
    pub fn new(file: &'a File, range: Range<u64>, width: usize) -> Self {
        Self { file, left: range, width, buffer: Vec::new(), sample: 0..0 }
    }

    /// Moves to the next sample; `false` at the end.
    fn advance(&mut self) -> Result<bool> {
        loop {
            let start = self.sample.end;
            let there = &self.buffer[start..];
            match sample_bytes(there, self.width) {
                Some(bytes) if bytes <= there.len() => {
                    self.sample = start..start + bytes;
                    return Ok(true);
                }
                _ if !self.left.is_empty() => self.fill(start)?,
                _ if there.is_empty() => return Ok(false),
                _ => return Err(Error::new(ErrorKind::UnexpectedEof, "a sample is cut")),
            }
        }
    }

    /// Reads on, and forgets what is before `start`.
    fn fill(&mut self, start: usize) -> Result<()> {
        self.buffer.drain(..start);
        self.sample = 0..0;
        let (filled, wanted) = (self.buffer.len(), (self.left.end - self.left.start).min(BUFFER as u64));
        self.buffer.resize(filled + wanted as usize, 0);
        self.file.read_exact_at(&mut self.buffer[filled..], self.left.start)?;
        self.left.start += wanted;
        Ok(())
    }

    fn sample(&self) -> &[u8] {
        &self.buffer[self.sample.clone()]
    }

    fn key(&self) -> u64 {
        self.sample().first_chunk().map_or(0, |key| u64::from_le_bytes(*key))
    }
}

/// Gives the samples of all cursors in the order of their keys, equal ones in that of the cursors, as long as `each`
/// wants more.
pub fn merge(mut cursors: Vec<Cursor<'_>>, mut each: impl FnMut(&[u8]) -> Result<bool>) -> Result<()> {
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
