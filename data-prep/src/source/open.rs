//! A file as a stream of its decompressed text, in UTF-8 as far as the file says what it is.

use std::io::{BufRead, BufReader, Read};

use lambert_config::prep::{Damaged, Invalid, Source};

use super::SourceFile;
use super::blocks::Blocks;
use super::damage::Tolerant;
use super::stored::Stored;
use super::transcode::Transcoder;
use crate::prep::PrepError;

const BUFFER: usize = 1 << 17;

/// A stream of decompressed bytes.
pub type Input = Box<dyn BufRead + Send>;

/// The text in `stored`, which is `file`. What it is compressed with shows in its first bytes, not in its name; all
/// members of a gzip or zstd file and all streams of a bzip2 or xz file are read. Where damage is to be passed over it
/// is a [`super::damage::Gap`].
pub fn open(stored: Stored, file: &SourceFile, source: &Source) -> Result<Input, PrepError> {
    let fault = |source| PrepError::Stream { file: file.name.clone(), at: 0, source };
    let tolerant = source.damaged == Damaged::Skip;
    let mut stored = BufReader::with_capacity(BUFFER, stored);
    let magic = stored.fill_buf().map_err(fault)?;
    let mut input: Input = if magic.starts_with(b"BZh") {
        if tolerant { buffered(Blocks::new(stored)) } else { buffered(bzip2::bufread::MultiBzDecoder::new(stored)) }
    } else if magic.starts_with(&[0x1f, 0x8b]) {
        buffered(flate2::bufread::MultiGzDecoder::new(stored))
    } else if magic.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]) {
        buffered(zstd::stream::read::Decoder::with_buffer(stored).map_err(fault)?)
    } else if magic.starts_with(&[0xfd, b'7', b'z', b'X', b'Z', 0]) {
        buffered(lzma_rust2::XzReader::new(stored, true))
    } else {
        Box::new(stored)
    };
    let start = if tolerant {
        let mut tolerated = Tolerant::new(input);
        let start = tolerated.start().map(head);
        input = Box::new(tolerated);
        start
    } else {
        input.fill_buf().map(head)
    };
    let start = start.map_err(fault)?;
    let encoding = encoding(&start, source, file)?;
    if start.starts_with(b"\xef\xbb\xbf") {
        input.consume(3);
    }
    Ok(match encoding {
        None => input,
        Some(encoding) => buffered(Transcoder::new(input, encoding, source.invalid == Invalid::Replace)),
    })
}

/// As many bytes as a byte-order mark can have.
fn head(text: &[u8]) -> Vec<u8> {
    text[..text.len().min(3)].to_vec()
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
