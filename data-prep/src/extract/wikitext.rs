//! Wikitext to prose.
//!
//! Two passes: `inline` takes out what may span lines (templates, tables, comments, tags, links), `lines` then
//! decides which lines are prose and tidies them. Neither is a full MediaWiki parser: the templates of a dump are not
//! at hand, so those that stand for words (dates, units, languages) are rendered from a short list and the rest go.

mod inline;
mod lines;
mod links;
mod tags;
mod templates;

/// What is kept beside paragraphs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Keep {
    /// The items of lists.
    pub lists: bool,
    /// Headings.
    pub headings: bool,
}

/// The prose of an article: a paragraph a line.
#[must_use]
pub fn prose(source: &str, keep: Keep) -> String {
    let mut flat = String::with_capacity(source.len());
    inline::render(source, &mut flat, 0);
    lines::paragraphs(&flat, keep)
}

#[cfg(test)]
mod tests {
    use super::Keep;

    fn prose(source: &str) -> String {
        super::prose(source, Keep::default())
    }

    #[test]
    fn an_article_becomes_its_paragraphs() {
        let source = "{{Infobox person|name={{nowrap|A}}|born=[[1900]]}}\n'''Anarchism''' is a \
            [[political philosophy|philosophy]]<ref name=\"a\">Book, {{p.|3}}</ref> of [[state]]s.<ref name=b />\n\n\
            == History ==\n[[File:x.jpg|thumb|A [[cat]] here]]\nIt began.<!-- note\n-->\n* item\n# two\n\
            {| class=\"wikitable\"\n|-\n| a || {{b|}}\n{| \n| nested\n|}\n|}\nThe end &ndash; [http://x.org site] \
            and [http://y.org].\n[[Category:Things]]\n[[de:Anarchie]]\n__NOTOC__\n";
        assert_eq!(prose(source), "Anarchism is a philosophy of states.\nIt began.\nThe end – site and.\n");
    }

    #[test]
    fn words_that_templates_stand_for_are_kept() {
        assert_eq!(prose("It is {{convert|5|km|mi}} long."), "It is 5 km long.\n");
        assert_eq!(prose("From {{cvt|2|to|3|sqmi}}, {{convert|9|PD/km2}}."), "From 2 to 3 sq mi, 9 per km2.\n");
        assert_eq!(prose("{{As of|2014|lc=y}}, {{as of|2015}}"), "as of 2014, As of 2015\n");
        assert_eq!(prose("{{lang|fr|Le Monde}} is a {{nowrap|daily paper}}."), "Le Monde is a daily paper.\n");
        assert_eq!(prose("Life ({{IPA|x}}; born 1900) and ({{audio|y}}) more."), "Life (born 1900) and more.\n");
    }

    #[test]
    fn nowiki_and_broken_markup_are_survived() {
        assert_eq!(prose("a <nowiki>[[b]]</nowiki> c"), "a [[b]] c\n");
        assert_eq!(
            prose("An {{unclosed template\nNext line [[open link\nx < y and 3 > 2 &amp; so"),
            "An\nNext line open link\nx < y and 3 > 2 & so\n"
        );
        assert_eq!(prose("A <ref>never closed. B"), "A never closed. B\n");
        assert_eq!(prose(&"{{".repeat(20_000)), "");
        assert_eq!(prose(&"[[".repeat(20_000)), "");
        assert_eq!(prose(&"<ref>".repeat(20_000)), "");
    }

    #[test]
    fn math_code_and_galleries_go() {
        assert_eq!(
            prose("Let <math>x^2</math> be.\n<gallery>\na.jpg|b\n</gallery>\nSo<br />on <small>s</small>."),
            "Let be.\nSo on s.\n"
        );
    }

    #[test]
    fn lists_and_headings_are_kept_where_asked() {
        let source = "== A '''b''' ==\nText.\n* [[one]]\n** two\n: said\n";
        assert_eq!(prose(source), "Text.\nsaid\n");
        let keep = Keep { lists: true, headings: true };
        assert_eq!(super::prose(source, keep), "A b\nText.\none\ntwo\nsaid\n");
    }
}
