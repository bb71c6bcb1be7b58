//! What a file holds, by its first bytes: which format reads it, or why none does.

use std::io::{BufRead, Read};
use std::sync::Arc;

use lambert_config::prep::{Format, Source};
use memchr::memmem;

use super::damage::Gap;
use super::{SourceError, SourceFile, Stored, WINDOW, open};
use crate::extract::wikitext::Site;

const PARQUET: &[u8] = b"PAR1";
/// Bytes in which the `<siteinfo>` of a dump ends.
const LONGEST_HEAD: usize = 1 << 18;
/// A tar archive's blocks, and where the checksum of the first one stands.
const TAR_BLOCK: usize = 512;
const TAR_CHECKSUM: std::ops::Range<usize> = 148..156;

/// What format reads `file`.
pub fn format(file: &SourceFile, source: &Source) -> Result<Format, SourceError> {
    let mut stored = Stored::open(file, Arc::default(), 0)?;
    let mut start = Vec::new();
    let fault = |source| SourceError::Input { path: file.name.clone(), operation: "read", source };
    stored.by_ref().take(PARQUET.len() as u64).read_to_end(&mut start).map_err(fault)?;
    if start == PARQUET {
        return Ok(Format::Parquet);
    }
    let text = open::open(Stored::open(file, Arc::default(), 0)?, file, source, WINDOW)?;
    let format = of(text.head());
    let unread = text.head().is_empty();
    match text.into_error().filter(|error| unread && Gap::of(error).is_none()) {
        Some(source) => Err(SourceError::Stream { file: file.name.clone(), at: 0, source }),
        None => Ok(format),
    }
}

/// The wiki whose dump `file` is.
pub fn site(file: &SourceFile, source: &Source) -> Result<Site, SourceError> {
    let mut text = open::open(Stored::open(file, Arc::default(), 0)?, file, source, WINDOW)?;
    let mut head = Vec::new();
    while head.len() < LONGEST_HEAD && memmem::find(&head, b"</siteinfo>").is_none() {
        match text.fill_buf() {
            Ok([]) => break,
            Ok(available) => {
                let count = available.len();
                head.extend_from_slice(available);
                text.consume(count);
            }
            // Whoever reads the pages meets it again.
            Err(_) => break,
        }
    }
    let end = memmem::find(&head, b"</siteinfo>").unwrap_or(0);
    Ok(Site::new(&String::from_utf8_lossy(&head[..end]), &file.name))
}

/// The format of a text that begins so.
fn of(head: &[u8]) -> Format {
    if is_dump(head) {
        Format::Wikipedia
    } else if is_json_lines(head) {
        Format::Jsonl
    } else {
        Format::Text
    }
}

fn is_dump(head: &[u8]) -> bool {
    head.trim_ascii_start().starts_with(b"<") && memmem::find(head, b"<mediawiki").is_some()
}

/// Whether the first line is a JSON object, or as much of one as can be seen.
fn is_json_lines(head: &[u8]) -> bool {
    let line = head.trim_ascii_start();
    let end = memchr::memchr(b'\n', line);
    match serde_json::from_slice::<serde_json::Map<_, _>>(&line[..end.unwrap_or(line.len())]) {
        Ok(_) => true,
        // Cut where the head ends; that it began as an object with a name is enough.
        Err(error) => end.is_none() && error.is_eof() && memmem::find(line, b"\":").is_some(),
    }
}

/// Why what begins so cannot be read as text of this format, as words that go on with "it looks like"; `None` if it can.
pub fn refusal(head: &[u8], format: Format) -> Option<String> {
    if is_tar(head) {
        return Some("a tar archive; unpack it and name the folder of its files".to_owned());
    }
    if head.starts_with(b"%PDF-") {
        return Some("a PDF document".to_owned());
    }
    if let Some(packed) = compression(head) {
        return Some(format!("a file that was compressed twice, the second time with {packed}"));
    }
    if head.starts_with(PARQUET) {
        return Some("a Parquet file; format = \"parquet\" reads it".to_owned());
    }
    if matches!(format, Format::Text | Format::Sentences) && is_dump(head) {
        return Some("a MediaWiki dump; format = \"wikipedia\" reads it".to_owned());
    }
    binary(head)
}

