//! The header and the licence that Project Gutenberg puts around a book.

/// The book without them; a text that has no such marks comes back as it is.
pub fn body(text: &str) -> &str {
    let start = marks(text).find(|mark| mark.rest.starts_with("START"));
    let text = start.map_or(text, |mark| &text[mark.end..]);
    let end = marks(text).find(|mark| mark.rest.starts_with("END"));
    end.map_or(text, |mark| &text[..mark.start])
}

struct Mark<'a> {
    start: usize,
    end: usize,
    rest: &'a str,
}

/// The lines `*** START OF THE PROJECT GUTENBERG ...` and `*** END OF ...`, in all the ways they were spelled.
fn marks(text: &str) -> impl Iterator<Item = Mark<'_>> {
    memchr::memmem::find_iter(text.as_bytes(), "***").filter_map(move |at| {
        if at > 0 && text.as_bytes()[at - 1] != b'\n' {
            return None;
        }
        let end = memchr::memchr(b'\n', &text.as_bytes()[at..]).map_or(text.len(), |length| at + length + 1);
        let rest = text[at..end].trim_start_matches('*').trim_start();
        let wanted = ["START OF", "END OF"].iter().any(|word| rest.starts_with(word));
        (wanted && rest.contains("PROJECT GUTENBERG")).then_some(Mark { start: at, end, rest })
    })
}

#[cfg(test)]
mod tests {
    use super::body;

    #[test]
    fn header_and_licence_go() {
        let book = "Title\n*** START OF THE PROJECT GUTENBERG EBOOK X ***\nText ***\n\
                    *** END OF THIS PROJECT GUTENBERG EBOOK X ***\nLicence\n";
        assert_eq!(body(book), "Text ***\n");
        assert_eq!(body("***START OF THE PROJECT GUTENBERG EBOOK X***\r\nText\r\n"), "Text\r\n");
    }

    #[test]
    fn other_stars_stay() {
        let text = "One\n*** \nTwo\n*** START OF THE WAR ***\nThree";
        assert_eq!(body(text), text);
    }
}
