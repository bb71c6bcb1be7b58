//! Character references (`&amp;`, `&nbsp;`, `&#8211;`).

/// Appends `text` to `output` with its references replaced; what is none stays as it is.
pub fn decode_into(text: &str, output: &mut String) {
    let mut rest = text;
    while let Some(at) = memchr::memchr(b'&', rest.as_bytes()) {
        output.push_str(&rest[..at]);
        rest = &rest[at..];
        match reference(rest) {
            Some((character, length)) => {
                output.push(character);
                rest = &rest[length..];
            }
            None => {
                output.push('&');
                rest = &rest[1..];
            }
        }
    }
    output.push_str(rest);
}

/// The reference that `text` (which starts with `&`) begins with, and its length in bytes.
pub fn reference(text: &str) -> Option<(char, usize)> {
    let limit = text.len().min(12);
    let end = memchr::memchr(b';', &text.as_bytes()[..limit])?;
    let name = &text[1..end];
    let character = match name.strip_prefix('#') {
        Some(number) => {
            let code = match number.strip_prefix(['x', 'X']) {
                Some(digits) => u32::from_str_radix(digits, 16),
                None => number.parse(),
            };
            char::from_u32(code.ok()?)?
        }
        None => NAMED.iter().find(|(known, _)| *known == name)?.1,
    };
    Some((character, end + 1))
}

/// Those that stand in Wikipedia's articles, the most frequent first.
const NAMED: [(&str, char); 66] = [
    ("lt", '<'),
    ("gt", '>'),
    ("quot", '"'),
    ("amp", '&'),
    ("nbsp", ' '),
    ("ndash", '–'),
    ("mdash", '—'),
    ("apos", '\''),
    ("minus", '−'),
    ("thinsp", ' '),
    ("times", '×'),
    ("deg", '°'),
    ("hellip", '…'),
    ("rarr", '→'),
    ("larr", '←'),
    ("prime", '′'),
    ("Prime", '″'),
    ("middot", '·'),
    ("bull", '•'),
    ("ensp", ' '),
    ("emsp", ' '),
    ("lsquo", '‘'),
    ("rsquo", '’'),
    ("ldquo", '“'),
    ("rdquo", '”'),
    ("laquo", '«'),
    ("raquo", '»'),
    ("sect", '§'),
    ("para", '¶'),
    ("copy", '©'),
    ("reg", '®'),
    ("trade", '™'),
    ("plusmn", '±'),
    ("frac12", '½'),
    ("frac14", '¼'),
    ("frac34", '¾'),
    ("sup2", '²'),
    ("sup3", '³'),
    ("micro", 'µ'),
    ("euro", '€'),
    ("pound", '£'),
    ("yen", '¥'),
    ("cent", '¢'),
    ("le", '≤'),
    ("ge", '≥'),
    ("ne", '≠'),
    ("asymp", '≈'),
    ("infin", '∞'),
    ("radic", '√'),
    ("sum", '∑'),
    ("alpha", 'α'),
    ("beta", 'β'),
    ("gamma", 'γ'),
    ("delta", 'δ'),
    ("epsilon", 'ε'),
    ("theta", 'θ'),
    ("lambda", 'λ'),
    ("mu", 'μ'),
    ("pi", 'π'),
    ("sigma", 'σ'),
    ("tau", 'τ'),
    ("phi", 'φ'),
    ("omega", 'ω'),
    ("Omega", 'Ω'),
    ("Delta", 'Δ'),
    ("shy", '\u{ad}'),
];

#[cfg(test)]
mod tests {
    use super::decode_into;

    #[test]
    fn references_are_replaced_and_other_ampersands_stay() {
        let mut text = String::new();
        decode_into("R&D &amp;nbsp; &#8211;&#x41; &unknown; &", &mut text);
        assert_eq!(text, "R&D &nbsp; –A &unknown; &");
    }
}
