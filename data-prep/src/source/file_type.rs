//! Detection of archives, compressed files and binary files by their first bytes.

/// Size of a block of a tar archive, bytes. `TAR_CHECKSUM` is the range of the checksum in the first block.
const TAR_BLOCK: usize = 512;
const TAR_CHECKSUM: std::ops::Range<usize> = 148..156;

/// Describes the type of an archive or document whose first bytes are `head`. In the message, the description follows
/// "it looks like".
pub fn container(head: &[u8]) -> Option<String> {
    if is_tar(head) {
        return Some("a tar archive; unpack it and use the folder of its files".to_owned());
    }
    if head.starts_with(b"%PDF-") {
        return Some("a PDF document".to_owned());
    }
    let packed = compression(head)?;
    Some(format!("a file that was compressed twice (inner compression: {packed})"))
}

/// Returns the name of the compression of a file whose first bytes are `head`, or `None` if it is not supported.
pub fn compression(head: &[u8]) -> Option<&'static str> {
    match head {
        [b'B', b'Z', b'h', b'1'..=b'9', ..] => Some("bzip2"),
        [0x1f, 0x8b, ..] => Some("gzip"),
        // The second pattern is a skippable frame, which pzstd writes first.
        [0x28, 0xb5, 0x2f, 0xfd, ..] | [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => Some("zstd"),
        [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => Some("xz"),
        _ => None,
    }
}

/// True if the first block has a valid tar checksum. All tar variants have this checksum.
fn is_tar(head: &[u8]) -> bool {
    let Some(block) = head.get(..TAR_BLOCK) else { return false };
    let stored = std::str::from_utf8(&block[TAR_CHECKSUM]).unwrap_or("").trim_matches(['\0', ' ']);
    let sum: u32 = block.iter().map(|&byte| u32::from(byte)).sum();
    let field: u32 = block[TAR_CHECKSUM].iter().map(|&byte| u32::from(byte)).sum();
    block[0] != 0 && u32::from_str_radix(stored, 8) == Ok(sum - field + TAR_CHECKSUM.len() as u32 * u32::from(b' '))
}

/// Describes the type of a binary file (image, program, other archive) whose first bytes are `head`. In the message,
/// the description follows "it looks like". Returns `None` for text, even with a few control characters.
pub fn binary(head: &[u8]) -> Option<String> {
    let is_control = |byte: &&u8| **byte < b' ' && !b"\t\n\x0b\x0c\r\x1b".contains(byte);
    let controls = head.iter().filter(is_control).count();
    if controls == 0 {
        return None;
    }
    // `head` may end in the middle of a multi-byte character.
    let valid = std::str::from_utf8(head).map_or_else(|error| error.error_len().is_none(), |_| true);
    if controls * 3 < head.len() && (valid || controls * 20 < head.len()) {
        return None;
    }
    if head.starts_with(b"\xff\xfe\0\0") || head.starts_with(b"\0\0\xfe\xff") {
        return Some("UTF-32; convert it to UTF-8 (`iconv -f utf-32 -t utf-8`)".to_owned());
    }
    let nul = |from: usize| head.iter().skip(from).step_by(2).filter(|&&byte| byte == 0).count();
    if nul(0).max(nul(1)) * 3 > head.len() && nul(0).min(nul(1)) * 20 < head.len() {
        let order = if nul(1) > nul(0) { "utf-16le" } else { "utf-16be" };
        return Some(format!("UTF-16 without a byte-order mark; set encoding = \"{order}\""));
    }
    let kind = infer::get(head).map(|kind| format!(" ({})", kind.mime_type()));
    Some(format!("a binary file{}", kind.unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_never_taken_for_binary() {
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
            assert_eq!(container(text).or_else(|| binary(text)), None, "{text:?}");
        }
    }
}
