//! Selection and cleanup of prose lines.

use super::KeepOptions;

/// Returns the paragraphs of `flat`, one per line. Drops horizontal rules and the remains of tables. Drops headings and
/// list items unless `keep` includes them.
pub fn paragraphs(flat: &str, keep: KeepOptions) -> String {
    let mut output = String::with_capacity(flat.len());
    for line in flat.lines() {
        if let Some(line) = prose(line.trim(), keep) {
            tidy(line, &mut output);
        }
    }
    output
}

/// Returns the text of a line, or `None` if the line is dropped.
fn prose(line: &str, keep: KeepOptions) -> Option<&str> {
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

/// Appends `line` and a newline. Cleans up the spaces and brackets that removed templates leave behind.
fn tidy(line: &str, output: &mut String) {
    let start = output.len();
    for character in line.trim_start_matches([':', ' ']).chars() {
        let before = output[start..].chars().next_back();
        match (before, character) {
            (None | Some(' '), ' ' | '\t' | '\u{a0}') => {}
            (_, '\t' | '\u{a0}') => output.push(' '),
            (_, '\u{ad}') => {}
            // "( ; born" and "(, born" are remains of "(IPA; born".
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

/// Appends `character`. Removes a pair of parentheses if it is empty.
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
