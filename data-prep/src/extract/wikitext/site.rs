//! What a wiki calls things: from the `<siteinfo>` that its dump begins with, and the table of languages.

use std::collections::BTreeSet;

use super::super::entities;
use super::languages;

/// The numbers of the name spaces whose links show nothing: media, file, category.
const HIDDEN: [&str; 3] = ["-2", "6", "14"];

/// A wiki.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Site {
    /// Its own names for the name spaces whose links show nothing, in small letters.
    hidden: BTreeSet<String>,
    /// The templates of its disambiguation pages, in small letters; those of all languages if its own is not known.
    disambiguation: BTreeSet<String>,
}

impl Site {
    /// The wiki whose dump begins with `head` and is stored as `file`. The name counts too: an excerpt may have the head
    /// of another wiki.
    pub fn new(head: &str, file: &str) -> Self {
        let name = file.rsplit('/').next().unwrap_or(file);
        let codes = [between(head, "xml:lang=\"", "\""), between(head, "<dbname>", "</dbname>"), Some(name)];
        let codes: BTreeSet<String> = codes.into_iter().flatten().filter_map(code).chain(["en".to_owned()]).collect();
        let known: Vec<_> = codes.iter().filter_map(|code| languages::disambiguation(code)).collect();
        let all = known.len() < codes.len();
        let others = languages::disambiguations().filter(|_| all);
        let disambiguation = known.into_iter().flatten().chain(others).map(str::to_owned).collect();
        Self { hidden: hidden(head), disambiguation }
    }

    /// Whether links into the name space `prefix` show nothing.
    pub fn hides(&self, prefix: &str) -> bool {
        let prefix = prefix.to_lowercase().replace('_', " ");
        self.hidden.contains(&prefix) || languages::hides(&prefix)
    }

    /// Whether the template `name` marks a disambiguation page.
    pub fn disambiguates(&self, name: &str) -> bool {
        self.disambiguation.contains(&name.to_lowercase().replace('_', " "))
    }
}

/// The wiki's own names of the name spaces whose links show nothing.
fn hidden(head: &str) -> BTreeSet<String> {
    let elements = head.split("<namespace key=\"").skip(1);
    let name = |element: &str| {
        let (number, rest) = element.split_once('"')?;
        let name = between(rest, ">", "</namespace>").filter(|name| HIDDEN.contains(&number) && !name.is_empty())?;
        let mut decoded = String::new();
        entities::decode_into(name, &mut decoded);
        Some(decoded.to_lowercase())
    };
    elements.filter_map(name).collect()
}

/// The language of `hu`, `huwiki` or `huwiki-20240101-pages-articles.xml.bz2`.
fn code(text: &str) -> Option<String> {
    let code = text.split_once("wiki").map_or(text, |(code, _)| code).replace('_', "-");
    let plain =
        code.len() >= 2 && code.len() <= 12 && code.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-');
    plain.then_some(code)
}

fn between<'a>(text: &'a str, open: &str, close: &str) -> Option<&'a str> {
    let (_, rest) = text.split_once(open)?;
    rest.split_once(close).map(|(inner, _)| inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "<mediawiki xml:lang=\"xx\"><siteinfo><dbname>xxwiki</dbname><namespaces>\
        <namespace key=\"6\" case=\"first-letter\">Ding&amp;Bild</namespace><namespace key=\"0\" />\
        <namespace key=\"10\">Sjabloon</namespace><namespace key=\"14\">Groep</namespace></namespaces></siteinfo>";

    #[test]
    fn a_wiki_that_no_table_knows_says_its_names_itself() {
        let site = Site::new(HEAD, "dump.xml");
        assert!(site.hides("groep") && site.hides("Ding&Bild") && site.hides("File") && site.hides("Fájl"));
        assert!(!site.hides("Sjabloon") && !site.hides("Star Trek"));
        assert!(site.disambiguates("Egyért") && site.disambiguates("disambig"));
    }

    #[test]
    fn templates_are_those_of_the_language() {
        let german = Site::new("<mediawiki xml:lang=\"de\"><dbname>dewiki</dbname>", "a/dewiki-latest-pages.xml.bz2");
        assert!(german.disambiguates("Begriffsklärung") && german.disambiguates("Disambig"));
        assert!(!german.disambiguates("dp") && !german.disambiguates("Gren"));
        assert!(Site::new("<mediawiki xml:lang=\"en\">", "nlwiki-mini.xml").disambiguates("Dp"));
    }
}
