//! Lines of a text file to paragraphs: hard-wrapped prose is joined, verse and lists are not.

/// Lines longer than this are paragraphs by themselves: such a file is not wrapped.
const WIDEST_WRAP: usize = 100;
/// Blocks narrower than this share of the text's usual width are not taken for prose.
const NARROW: f64 = 0.75;
/// Share of the lines of a block that have to be full for it to be prose.
const FULL: f64 = 0.7;

/// One paragraph a line.
pub fn join(text: &str) -> String {
    let width = wrap_width(text);
    let mut joined = String::with_capacity(text.len());
    let mut block: Vec<&str> = Vec::new();
    for line in text.lines().chain([""]) {
        let line = line.trim_end();
        let indented = line.starts_with([' ', '\t']) && block.last().is_some_and(|last| !last.starts_with([' ', '\t']));
        if line.trim_start().is_empty() || indented {
            flush(&mut block, width, &mut joined);
        }
        if !line.trim_start().is_empty() {
            block.push(line);
        }
    }
    joined
}

/// The width that the text is wrapped at: nine in ten of its longer half of lines fit. `None` where it is not.
fn wrap_width(text: &str) -> Option<usize> {
    let mut widths: Vec<usize> = text.lines().map(|line| line.trim().len()).filter(|&width| width > 0).collect();
    if widths.len() < 2 {
        return None;
    }
    let at = widths.len() * 95 / 100;
    let (_, &mut width, _) = widths.select_nth_unstable(at);
    (width <= WIDEST_WRAP).then_some(width)
}

fn flush(block: &mut Vec<&str>, width: Option<usize>, joined: &mut String) {
    let prose = width.is_some_and(|width| is_prose(block, width));
    for (index, line) in block.iter().enumerate() {
        let line = line.trim();
        if index > 0 && prose {
            glue(joined, line);
        } else if index > 0 {
            joined.push('\n');
        }
        joined.push_str(line);
    }
    if !block.is_empty() {
        joined.push('\n');
    }
    block.clear();
}

/// Whether the lines end where the next word would not have fitted: that is what wrapping does and a poet does not.
fn is_prose(block: &[&str], width: usize) -> bool {
    let widest = block.iter().map(|line| line.trim().len()).max().unwrap_or(0);
    if (widest as f64) < NARROW * width as f64 {
        return false;
    }
    let full = |pair: &[&str]| {
        let next = pair[1].trim_start().split(' ').next().map_or(0, str::len);
        // Two bytes of slack: some wrapped a little early.
        pair[0].trim().len() + 1 + next + 2 > widest
    };
    let count = block.windows(2).filter(|pair| full(pair)).count();
    count as f64 >= FULL * (block.len() - 1) as f64
}

fn glue(joined: &mut String, next: &str) {
    let wide = |character: Option<char>| character.is_some_and(|c| ('\u{2e80}'..'\u{ffef}').contains(&c));
    let hyphen = joined.ends_with('-') && !joined.ends_with("--") && next.starts_with(char::is_alphanumeric);
    let both_wide = wide(joined.chars().next_back()) && wide(next.chars().next());
    if !hyphen && !both_wide {
        joined.push(' ');
    }
}

#[cfg(test)]
mod tests {
    use super::join;

    #[test]
    fn wrapped_prose_is_joined() {
        let text = "It was the best of times, it was the worst of times, it was\r\nthe age of wisdom, it was the age \
                    of foolishness, it was the\r\nepoch of belief.\r\n\r\nIt was the epoch of incredulity, it was the \
                    season of Light,\r\nit was the season of Darkness.\r\n";
        let joined = join(text);
        let lines: Vec<&str> = joined.lines().collect();
        assert_eq!(lines.len(), 2, "{joined}");
        assert!(lines[0].contains("it was the age of wisdom") && lines[0].ends_with("epoch of belief."));
    }

    #[test]
    fn verse_keeps_its_lines() {
        let prose = "It was the best of times, it was the worst of times, it was\nthe age of wisdom, it was the age \
                     of foolishness, it was the\nepoch of belief.\n\n"
            .repeat(9);
        let verse = "Tiger, tiger, burning bright\nIn the forests of the night,\nWhat immortal hand or eye\nCould \
                     frame thy fearful symmetry?\n";
        let joined = join(&format!("{prose}{verse}"));
        assert!(joined.ends_with(verse), "{joined}");
    }

    #[test]
    fn a_long_line_is_a_paragraph() {
        let text = format!("{}\n{}\n", "word ".repeat(60).trim(), "other ".repeat(60).trim());
        assert_eq!(join(&text), text);
    }

    #[test]
    fn hyphens_and_wide_characters_are_glued() {
        let text = "The old man went down to the market with his ten-\nyear-old son and the dog, which was old.\n";
        assert!(join(text).contains("ten-year-old"), "{}", join(text));
        let chinese =
            "話說大宋仁宗天子在位嘉祐三年三月三日五更三點天子駕坐\n紫宸殿受百官朝賀但見祥雲迷鳳閣瑞氣罩龍樓\n";
        assert_eq!(join(chinese).lines().count(), 1);
        assert!(!join(chinese).contains(' '));
    }
}
