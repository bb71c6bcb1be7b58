//! Multistream dumps. Such a dump is a bzip2 file of many streams, and each stream contains whole pages. Threads and
//! parts read different ranges of the file.
//!
//! The index file is not needed. A stream starts with ten characteristic bytes. The first decompressed bytes of a
//! stream show whether the stream starts with a page.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::Path;

use crate::source::SourceError;

use memchr::memmem;

/// Target size of a range, compressed bytes.
const RANGE_BYTES: u64 = 16 << 20;
/// Minimum compressed size of a file that is split into ranges, bytes.
const MIN_DIVIDED_BYTES: u64 = 2 * RANGE_BYTES;

/// First bytes of a stream with 900 kB blocks, and of its first block.
const STREAM_MAGIC: &[u8] = b"BZh91AY&SY";

/// Splits a file into ranges of compressed bytes. Each range starts and ends between pages. Returns the whole file if
/// it is not a multistream dump.
pub fn split_ranges(path: &Path, bytes: u64) -> Result<Vec<Range<u64>>, SourceError> {
    if bytes < MIN_DIVIDED_BYTES {
        return Ok(std::iter::once(0..bytes).collect());
    }
    let read_error = |source| SourceError::Input { path: path.display().to_string(), operation: "read", source };
    let mut file = File::open(path).map_err(read_error)?;
    let mut starts = vec![0];
    let mut from = RANGE_BYTES;
    while from + RANGE_BYTES / 2 < bytes {
        match next_stream(&mut file, from).map_err(read_error)? {
            Some(at) if begins_with_page(&mut file, at).map_err(read_error)? => {
                starts.push(at);
                from = at + RANGE_BYTES;
            }
            Some(at) => from = at + 1,
            None => break,
        }
        // If none of the first streams starts with a page, the file is not a multistream dump.
        if starts.len() == 1 && from > 4 * RANGE_BYTES {
            break;
        }
    }
    let ends = starts.iter().skip(1).copied().chain([bytes]);
    Ok(starts.iter().copied().zip(ends).map(|(start, end)| start..end).collect())
}

fn next_stream(file: &mut File, from: u64) -> std::io::Result<Option<u64>> {
    let mut buffer = vec![0; 1 << 20];
    let (mut at, mut overlap) = (from, 0);
    file.seek(SeekFrom::Start(from))?;
    loop {
        let count = file.read(&mut buffer[overlap..])?;
        if count == 0 {
            return Ok(None);
        }
        let filled = overlap + count;
        if let Some(found) = memmem::find(&buffer[..filled], STREAM_MAGIC) {
            return Ok(Some(at + found as u64));
        }
        // The marker may straddle two reads.
        overlap = filled.min(STREAM_MAGIC.len() - 1);
        at += (filled - overlap) as u64;
        buffer.copy_within(filled - overlap..filled, 0);
    }
}

fn begins_with_page(file: &mut File, at: u64) -> std::io::Result<bool> {
    file.seek(SeekFrom::Start(at))?;
    let mut text = [0; 64];
    let read = bzip2::read::BzDecoder::new(file).read(&mut text);
    let text = &text[..read.unwrap_or(0)];
    Ok(text.trim_ascii_start().starts_with(b"<page>"))
}
