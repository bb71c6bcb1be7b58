//! The few templates that stand for words of the sentence around them.

use super::inline;

/// Appends what the template `inner` (without its braces) shows, as far as it is known; most show nothing.
pub fn render(inner: &str, output: &mut String, depth: usize) {
    let name_end = inner.find('|').unwrap_or(inner.len());
    let name = inner[..name_end].trim();
    if name.len() > 24 || name.contains(['{', '\n', '[']) {
        return;
    }
    let name = name.to_lowercase();
    let arguments = || arguments(inner.get(name_end + 1..).unwrap_or(""));
    match name.as_str() {
        "nbsp" | "space" | "spaces" => output.push(' '),
        "ndash" | "en dash" | "snd" | "spnd" | "spaced ndash" => output.push_str(" – "),
        "mdash" | "em dash" => output.push('—'),
        "'" | "apostrophe" => output.push('\''),
        "convert" | "cvt" => measure(&arguments(), output),
        "lang" | "transl" | "transliteration" => show(arguments().get(1), output, depth),
        "nowrap" | "nobr" | "j" | "small" | "smaller" | "abbr" | "tooltip" | "em" | "visible anchor" | "sc"
        | "smallcaps" | "unité" | "nombre" | "math" | "mvar" | "var" | "angle bracket" => {
            show(arguments().first(), output, depth);
        }
        "frac" | "fraction" => output.push_str(&arguments().join("/")),
        "as of" => {
            let small = inner.contains("lc=y") || inner.contains("lc=on");
            output.push_str(if small { "as of " } else { "As of " });
            show(arguments().first(), output, depth);
        }
        "circa" | "c." | "ca" => {
            output.push_str("c. ");
            show(arguments().first(), output, depth);
        }
        _ => {}
    }
}

/// The positional arguments; those with a name are left out.
fn arguments(text: &str) -> Vec<&str> {
    let bytes = text.as_bytes();
    let (mut depth, mut start) = (0_i32, 0);
    let mut found = Vec::new();
    for (at, &byte) in bytes.iter().enumerate() {
        match byte {
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth -= 1,
            b'|' if depth == 0 => {
                found.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    found.push(&text[start..]);
    found.retain(|argument| !argument.split('[').next().unwrap_or("").contains('='));
    found.iter_mut().for_each(|argument| *argument = argument.trim());
    found
}

fn show(argument: Option<&&str>, output: &mut String, depth: usize) {
    if let Some(argument) = argument {
        inline::render(argument, output, depth);
    }
}

/// `5|km|mi` is "5 km"; `5|-|10|km` and `5|to|10|km` are ranges.
fn measure(arguments: &[&str], output: &mut String) {
    let range = match arguments {
        [from, "-" | "–" | "to" | "and" | "by" | "x", to, unit, ..] => Some((from, arguments[1], to, unit)),
        _ => None,
    };
    match (range, arguments) {
        (Some((from, joint, to, unit)), _) => {
            let joint = if matches!(joint, "-" | "–") { "–".to_owned() } else { format!(" {joint} ") };
            output.push_str(&format!("{from}{joint}{to}{}", unit_name(unit)));
        }
        (None, [value, unit, ..]) => output.push_str(&format!("{value}{}", unit_name(unit))),
        (None, _) => {}
    }
}

/// What a reader sees behind the number for the template's code of a unit.
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
