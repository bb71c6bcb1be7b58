//! Removal of markup that may span lines.

mod links;
mod templates;

use super::super::entities;
use super::{WikiSite, tags};

/// Deeper nested markup is dropped.
const MAX_DEPTH: usize = 24;

/// Appends `source` to `output` without templates, tables, comments, tags, links and quotes.
pub fn render(source: &str, output: &mut String, depth: usize, site: &WikiSite) {
    if depth > MAX_DEPTH {
        return;
    }
    let bytes = source.as_bytes();
    let (mut at, mut copied) = (0, 0);
    // If one opening mark has no closing one, no later mark of that kind has one either; this keeps the parser linear.
    let mut unclosed = Unclosed::default();
    while let Some(found) = next_special(bytes, at) {
        let step = match bytes[found] {
            b'<' => tags::tag(source, found, output, copied, &mut unclosed.tags),
            b'{' => brace(source, found, output, copied, depth, &mut unclosed, site),
            b'[' => links::link(source, found, output, copied, depth, &mut unclosed.links, site),
            b'\'' => quotes(source, found, output, copied),
            b'&' => reference(source, found, output, copied),
            b'_' => magic_word(source, found, output, copied),
            _ => closing(source, found, output, copied),
        };
        match step {
            Some(end) => (at, copied) = (end, end),
            None => at = found + 1,
        }
    }
    output.push_str(&source[copied..]);
}

/// Kinds of markup known to have no closing mark in the rest of the text.
#[derive(Default)]
pub struct Unclosed {
    templates: bool,
    tables: bool,
    links: bool,
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

fn brace(
    source: &str,
    at: usize,
    output: &mut String,
    copied: usize,
    depth: usize,
    unclosed: &mut Unclosed,
    site: &WikiSite,
) -> Option<usize> {
    let rest = &source[at..];
    if rest.starts_with("{|") && starts_line(source, at) {
        output.push_str(&source[copied..at]);
        return Some(match table_end(source, at, &mut unclosed.tables) {
            Some(end) => end,
            None => line_end(source, at),
        });
    }
    if !rest.starts_with("{{") {
        return None;
    }
    output.push_str(&source[copied..at]);
    match template_end(source, at, &mut unclosed.templates) {
        Some(end) => {
            templates::render(&source[at + 2..end - 2], output, depth + 1, site);
            Some(end)
        }
        None => Some(line_end(source, at)),
    }
}

/// End of the `}}` that closes the `{{` at `at`.
pub fn template_end(source: &str, at: usize, unclosed: &mut bool) -> Option<usize> {
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

/// Two, three or five apostrophes are italics and bold.
fn quotes(source: &str, at: usize, output: &mut String, copied: usize) -> Option<usize> {
    let count = source.as_bytes()[at..].iter().take_while(|&&byte| byte == b'\'').count();
    if count < 2 {
        return None;
    }
    output.push_str(&source[copied..at]);
    // Four are bold after an apostrophe.
    if count == 4 {
        output.push('\'');
    }
    Some(at + count)
}

fn reference(source: &str, at: usize, output: &mut String, copied: usize) -> Option<usize> {
    let (character, length) = entities::reference(&source[at..])?;
    output.push_str(&source[copied..at]);
    output.push(character);
    Some(at + length)
}

/// Removes magic words such as `__NOTOC__`.
fn magic_word(source: &str, at: usize, output: &mut String, copied: usize) -> Option<usize> {
    let name = source[at..].strip_prefix("__")?;
    let length = name.bytes().take_while(u8::is_ascii_uppercase).count();
    if length < 3 || !name[length..].starts_with("__") {
        return None;
    }
    output.push_str(&source[copied..at]);
    Some(at + length + 4)
}

/// Removes closing marks without an opening one.
fn closing(source: &str, at: usize, output: &mut String, copied: usize) -> Option<usize> {
    if !source[at..].starts_with("}}") && !source[at..].starts_with("]]") {
        return None;
    }
    output.push_str(&source[copied..at]);
    Some(at + 2)
}
