//! Removal of the header and the license that Project Gutenberg adds to a book.

use std::borrow::Cow;

/// Returns the books of a file without headers and licenses. Text without boundary lines is returned unchanged.
pub fn body(text: &str) -> Cow<'_, str> {
    let has_header = boundary_lines(text).next().is_some_and(|line| line.rest.starts_with("START"));
    // Start of the current book. `None` between an END line and the next START line.
    let mut start = (!has_header).then_some(0);
    let mut books = Vec::new();
    for line in boundary_lines(text) {
        let is_start = line.rest.starts_with("START");
        let next = is_start.then_some(line.end);
        books.extend(std::mem::replace(&mut start, next).map(|start| &text[start..line.start]));
    }
    books.extend(start.map(|start| &text[start..]));
    match books[..] {
        [book] => Cow::Borrowed(book),
        _ => Cow::Owned(books.concat()),
    }
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
    fn every_book_of_a_file_is_kept() {
        let book = |text: &str| {
            format!(
                "Title\n*** START OF THE PROJECT GUTENBERG EBOOK X ***\n{text}*** END OF THE PROJECT GUTENBERG EBOOK X ***\nLicence\n"
            )
        };
        assert_eq!(body(&[book("One\n"), book("Two\n"), book("Three\n")].concat()), "One\nTwo\nThree\n");
        // A book without its last line, and one without its first.
        let unfinished = "*** START OF THE PROJECT GUTENBERG EBOOK X ***\nOne\n";
        assert_eq!(body(&[unfinished, &book("Two\n")].concat()), "One\nTitle\nTwo\n");
        let headless = "One\n*** END OF THE PROJECT GUTENBERG EBOOK X ***\nLicence\n";
        assert_eq!(body(&[headless, &book("Two\n")].concat()), "One\nTwo\n");
    }

    #[test]
    fn other_asterisks_are_kept() {
        let text = "One\n*** \nTwo\n*** START OF THE WAR ***\nThree";
        assert_eq!(body(text), text);
    }
}
