//! Report as Markdown. Pictures are left out.

use super::document::Block;
use super::html::escape;

/// Formats the report.
pub fn render(title: &str, blocks: &[Block]) -> String {
    let mut text = format!("# {}\n", line(title));
    for block in blocks {
        text.push('\n');
        match block {
            Block::Heading(heading) => text.push_str(&format!("## {}\n", line(heading))),
            Block::Paragraph(paragraph) => text.push_str(&format!("{}\n", line(paragraph))),
            Block::Table(rows) => text.push_str(&table(rows)),
            Block::Code(name, code) => {
                let (name, code) = (escape(name), fenced("toml", code));
                text.push_str(&format!("<details><summary>{name}</summary>\n\n{code}\n</details>\n"));
            }
            Block::Snippet(language, code) => text.push_str(&fenced(language, code)),
            Block::Picture(..) => drop(text.pop()),
        }
    }
    text
}

fn table(rows: &[Vec<String>]) -> String {
    let row = |cells: &Vec<String>| {
        let cells: Vec<String> = cells.iter().map(|cell| line(cell)).collect();
        format!("| {} |\n", cells.join(" | "))
    };
    let head = rows.first().map(row).unwrap_or_default();
    let rule = format!("|{}\n", "---|".repeat(rows.first().map_or(0, Vec::len)));
    head + &rule + &rows.iter().skip(1).map(row).collect::<String>()
}

/// Code between fences that are longer than any run of backticks in the code.
fn fenced(language: &str, code: &str) -> String {
    let longest = code.split(|letter| letter != '`').map(str::len).max().unwrap_or(0);
    let fence = "`".repeat(longest.max(2) + 1);
    format!("{fence}{language}\n{}\n{fence}\n", code.trim_end())
}

/// Text on one line, without markup characters that would format it.
fn line(text: &str) -> String {
    let mut line = String::new();
    for letter in text.chars() {
        match letter {
            '&' => line.push_str("&amp;"),
            '<' => line.push_str("&lt;"),
            '>' => line.push_str("&gt;"),
            '\\' | '`' | '*' | '_' | '[' | ']' | '~' | '|' | '$' | '#' => line.extend(['\\', letter]),
            _ => line.push(if letter.is_control() { ' ' } else { letter }),
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markup_in_texts_has_no_effect() {
        let title = "a\n# *b* _c_ [d](e) <img src=x> `f` | $g$ &amp; \\h";
        let blocks = [
            Block::Table(vec![vec!["one|two".to_owned()]]),
            Block::Code("<b>run</b>".to_owned(), "x = \"```\"\n</details>".to_owned()),
            Block::Snippet("python", "print(1)".to_owned()),
        ];
        let expected = "# a \\# \\*b\\* \\_c\\_ \\[d\\](e) &lt;img src=x&gt; \\`f\\` \\| \\$g\\$ &amp;amp; \\\\h\n\n\
            | one\\|two |\n|---|\n\n\
            <details><summary>&lt;b&gt;run&lt;/b&gt;</summary>\n\n````toml\nx = \"```\"\n</details>\n````\n\n</details>\n\n\
            ```python\nprint(1)\n```\n";
        assert_eq!(render(title, &blocks), expected);
    }
}
