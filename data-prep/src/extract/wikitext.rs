//! Conversion of wikitext to prose, in two passes.
//!
//! `inline` removes markup that may span lines (templates, tables, comments, tags, links). `lines` then selects the
//! lines of prose and cleans them up.
//!
//! This is not a full MediaWiki parser. Dumps contain unexpanded templates. The templates of a short list (dates,
//! units, languages) are rendered as words, and all other templates are dropped.

mod arguments;
mod inline;
mod languages;
mod lines;
mod measures;
mod site;
mod tags;

pub use site::WikiSite;

/// Optional content to keep in addition to paragraphs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct KeepOptions {
    /// List items.
    pub lists: bool,
    /// Headings.
    pub headings: bool,
}

/// Extracts the prose of an article of `site`, one paragraph per line.
#[must_use]
pub fn prose(source: &str, keep: KeepOptions, site: &WikiSite) -> String {
    let mut flat = String::with_capacity(source.len());
    inline::render(source, &mut flat, 0, site);
    lines::paragraphs(&flat, keep)
}

#[cfg(test)]
mod tests {
    use super::{KeepOptions, WikiSite};

    fn prose(source: &str) -> String {
        super::prose(source, KeepOptions::default(), &WikiSite::default())
    }

    #[test]
    fn an_article_is_reduced_to_its_paragraphs() {
        let source = "{{Infobox person|name={{nowrap|A}}|born=[[1900]]}}\n'''Anarchism''' is a \
            [[political philosophy|philosophy]]<ref name=\"a\">Book, {{p.|3}}</ref> of [[state]]s.<ref name=b />\n\n\
            == History ==\n[[File:x.jpg|thumb|A [[cat]] here]]\nIt began.<!-- note\n-->\n* item\n# two\n\
            {| class=\"wikitable\"\n|-\n| a || {{b|}}\n{| \n| nested\n|}\n|}\nThe end &ndash; [http://x.org site] \
            and [http://y.org].\n[[Category:Things]]\n[[de:Anarchie]]\n__NOTOC__\n";
        assert_eq!(prose(source), "Anarchism is a philosophy of states.\nIt began.\nThe end – site and.\n");
    }

    #[test]
    fn templates_that_stand_for_words_are_rendered() {
        assert_eq!(prose("It is {{convert|5|km|mi}} long."), "It is 5 km long.\n");
        assert_eq!(prose("From {{cvt|2|to|3|sqmi}}, {{convert|9|PD/km2}}."), "From 2 to 3 sq mi, 9 per km2.\n");
        assert_eq!(prose("{{As of|2014|lc=y}}, {{as of|2015}}"), "as of 2014, As of 2015\n");
        assert_eq!(prose("{{lang|fr|Le Monde}} is a {{nowrap|daily paper}}."), "Le Monde is a daily paper.\n");
        assert_eq!(prose("Life ({{IPA|x}}; born 1900) and ({{audio|y}}) more."), "Life (born 1900) and more.\n");
    }

    #[test]
    fn templates_are_rendered_within_sentences() {
        for (source, shown) in [
            ("Athens ({{langx|el|Αθήνα}}) is old.", "Athens (Αθήνα) is old."),
            ("Athens ({{lang-el|Αθήνα|Athína}}) is old.", "Athens (Αθήνα) is old."),
            ("It was {{ill|Karl Moor|de|Karl Moor (Maler)}} who came.", "It was Karl Moor who came."),
            ("He met {{lien|langue=en|trad=John Doe|texte=Jean}} là.", "He met Jean là."),
            ("He met {{lien|Jean Dupont|lang=en|trad=x}} là.", "He met Jean Dupont là."),
            (
                "The {{USS|Enterprise|CV-6}} sank {{HMS|Hood|51|2}} and the {{SS|Great Eastern}}.",
                "The USS Enterprise (CV-6) sank Hood and the SS Great Eastern.",
            ),
            (
                "A {{sclass|Nimitz|aircraft carrier}} and the {{ship|RMS|Titanic||3}}.",
                "A Nimitz-class aircraft carrier and the RMS Titanic.",
            ),
            ("He said:{{quote|All is {{lang|la|vanitas}}.|Solomon}}And left.", "He said:\nAll is vanitas.\nAnd left."),
            ("{{Blockquote|text=Be [[good]].|author=A}}", "Be good."),
            (
                "Au {{s|XIX|e}}, puis du {{s-|III|e}} au {{sp|XVII|e|au|XVIII|e|s}}.",
                "Au XIXe siècle, puis du IIIe siècle au XVIIe au XVIIIe siècle.",
            ),
            (
                "Dès le {{-s|V|e}} et le {{XIXe siècle}}, le {{1er}} mai.",
                "Dès le Ve siècle av. J.-C. et le XIXe siècle, le 1er mai.",
            ),
            (
                "Le {{date|5|mars|1900}} à {{unité|12|km|2}} ou {{unité|1000 habitants}}.",
                "Le 5 mars 1900 à 12 km ou 1000 habitants.",
            ),
            ("Er sagte {{\"|Nein}} auf {{enS|no}}.", "Er sagte „Nein“ auf no."),
            (
                "Town of {{formatnum:1234}} for {{US$|5}}, {{frac|1|3|4}} of {{chem2|H2O}}.",
                "Town of 1234 for US$5, 1 3/4 of H2O.",
            ),
            ("Из {{нп5|Город|города|en|City}} и {{нп|Река}}.", "Из города и Река."),
            ("Life ({{circa|1900|1950}}) went on.{{sfn|A|2000}}", "Life (c. 1900 – c. 1950) went on."),
            ("{{citation|last=A|title=B|year=2000}}Text.", "Text."),
        ] {
            assert_eq!(prose(source), format!("{shown}\n"), "{source}");
        }
    }

