//! CSV (RFC 4180): a header line and a line per row. Null and absent values are empty.

use std::io::{self, Write};

use super::line::Field;
use super::table::Table;

/// Writes the table.
///
/// # Errors
/// `output` cannot be written.
pub fn write(table: &Table, output: &mut dyn Write) -> io::Result<()> {
    let names: Vec<String> = table.columns.iter().map(|column| quoted(&column.name)).collect();
    writeln!(output, "{}", names.join(","))?;
    let mut cells: Vec<_> = table.columns.iter().map(|column| column.cells.iter().peekable()).collect();
    for row in 0..table.rows {
        for (index, column) in cells.iter_mut().enumerate() {
            let separator = if index == 0 { "" } else { "," };
            let field = column.next_if(|(at, _)| **at == row).map(|(_, field)| text(field));
            write!(output, "{separator}{}", field.unwrap_or_default())?;
        }
        writeln!(output)?;
    }
    Ok(())
}

fn text(field: &Field) -> String {
    match field {
        Field::Null => String::new(),
        Field::Bool(value) => value.to_string(),
        Field::Number(digits) => digits.clone(),
        Field::Text(text) => quoted(text),
    }
}

fn quoted(text: &str) -> String {
    if text.contains([',', '"', '\n', '\r']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::super::table::tests::table;
    use super::*;

    #[test]
    fn absent_values_are_empty() {
        let table = table("csv");
        let mut bytes = Vec::new();
        write(&table, &mut bytes).unwrap();
        let text = String::from_utf8(bytes).unwrap();
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split(',').collect()).collect();
        assert!(lines.iter().all(|line| line.len() == table.columns.len()));
        assert_eq!((lines.len(), &lines[0][..4]), (6, &["attempt", "undone", "step", "stage"][..]));
        let column = |name: &str| lines[0].iter().position(|other| *other == name).unwrap();
        let losses: Vec<&str> = lines[1..].iter().map(|line| line[column("loss")]).collect();
        assert_eq!(losses, ["5.0", "", "3.0", "2.5", ""]);
    }

    #[test]
    fn separators_and_quotes_are_quoted() {
        assert_eq!(quoted("a,\"b\"\n"), "\"a,\"\"b\"\"\n\"");
        assert_eq!(quoted("a b"), "a b");
    }
}
