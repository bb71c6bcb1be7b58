//! `[[internal|links]]` and `[http://external links]`.

use super::super::Site;
use super::Renderer;

/// Ends of the names of files that pages show: whatever name space such a link names, it is that of files.
const MEDIA: [&str; 25] = [
    "jpg", "jpeg", "jpe", "png", "svg", "gif", "tif", "tiff", "webp", "bmp", "xcf", "ogg", "oga", "ogv", "opus",
    "webm", "mid", "midi", "flac", "wav", "mp3", "mp4", "pdf", "djvu", "stl",
];

/// Bytes of the longest name of a name space: a letter of an Indian script has three.
const LONGEST_NAME: usize = 80;

/// Interwiki prefixes that are longer than a language code.
const INTERWIKI: [&str; 10] = [
    "simple",
    "zh-min-nan",
    "be-x-old",
    "roa-rup",
    "zh-classical",
    "bat-smg",
    "fiu-vro",
    "map-bms",
    "zh-yue",
    "cbk-zam",
];

impl Renderer<'_> {
    /// Handles the `[` at `at`: the end of the link that it begins, or `None` if it is only a character.
    pub(super) fn link(&mut self, at: usize) -> Option<usize> {
        let source = self.source;
        let rest = &source[at..];
        if rest.starts_with("[[") {
            self.copy_until(at);
            return Some(match end(source, at, &mut self.unclosed.links) {
                Some(end) => {
                    let inner = &source[at + 2..end - 2];
                    if !is_category_line(source, at, end, inner) {
                        internal(inner, self.output, self.depth + 1, self.site);
                    }
                    end
                }
                None => at + 2,
            });
        }
        let schemes = ["http://", "https://", "ftp://", "//", "mailto:"];
        if !schemes.iter().any(|scheme| rest[1..].starts_with(scheme)) {
            return None;
        }
        let length = memchr::memchr2(b']', b'\n', rest.as_bytes())?;
        if rest.as_bytes()[length] == b'\n' {
            return None;
        }
        self.copy_until(at);
        if let Some((_, label)) = rest[1..length].split_once(' ') {
            super::render(label, self.output, self.depth + 1, self.site);
        }
        Some(at + length + 1)
    }
}

/// Behind the `]]` that closes the `[[` at `at`.
fn end(source: &str, at: usize, unclosed: &mut bool) -> Option<usize> {
    if *unclosed {
        return None;
    }
    let bytes = source.as_bytes();
    let (mut depth, mut from) = (0_usize, at);
    while let Some(found) = memchr::memchr2(b'[', b']', &bytes[from..]) {
        let here = from + found;
        match (bytes[here], bytes.get(here + 1)) {
            (b'[', Some(b'[')) => (depth, from) = (depth + 1, here + 2),
            (b']', Some(b']')) => {
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

fn internal(inner: &str, output: &mut String, depth: usize, site: &Site) {
    let (target, label) = match inner.split_once('|') {
        Some((target, label)) => (target.trim(), Some(label)),
        None => (inner.trim(), None),
    };
    let (shown, escaped) = target.strip_prefix(':').map_or((target, false), |rest| (rest, true));
    if !escaped && is_hidden(shown, label, site) {
        return;
    }
    match label {
        // `[[Target (x)|]]` shows the target without its bracket.
        Some(label) if label.trim().is_empty() => output.push_str(shown.split(" (").next().unwrap_or(shown)),
        // `[[Target|label|]]` is a slip.
        Some(label) => super::render(label.trim_end_matches('|'), output, depth, site),
        None => super::render(shown, output, depth, site),
    }
}

/// Whether a link shows nothing where it stands.
fn is_hidden(target: &str, label: Option<&str>, site: &Site) -> bool {
    let Some((prefix, rest)) = target.split_once(':') else { return false };
    let prefix = prefix.trim();
    if prefix.is_empty() || prefix.len() > LONGEST_NAME {
        return false;
    }
    let language = (2..=3).contains(&prefix.len()) && prefix.bytes().all(|byte| byte.is_ascii_lowercase());
    is_media(rest)
        || site.hides(prefix)
        || (label.is_none() && !rest.starts_with(' ') && (language || INTERWIKI.contains(&prefix)))
}

fn is_media(name: &str) -> bool {
    let name = name.split('#').next().unwrap_or(name).trim_end();
    let extension = name.rsplit_once('.').map_or("", |(_, extension)| extension);
    extension.len() <= 5 && MEDIA.iter().any(|known| extension.eq_ignore_ascii_case(known))
}

/// Whether a link into some name space is all that its line holds: so stand the categories at the end of a page, in
/// whatever language, and no sentence.
fn is_category_line(source: &str, at: usize, end: usize, inner: &str) -> bool {
    let target = inner.split('|').next().unwrap_or(inner);
    let apart = target.split_once(':').is_some_and(|(prefix, rest)| {
        !prefix.is_empty() && !prefix.ends_with(' ') && !rest.is_empty() && !rest.starts_with(' ')
    });
    let before = source[..at].trim_end_matches([' ', '\t']);
    let after = source[end..].trim_start_matches([' ', '\t']);
    apart && (before.is_empty() || before.ends_with('\n')) && (after.is_empty() || after.starts_with(['\n', '\r']))
}
