//! `[[internal|links]]` and `[http://external links]`.

use super::super::WikiSite;
use super::Renderer;

/// Extensions of media files. A link to a media file is hidden, whatever the name of its namespace.
const MEDIA: [&str; 25] = [
    "jpg", "jpeg", "jpe", "png", "svg", "gif", "tif", "tiff", "webp", "bmp", "xcf", "ogg", "oga", "ogv", "opus",
    "webm", "mid", "midi", "flac", "wav", "mp3", "mp4", "pdf", "djvu", "stl",
];

/// Upper limit on the length of a namespace name, bytes. A letter of an Indic script takes three bytes.
const MAX_NAME_BYTES: usize = 80;

/// Interwiki prefixes that are longer than a usual language code.
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
    /// Handles the `[` at `at`. Returns the end of the markup, or `None` if the `[` is plain text.
    pub(super) fn link(&mut self, at: usize) -> Option<usize> {
        let source = self.source;
        let rest = &source[at..];
        if rest.starts_with("[[") {
            self.copy_until(at);
            return Some(match link_end(source, at, &mut self.unclosed.links) {
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
        if at < self.unclosed.external || !schemes.iter().any(|scheme| rest[1..].starts_with(scheme)) {
            return None;
        }
        let length = memchr::memchr2(b']', b'\n', rest.as_bytes()).unwrap_or(rest.len());
        if rest.as_bytes().get(length) != Some(&b']') {
            self.unclosed.external = at + length;
            return None;
        }
        self.copy_until(at);
        if let Some((_, label)) = rest[1..length].split_once(' ') {
            super::render(label, self.output, self.depth + 1, self.site);
        }
        Some(at + length + 1)
    }
}

/// End of the `]]` that closes the `[[` at `at`.
fn link_end(source: &str, at: usize, unclosed: &mut bool) -> Option<usize> {
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

fn internal(inner: &str, output: &mut String, depth: usize, site: &WikiSite) {
    let (target, label) = match inner.split_once('|') {
        Some((target, label)) => (target.trim(), Some(label)),
        None => (inner.trim(), None),
    };
    let (shown, is_escaped) = target.strip_prefix(':').map_or((target, false), |rest| (rest, true));
    if !is_escaped && is_hidden(shown, label, site) {
        return;
    }
    match label {
        // `[[Target (x)|]]` shows the target without the parenthesis.
        Some(label) if label.trim().is_empty() => output.push_str(shown.split(" (").next().unwrap_or(shown)),
        // `[[Target|label|]]` is a common typo.
        Some(label) => super::render(label.trim_end_matches('|'), output, depth, site),
        None => super::render(shown, output, depth, site),
    }
}

/// True if a link displays nothing.
fn is_hidden(target: &str, label: Option<&str>, site: &WikiSite) -> bool {
    let Some((prefix, rest)) = target.split_once(':') else { return false };
    let prefix = prefix.trim();
    if prefix.is_empty() || prefix.len() > MAX_NAME_BYTES {
        return false;
    }
    let language = (2..=3).contains(&prefix.len()) && prefix.bytes().all(|byte| byte.is_ascii_lowercase());
    is_media(rest)
        || site.is_hidden_namespace(prefix)
        || (label.is_none() && !rest.starts_with(' ') && (language || INTERWIKI.contains(&prefix)))
}

fn is_media(name: &str) -> bool {
    let name = name.split('#').next().unwrap_or(name).trim_end();
    let extension = name.rsplit_once('.').map_or("", |(_, extension)| extension);
    extension.len() <= 5 && MEDIA.iter().any(|known| extension.eq_ignore_ascii_case(known))
}

/// True if a link with a namespace is alone on its line. The categories at the end of a page have this form in any
/// language.
fn is_category_line(source: &str, at: usize, end: usize, inner: &str) -> bool {
    let target = inner.split('|').next().unwrap_or(inner);
    let is_namespaced = target.split_once(':').is_some_and(|(prefix, rest)| {
        !prefix.is_empty() && !prefix.ends_with(' ') && !rest.is_empty() && !rest.starts_with(' ')
    });
    let before = source[..at].trim_end_matches([' ', '\t']);
    let after = source[end..].trim_start_matches([' ', '\t']);
    is_namespaced
        && (before.is_empty() || before.ends_with('\n'))
        && (after.is_empty() || after.starts_with(['\n', '\r']))
}
