//! Names that are specific to a wiki. They come from the `<siteinfo>` at the start of its dump and from the table of
//! languages.

use std::collections::BTreeSet;

use super::super::entities;
use super::languages;

/// Keys of the namespaces whose links are hidden: media, file, category.
const HIDDEN_NAMESPACES: [&str; 3] = ["-2", "6", "14"];

/// Site-specific names of a wiki.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WikiSite {
    /// Local names of the hidden namespaces, in lowercase.
    hidden: BTreeSet<String>,
    /// Disambiguation templates in lowercase. If the language of the wiki is unknown, the set includes all languages.
    disambiguation: BTreeSet<String>,
}

impl WikiSite {
    /// Determines the languages of the wiki from the head of its dump and from the file name of the dump. An excerpt
    /// can contain the head of another wiki, so this function uses both.
    pub fn from_siteinfo(head: &str, file: &str) -> Self {
        let name = file.rsplit('/').next().unwrap_or(file);
        let codes = [between(head, "xml:lang=\"", "\""), between(head, "<dbname>", "</dbname>"), Some(name)];
        let codes: BTreeSet<String> =
            codes.into_iter().flatten().filter_map(language_code).chain(["en".to_owned()]).collect();
        let known: Vec<_> = codes.iter().filter_map(|code| languages::disambiguation_templates(code)).collect();
        let all = known.len() < codes.len();
        let others = languages::all_disambiguation_templates().filter(|_| all);
        let disambiguation = known.into_iter().flatten().chain(others).map(str::to_owned).collect();
        Self { hidden: hidden_namespaces(head), disambiguation }
    }

    /// True if links into the namespace `prefix` are hidden.
    pub fn is_hidden_namespace(&self, prefix: &str) -> bool {
        let prefix = prefix.to_lowercase().replace('_', " ");
        self.hidden.contains(&prefix) || languages::is_hidden_namespace(&prefix)
    }

    /// True if the template `name` marks a disambiguation page.
    pub fn is_disambiguation(&self, name: &str) -> bool {
        self.disambiguation.contains(&name.to_lowercase().replace('_', " "))
    }
}

/// Parses the local names of the hidden namespaces.
fn hidden_namespaces(head: &str) -> BTreeSet<String> {
    let elements = head.split("<namespace key=\"").skip(1);
    let name = |element: &str| {
        let (number, rest) = element.split_once('"')?;
        let name = between(rest, ">", "</namespace>")
            .filter(|name| HIDDEN_NAMESPACES.contains(&number) && !name.is_empty())?;
        let mut decoded = String::new();
        entities::decode_into(name, &mut decoded);
        Some(decoded.to_lowercase())
    };
    elements.filter_map(name).collect()
}

/// Language code of `hu`, `huwiki` or `huwiki-20240101-pages-articles.xml.bz2`.
fn language_code(text: &str) -> Option<String> {
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
    fn an_unknown_wiki_is_described_by_its_siteinfo() {
        let site = WikiSite::from_siteinfo(HEAD, "dump.xml");
        assert!(
            site.is_hidden_namespace("groep")
                && site.is_hidden_namespace("Ding&Bild")
                && site.is_hidden_namespace("File")
                && site.is_hidden_namespace("Fájl")
        );
        assert!(!site.is_hidden_namespace("Sjabloon") && !site.is_hidden_namespace("Star Trek"));
        assert!(site.is_disambiguation("Egyért") && site.is_disambiguation("disambig"));
    }

    #[test]
    fn disambiguation_templates_depend_on_the_language() {
        let german = WikiSite::from_siteinfo(
            "<mediawiki xml:lang=\"de\"><dbname>dewiki</dbname>",
            "a/dewiki-latest-pages.xml.bz2",
        );
        assert!(german.is_disambiguation("Begriffsklärung") && german.is_disambiguation("Disambig"));
        assert!(!german.is_disambiguation("dp") && !german.is_disambiguation("Gren"));
        assert!(WikiSite::from_siteinfo("<mediawiki xml:lang=\"en\">", "nlwiki-mini.xml").is_disambiguation("Dp"));
    }
}
