//! Segments of a text, each of which has the same ids in any context. data-prep/tests/tokenizer.rs and
//! data-prep/tests/tokenizer_files.rs test that the ids equal those of the whole text.

/// Effect of a byte on the current segment.
#[derive(Clone, Copy, PartialEq)]
enum Class {
    /// Part of the segment.
    Inside,
    /// Ends the segment. Belongs to no segment.
    Space,
    /// Ends the segment. Is a segment of its own.
    Mark,
    /// May be the first byte of a typographic mark.
    Lead,
}

const CLASSES: [Class; 256] = {
    let mut classes = [Class::Inside; 256];
    let mut byte = 0;
    while byte < 128 {
        if (byte as u8).is_ascii_punctuation() {
            classes[byte] = Class::Mark;
        }
        byte += 1;
    }
    classes[b' ' as usize] = Class::Space;
    classes[b'\n' as usize] = Class::Space;
    classes[b'\r' as usize] = Class::Space;
    classes[b'\t' as usize] = Class::Space;
    classes[0xe2] = Class::Lead;
    classes
};

/// Byte ranges of the segments of a text for WordPiece. They end at the spaces and marks that are cheap to detect.
///
/// Cleaning, decomposition and lowercasing work per character or within a run of combining marks. BERT splits at every
/// space and around every punctuation mark. Therefore text between two spaces or punctuation marks has the same ids in
/// any context.
pub struct BertSegments<'a> {
    text: &'a [u8],
    at: usize,
}

impl<'a> BertSegments<'a> {
    /// Segments of a text.
    pub const fn new(text: &'a str) -> Self {
        Self { text: text.as_bytes(), at: 0 }
    }

    fn class(&self) -> Option<Class> {
        self.text.get(self.at).map(|&byte| CLASSES[usize::from(byte)])
    }
}

impl Iterator for BertSegments<'_> {
    type Item = (usize, usize);

    #[inline]
    fn next(&mut self) -> Option<(usize, usize)> {
        while self.class() == Some(Class::Space) {
            self.at += 1;
        }
        let start = self.at;
        let mark = loop {
            match self.class() {
                None if start == self.at => return None,
                None | Some(Class::Space) => break 0,
                Some(Class::Mark) => break 1,
                Some(Class::Lead) if is_mark(&self.text[self.at..]) => break 3,
                Some(Class::Inside | Class::Lead) => self.at += 1,
            }
        };
        if start == self.at {
            self.at += mark;
        }
        Some((start, self.at))
    }
}

/// True if `bytes` start with a typographic mark common in text: – — ‘ ’ “ ” …
pub fn is_mark(bytes: &[u8]) -> bool {
    matches!(bytes, [0xe2, 0x80, 0x93 | 0x94 | 0x98 | 0x99 | 0x9c | 0x9d | 0xa6, ..])
}

/// Byte ranges of the segments of a text for Unigram. They end at the spaces between plain words, and the spaces belong
/// to no segment.
///
/// A Unigram tokenizer splits the text at each space and puts `▁` before each word. So a word has the same ids in any
/// context, if the normalization does not act across the space: a combining mark joins the space before it, another
/// kind of space is a space only after the normalization, and repeated spaces may become one. At these places the
/// segment goes on.
pub struct SpaceSegments<'a> {
    text: &'a [u8],
    at: usize,
}

/// Characters that can stand next to a space that separates two segments of [`SpaceSegments`].
pub fn plain_characters() -> impl Iterator<Item = char> {
    ('!'..='~').chain('\u{c0}'..='\u{ff}').chain("–—‘’“”…".chars())
}

impl<'a> SpaceSegments<'a> {
    /// Segments of a text.
    pub const fn new(text: &'a str) -> Self {
        Self { text: text.as_bytes(), at: 0 }
    }

    /// True if the space at `at` separates two plain words.
    fn separates(&self, at: usize) -> bool {
        let is_plain = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_graphic);
        let is_letter = |byte: Option<&u8>| byte == Some(&0xc3);
        let (before, after) = (&self.text[..at], &self.text[at + 1..]);
        let ends = is_plain(before.last())
            || is_letter(before.len().checked_sub(2).and_then(|index| before.get(index)))
            || before.len().checked_sub(3).is_some_and(|index| is_mark(&before[index..]));
        ends && (is_plain(after.first()) || is_letter(after.first()) || is_mark(after))
    }
}

impl Iterator for SpaceSegments<'_> {
    type Item = (usize, usize);

    #[inline]
    fn next(&mut self) -> Option<(usize, usize)> {
        let start = self.at;
        if start == self.text.len() {
            return None;
        }
        loop {
            match self.text[self.at..].iter().position(|byte| *byte == b' ') {
                None => {
                    self.at = self.text.len();
                    return Some((start, self.at));
                }
                Some(length) => {
                    let space = self.at + length;
                    self.at = space + 1;
                    if self.separates(space) {
                        return Some((start, space));
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(text: &str, segments: impl Iterator<Item = (usize, usize)>) -> Vec<&str> {
        segments.map(|(start, end)| &text[start..end]).collect()
    }

    #[test]
    fn text_is_split_at_spaces_and_marks() {
        let text = "“Don’t—é, x\u{a0}y…\t z”";
        assert_eq!(
            parts(text, BertSegments::new(text)),
            ["“", "Don", "’", "t", "—", "é", ",", "x\u{a0}y", "…", "z", "”"]
        );
    }

    #[test]
    fn words_are_split_at_single_spaces_between_plain_words() {
        for (text, expected) in [
            ("a bc, (d) é à …", vec!["a", "bc,", "(d)", "é", "à", "…"]),
            ("a  b  c d", vec!["a  b  c", "d"]),
            (" a b ", vec![" a", "b "]),
            ("a \u{301}b c", vec!["a \u{301}b", "c"]),
            ("a\u{a0} b ▁c d\t e", vec!["a\u{a0} b ▁c", "d\t e"]),
            ("", vec![]),
        ] {
            assert_eq!(parts(text, SpaceSegments::new(text)), expected, "{text:?}");
        }
    }

    #[test]
    fn spaces_next_to_plain_characters_separate_words() {
        let separates = |text: String| SpaceSegments::new(&text).count() == 2;
        let found = |text: fn(char) -> String| ('\0'..='\u{ffff}').filter(move |c| separates(text(*c)));
        assert!(found(|c| format!("{c} x")).eq(plain_characters()));
        assert!(found(|c| format!("x {c}")).eq(plain_characters()));
    }
}
