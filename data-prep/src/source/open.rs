//! A file as a stream of its decompressed text, in UTF-8 as far as the file says what it is.

use std::io::{BufRead, BufReader, Error, ErrorKind, Read};

use lambert_config::prep::{Damaged, Invalid, Source};

use super::blocks::Blocks;
use super::damage::Tolerant;
use super::file_type;
use super::input::Input;
use super::peek::Peeked;
use super::stored::{StorageError, Stored};
use super::transcode::Transcoder;
use super::{SourceError, SourceFile};

const BUFFER: usize = 1 << 17;
/// The longest window of zstd, as a power of two.
const LONGEST_WINDOW: u32 = 31;

/// The text in `stored`, which is `file`, or a refusal if it is none: `refusal` gives the reason of the format that reads
/// it. Where damage is to be passed over it is a [`super::damage::Gap`].
pub fn open(
    stored: Stored,
    file: &SourceFile,
    source: &Source,
    window: u64,
    refusal: &dyn Fn(&[u8]) -> Option<String>,
) -> Result<Peeked, SourceError> {
    let fault = |source| SourceError::Stream { file: file.name.clone(), at: 0, source };
    let tolerant = source.damaged == Damaged::Skip;
    let mut input = decompressed(stored, tolerant, window).map_err(fault)?;
    let start = if tolerant {
        let mut tolerated = Tolerant::new(input);
        let start = tolerated.start().map(mark);
        input = Box::new(tolerated);
        start
    } else {
        input.fill_buf().map(mark)
    };
    let start = start.map_err(fault)?;
    let encoding = encoding(&start, source, file)?;
    if start.starts_with(b"\xef\xbb\xbf") {
        input.consume(3);
    }
    let text = Peeked::new(match encoding {
        None => input,
        Some(encoding) => buffered(Transcoder::new(input, encoding, source.invalid == Invalid::Replace)),
    });
    let head = text.head();
    match file_type::container(head).or_else(|| refusal(head)).or_else(|| file_type::binary(head)) {
        Some(found) => Err(SourceError::NotText { file: file.name.clone(), found }),
        None => Ok(text),
    }
}

/// What `stored` is compressed with shows in its first bytes, not in its name; all members of a gzip or zstd file and
/// all streams of a bzip2 or xz file are read.
fn decompressed(stored: Stored, tolerant: bool, window: u64) -> std::io::Result<Input> {
    let mut stored = BufReader::with_capacity(BUFFER, stored);
    Ok(match file_type::compression(stored.fill_buf()?) {
        Some("bzip2") if tolerant => buffered(Blocks::new(stored)),
        Some("bzip2") => buffered(bzip2::bufread::MultiBzDecoder::new(stored)),
        Some("gzip") => buffered(flate2::bufread::MultiGzDecoder::new(stored)),
        Some("zstd") => {
            let mut decoder = zstd::stream::read::Decoder::with_buffer(stored)?;
            decoder.window_log_max(window.ilog2().min(LONGEST_WINDOW))?;
            buffered(Limited { inner: decoder, window })
        }
        Some(_) => {
            let kibibytes = u32::try_from(window >> 10).unwrap_or(u32::MAX);
            buffered(Limited { inner: lzma_rust2::XzReader::new_mem_limit(stored, true, kibibytes), window })
        }
        None => Box::new(stored),
    })
}

/// A decompressor that refuses what needs more memory than it may have; both libraries say so in words of their own.
struct Limited<R> {
    inner: R,
    window: u64,
}

impl<R: Read> Read for Limited<R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        self.inner.read(buffer).map_err(|error| {
            let said = error.to_string();
            if said.contains("mem_limit") || said.contains("too much memory") {
                let mebibytes = self.window >> 20;
                return Error::new(
                    ErrorKind::OutOfMemory,
                    StorageError(Error::other(format!(
                        "it was compressed with a window that needs more than the {mebibytes} MiB which --memory leaves \
                         for it here; more memory or fewer --threads read it"
                    ))),
                );
            }
            error
        })
    }
}

/// As many bytes as a byte-order mark can have.
fn mark(text: &[u8]) -> Vec<u8> {
    text[..text.len().min(3)].to_vec()
}

/// The encoding that the text has to be changed from; `None` if it is UTF-8.
fn encoding(
    start: &[u8],
    source: &Source,
    file: &SourceFile,
) -> Result<Option<&'static encoding_rs::Encoding>, SourceError> {
    let named = match &source.encoding {
        None => encoding_rs::UTF_8,
        Some(name) => encoding_rs::Encoding::for_label(name.as_bytes()).ok_or_else(|| SourceError::Setting {
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
