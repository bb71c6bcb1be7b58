//! Report as Markdown. Pictures are left out.

use super::document::Block;

/// Formats the report.
pub fn render(title: &str, blocks: &[Block]) -> String {
    let mut text = format!("# {}\n", line(title));
    for block in blocks {
        text.push('\n');
        match block {
            Block::Heading(heading) => text.push_str(&format!("## {}\n", line(heading))),
            Block::Paragraph(paragraph) => text.push_str(&format!("{}\n", line(paragraph))),
            Block::Table(rows) => text.push_str(&table(rows)),
            // A fence longer than any run of backticks in the text.
            Block::Code(_, code) => {
                let longest = code.split(|letter| letter != '`').map(str::len).max().unwrap_or(0);
                let fence = "`".repeat(longest.max(2) + 1);
                text.push_str(&format!("{fence}toml\n{}\n{fence}\n", code.trim_end()));
            }
            Block::Picture(..) => drop(text.pop()),
        }
    }
    text
}

fn table(rows: &[Vec<String>]) -> String {
    let row = |cells: &Vec<String>| {
        let cells: Vec<String> = cells.iter().map(|cell| line(cell).replace('|', "\\|")).collect();
        format!("| {} |\n", cells.join(" | "))
    };
    let head = rows.first().map(row).unwrap_or_default();
    let rule = format!("|{}\n", "---|".repeat(rows.first().map_or(0, Vec::len)));
    head + &rule + &rows.iter().skip(1).map(row).collect::<String>()
}

/// Text on one line, without markup characters that would format it.
fn line(text: &str) -> String {
    let plain: String = text.chars().map(|letter| if letter.is_control() { ' ' } else { letter }).collect();
    plain.replace('\\', "\\\\").replace('<', "&lt;").replace('*', "\\*").replace('[', "\\[").replace('`', "\\`")
}
