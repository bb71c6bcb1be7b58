//! Multistream dumps: bzip2 files of many streams, each with whole pages. Dividing one lets threads and parts share it.
//!
//! The index file that comes with such a dump is not needed: a stream begins with ten bytes that nothing else has, and
//! whether pages begin with it shows when its first block is decompressed.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::Path;

use crate::source::SourceError;

use memchr::memmem;

/// Stored bytes of a division, about.
const DIVISION: u64 = 16 << 20;
/// Files below this are left whole.
const SMALLEST: u64 = 2 * DIVISION;

/// The first bytes of every stream that is compressed in blocks of 900 kB, and of its first block.
const STREAM: &[u8] = b"BZh91AY&SY";

/// Ranges of stored bytes that begin and end between pages; the whole file if it cannot be divided.
pub fn divide(path: &Path, bytes: u64) -> Result<Vec<Range<u64>>, SourceError> {
    if bytes < SMALLEST {
        return Ok(std::iter::once(0..bytes).collect());
    }
    let fault = |source| SourceError::Input { path: path.display().to_string(), operation: "read", source };
    let mut file = File::open(path).map_err(fault)?;
    let mut starts = vec![0];
    let mut from = DIVISION;
    while from + DIVISION / 2 < bytes {
        match next_stream(&mut file, from).map_err(fault)? {
            Some(at) if begins_with_page(&mut file, at).map_err(fault)? => {
                starts.push(at);
                from = at + DIVISION;
            }
            Some(at) => from = at + 1,
            None => break,
        }
        // A file in which no stream begins with a page is not a multistream dump.
        if starts.len() == 1 && from > 4 * DIVISION {
            break;
        }
    }
    let ends = starts.iter().skip(1).copied().chain([bytes]);
    Ok(starts.iter().copied().zip(ends).map(|(start, end)| start..end).collect())
}

fn next_stream(file: &mut File, from: u64) -> std::io::Result<Option<u64>> {
    let mut buffer = vec![0; 1 << 20];
    let (mut at, mut kept) = (from, 0);
    file.seek(SeekFrom::Start(from))?;
    loop {
        let count = file.read(&mut buffer[kept..])?;
        if count == 0 {
            return Ok(None);
        }
        let filled = kept + count;
        if let Some(found) = memmem::find(&buffer[..filled], STREAM) {
            return Ok(Some(at + found as u64));
        }
        // The mark may lie across the end of what was read.
        kept = filled.min(STREAM.len() - 1);
        at += (filled - kept) as u64;
        buffer.copy_within(filled - kept..filled, 0);
    }
}

fn begins_with_page(file: &mut File, at: u64) -> std::io::Result<bool> {
    file.seek(SeekFrom::Start(at))?;
    let mut text = [0; 64];
    let read = bzip2::read::BzDecoder::new(file).read(&mut text);
    let text = &text[..read.unwrap_or(0)];
    Ok(text.trim_ascii_start().starts_with(b"<page>"))
}
