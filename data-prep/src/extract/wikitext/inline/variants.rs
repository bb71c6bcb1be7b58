//! Markup of language variants: `-{zh-hans:计算机; zh-hant:電腦}-`.

use super::Renderer;

/// Longest markup of variants, bytes. A longer one is plain text.
const MAX_MARKUP_BYTES: usize = 2000;

impl Renderer<'_> {
    /// Renders the first of the variants in the markup whose `{` is at `at`. Rules that display nothing are removed. Returns the end of
    /// the markup, or `None` if there is none.
    pub(super) fn variants(&mut self, at: usize) -> Option<usize> {
        let start =
            at.checked_sub(1).filter(|start| *start >= self.copied && self.source.as_bytes()[*start] == b'-')?;
        let rest = &self.source.as_bytes()[at + 1..];
        let length = memchr::memmem::find(&rest[..rest.len().min(MAX_MARKUP_BYTES)], b"}-")?;
        let content = &self.source[at + 1..at + 1 + length];
        self.copy_until(start);
        super::render(displayed(content), self.output, self.depth + 1, self.site);
        Some(at + 1 + length + 2)
    }
}

/// Returns the displayed text of the content of the markup.
fn displayed(content: &str) -> &str {
    let (flags, text) = match content.split_once('|') {
        Some((flags, text)) if flags.len() <= 40 && flags.bytes().all(is_of_flags) => (flags, text),
        _ => ("", content),
    };
    // A hidden rule, a title, and the removal of a rule.
    if flags.split(';').any(|flag| matches!(flag.trim(), "H" | "T" | "-")) {
        return "";
    }
    match text.split_once(':') {
        Some((code, variants)) if is_code(code.trim()) => variants.split(';').next().unwrap_or("").trim(),
        _ => text,
    }
}

fn is_of_flags(byte: u8) -> bool {
    byte.is_ascii_alphabetic() || matches!(byte, b'-' | b';' | b' ')
}

/// True for the code of a language or a variant, such as `zh-hans` and `sr-el`.
fn is_code(code: &str) -> bool {
    (2..=12).contains(&code.len()) && code.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_variant_is_displayed() {
        for (content, text) in [
            ("zh-hans:联邦州; zh-hant:邦", "联邦州"),
            ("A|zh-cn:互联网;zh-tw:網際網路", "互联网"),
            ("Abgeordnetenhaus", "Abgeordnetenhaus"),
            ("R|km", "km"),
            ("H|zh-cn:a;zh-tw:b", ""),
            ("T|zh:a", ""),
            ("-|zh:a", ""),
            ("zh-hans;zh-hant|text", "text"),
            ("12:30", "12:30"),
        ] {
            assert_eq!(displayed(content), text, "{content}");
        }
    }
}
