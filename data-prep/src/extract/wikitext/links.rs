//! `[[internal|links]]` and `[http://external links]`.

use super::inline;

/// Name spaces whose links show nothing in the text: the English names and those of the wikis we test with.
const HIDDEN: [&str; 34] = [
    "file",
    "image",
    "category",
    "media",
    "datei",
    "bild",
    "kategorie",
    "fichier",
    "catégorie",
    "archivo",
    "imagen",
    "categoría",
    "immagine",
    "categoria",
    "bestand",
    "afbeelding",
    "categorie",
    "tiedosto",
    "kuva",
    "luokka",
    "fil",
    "billede",
    "kategori",
    "αρχείο",
    "εικόνα",
    "κατηγορία",
    "파일",
    "그림",
    "분류",
    "ficheiro",
    "imagem",
    "kategoreja",
    "fails",
    "файл",
];

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

/// Handles the `[` at `at`: the end of what it begins, or `None` if it is only a character.
pub fn link(
    source: &str,
    at: usize,
    output: &mut String,
    copied: usize,
    depth: usize,
    open_ended: &mut bool,
) -> Option<usize> {
    let rest = &source[at..];
    if rest.starts_with("[[") {
        output.push_str(&source[copied..at]);
        return Some(match end(source, at, open_ended) {
            Some(end) => {
                internal(&source[at + 2..end - 2], output, depth + 1);
                end
            }
            None => at + 2,
        });
    }
    let scheme = ["http://", "https://", "ftp://", "//", "mailto:"].iter().any(|scheme| rest[1..].starts_with(scheme));
    let length = if scheme { memchr::memchr2(b']', b'\n', rest.as_bytes())? } else { return None };
    if rest.as_bytes()[length] == b'\n' {
        return None;
    }
    output.push_str(&source[copied..at]);
    if let Some((_, label)) = rest[1..length].split_once(' ') {
        inline::render(label, output, depth + 1);
    }
    Some(at + length + 1)
}

/// Behind the `]]` that closes the `[[` at `at`.
fn end(source: &str, at: usize, open_ended: &mut bool) -> Option<usize> {
    if *open_ended {
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
    *open_ended = true;
    None
}

fn internal(inner: &str, output: &mut String, depth: usize) {
    let (target, label) = match inner.split_once('|') {
        Some((target, label)) => (target.trim(), Some(label)),
        None => (inner.trim(), None),
    };
    let (shown, escaped) = target.strip_prefix(':').map_or((target, false), |rest| (rest, true));
    if !escaped && is_hidden(shown, label) {
        return;
    }
    match label {
        // `[[Target (x)|]]` shows the target without its bracket.
        Some(label) if label.trim().is_empty() => output.push_str(shown.split(" (").next().unwrap_or(shown)),
        Some(label) => inline::render(label, output, depth),
        None => inline::render(shown, output, depth),
    }
}

fn is_hidden(target: &str, label: Option<&str>) -> bool {
    let Some((prefix, rest)) = target.split_once(':') else { return false };
    let prefix = prefix.trim();
    if prefix.len() > 24 {
        return false;
    }
    let language = (2..=3).contains(&prefix.len()) && prefix.bytes().all(|byte| byte.is_ascii_lowercase());
    HIDDEN.contains(&prefix.to_lowercase().as_str())
        || (label.is_none() && !rest.starts_with(' ') && (language || INTERWIKI.contains(&prefix)))
}
