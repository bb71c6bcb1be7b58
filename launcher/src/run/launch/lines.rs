//! Lines of an output stream, in pieces of limited length.

use std::io::{BufRead, BufReader, Read};

/// Maximum length of a piece, bytes. A program may print any number of bytes without a newline.
const MAX_LINE_BYTES: usize = 64 << 10;

/// A piece of a line, without the newline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Piece<'a> {
    /// A line, or the start of a line that is longer than a piece.
    Start(&'a str),
    /// The next piece of the same line.
    Continuation(&'a str),
}

/// Passes the lines of `output` to `take` until the stream ends. Splits no character.
pub fn each_piece(output: impl Read, mut take: impl FnMut(Piece<'_>)) {
    let mut output = BufReader::new(output);
    let (mut bytes, mut is_start) = (Vec::new(), true);
    while fill(&mut output, &mut bytes) {
        let is_end = bytes.len() < MAX_LINE_BYTES || bytes.ends_with(b"\n");
        // The last character may be incomplete. The rest of it comes with the next piece.
        let last = if is_end { None } else { bytes.utf8_chunks().last() };
        let whole = bytes.len() - last.map_or(0, |chunk| chunk.invalid().len());
        let text = String::from_utf8_lossy(&bytes[..whole]);
        let text = if is_end { text.trim_end() } else { &text };
        match is_start {
            true => take(Piece::Start(text)),
            false if text.is_empty() => {}
            false => take(Piece::Continuation(text)),
        }
        is_start = is_end;
        bytes.drain(..whole);
    }
}

/// Reads to the end of the line or until `bytes` has the length of a piece. Returns false at the end of the stream.
fn fill(output: &mut impl BufRead, bytes: &mut Vec<u8>) -> bool {
    let room = MAX_LINE_BYTES.saturating_sub(bytes.len()) as u64;
    output.take(room).read_until(b'\n', bytes).is_ok_and(|read| read > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the pieces, each with true if it is a start.
    fn pieces(output: &[u8]) -> Vec<(bool, String)> {
        let mut pieces = Vec::new();
        each_piece(output, |piece| {
            pieces.push(match piece {
                Piece::Start(text) => (true, text.to_owned()),
                Piece::Continuation(text) => (false, text.to_owned()),
            });
        });
        pieces
    }

    #[test]
    fn lines_are_passed_on_whole() {
        let expected = ["a b", "", "c"].map(|text| (true, text.to_owned()));
        assert_eq!(pieces(b"a b \r\n\nc"), expected);
        assert_eq!(pieces(b""), []);
        assert_eq!(pieces(b"a\xff\n"), [(true, "a\u{fffd}".to_owned())]);
    }

    #[test]
    fn long_lines_are_split() {
        for length in
            [MAX_LINE_BYTES - 1, MAX_LINE_BYTES, MAX_LINE_BYTES + 1, 3 * MAX_LINE_BYTES, 3 * MAX_LINE_BYTES + 5]
        {
            let line = "x".repeat(length);
            let found = pieces(format!("{line}\nnext\n").as_bytes());
            let (next, found) = found.split_last().unwrap();
            assert_eq!(*next, (true, "next".to_owned()), "{length}");
            assert!(found.iter().all(|(_, text)| text.len() <= MAX_LINE_BYTES), "{length}");
            let starts: Vec<bool> = found.iter().map(|(is_start, _)| *is_start).collect();
            assert!(starts[0] && !starts[1..].contains(&true), "{length}: {starts:?}");
            assert_eq!(found.iter().map(|(_, text)| text.as_str()).collect::<String>(), line);
        }
    }

    #[test]
    fn characters_are_not_split() {
        // Three bytes a character, so that the limit is within a character.
        let line = "\u{20ac}".repeat(MAX_LINE_BYTES);
        let found = pieces(line.as_bytes());
        assert_eq!(found.len(), 4);
        assert_eq!(found.into_iter().map(|(_, text)| text).collect::<String>(), line);
        // Invalid bytes end too.
        let invalid = pieces(&vec![0xff; MAX_LINE_BYTES + 9]);
        assert_eq!(invalid.iter().map(|(_, text)| text.chars().count()).sum::<usize>(), MAX_LINE_BYTES + 9);
    }
}
