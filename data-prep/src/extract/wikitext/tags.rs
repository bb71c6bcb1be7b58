//! Comments and HTML-like tags.

/// Element whose contents are plain text.
const NOWIKI: &str = "nowiki";

/// Elements that are removed together with their contents.
const DROPPED: [&str; 30] = [
    "ref",
    "references",
    "math",
    "chem",
    "ce",
    "code",
    "source",
    "syntaxhighlight",
    "gallery",
    "timeline",
    "score",
    "hiero",
    "templatestyles",
    "imagemap",
    "mapframe",
    "maplink",
    "graph",
    "inputbox",
    "categorytree",
    "style",
    "script",
    "table",
    "tr",
    "td",
    "th",
    "includeonly",
    "pre",
    "section",
    "indicator",
    "tt",
];

/// Elements whose tags are removed and whose contents are kept.
const UNWRAPPED: [&str; 38] = [
    "br",
    "small",
    "sub",
    "sup",
    "div",
    "span",
    "b",
    "i",
    "u",
    "s",
    "em",
    "strong",
    "big",
    "blockquote",
    "center",
    "poem",
    "p",
    "font",
    "del",
    "ins",
    "strike",
    "cite",
    "abbr",
    "q",
    "li",
    "ul",
    "ol",
    "dl",
    "dt",
    "dd",
    "hr",
    "noinclude",
    "onlyinclude",
    "h2",
    "h3",
    "var",
    "kbd",
    "bdi",
];

/// Handles the `<` at `at`. Returns the end of the markup, or `None` if the `<` is plain text. `unclosed` has the elements for
/// which the rest of the text has no closing tag, and `>` if it has no `>`.
pub fn tag(
    source: &str,
    at: usize,
    output: &mut String,
    copied: usize,
    unclosed: &mut Vec<&'static str>,
) -> Option<usize> {
    let rest = &source[at..];
    if rest.starts_with("<!--") {
        output.push_str(&source[copied..at]);
        return Some(memchr::memmem::find(rest.as_bytes(), b"-->").map_or(source.len(), |end| at + end + 3));
    }
    let closing = rest.starts_with("</");
    let name = name(&rest[1 + usize::from(closing)..])?;
    let dropped = DROPPED.iter().find(|known| **known == name);
    if dropped.is_none() && name != NOWIKI && !UNWRAPPED.contains(&name.as_str()) || unclosed.contains(&">") {
        return None;
    }
    let Some(length) = memchr::memchr(b'>', rest.as_bytes()) else {
        unclosed.push(">");
        return None;
    };
    let (opened, empty) = (at + length + 1, rest.as_bytes()[length - 1] == b'/');
    output.push_str(&source[copied..at]);
    if name == NOWIKI {
        if closing || empty || unclosed.contains(&NOWIKI) {
            return Some(opened);
        }
        let Some((inner, end)) = find_close(source, opened, NOWIKI) else {
            unclosed.push(NOWIKI);
            return Some(opened);
        };
        output.push_str(&source[opened..inner]);
        return Some(end);
    }
    if matches!(name.as_str(), "br" | "p" | "li" | "div" | "dd" | "dt") {
        output.push(' ');
    }
    let Some(dropped) = dropped else { return Some(opened) };
    if closing || empty || unclosed.contains(dropped) {
        return Some(opened);
    }
    match find_close(source, opened, dropped) {
        Some((_, end)) => Some(end),
        None => {
            unclosed.push(dropped);
            Some(opened)
        }
    }
}

/// Returns the tag name at the start of `rest`, converted to lowercase.
fn name(rest: &str) -> Option<String> {
    let length = rest.bytes().take_while(u8::is_ascii_alphanumeric).count();
    let ends = matches!(rest.as_bytes().get(length), Some(b'>' | b'/' | b' ' | b'\n' | b'\t'));
    (ends && length > 0 && length < 20 && rest.as_bytes()[0].is_ascii_alphabetic())
        .then(|| rest[..length].to_ascii_lowercase())
}

/// Start and end of the next closing tag `</name>`, in uppercase or lowercase.
fn find_close(source: &str, from: usize, name: &str) -> Option<(usize, usize)> {
    let bytes = source.as_bytes();
    for found in memchr::memmem::find_iter(&bytes[from..], b"</") {
        let at = from + found;
        let tail = &bytes[at + 2..];
        let named = tail.len() > name.len() && tail[..name.len()].eq_ignore_ascii_case(name.as_bytes());
        if named && matches!(tail[name.len()], b'>' | b' ' | b'\n') {
            let end = memchr::memchr(b'>', tail)?;
            return Some((at, at + 2 + end + 1));
        }
    }
    None
}