/// What compressed the bytes that begin so, as far as we can undo it.
pub fn compression(head: &[u8]) -> Option<&'static str> {
    match head {
        [b'B', b'Z', b'h', b'1'..=b'9', ..] => Some("bzip2"),
        [0x1f, 0x8b, ..] => Some("gzip"),
        // The second is a frame to be skipped, which pzstd and others begin with.
        [0x28, 0xb5, 0x2f, 0xfd, ..] | [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => Some("zstd"),
        [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => Some("xz"),
        _ => None,
    }
}

/// Whether the first block's checksum is right, which all kinds of tar have.
fn is_tar(head: &[u8]) -> bool {
    let Some(block) = head.get(..TAR_BLOCK) else { return false };
    let stored = std::str::from_utf8(&block[TAR_CHECKSUM]).unwrap_or("").trim_matches(['\0', ' ']);
    let sum: u32 = block.iter().map(|&byte| u32::from(byte)).sum();
    let field: u32 = block[TAR_CHECKSUM].iter().map(|&byte| u32::from(byte)).sum();
    block[0] != 0 && u32::from_str_radix(stored, 8) == Ok(sum - field + TAR_CHECKSUM.len() as u32 * u32::from(b' '))
}

/// Bytes that are no text: pictures, programs, other archives. Text with a few odd bytes in it is text.
fn binary(head: &[u8]) -> Option<String> {
    let is_control = |byte: &&u8| **byte < b' ' && !b"\t\n\x0b\x0c\r\x1b".contains(byte);
    let controls = head.iter().filter(is_control).count();
    if controls == 0 {
        return None;
    }
    // A character may be cut at the end of the head.
    let valid = std::str::from_utf8(head).map_or_else(|error| error.error_len().is_none(), |_| true);
    if controls * 3 < head.len() && (valid || controls * 20 < head.len()) {
        return None;
    }
    let nul = |from: usize| head.iter().skip(from).step_by(2).filter(|&&byte| byte == 0).count();
    if nul(0).max(nul(1)) * 3 > head.len() && nul(0).min(nul(1)) * 20 < head.len() {
        let order = if nul(1) > nul(0) { "utf-16le" } else { "utf-16be" };
        return Some(format!("UTF-16 without a byte-order mark; encoding = \"{order}\" reads it"));
    }
    let kind = infer::get(head).map(|kind| format!(" ({})", kind.mime_type()));
    Some(format!("a binary file{}", kind.unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_stays_text_whatever_it_begins_with() {
        let texts: [&[u8]; 9] = [
            b"BM is no picture.",
            b"MZ and PK\x03 are letters.",
            b"The boat\0 is wet.\n\n\0\0\n",
            b"BZh0 is no stream.",
            b"{{Infobox}} is a template.",
            b"{ braces } are no JSON\n",
            "水滸傳 及 ümläut".as_bytes(),
            b"caf\xe9 au lait",
            b"",
        ];
        for text in texts {
            assert_eq!((refusal(text, Format::Text), of(text)), (None, Format::Text), "{text:?}");
        }
    }

    #[test]
    fn formats_are_recognized() {
        assert_eq!(of(b"\n<?xml version='1.0'?>\n<mediawiki xmlns='x'>"), Format::Wikipedia);
        assert_eq!(of(b"{\"text\": \"a\"}\n{\"text\": 3}\n"), Format::Jsonl);
        assert_eq!(of(b"{\"text\": \"a very long line that is cut"), Format::Jsonl);
        assert_eq!(of(b"About <mediawiki> elements"), Format::Text);
    }
}
