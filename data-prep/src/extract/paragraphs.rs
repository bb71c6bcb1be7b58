//! Paragraphs of plain text. Joins the lines of hard-wrapped prose. Does not join the lines of verse and lists.

/// Largest wrap width, bytes. In text with longer lines, each line is a paragraph.
const MAX_WRAP_WIDTH: usize = 100;
/// Smallest width of a prose block, relative to the wrap width of the text.
const MIN_RELATIVE_WIDTH: f64 = 0.75;
/// Smallest share of full lines in a prose block.
const MIN_FULL_LINES: f64 = 0.7;

/// Joins wrapped lines. Returns one paragraph per line.
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

/// Estimates the wrap width as the 95th percentile of the line widths, in bytes. Returns `None` if the text is not
/// wrapped.
fn wrap_width(text: &str) -> Option<usize> {
    let mut widths: Vec<usize> = text.lines().map(|line| line.trim().len()).filter(|&width| width > 0).collect();
    if widths.len() < 2 {
        return None;
    }
    let at = widths.len() * 95 / 100;
    let (_, &mut width, _) = widths.select_nth_unstable(at);
    (width <= MAX_WRAP_WIDTH).then_some(width)
}

fn flush(block: &mut Vec<&str>, width: Option<usize>, joined: &mut String) {
    let prose = width.is_some_and(|width| is_prose(block, width));
    for (index, line) in block.iter().enumerate() {
        let line = line.trim();
        if index > 0 && prose {
            append_joined(joined, line);
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

/// True if most lines end where the next word would not have fit. This is typical of wrapped prose, but not of verse.
fn is_prose(block: &[&str], width: usize) -> bool {
    let widest = block.iter().map(|line| line.trim().len()).max().unwrap_or(0);
    if (widest as f64) < MIN_RELATIVE_WIDTH * width as f64 {
        return false;
    }
    let full = |pair: &[&str]| {
        let next = pair[1].trim_start().split(' ').next().map_or(0, str::len);
        // In some texts, lines break up to two bytes before the full width.
        pair[0].trim().len() + 1 + next + 2 > widest
    };
    let count = block.windows(2).filter(|pair| full(pair)).count();
    count as f64 >= MIN_FULL_LINES * (block.len() - 1) as f64
}

fn append_joined(joined: &mut String, next: &str) {
    let wide = |character: Option<char>| character.is_some_and(is_written_without_spaces);
    let hyphen = joined.ends_with('-') && !joined.ends_with("--") && next.starts_with(char::is_alphanumeric);
    let both_wide = wide(joined.chars().next_back()) && wide(next.chars().next());
    if !hyphen && !both_wide {
        joined.push(' ');
    }
}

/// True for characters of Chinese and Japanese, whose words are not separated by spaces. Korean words are.
fn is_written_without_spaces(character: char) -> bool {
    matches!(character,
        // Radicals, punctuation, kana and Bopomofo.
        '\u{2e80}'..='\u{312f}' | '\u{3190}'..='\u{31ff}'
        // Enclosed and squared characters, ideographs, and the syllables of Yi.
        | '\u{3220}'..='\u{325f}' | '\u{3280}'..='\u{a4cf}' | '\u{f900}'..='\u{faff}' | '\u{20000}'..='\u{3ffff}'
        // Vertical forms, and full-width and half-width forms except for the letters of Korean.
        | '\u{fe10}'..='\u{fe1f}' | '\u{fe30}'..='\u{fe6f}' | '\u{ff01}'..='\u{ff9f}' | '\u{ffe0}'..='\u{ffe6}')
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
    fn words_of_korean_and_arabic_stay_apart() {
        for [first, second] in [
            ["이 도시는 넓은 강을 끼고 있으며 많은", "사람들이 살고 있는 나라의 중심지이다"],
            ["\u{fe8d}\u{fedf}\u{fe97}\u{fead}", "\u{fe91}\u{fe97}\u{fead}"],
            ["the \u{fb01}rst of\u{fb01}", "\u{fb02}ow of the river"],
        ] {
            let text = format!("{first}\n{second}\n");
            let joined = join(&text);
            assert!(joined == text || joined == format!("{first} {second}\n"), "{joined}");
        }
        let korean = "이 도시는 넓은 강을 끼고 있으며 많은\n사람들이 살고 있는 나라의 중심지이다 그\n그리고 오래된\n";
        assert!(join(korean).contains("많은 사람들이"), "{}", join(korean));
    }

    #[test]
    fn hyphens_and_cjk_characters_are_joined_without_space() {
        let text = "The old man went down to the market with his ten-\nyear-old son and the dog, which was old.\n";
        assert!(join(text).contains("ten-year-old"), "{}", join(text));
        let chinese =
            "話說大宋仁宗天子在位嘉祐三年三月三日五更三點天子駕坐\n紫宸殿受百官朝賀但見祥雲迷鳳閣瑞氣罩龍樓\n";
        assert_eq!(join(chinese).lines().count(), 1);
        assert!(!join(chinese).contains(' '));
    }
}
