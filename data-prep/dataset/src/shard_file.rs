//! Local file with the bytes of a shard, or of one range of it.

use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::Arc;

use bytes::Bytes;
use parquet::errors::{ParquetError, Result as ParquetResult};
use parquet::file::reader::{ChunkReader, Length};
use sha2::{Digest as _, Sha256};

use super::digest::Digest;

/// Size of a read for a checksum, bytes.
const READ_BYTES: u64 = 1 << 20;

/// Identity of a local file, from its device and its inode. Two files of one machine have the same identity only by
/// accident.
pub type Identity = u64;

/// Returns the identity of a file. It is not 0.
pub fn identity(file: &File) -> io::Result<Identity> {
    file.metadata().map(|metadata| (metadata.ino() ^ metadata.dev().rotate_left(32)).max(1))
}

/// Readable range of a shard. All offsets are those of the shard. Reads are positional, so that threads do not share a
/// file position.
#[derive(Clone)]
pub struct ShardFile {
    file: Arc<File>,
    /// Offset of the first byte of `file`.
    base: u64,
    /// Offsets that can be read.
    range: Range<u64>,
    /// Size of the shard, bytes.
    shard_bytes: u64,
}

impl ShardFile {
    /// File of a whole shard.
    pub fn whole(file: Arc<File>, bytes: u64) -> Self {
        Self { file, base: 0, range: 0..bytes, shard_bytes: bytes }
    }

    /// File with one range of a shard of `shard_bytes` bytes.
    pub fn part(file: File, range: Range<u64>, shard_bytes: u64) -> Self {
        Self { file: Arc::new(file), base: range.start, range, shard_bytes }
    }

    /// Returns the same file, of which only `range` can be read.
    pub fn narrowed(&self, range: Range<u64>) -> Self {
        Self { range, ..self.clone() }
    }

    /// Returns the identity of the file.
    pub fn identity(&self) -> io::Result<Identity> {
        identity(&self.file)
    }

    /// Computes the sha256 of the readable range. Passes the bytes to `take`, in order.
    pub fn sha256(&self, mut take: impl FnMut(&[u8])) -> io::Result<Digest> {
        let mut digest = Sha256::new();
        let mut buffer = vec![0; READ_BYTES.min(self.range.end - self.range.start) as usize];
        let mut at = self.range.start;
        while at < self.range.end {
            let piece = &mut buffer[..READ_BYTES.min(self.range.end - at) as usize];
            self.file.read_exact_at(piece, at - self.base)?;
            digest.update(&*piece);
            take(piece);
            at += piece.len() as u64;
        }
        Ok(Digest(digest.finalize().into()))
    }

    /// Returns an error if `range` is not readable.
    fn check(&self, range: Range<u64>) -> ParquetResult<()> {
        if self.range.start <= range.start && range.start <= range.end && range.end <= self.range.end {
            return Ok(());
        }
        let (found, expected) = (range, &self.range);
        Err(ParquetError::EOF(format!("read of bytes {found:?}, expected a range within {expected:?}")))
    }
}

/// Independent position in a [`ShardFile`].
pub struct Cursor {
    file: Arc<File>,
    at: u64,
    /// Number of bytes that can be read.
    left: u64,
}

impl Read for Cursor {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = (buffer.len() as u64).min(self.left) as usize;
        let count = self.file.read_at(&mut buffer[..most], self.at)?;
        self.at += count as u64;
        self.left -= count as u64;
        Ok(count)
    }
}

impl Length for ShardFile {
    fn len(&self) -> u64 {
        self.shard_bytes
    }
}

impl ChunkReader for ShardFile {
    type T = io::BufReader<Cursor>;

    fn get_read(&self, start: u64) -> ParquetResult<Self::T> {
        self.check(start..start)?;
        let cursor = Cursor { file: self.file.clone(), at: start - self.base, left: self.range.end - start };
        Ok(io::BufReader::new(cursor))
    }

    fn get_bytes(&self, start: u64, length: usize) -> ParquetResult<Bytes> {
        self.check(start..start.saturating_add(length as u64))?;
        let mut buffer = vec![0; length];
        self.file.read_exact_at(&mut buffer, start - self.base)?;
        Ok(buffer.into())
    }
}
