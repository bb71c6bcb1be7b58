//! Text that cannot control a terminal. Names, log lines and samples come from stored files, which others may have written.

use std::borrow::Cow;
use std::io::{self, Write};

/// Replaces control characters other than newline and tab.
pub fn printable(text: &str) -> Cow<'_, str> {
    let is_unsafe = |c: char| c.is_control() && c != '\n' && c != '\t';
    if text.contains(is_unsafe) { text.replace(is_unsafe, "\u{fffd}").into() } else { text.into() }
}

/// Writer of [`printable`] text. Each call writes whole characters.
pub struct PrintableWriter<'a>(pub &'a mut (dyn Write + Send));

impl Write for PrintableWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write_all(printable(&String::from_utf8_lossy(bytes)).as_bytes())?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_replaced() {
        let text = "a\tb\n\u{1b}]0;title\u{7}\r\u{7f}\u{9b}31m ä\u{a0}";
        let expected = "a\tb\n\u{fffd}]0;title\u{fffd}\u{fffd}\u{fffd}\u{fffd}31m ä\u{a0}";
        assert_eq!(printable(text), expected);
        assert!(matches!(printable("plain\n"), Cow::Borrowed("plain\n")));
        let mut written = Vec::new();
        // A byte that is not UTF-8 is a control character for terminals of other encodings.
        let bytes = [text.as_bytes(), b"\x9b"].concat();
        PrintableWriter(&mut written).write_all(&bytes).unwrap();
        assert_eq!(String::from_utf8(written).unwrap(), format!("{expected}\u{fffd}"));
    }
}
