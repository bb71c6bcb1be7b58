//! Report as one HTML file without scripts, fonts or links to other files.

use super::document::Block;

const STYLE: &str = include_str!("report.css");

/// Formats the report.
pub fn render(title: &str, blocks: &[Block]) -> String {
    let mut body = String::new();
    for block in blocks {
        match block {
            Block::Heading(heading) => body.push_str(&format!("<h2>{}</h2>\n", escape(heading))),
            Block::Paragraph(paragraph) => body.push_str(&format!("<p>{}</p>\n", escape(paragraph))),
            Block::Table(rows) => body.push_str(&table(rows)),
            Block::Code(name, code) => {
                let (name, code) = (escape(name), escape(code));
                body.push_str(&format!("<details><summary>{name}</summary><pre>{code}</pre></details>\n"));
            }
            Block::Snippet(_, code) => body.push_str(&format!("<pre>{}</pre>\n", escape(code))),
            Block::Picture(svg, text) => {
                let svg = svg.replacen("<svg ", &format!("<svg role=\"img\" aria-label=\"{}\" ", escape(text)), 1);
                body.push_str(&format!("<figure>{svg}<figcaption>{}</figcaption></figure>\n", escape(text)));
            }
        }
    }
    // Nothing but the style of this file may load or run, whatever the texts of the run contain.
    let policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:";
    let title = escape(title);
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta http-equiv=\"Content-Security-Policy\" content=\"{policy}\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"><title>{title}</title>\
         <style>\n{STYLE}</style></head>\n<body><main><h1>{title}</h1>\n{body}</main></body></html>\n"
    )
}

fn table(rows: &[Vec<String>]) -> String {
    let cells = |row: &[String], open: &str, close: &str| -> String {
        row.iter().map(|cell| format!("{open}{}{close}", escape(cell))).collect()
    };
    let head = rows.first().map_or(String::new(), |row| cells(row, "<th scope=\"col\">", "</th>"));
    let body: String = rows.iter().skip(1).map(|row| format!("<tr>{}</tr>\n", cells(row, "<td>", "</td>"))).collect();
    format!(
        "<div class=\"scroll\" tabindex=\"0\"><table><thead><tr>{head}</tr></thead><tbody>\n{body}</tbody></table></div>\n"
    )
}

/// Text in elements and in quoted attributes.
pub fn escape(text: &str) -> String {
    html_escape::encode_quoted_attribute(text).into_owned()
}
