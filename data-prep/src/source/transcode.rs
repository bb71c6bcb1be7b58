//! Text in another encoding, read as UTF-8.

use std::io::{BufRead, Error, ErrorKind, Read};

use encoding_rs::{Decoder, DecoderResult, Encoding};

use super::input::Input;

/// See the module.
pub struct Transcoder {
    input: Input,
    decoder: Decoder,
    encoding: &'static Encoding,
    replace: bool,
    at: u64,
    text: Vec<u8>,
    taken: usize,
    ended: bool,
}

impl Transcoder {
    /// Reads `input` as `encoding`; what is invalid is replaced by U+FFFD or is an error that says where it stands.
    pub fn new(input: Input, encoding: &'static Encoding, replace: bool) -> Self {
        let decoder = encoding.new_decoder_with_bom_removal();
        Self { input, decoder, encoding, replace, at: 0, text: Vec::new(), taken: 0, ended: false }
    }

    fn fill(&mut self) -> std::io::Result<()> {
        self.text.clear();
        self.taken = 0;
        while self.text.is_empty() && !self.ended {
            if let Err(error) = self.input.fill_buf() {
                // Behind a gap a character begins anew.
                self.decoder = self.encoding.new_decoder_without_bom_handling();
                return Err(error);
            }
            let source = self.input.fill_buf()?;
            let last = source.is_empty();
            let mut buffer = vec![0; source.len() * 3 + 16];
            let (result, read, written) = self.decoder.decode_to_utf8_without_replacement(source, &mut buffer, last);
            self.input.consume(read);
            self.at += read as u64;
            buffer.truncate(written);
            self.text = buffer;
            match result {
                DecoderResult::Malformed(..) if self.replace => {
                    self.text.extend_from_slice("\u{fffd}".as_bytes());
                }
                DecoderResult::Malformed(..) => {
                    let message = format!("not {} before byte {}", self.encoding.name(), self.at);
                    return Err(Error::new(ErrorKind::InvalidData, message));
                }
                DecoderResult::InputEmpty => self.ended = last,
                DecoderResult::OutputFull => {}
            }
        }
        Ok(())
    }
}

impl Read for Transcoder {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        if self.taken == self.text.len() {
            self.fill()?;
        }
        let left = &self.text[self.taken..];
        let count = left.len().min(buffer.len());
        buffer[..count].copy_from_slice(&left[..count]);
        self.taken += count;
        Ok(count)
    }
}
