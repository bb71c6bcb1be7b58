//! Templates that stand for words of a sentence.

use super::super::arguments::TemplateArguments;
use super::super::{WikiSite, measures};

/// Upper limit on the length of a template name, bytes.
const MAX_NAME_BYTES: usize = 48;

/// Rendering of a template.
enum TemplateText {
    /// Fixed text.
    Fixed(&'static str),
    /// A positional argument, from 0.
    Argument(usize),
    /// The last argument.
    Last,
    /// The second argument, or the first argument if the second is empty.
    SecondOrFirst,
    /// All arguments with this separator between them.
    Joined(&'static str),
    /// This prefix, followed by the first argument.
    Prefixed(&'static str),
    /// The text of the template, between these two strings.
    Quoted(&'static str, &'static str),
    /// The text of the template, as a separate paragraph.
    Paragraph,
}

/// Renders the template `inner` (without braces). Unknown templates render nothing.
pub fn render(inner: &str, output: &mut String, depth: usize, site: &WikiSite) {
    let name_end = inner.find('|').unwrap_or(inner.len());
    let name = inner[..name_end].trim();
    if name.len() > MAX_NAME_BYTES || name.contains(['{', '\n', '[']) {
        return;
    }
    let arguments = TemplateArguments::parse(inner.get(name_end + 1..).unwrap_or(""));
    let lower = name.to_lowercase().replace('_', " ");
    if let Some(text) = lookup(&lower) {
        text.render(&arguments, output, depth, site);
    } else if let Some(text) = name.strip_prefix("formatnum:") {
        super::render(text, output, depth, site);
    } else if let Some(words) = measures::expand(name, &lower, &arguments) {
        super::render(&words, output, depth, site);
    } else if is_foreign(name, &lower) {
        TemplateText::Argument(0).render(&arguments, output, depth, site);
    }
}

/// True for templates whose first argument is foreign-language text (`lang-el`, or `enS` in the German Wikipedia) or a
/// link label (`link-en`).
fn is_foreign(name: &str, lower: &str) -> bool {
    let code = |code: &str| (2..=3).contains(&code.len()) && code.bytes().all(|byte| byte.is_ascii_lowercase());
    lower
        .strip_prefix("lang-")
        .or(lower.strip_prefix("link-"))
        .is_some_and(|rest| rest.split('-').next().is_some_and(code))
        || name.strip_suffix('S').is_some_and(code)
}

impl TemplateText {
    fn render(&self, arguments: &TemplateArguments<'_>, output: &mut String, depth: usize, site: &WikiSite) {
        let mut show = |text: &str| super::render(text, output, depth, site);
        match *self {
            Self::Fixed(words) => output.push_str(words),
            Self::Argument(number) => show(arguments.get(number)),
            Self::Last => show(arguments.get(arguments.len().saturating_sub(1))),
            Self::SecondOrFirst => {
                show([arguments.get(1), arguments.get(0)].into_iter().find(|text| !text.is_empty()).unwrap_or(""));
            }
            Self::Joined(separator) => show(&arguments.positional().join(separator)),
            Self::Prefixed(words) => show(&format!("{words}{}", arguments.get(0))),
            Self::Quoted(before, after) => {
                let text = arguments.text();
                if !text.is_empty() {
                    show(&format!("{before}{text}{after}"));
                }
            }
            Self::Paragraph => show(&format!("\n{}\n", arguments.text())),
        }
    }
}

/// Looks up a template by its lowercase name.
fn lookup(name: &str) -> Option<TemplateText> {
    Some(match name {
        "nbsp" | "space" | "spaces" | "thinsp" | "thin space" | "hair space" | "espace" => TemplateText::Fixed(" "),
        "ndash" | "en dash" | "snd" | "spnd" | "spaced ndash" | "spaced en dash" | "dash" | "tiret" => {
            TemplateText::Fixed(" – ")
        }
        "mdash" | "em dash" => TemplateText::Fixed("—"),
        "'" | "apostrophe" => TemplateText::Fixed("'"),
        "'s" => TemplateText::Fixed("'s"),
        "okina" | "ʻokina" => TemplateText::Fixed("ʻ"),
        "m." => TemplateText::Fixed("M."),
        "mme" => TemplateText::Fixed("Mme"),
        "mlle" => TemplateText::Fixed("Mlle"),
        "n°" | "numéro" => TemplateText::Fixed("no"),
        "av jc" | "av. j.-c." | "avjc" => TemplateText::Fixed("av. J.-C."),
        "apr jc" | "ap jc" | "apr. j.-c." | "apjc" => TemplateText::Fixed("apr. J.-C."),
        "nowrap"
        | "nobr"
        | "nobreak"
        | "j"
        | "small"
        | "smaller"
        | "big"
        | "larger"
        | "abbr"
        | "abréviation"
        | "abbreviation"
        | "tooltip"
        | "em"
        | "strong"
        | "visible anchor"
        | "vanchor"
        | "sc"
        | "sc1"
        | "smallcaps"
        | "petites capitales"
        | "math"
        | "mvar"
        | "var"
        | "angle bracket"
        | "angbr"
        | "sic"
        | "not a typo"
        | "notatypo"
        | "proper name"
        | "ill"
        | "interlanguage link"
        | "interlanguage link multi"
        | "illm"
        | "ill2"
        | "ill-wd"
        | "ill-wd2"
        | "link-interwiki"
        | "仮リンク"
        | "読み仮名"
        | "nihongo"
        | "nihongo2"
        | "nihongo3"
        | "nihongo foot"
        | "japonais"
        | "flag"
        | "flagcountry"
        | "flagu"
        | "pays"
        | "drapeau"
        | "nb"
        | "sup"
        | "sub"
        | "exp"
        | "ind"
        | "unicode"
        | "polytonic"
        | "hebrew"
        | "gloss"
        | "hebr"
        | "rtl-lang"
        | "wikt"
        | "wiktionary"
        | "mot"
        | "iast"
        | "keypress"
        | "key"
        | "bdo"
        | "kbd"
        | "mono" => TemplateText::Argument(0),
        "lien" => TemplateText::Quoted("", ""),
        "lang" | "langx" | "langue" | "llang" | "script" | "wikt-lang" | "linktext lang" | "citation étrangère" => {
            TemplateText::SecondOrFirst
        }
        "transl" | "transliteration" | "tsl" | "color" | "font color" | "colored text" | "resize" | "font" | "llm" => {
            TemplateText::Last
        }
        "не переведено"
        | "не переведено 2"
        | "не переведено 3"
        | "не переведено 4"
        | "не переведено 5"
        | "нп"
        | "нп2"
        | "нп3"
        | "нп4"
        | "нп5"
        | "не перекладено" => TemplateText::SecondOrFirst,
        "chem" | "chem2" | "fchim" => TemplateText::Joined(""),
        "linktext" => TemplateText::Joined(" "),
        "us$" | "usd" => TemplateText::Prefixed("US$"),
        "a$" | "aud" => TemplateText::Prefixed("A$"),
        "c$" | "cad" => TemplateText::Prefixed("C$"),
        "£" | "gbp" => TemplateText::Prefixed("£"),
        "€" | "eur" => TemplateText::Prefixed("€"),
        "¥" | "jpy" | "cny" => TemplateText::Prefixed("¥"),
        "₹" | "inr" => TemplateText::Prefixed("₹"),
        "floruit" | "fl." | "fl" => TemplateText::Prefixed("fl. "),
        "guil" | "citation" | "citation bloc ligne" => TemplateText::Quoted("« ", " »"),
        "\"" => TemplateText::Quoted("„", "“"),
        "q" => TemplateText::Quoted("“", "”"),
        "quote" | "blockquote" | "block quote" | "cquote" | "quotation" | "bquote" | "poem quote" | "poemquote"
        | "talk quote" | "citation bloc" | "zitat" | "cita" | "citazione" | "citat" | "citaat" | "citação"
        | "cytat" | "idézet" | "цитата" | "citát" | "citaattekst" => TemplateText::Paragraph,
        _ => return None,
    })
}
