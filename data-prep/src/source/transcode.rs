//! Conversion of other encodings to UTF-8.

use std::io::{BufRead, Error, ErrorKind, Read};

use encoding_rs::{Decoder, DecoderResult, Encoding};

use super::input::BoxedReader;

/// Returns the encoding of this name.
pub fn encoding_of(name: &str) -> Result<&'static Encoding, String> {
    let unknown = || format!("unknown encoding {name:?}, expected a WHATWG name such as utf-8 or windows-1252");
    Encoding::for_label(name.as_bytes()).ok_or_else(unknown)
}

/// Reads text in another encoding as UTF-8.
pub struct Transcoder {
    input: BoxedReader,
    decoder: Decoder,
    encoding: &'static Encoding,
    replaces_invalid: bool,
    offset: u64,
    text: Vec<u8>,
    consumed: usize,
    has_ended: bool,
}

impl Transcoder {
    /// Reads `input` as `encoding`. Invalid bytes become U+FFFD if `replaces_invalid`, otherwise an error with their
    /// offset.
    pub fn new(input: BoxedReader, encoding: &'static Encoding, replaces_invalid: bool) -> Self {
        let decoder = encoding.new_decoder_with_bom_removal();
        Self { input, decoder, encoding, replaces_invalid, offset: 0, text: Vec::new(), consumed: 0, has_ended: false }
    }

    fn fill(&mut self) -> std::io::Result<()> {
        self.text.clear();
        self.consumed = 0;
        while self.text.is_empty() && !self.has_ended {
            if let Err(error) = self.input.fill_buf() {
                // After a gap, decoding restarts at a character boundary.
                self.decoder = self.encoding.new_decoder_without_bom_handling();
                return Err(error);
            }
            let source = self.input.fill_buf()?;
            let last = source.is_empty();
            let mut buffer = vec![0; source.len() * 3 + 16];
            let (result, read, written) = self.decoder.decode_to_utf8_without_replacement(source, &mut buffer, last);
            self.input.consume(read);
            self.offset += read as u64;
            buffer.truncate(written);
            self.text = buffer;
            match result {
                DecoderResult::Malformed(..) if self.replaces_invalid => {
                    self.text.extend_from_slice("\u{fffd}".as_bytes());
                }
                DecoderResult::Malformed(..) => {
                    let message = format!("invalid {} before byte {}", self.encoding.name(), self.offset);
                    return Err(Error::new(ErrorKind::InvalidData, message));
                }
                DecoderResult::InputEmpty => self.has_ended = last,
                DecoderResult::OutputFull => {}
            }
        }
        Ok(())
    }
}

impl Read for Transcoder {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        if self.consumed == self.text.len() {
            self.fill()?;
        }
        let left = &self.text[self.consumed..];
        let count = left.len().min(buffer.len());
        buffer[..count].copy_from_slice(&left[..count]);
        self.consumed += count;
        Ok(count)
    }
}
