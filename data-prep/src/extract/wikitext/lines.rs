//! Which lines are prose, and their tidying.

/// Paragraphs of `flat`, one a line: headings, lists, rules and remains of tables are left out.
pub fn paragraphs(flat: &str) -> String {
    let mut output = String::with_capacity(flat.len());
    for line in flat.lines() {
        let line = line.trim();
        if is_prose(line) {
            tidy(line, &mut output);
        }
    }
    output
}

fn is_prose(line: &str) -> bool {
    let Some(&first) = line.as_bytes().first() else { return false };
    match first {
        b'*' | b'#' | b';' | b'|' | b'!' => false,
        b'=' => !line.ends_with('='),
        b'-' => !line.starts_with("----"),
        _ => line.chars().any(char::is_alphanumeric),
    }
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
