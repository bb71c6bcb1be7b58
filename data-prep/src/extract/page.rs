//! A `<page>` of a MediaWiki dump: whether it is an article, and its prose.

use super::{Extracted, entities, wikitext};

/// The article's prose, or why it is none.
pub fn extract(page: &str, keep: wikitext::Keep) -> Extracted {
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
    if is_disambiguation(element(page, "<title>", "</title>").unwrap_or(""), &source) {
        return Extracted::Rejected("wikipedia: disambiguation");
    }
    let prose = wikitext::prose(&source, keep);
    if prose.is_empty() { Extracted::Rejected("wikipedia: no prose") } else { Extracted::Text(prose) }
}

fn element<'a>(page: &'a str, open: &str, close: &str) -> Option<&'a str> {
    let start = page.find(open)? + open.len();
    Some(&page[start..start + page[start..].find(close)?])
}

/// What stands in `<text ...>`; the attributes vary.
fn text(page: &str) -> Option<&str> {
    let start = page.find("<text")?;
    let open = start + page[start..].find('>')?;
    if page.as_bytes()[open - 1] == b'/' {
        return None;
    }
    let end = memchr::memmem::rfind(page.as_bytes(), b"</text>")?;
    page.get(open + 1..end)
}

fn is_redirect(source: &str) -> bool {
    let start = source.trim_start();
    start.starts_with('#') && start.len() > 9 && {
        let head: String = start.chars().take(20).collect::<String>().to_lowercase();
        [
            "#redirect",
            "#weiterleitung",
            "#redirection",
            "#redirecció",
            "#omdirigering",
            "#doorverwijzing",
            "#uudelleenohjaus",
            "#ohjaus",
            "#rinvia",
            "#redirección",
            "#넘겨주기",
            "#ανακατευθυνση",
        ]
        .iter()
        .any(|word| head.starts_with(word))
    }
}

fn is_disambiguation(title: &str, source: &str) -> bool {
    const NAMES: [&str; 16] = [
        "disambig",
        "disambiguation",
        "hndis",
        "geodis",
        "dab",
        "disamb",
        "begriffsklärung",
        "homonymie",
        "desambiguación",
        "disambigua",
        "dp",
        "täsmennyssivu",
        "täsmennys",
        "flertydig",
        "αποσαφήνιση",
        "동음이의",
    ];
    if title.ends_with("(disambiguation)") {
        return true;
    }
    memchr::memmem::find_iter(source.as_bytes(), "{{").any(|at| {
        let rest = &source[at + 2..];
        let end = rest.find(['|', '}', '\n', '{']).unwrap_or(0);
        let name = rest[..end].trim();
        name.len() < 32 && NAMES.contains(&name.to_lowercase().as_str())
    })
}
