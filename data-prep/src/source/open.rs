//! Opens a file as decompressed UTF-8 text.

use std::io::{BufRead, BufReader, Error, ErrorKind, Read};

use lambert_config::prep::{Damaged, Invalid, Source};

use super::bzip2_blocks::Bzip2Blocks;
use super::damage::TolerantReader;
use super::file_type;
use super::input::BoxedReader;
use super::peek::PeekReader;
use super::stored::{StorageError, StoredReader};
use super::transcode::{Transcoder, encoding_of};
use super::{SourceError, SourceFile};

const BUFFER: usize = 1 << 17;
/// Largest zstd window, as a power of two.
const MAX_ZSTD_WINDOW_LOG: u32 = 31;

/// Opens the text of `file`. `stored` reads its bytes before decompression. With `refusal`, the format checks the first
/// bytes of the text. Damage that the source tolerates is reported as a [`super::damage::Gap`].
///
/// # Errors
/// The file cannot be read, is not text, or is refused by its format.
pub fn open(
    stored: StoredReader,
    file: &SourceFile,
    source: &Source,
    window: u64,
    refusal: &dyn Fn(&[u8]) -> Option<String>,
) -> Result<PeekReader, SourceError> {
    let read_error = |source| SourceError::Stream { file: file.name.clone(), offset: 0, source };
    let skips_damage = source.damaged == Damaged::Skip;
    let mut input = decompressed(stored, skips_damage, window).map_err(read_error)?;
    let start = if skips_damage {
        let mut reader = TolerantReader::new(input);
        let start = reader.peek().map(byte_order_mark);
        input = Box::new(reader);
        start
    } else {
        input.fill_buf().map(byte_order_mark)
    };
    let start = start.map_err(read_error)?;
    let encoding = encoding(&start, source, file)?;
    if start.starts_with(b"\xef\xbb\xbf") {
        input.consume(3);
    }
    let text = PeekReader::new(match encoding {
        None => input,
        Some(encoding) => buffered(Transcoder::new(input, encoding, source.invalid == Invalid::Replace)),
    });
    let head = text.head();
    match file_type::container(head).or_else(|| refusal(head)).or_else(|| file_type::binary(head)) {
        Some(found) => Err(SourceError::NotText { file: file.name.clone(), found }),
        None => Ok(text),
    }
}

/// Decompresses `stored`. The first bytes, not the file name, determine the compression. All members of gzip and zstd
/// files and all streams of bzip2 and xz files are read.
fn decompressed(stored: StoredReader, skips_damage: bool, window: u64) -> std::io::Result<BoxedReader> {
    let mut stored = BufReader::with_capacity(BUFFER, stored);
    Ok(match file_type::compression(stored.fill_buf()?) {
        Some("bzip2") if skips_damage => buffered(Bzip2Blocks::new(stored)),
        Some("bzip2") => buffered(bzip2::bufread::MultiBzDecoder::new(stored)),
        Some("gzip") => buffered(flate2::bufread::MultiGzDecoder::new(stored)),
        Some("zstd") => {
            let mut decoder = zstd::stream::read::Decoder::with_buffer(stored)?;
            decoder.window_log_max(window.ilog2().min(MAX_ZSTD_WINDOW_LOG))?;
            buffered(WindowLimited { inner: decoder, window })
        }
        Some(_) => {
            let kibibytes = u32::try_from(window >> 10).unwrap_or(u32::MAX);
            buffered(WindowLimited { inner: lzma_rust2::XzReader::new_mem_limit(stored, true, kibibytes), window })
        }
        None => Box::new(stored),
    })
}

/// Reader that replaces the memory-limit error of a decompressor by an error that says which settings to change. The
/// zstd and xz decompressors report the memory limit only as text in an error message.
struct WindowLimited<R> {
    inner: R,
    window: u64,
}

impl<R: Read> Read for WindowLimited<R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        self.inner.read(buffer).map_err(|error| {
            let message = error.to_string();
            if message.contains("mem_limit") || message.contains("too much memory") {
                let mebibytes = self.window >> 20;
                return Error::new(
                    ErrorKind::OutOfMemory,
                    StorageError(Error::other(format!(
                        "its compression window needs more than the {mebibytes} MiB available per thread; increase \
                         --memory or use fewer --threads"
                    ))),
                );
            }
            error
        })
    }
}

/// Returns the first three bytes, which may contain a byte-order mark.
fn byte_order_mark(text: &[u8]) -> Vec<u8> {
    text[..text.len().min(3)].to_vec()
}

/// Determines the encoding to convert from. Returns `None` for UTF-8.
fn encoding(
    start: &[u8],
    source: &Source,
    file: &SourceFile,
) -> Result<Option<&'static encoding_rs::Encoding>, SourceError> {
    let named = match &source.encoding {
        None => encoding_rs::UTF_8,
        Some(name) => encoding_of(name)
            .map_err(|message| SourceError::Setting { key: format!("source.{}.encoding", file.source), message })?,
    };
    // A byte-order mark takes precedence over the configuration.
    let marked = match start {
        [0xff, 0xfe, ..] => Some(encoding_rs::UTF_16LE),
        [0xfe, 0xff, ..] => Some(encoding_rs::UTF_16BE),
        [0xef, 0xbb, 0xbf, ..] => Some(encoding_rs::UTF_8),
        _ => None,
    };
    Ok(Some(marked.unwrap_or(named)).filter(|encoding| *encoding != encoding_rs::UTF_8))
}

fn buffered(reader: impl Read + Send + 'static) -> BoxedReader {
    Box::new(BufReader::with_capacity(BUFFER, reader))
}