    /// In namespace names, MediaWiki ignores the case of the first letter, spaces around the name, and underscores.
    #[test]
    fn files_and_categories_are_removed_in_any_language() {
        for link in [
            "[[Fájl:A b.jpg|bélyegkép|balra|160px|Egy [[kép]] itt]]",
            "[[ファイル:A.svg|サムネイル|図]]",
            "[[קובץ:A.png|ממוזער]]",
            "[[پرونده:A.JPG|بندانگشتی|چپ]]",
            "[[Soubor:A.ogg]]",
            "[[Պատկեր:A.jpg|մինի]]",
            "[[fájl : A.jpg|x]]",
            "[[Unbekannt:A b.webm|thumb]]",
            "[[ไฟล์:A.jpg|thumb|right]]",
            "[[ფაილი:A.jpg|მინი]]",
            "[[Kategória:Városok|*]]",
            "[[Dosya:A.gif]]",
            "[[चित्र:A.jpg|अंगूठाकार]]",
            "[[চিত্র:A.jpg|থাম্ব]]",
            "[[ملف:A.jpg|تصغير]]",
            "[[ስዕል:A.jpg|thumb]]",
        ] {
            assert_eq!(prose(&format!("One {link}two.")), "One two.\n", "{link}");
        }
        assert_eq!(prose("Text.\n[[Xyzzy:Things]]\n[[Xyzzy:Others|*]]\n"), "Text.\n");
        assert_eq!(
            prose("See [[:Kategória:A|these]] and [[Star Trek: Picard]]."),
            "See these and Star Trek: Picard.\n"
        );
    }

    #[test]
    fn nowiki_and_broken_markup_are_handled() {
        assert_eq!(prose("a <nowiki>[[b]]</nowiki> c"), "a [[b]] c\n");
        assert_eq!(
            prose("An {{unclosed template\nNext line [[open link\nx < y and 3 > 2 &amp; so"),
            "An\nNext line open link\nx < y and 3 > 2 & so\n"
        );
        assert_eq!(prose("A <ref>never closed. B"), "A never closed. B\n");
        assert_eq!(prose(&"{{".repeat(20_000)), "");
        assert_eq!(prose(&"[[".repeat(20_000)), "");
        assert_eq!(prose(&"<ref>".repeat(20_000)), "");
        assert_eq!(prose("a [//b c\n[//d e] <b f"), "a [//b c\ne <b f\n");
        assert_eq!(prose("der -{zh:'''b'''; sr:c}- und x-{y z"), "der b und x-{y z\n");
    }

    /// Each text has 400,000 marks or more: with a search of the rest for each mark, it would take minutes.
    #[test]
    fn many_marks_that_are_not_closed_take_linear_time() {
        for (mark, end) in [
            ("[//", ""),
            ("[//", "\n"),
            ("<b ", ""),
            ("<nowiki>", ""),
            ("<ref>", ""),
            ("<zz ", ">"),
            ("[[", ""),
            ("{{", ""),
        ] {
            prose(&(mark.repeat(400_000) + end));
        }
    }

    #[test]
    fn math_code_and_galleries_are_removed() {
        assert_eq!(
            prose("Let <math>x^2</math> be.\n<gallery>\na.jpg|b\n</gallery>\nSo<br />on <small>s</small>."),
            "Let be.\nSo on s.\n"
        );
    }

    #[test]
    fn lists_and_headings_are_kept_on_request() {
        let source = "== A '''b''' ==\nText.\n* [[one]]\n** two\n: said\n";
        assert_eq!(prose(source), "Text.\nsaid\n");
        let keep = KeepOptions { lists: true, headings: true };
        assert_eq!(super::prose(source, keep, &WikiSite::default()), "A b\nText.\none\ntwo\nsaid\n");
    }
}
