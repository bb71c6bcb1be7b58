//! CSV (RFC 4180): a header line and a line per row. Null and absent values are empty.

use std::io::Write;

use super::WriteError;
use super::line::Field;
use super::table::Table;

/// Writes the table.
///
/// # Errors
/// `output` cannot be written, or the records cannot be read.
pub fn write(table: &Table<'_>, output: &mut dyn Write) -> Result<(), WriteError> {
    let names: Vec<String> = table.columns().iter().map(|column| quoted(&column.name)).collect();
    writeln!(output, "{}", names.join(","))?;
    table.rows(|row| {
        for (index, field) in row.iter().enumerate() {
            let separator = if index == 0 { "" } else { "," };
            write!(output, "{separator}{}", field.as_ref().map(text).unwrap_or_default())?;
        }
        Ok(writeln!(output)?)
    })
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
    use super::super::table::tests::history;
    use super::*;

    #[test]
    fn absent_values_are_empty() {
        let (history, store) = history("csv");
        let table = Table::new(&history, &store).unwrap();
        let mut bytes = Vec::new();
        write(&table, &mut bytes).unwrap();
        let text = String::from_utf8(bytes).unwrap();
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split(',').collect()).collect();
        assert!(lines.iter().all(|line| line.len() == table.columns().len()));
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
