//! Removal of markup that may span lines.

mod links;
mod templates;
mod variants;

use super::super::entities;
use super::{WikiSite, tags};

/// Largest nesting depth of markup. Deeper markup is dropped.
const MAX_DEPTH: usize = 24;

/// Appends the text of `source` to `output`. Inline markup is rendered or removed.
pub fn render(source: &str, output: &mut String, depth: usize, site: &WikiSite) {
    if depth <= MAX_DEPTH {
        Renderer { source, output, copied: 0, depth, site, unclosed: Unclosed::default() }.run();
    }
}

/// Renders one text: an article, or the contents of a template or a link.
struct Renderer<'a> {
    source: &'a str,
    output: &'a mut String,
    /// End of the last markup, as a byte offset in `source`. The text after this offset is not in `output` yet.
    copied: usize,
    /// Number of templates and links that enclose the text.
    depth: usize,
    site: &'a WikiSite,
    unclosed: Unclosed,
}

impl Renderer<'_> {
    fn run(mut self) {
        let mut at = 0;
        while let Some(found) = next_special(self.source.as_bytes(), at) {
            match self.markup(found) {
                Some(end) => (at, self.copied) = (end, end),
                None => at = found + 1,
            }
        }
        self.output.push_str(&self.source[self.copied..]);
    }

    /// Handles the special character at `at`. Returns the end of the markup, or `None` if the character is plain text.
    fn markup(&mut self, at: usize) -> Option<usize> {
        match self.source.as_bytes()[at] {
            b'<' => tags::tag(self.source, at, self.output, self.copied, &mut self.unclosed.tags),
            b'{' => self.brace(at),
            b'[' => self.link(at),
            b'\'' => self.quotes(at),
            b'&' => self.reference(at),
            b'_' => self.magic_word(at),
            _ => self.closing(at),
        }
    }

    /// Appends the text before the markup at `at`.
    fn copy_until(&mut self, at: usize) {
        self.output.push_str(&self.source[self.copied..at]);
    }

    fn brace(&mut self, at: usize) -> Option<usize> {
        let source = self.source;
        let rest = &source[at..];
        if rest.starts_with("{|") && starts_line(source, at) {
            self.copy_until(at);
            return Some(match table_end(source, at, &mut self.unclosed.tables) {
                Some(end) => end,
                None => line_end(source, at),
            });
        }
        if !rest.starts_with("{{") {
            return self.variants(at);
        }
        self.copy_until(at);
        match template_end(source, at, &mut self.unclosed.templates) {
            Some(end) => {
                templates::render(&source[at + 2..end - 2], self.output, self.depth + 1, self.site);
                Some(end)
            }
            None => Some(line_end(source, at)),
        }
    }

    /// Removes the apostrophes that mark italics (two), bold (three) or both (five).
    fn quotes(&mut self, at: usize) -> Option<usize> {
        let count = self.source.as_bytes()[at..].iter().take_while(|&&byte| byte == b'\'').count();
        if count < 2 {
            return None;
        }
        self.copy_until(at);
        // Four apostrophes are a literal apostrophe and three apostrophes for bold.
        if count == 4 {
            self.output.push('\'');
        }
        Some(at + count)
    }

    fn reference(&mut self, at: usize) -> Option<usize> {
        let (character, length) = entities::reference(&self.source[at..])?;
        self.copy_until(at);
        self.output.push(character);
        Some(at + length)
    }

    /// Removes magic words such as `__NOTOC__`.
    fn magic_word(&mut self, at: usize) -> Option<usize> {
        let name = self.source[at..].strip_prefix("__")?;
        let length = name.bytes().take_while(u8::is_ascii_uppercase).count();
        if length < 3 || !name[length..].starts_with("__") {
            return None;
        }
        self.copy_until(at);
        Some(at + length + 4)
    }

    /// Removes a closing mark that has no opening mark.
    fn closing(&mut self, at: usize) -> Option<usize> {
        let rest = &self.source[at..];
        if !rest.starts_with("}}") && !rest.starts_with("]]") {
            return None;
        }
        self.copy_until(at);
        Some(at + 2)
    }
}

/// Kinds of markup for which the rest of the text has no closing mark.
#[derive(Default)]
struct Unclosed {
    templates: bool,
    tables: bool,
    links: bool,
    /// Offset before which no external link is closed.
    external: usize,
    tags: Vec<&'static str>,
}

fn next_special(bytes: &[u8], from: usize) -> Option<usize> {
    const SPECIAL: [bool; 256] = {
        let mut table = [false; 256];
        let characters = b"<{['&_}]";
        let mut index = 0;
        while index < characters.len() {
            table[characters[index] as usize] = true;
            index += 1;
        }
        table
    };
    bytes[from..].iter().position(|&byte| SPECIAL[usize::from(byte)]).map(|at| from + at)
}

/// End of the `}}` that closes the `{{` at `at`.
fn template_end(source: &str, at: usize, unclosed: &mut bool) -> Option<usize> {
    if *unclosed {
        return None;
    }
    let bytes = source.as_bytes();
    let (mut depth, mut from) = (0_usize, at);
    while let Some(found) = memchr::memchr2(b'{', b'}', &bytes[from..]) {
        let here = from + found;
        match (bytes[here], bytes.get(here + 1)) {
            (b'{', Some(b'{')) => (depth, from) = (depth + 1, here + 2),
            (b'}', Some(b'}')) => {
                (depth, from) = (depth.saturating_sub(1), here + 2);
                if depth == 0 {
                    return Some(from);
                }
            }
            _ => from = here + 1,
        }
    }
    *unclosed = true;
    None
}

/// End of the `|}` that closes the table at `at`. Templates in its cells may end in `|}}`.
fn table_end(source: &str, at: usize, unclosed: &mut bool) -> Option<usize> {
    if *unclosed {
        return None;
    }
    let bytes = source.as_bytes();
    let (mut depth, mut from) = (1, at + 2);
    while let Some(found) = memchr::memchr2(b'{', b'|', &bytes[from..]) {
        let here = from + found;
        from = here + 1;
        match (bytes[here], bytes.get(here + 1)) {
            (b'{', Some(b'|')) if starts_line(source, here) => (depth, from) = (depth + 1, here + 2),
            (b'|', Some(b'}')) if bytes.get(here + 2) != Some(&b'}') && starts_line(source, here) => {
                (depth, from) = (depth - 1, here + 2);
                if depth == 0 {
                    return Some(from);
                }
            }
            _ => {}
        }
    }
    *unclosed = true;
    None
}

fn starts_line(source: &str, at: usize) -> bool {
    let before = source[..at].trim_end_matches([' ', '\t', ':', '*']);
    before.is_empty() || before.ends_with('\n')
}

fn line_end(source: &str, at: usize) -> usize {
    memchr::memchr(b'\n', &source.as_bytes()[at..]).map_or(source.len(), |length| at + length)
}
