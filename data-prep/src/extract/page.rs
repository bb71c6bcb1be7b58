//! Pages of a MediaWiki dump. Detects articles and extracts their prose.

use super::{Extracted, entities, wikitext};

/// Returns the prose of an article, or the reason why the page is rejected.
pub fn extract(page: &str, keep: wikitext::KeepOptions, site: &wikitext::WikiSite) -> Extracted {
    if element(page, "<ns>", "</ns>").is_some_and(|namespace| namespace.trim() != "0") {
        return Extracted::Rejected("wikipedia: another name space");
    }
    if page.contains("<redirect ") {
        return Extracted::Rejected("wikipedia: redirect");
    }
    let Some(body) = text(page) else { return Extracted::Rejected("wikipedia: no text") };
    let mut source = String::with_capacity(body.len());
    entities::decode_into(body, &mut source);
    if is_redirect(&source) {
        return Extracted::Rejected("wikipedia: redirect");
    }
    if is_disambiguation(element(page, "<title>", "</title>").unwrap_or(""), &source, site) {
        return Extracted::Rejected("wikipedia: disambiguation");
    }
    let prose = wikitext::prose(&source, keep, site);
    if prose.is_empty() { Extracted::Rejected("wikipedia: no prose") } else { Extracted::Text(prose) }
}

fn element<'a>(page: &'a str, open: &str, close: &str) -> Option<&'a str> {
    let start = page.find(open)? + open.len();
    Some(&page[start..start + page[start..].find(close)?])
}

/// Returns the contents of the last `<text ...>` element, whatever its attributes are: that of the newest revision.
fn text(page: &str) -> Option<&str> {
    let start = page.rfind("<text")?;
    let open = start + page[start..].find('>')?;
    if page.as_bytes()[open - 1] == b'/' {
        return None;
    }
    let end = memchr::memmem::rfind(page.as_bytes(), b"</text>")?;
    page.get(open + 1..end)
}

/// True for `#REDIRECT [[...]]` in any language. The first line must begin with `#`, one to three words and a link.
fn is_redirect(source: &str) -> bool {
    let Some(rest) = source.trim_start().strip_prefix('#') else { return false };
    let Some((word, _)) = rest.lines().next().and_then(|line| line.split_once("[[")) else { return false };
    let word = word.trim_end_matches([' ', ':', '：']);
    let is_word = |c: char| !c.is_ascii() || c.is_ascii_alphabetic() || matches!(c, ' ' | '_');
    word.len() > 3
        && word.split(' ').count() <= MAX_REDIRECT_WORDS
        && !word.starts_with(' ')
        && word.chars().all(is_word)
}

/// Largest number of words in a redirect keyword.
const MAX_REDIRECT_WORDS: usize = 3;

/// Upper limit on the length of the name of a disambiguation template, bytes.
const MAX_TEMPLATE_NAME_BYTES: usize = 100;

fn is_disambiguation(title: &str, source: &str, site: &wikitext::WikiSite) -> bool {
    if title
        .strip_suffix(')')
        .and_then(|title| title.rsplit_once('('))
        .is_some_and(|(_, word)| site.is_disambiguation(word))
    {
        return true;
    }
    memchr::memmem::find_iter(source.as_bytes(), "{{").any(|at| {
        let rest = &source[at + 2..];
        let end = rest.find(['|', '}', '\n', '{']).unwrap_or(0);
        let name = rest[..end].trim();
        name.len() < MAX_TEMPLATE_NAME_BYTES && site.is_disambiguation(name)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redirects_are_detected_in_any_language() {
        for text in [
            "#REDIRECT [[A]]",
            "#redirect: [[A]]",
            "\n#ÁTIRÁNYÍTÁS [[A]]",
            "#転送 [[A]]",
            "#تحويل [[ب]]",
            "#OHJAUS[[A]]",
        ] {
            assert!(is_redirect(text), "{text}");
        }
        for text in
            ["# [[A]] is first", "#1 [[A]]", "#REDIRECT", "A #REDIRECT [[B]]", "# one [[A]]", "#one of the many [[A]]"]
        {
            assert!(!is_redirect(text), "{text}");
        }
    }
}
