//! The few templates that stand for words of the sentence around them.

use super::super::arguments::Arguments;
use super::super::{Site, measures};

/// Bytes of the longest name that is looked at.
const LONGEST_NAME: usize = 48;

/// What a template shows in the place where it stands.
enum Shows {
    /// These words, whatever is asked.
    Words(&'static str),
    /// This argument, numbered from 0.
    Argument(usize),
    /// The last argument.
    Last,
    /// The second argument, or the first where that is empty.
    SecondOrFirst,
    /// All arguments, with this between them.
    All(&'static str),
    /// This, and the first argument.
    Behind(&'static str),
    /// The text between two marks.
    Between(&'static str, &'static str),
    /// A paragraph of its own.
    Paragraph,
}

/// Appends what the template `inner` (without its braces) shows, as far as it is known; most show nothing.
pub fn render(inner: &str, output: &mut String, depth: usize, site: &Site) {
    let name_end = inner.find('|').unwrap_or(inner.len());
    let name = inner[..name_end].trim();
    if name.len() > LONGEST_NAME || name.contains(['{', '\n', '[']) {
        return;
    }
    let arguments = Arguments::new(inner.get(name_end + 1..).unwrap_or(""));
    let lower = name.to_lowercase().replace('_', " ");
    if let Some(shows) = known(&lower) {
        shows.render(&arguments, output, depth, site);
    } else if let Some(text) = name.strip_prefix("formatnum:") {
        super::render(text, output, depth, site);
    } else if let Some(words) = measures::words(name, &lower, &arguments) {
        super::render(&words, output, depth, site);
    } else if is_foreign(name, &lower) {
        Shows::Argument(0).render(&arguments, output, depth, site);
    }
}

/// `lang-el`, or `enS` of the German Wikipedia: a text in the language that the name says. `link-en`: a label.
fn is_foreign(name: &str, lower: &str) -> bool {
    let code = |code: &str| (2..=3).contains(&code.len()) && code.bytes().all(|byte| byte.is_ascii_lowercase());
    lower
        .strip_prefix("lang-")
        .or(lower.strip_prefix("link-"))
        .is_some_and(|rest| rest.split('-').next().is_some_and(code))
        || name.strip_suffix('S').is_some_and(code)
}

impl Shows {
    fn render(&self, arguments: &Arguments<'_>, output: &mut String, depth: usize, site: &Site) {
        let mut show = |text: &str| super::render(text, output, depth, site);
        match *self {
            Self::Words(words) => output.push_str(words),
            Self::Argument(number) => show(arguments.get(number)),
            Self::Last => show(arguments.get(arguments.len().saturating_sub(1))),
            Self::SecondOrFirst => {
                show([arguments.get(1), arguments.get(0)].into_iter().find(|text| !text.is_empty()).unwrap_or(""));
            }
            Self::All(joint) => show(&arguments.all().join(joint)),
            Self::Behind(words) => show(&format!("{words}{}", arguments.get(0))),
            Self::Between(before, after) => {
                let text = arguments.text();
                if !text.is_empty() {
                    show(&format!("{before}{text}{after}"));
                }
            }
            Self::Paragraph => show(&format!("\n{}\n", arguments.text())),
        }
    }
}

/// What the template `name`, in small letters, shows.
fn known(name: &str) -> Option<Shows> {
    Some(match name {
        "nbsp" | "space" | "spaces" | "thinsp" | "thin space" | "hair space" | "espace" => Shows::Words(" "),
        "ndash" | "en dash" | "snd" | "spnd" | "spaced ndash" | "spaced en dash" | "dash" | "tiret" => {
            Shows::Words(" – ")
        }
        "mdash" | "em dash" => Shows::Words("—"),
        "'" | "apostrophe" => Shows::Words("'"),
        "'s" => Shows::Words("'s"),
        "okina" | "ʻokina" => Shows::Words("ʻ"),
        "m." => Shows::Words("M."),
        "mme" => Shows::Words("Mme"),
        "mlle" => Shows::Words("Mlle"),
        "n°" | "numéro" => Shows::Words("no"),
        "av jc" | "av. j.-c." | "avjc" => Shows::Words("av. J.-C."),
        "apr jc" | "ap jc" | "apr. j.-c." | "apjc" => Shows::Words("apr. J.-C."),
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
        | "mono" => Shows::Argument(0),
        "lien" => Shows::Between("", ""),
        "lang" | "langx" | "langue" | "llang" | "script" | "wikt-lang" | "linktext lang" | "citation étrangère" => {
            Shows::SecondOrFirst
        }
        "transl" | "transliteration" | "tsl" | "color" | "font color" | "colored text" | "resize" | "font" | "llm" => {
            Shows::Last
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
        | "не перекладено" => Shows::SecondOrFirst,
        "chem" | "chem2" | "fchim" => Shows::All(""),
        "linktext" => Shows::All(" "),
        "us$" | "usd" => Shows::Behind("US$"),
        "a$" | "aud" => Shows::Behind("A$"),
        "c$" | "cad" => Shows::Behind("C$"),
        "£" | "gbp" => Shows::Behind("£"),
        "€" | "eur" => Shows::Behind("€"),
        "¥" | "jpy" | "cny" => Shows::Behind("¥"),
        "₹" | "inr" => Shows::Behind("₹"),
        "floruit" | "fl." | "fl" => Shows::Behind("fl. "),
        "guil" | "citation" | "citation bloc ligne" => Shows::Between("« ", " »"),
        "\"" => Shows::Between("„", "“"),
        "q" => Shows::Between("“", "”"),
        "quote" | "blockquote" | "block quote" | "cquote" | "quotation" | "bquote" | "poem quote" | "poemquote"
        | "talk quote" | "citation bloc" | "zitat" | "cita" | "citazione" | "citat" | "citaat" | "citação"
        | "cytat" | "idézet" | "цитата" | "citát" | "citaattekst" => Shows::Paragraph,
        _ => return None,
    })
}
