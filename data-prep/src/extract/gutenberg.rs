//! Removal of the header and the license that Project Gutenberg adds to a book.

/// Returns the book without header and license. Text without boundary lines is returned unchanged.
pub fn body(text: &str) -> &str {
    let start = boundary_lines(text).find(|line| line.rest.starts_with("START"));
    let text = start.map_or(text, |line| &text[line.end..]);
    let end = boundary_lines(text).find(|line| line.rest.starts_with("END"));
    end.map_or(text, |line| &text[..line.start])
}

struct BoundaryLine<'a> {
    start: usize,
    end: usize,
    rest: &'a str,
}

/// Finds the lines `*** START OF THE PROJECT GUTENBERG ...` and `*** END OF ...` in all their spellings.
fn boundary_lines(text: &str) -> impl Iterator<Item = BoundaryLine<'_>> {
    memchr::memmem::find_iter(text.as_bytes(), "***").filter_map(move |at| {
        if at > 0 && text.as_bytes()[at - 1] != b'\n' {
            return None;
        }
        let end = memchr::memchr(b'\n', &text.as_bytes()[at..]).map_or(text.len(), |length| at + length + 1);
        let rest = text[at..end].trim_start_matches('*').trim_start();
        let is_boundary = ["START OF", "END OF"].iter().any(|word| rest.starts_with(word));
        (is_boundary && rest.contains("PROJECT GUTENBERG")).then_some(BoundaryLine { start: at, end, rest })
    })
}

#[cfg(test)]
mod tests {
    use super::body;

    #[test]
    fn header_and_license_are_removed() {
        let book = "Title\n*** START OF THE PROJECT GUTENBERG EBOOK X ***\nText ***\n\
                    *** END OF THIS PROJECT GUTENBERG EBOOK X ***\nLicence\n";
        assert_eq!(body(book), "Text ***\n");
        assert_eq!(body("***START OF THE PROJECT GUTENBERG EBOOK X***\r\nText\r\n"), "Text\r\n");
    }

    #[test]
    fn other_asterisks_are_kept() {
        let text = "One\n*** \nTwo\n*** START OF THE WAR ***\nThree";
        assert_eq!(body(text), text);
    }
}
