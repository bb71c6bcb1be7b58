//! Which lines are prose, and their tidying.

use super::Keep;

/// Paragraphs of `flat`, one a line: rules and remains of tables are left out, headings and lists unless kept.
pub fn paragraphs(flat: &str, keep: Keep) -> String {
    let mut output = String::with_capacity(flat.len());
    for line in flat.lines() {
        if let Some(line) = prose(line.trim(), keep) {
            tidy(line, &mut output);
        }
    }
    output
}

/// The text of a line, if it is to be kept.
fn prose(line: &str, keep: Keep) -> Option<&str> {
    let text = match line.as_bytes().first()? {
        b'|' | b'!' => return None,
        b'*' | b'#' | b';' if !keep.lists => return None,
        b'*' | b'#' | b';' => line.trim_start_matches(['*', '#', ';', ':', ' ']),
        b'=' if line.ends_with('=') && !keep.headings => return None,
        b'=' => line.trim_matches(['=', ' ']),
        b'-' if line.starts_with("----") => return None,
        _ => line,
    };
    text.chars().any(char::is_alphanumeric).then_some(text)
}

/// Appends `line` and a line end; mends the spaces and brackets that templates leave behind.
fn tidy(line: &str, output: &mut String) {
    let start = output.len();
    for character in line.trim_start_matches([':', ' ']).chars() {
        let before = output[start..].chars().next_back();
        match (before, character) {
            (None | Some(' '), ' ' | '\t' | '\u{a0}') => {}
            (_, '\t' | '\u{a0}') => output.push(' '),
            (_, '\u{ad}') => {}
            // "( ; born" and "(, born" are what is left of "(IPA; born".
            (Some('('), ' ' | ',' | ';') => {}
            (Some(' '), ',' | '.' | ';' | ':' | ')' | '!' | '?') => {
                output.pop();
                push(output, start, character);
            }
            _ => push(output, start, character),
        }
    }
    output.truncate(output.trim_end_matches(' ').len().max(start));
    if output.len() > start {
        output.push('\n');
    }
}

/// Pushes `character`; an empty pair of brackets goes as a whole.
fn push(output: &mut String, start: usize, character: char) {
    if character == ')' {
        while output.len() > start && output.ends_with([' ', ',', ';']) {
            output.pop();
        }
        if output.len() > start && output.ends_with('(') {
            output.pop();
            if output.len() > start && output.ends_with(' ') {
                output.pop();
            }
            return;
        }
    }
    output.push(character);
}
