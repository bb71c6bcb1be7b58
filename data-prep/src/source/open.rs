//! A file as a stream of its decompressed text, in UTF-8 as far as the file says what it is.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Take};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use lambert_config::prep::{Invalid, Source};
use lambert_store::Store;

use super::SourceFile;
use super::transcode::Transcoder;
use crate::prep::PrepError;

const BUFFER: usize = 1 << 17;
/// Bytes of one request to a store.
const PART: u64 = 8 << 20;

/// A stream of decompressed bytes.
pub type Input = Box<dyn BufRead + Send>;

/// Opens `file`. What it is compressed with shows in its first bytes, not in its name; all members of a gzip or zstd
/// file and all streams of a bzip2 or xz file are read. `counter` grows with the stored bytes that were read.
pub fn open(file: &SourceFile, source: &Source, counter: Arc<AtomicU64>) -> Result<Input, PrepError> {
    let fault = |source| PrepError::Stream { file: file.name.clone(), at: 0, source };
    let mut stored = BufReader::with_capacity(BUFFER, Counted { inner: stored(file)?, counter });
    let magic = stored.fill_buf().map_err(fault)?;
    let mut input: Input = if magic.starts_with(b"BZh") {
        buffered(bzip2::bufread::MultiBzDecoder::new(stored))
    } else if magic.starts_with(&[0x1f, 0x8b]) {
        buffered(flate2::bufread::MultiGzDecoder::new(stored))
    } else if magic.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]) {
        buffered(zstd::stream::read::Decoder::with_buffer(stored).map_err(fault)?)
    } else if magic.starts_with(&[0xfd, b'7', b'z', b'X', b'Z', 0]) {
        buffered(lzma_rust2::XzReader::new(stored, true))
    } else {
        Box::new(stored)
    };
    let start = input.fill_buf().map_err(fault)?;
    let encoding = encoding(start, source, file)?;
    if start.starts_with(b"\xef\xbb\xbf") {
        input.consume(3);
    }
    Ok(match encoding {
        None => input,
        Some(encoding) => buffered(Transcoder::new(input, encoding, source.invalid == Invalid::Replace)),
    })
}

/// The encoding that the text has to be changed from; `None` if it is UTF-8.
fn encoding(
    start: &[u8],
    source: &Source,
    file: &SourceFile,
) -> Result<Option<&'static encoding_rs::Encoding>, PrepError> {
    let named = match &source.encoding {
        None => encoding_rs::UTF_8,
        Some(name) => encoding_rs::Encoding::for_label(name.as_bytes()).ok_or_else(|| PrepError::Setting {
            key: format!("source.{}.encoding", file.source),
            message: format!("{name:?} is no encoding; expected a name of the WHATWG, as utf-8 or windows-1252"),
        })?,
    };
    // A byte-order mark is right about itself, whatever the configuration says.
    let marked = match start {
        [0xff, 0xfe, ..] => Some(encoding_rs::UTF_16LE),
        [0xfe, 0xff, ..] => Some(encoding_rs::UTF_16BE),
        [0xef, 0xbb, 0xbf, ..] => Some(encoding_rs::UTF_8),
        _ => None,
    };
    Ok(Some(marked.unwrap_or(named)).filter(|encoding| *encoding != encoding_rs::UTF_8))
}

fn buffered(reader: impl Read + Send + 'static) -> Input {
    Box::new(BufReader::with_capacity(BUFFER, reader))
}

fn stored(file: &SourceFile) -> Result<Box<dyn Read + Send>, PrepError> {
    if file.is_remote() {
        let (folder, object) = file.name.rsplit_once('/').unwrap_or(("", &file.name));
        let store = Store::open(folder).map_err(|source| PrepError::Store { url: file.name.clone(), source })?;
        return Ok(Box::new(Remote { store, object: object.to_owned(), at: 0, bytes: file.bytes }));
    }
    let open = || -> std::io::Result<Take<File>> {
        let mut opened = File::open(&file.name)?;
        opened.seek(SeekFrom::Start(file.start))?;
        Ok(opened.take(file.bytes))
    };
    let fault = |source| PrepError::Input { path: file.name.clone(), operation: "open", source };
    open().map(|file| Box::new(file) as Box<dyn Read + Send>).map_err(fault)
}

struct Counted {
    inner: Box<dyn Read + Send>,
    counter: Arc<AtomicU64>,
}

impl Read for Counted {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let count = self.inner.read(buffer)?;
        self.counter.fetch_add(count as u64, Ordering::Relaxed);
        Ok(count)
    }
}

/// An object, part by part; the store retries each part by itself.
struct Remote {
    store: Store,
    object: String,
    at: u64,
    bytes: u64,
}

impl Read for Remote {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let end = (self.at + (buffer.len() as u64).min(PART)).min(self.bytes);
        let part = self.store.get_range(&self.object, self.at..end).map_err(std::io::Error::other)?;
        buffer[..part.len()].copy_from_slice(&part);
        self.at = end;
        Ok(part.len())
    }
}
