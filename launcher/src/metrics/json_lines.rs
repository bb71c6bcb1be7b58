//! JSON lines. Each line is a record or an evaluation as it is in the store, plus the members `attempt` and `undone`.

use std::io::Write;

use lambert_store::Store;

use super::WriteError;
use super::history::{Entry, History};

/// Writes the lines. `run` is the store of the history.
///
/// # Errors
/// `output` cannot be written, or the records cannot be read.
pub fn write(history: &History, run: &Store, output: &mut dyn Write) -> Result<(), WriteError> {
    history.read(run, history.entries().iter(), |entry, text| Ok(write_line(entry, text, output)?))
}

/// Writes the line of an entry. `text` is the line in the store.
///
/// # Errors
/// `output` cannot be written.
pub fn write_line(entry: &Entry, text: &str, output: &mut dyn Write) -> std::io::Result<()> {
    let members = text.trim_start().strip_prefix('{').unwrap_or_default();
    let (attempt, is_undone) = (entry.position.attempt, entry.is_undone);
    writeln!(output, "{{\"attempt\":{attempt},\"undone\":{is_undone},{}", members.trim_end())
}

#[cfg(test)]
mod tests {
    use super::super::history::tests::{evaluation, line, put, read, store};
    use super::*;

    #[test]
    fn lines_keep_their_members() {
        let store = store("lines");
        put(&store, 3, 0, line(1, 5.5) + &evaluation(1, 8.0));
        let mut text = Vec::new();
        write(&read(&store), &store, &mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        let added = "{\"attempt\":3,\"undone\":false,";
        assert_eq!(lines[0], line(1, 5.5).trim_end().replacen('{', added, 1));
        assert_eq!(lines[1], evaluation(1, 8.0).trim_end().replacen('{', added, 1));
        assert_eq!(lines.len(), 2);
    }
}
