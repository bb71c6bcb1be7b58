//! Templates that render numbers: measures, dates, centuries, ordinals and ships with hull numbers.

use super::arguments::TemplateArguments;

/// Ship prefixes that have a template of the same name.
const SHIPS: [&str; 24] = [
    "uss", "hms", "ss", "rms", "mv", "ms", "hmas", "hmcs", "hmnzs", "hmis", "hmt", "hmhs", "uscgc", "usns", "usat",
    "usrc", "css", "sms", "smu", "rfa", "ins", "jds", "rv", "mt",
];

/// Renders the template `name` if it is supported. `lower` is the name in lowercase.
pub fn expand(name: &str, lower: &str, arguments: &TemplateArguments<'_>) -> Option<String> {
    let get = |number| arguments.get(number);
    Some(match lower {
        "convert" | "cvt" => measure(arguments.positional()),
        "frac" | "fraction" | "sfrac" => fraction(arguments.positional()),
        "val" => [get(0), arguments.named("u").or(arguments.named("ul")).unwrap_or("")].join(" ").trim().to_owned(),
        "unité" | "unidad" | "nombre" | "fmtn" | "num" | "m" if begins_with_digit(get(0)) => {
            let unit = arguments.positional().iter().skip(1).find(|unit| !unit.is_empty() && !begins_with_digit(unit));
            [get(0), unit.copied().unwrap_or("")].join(" ").trim().to_owned()
        }
        "as of" => {
            let small = arguments.named("lc").is_some();
            format!("{} {}", if small { "as of" } else { "As of" }, get(0))
        }
        "circa" | "c." | "ca" | "ca." => match get(1) {
            "" => format!("c. {}", get(0)),
            end => format!("c. {} – c. {end}", get(0)),
        },
        "reign" | "r." => [get(0), get(1)].join(" – ").trim_end_matches(" – ").to_owned(),
        "date" | "date-" | "date de naissance-" | "date de décès-" => {
            arguments.positional().iter().take(3).filter(|part| !part.is_empty()).copied().collect::<Vec<_>>().join(" ")
        }
        "s" | "s-" | "s2" | "siècle" | "s mini" | "-s" | "-s-" | "sp" | "sp-" => {
            century(lower, arguments.positional())?
        }
        "siglo" => format!("siglo {}", get(0)),
        "séc" => format!("século {}", get(0)),
        "segle" => format!("segle {}", get(0)),
        "sclass" | "sclass-" | "sclass2" | "sclass2-" => format!("{}-class {}", get(0), get(1)),
        "ship" => ship(get(0), get(1), get(2), get(3)),
        _ if SHIPS.contains(&lower) && !get(0).is_empty() => ship(name, get(0), get(1), get(2)),
        _ if is_ordinal(name) && arguments.len() <= 1 => name.to_owned(),
        _ => return None,
    })
}

fn begins_with_digit(text: &str) -> bool {
    text.trim_start_matches(['-', '+', '−', '±']).starts_with(|character: char| character.is_ascii_digit())
}

/// Renders a measure: `5|km|mi` is "5 km". `5|-|10|km` and `5|to|10|km` are ranges.
fn measure(arguments: &[&str]) -> String {
    match arguments {
        [from, separator @ ("-" | "–" | "to" | "and" | "by" | "x"), to, unit, ..] => {
            let separator = if matches!(*separator, "-" | "–") { "–".to_owned() } else { format!(" {separator} ") };
            format!("{from}{separator}{to}{}", unit_name(unit))
        }
        [value, unit, ..] => format!("{value}{}", unit_name(unit)),
        _ => String::new(),
    }
}

/// Returns the unit as it is displayed after the number, with a space before it.
fn unit_name(code: &str) -> String {
    let name = match code {
        "C" => "°C",
        "F" => "°F",
        "sqmi" => "sq mi",
        "sqkm" => "km2",
        "sqft" => "sq ft",
        "PD/sqmi" | "/sqmi" => return " per sq mi".to_owned(),
        "PD/km2" | "/km2" => return " per km2".to_owned(),
        "USgal" | "impgal" => "gallons",
        "MUSgal" => "million gallons",
        "oilbbl" => "barrels",
        "koilbbl" => "thousand barrels",
        "Moilbbl" => "million barrels",
        "Goilbbl" => "billion barrels",
        code => code,
    };
    format!(" {name}")
}

/// Renders a fraction: `2` is "1/2", `3|4` is "3/4", `1|3|4` is "1 3/4".
fn fraction(arguments: &[&str]) -> String {
    match arguments {
        [] => "/".to_owned(),
        [of] => format!("1/{of}"),
        [over, of] => format!("{over}/{of}"),
        [whole, over, of, ..] => format!("{whole} {over}/{of}"),
    }
}

/// Renders a century in French: `XIX|e` is "XIXe siècle", and `sp` with `XVII|e|au|XVIII|e|s` is "XVIIe au XVIIIe
/// siècle". Requires Roman numerals, because other wikis have different templates called `s`.
fn century(name: &str, arguments: &[&str]) -> Option<String> {
    let roman = |text: &str| !text.is_empty() && text.bytes().all(|byte| b"IVXLCivxlc".contains(&byte));
    let before = if name.starts_with('-') { " av. J.-C." } else { "" };
    match (name, arguments) {
        ("sp" | "sp-", [first, ending, separator, last, end, ..]) if roman(first) && roman(last) => {
            Some(format!("{first}{ending} {separator} {last}{end} siècle"))
        }
        ("s mini", [number, ending @ ..]) if roman(number) => {
            Some(format!("{number}{}", ending.first().unwrap_or(&"e")))
        }
        (_, [number, ending @ ..]) if roman(number) => Some(format!(
            "{number}{} siècle{before}",
            ending.first().filter(|ending| !ending.is_empty()).unwrap_or(&"e")
        )),
        _ => None,
    }
}

/// True for templates that render their own name, such as `1er`, `IIe` or `XIXe siècle`.
fn is_ordinal(name: &str) -> bool {
    let number = name.strip_suffix(" siècle").unwrap_or(name);
    let digits = number.bytes().take_while(|byte| byte.is_ascii_digit() || b"IVXLC".contains(byte)).count();
    digits > 0 && matches!(&number[digits..], "er" | "re" | "ère" | "e" | "ème" | "nd" | "nde" | "d" | "de")
}

/// Renders a ship. `code` selects the parts: `2` is the name alone, `3` leaves out the number, and `6` leaves out the
/// prefix.
fn ship(prefix: &str, name: &str, number: &str, code: &str) -> String {
    let hull = if number.is_empty() { String::new() } else { format!(" ({number})") };
    match code {
        "1" => number.to_owned(),
        "2" => name.to_owned(),
        "3" => format!("{prefix} {name}"),
        "4" | "5" => format!("{prefix} {number}"),
        "6" => format!("{name}{hull}"),
        _ => format!("{prefix} {name}{hull}").trim().to_owned(),
    }
}
