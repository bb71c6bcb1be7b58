//! Character references (`&amp;`, `&nbsp;`, `&#8211;`).

/// Appends `text` to `output` with character references decoded. Other ampersands are kept.
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

/// Parses the reference at the start of `text`, which begins with `&`. Returns the character and the length in bytes.
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
        None => match NAMED.iter().find(|(known, _)| *known == name) {
            Some((_, character)) => *character,
            None => html_entity(&text[..=end])?,
        },
    };
    Some((character, end + 1))
}

/// The most frequent references in Wikipedia articles. `nbsp` and other special spaces become plain spaces.
const NAMED: [(&str, char); 11] = [
    ("lt", '<'),
    ("gt", '>'),
    ("quot", '"'),
    ("amp", '&'),
    ("nbsp", ' '),
    ("ndash", '–'),
    ("mdash", '—'),
    ("apos", '\''),
    ("thinsp", ' '),
    ("ensp", ' '),
    ("emsp", ' '),
];

/// Decodes a named HTML reference that stands for one character. `text` includes `&` and `;`.
fn html_entity(text: &str) -> Option<char> {
    let decoded = html_escape::decode_html_entities(text);
    let mut characters = decoded.chars();
    characters.next().filter(|&character| character != '&' && characters.next().is_none())
}

#[cfg(test)]
mod tests {
    use super::decode_into;

    #[test]
    fn references_are_decoded_and_other_ampersands_kept() {
        let mut text = String::new();
        decode_into("R&D &amp;nbsp; &#8211;&#x41; &unknown; &Psi;&eacute;&thinsp;&", &mut text);
        assert_eq!(text, "R&D &nbsp; –A &unknown; Ψé &");
    }
}
