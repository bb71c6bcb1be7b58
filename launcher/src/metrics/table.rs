//! Table of step records: a row per record and a column per field. The first pass over the records finds the columns and
//! their types. The second pass passes the rows on, one at a time, so the table is never in memory.

use std::collections::HashMap;

use lambert_store::Store;

use super::WriteError;
use super::column_types::{ColumnType, ValueCounts};
use super::history::{Entry, History};
use super::line::{Field, fields};

/// Prefix of the columns of evaluations.
const HELD_OUT: &str = "held_out_";

/// Rows of all attempts, in the order of execution.
#[derive(Debug)]
pub struct Table<'a> {
    history: &'a History,
    /// The store of the run.
    run: &'a Store,
    columns: Columns,
    /// Step records, a row each.
    steps: Vec<Entry>,
    /// Evaluations and their rows, by row. Rows beyond those of the steps have one evaluation and nothing else.
    evaluations: Vec<(usize, Entry)>,
}

/// Column of a table.
#[derive(Debug)]
pub struct Column {
    pub name: String,
    counts: ValueCounts,
}

impl Column {
    /// Returns the narrowest type that fits all values.
    pub fn column_type(&self) -> ColumnType {
        self.counts.column_type()
    }
}

/// Cells of a row, by column. `None`: the row lacks the field.
pub type Row = Vec<Option<Field>>;

impl<'a> Table<'a> {
    /// Finds the columns. An evaluation is added to the row of its step. This row is from the attempt of the evaluation
    /// or from an earlier attempt, and has the same value of `undone` as the evaluation. Without such a row, the
    /// evaluation gets its own row at the end.
    ///
    /// # Errors
    /// The store fails, or a line is not a JSON object.
    pub fn new(history: &'a History, run: &'a Store) -> Result<Self, WriteError> {
        let mut steps = history.entries();
        let mut evaluations = evaluations(history, &steps)?;
        steps.retain(|entry| !entry.is_event);
        let (mut columns, mut row) = (Columns::default(), Row::new());
        history.read::<WriteError>(run, steps.iter(), |entry, text| {
            row.clear();
            own_fields(entry).into_iter().chain(fields(text)?).for_each(|field| columns.add(&mut row, field));
            columns.count(&row);
            Ok(())
        })?;
        // The columns of evaluations are in the order of execution.
        let fields_of = |at: usize, entry: &Entry| {
            let own = (at >= steps.len()).then(|| own_fields(entry)).into_iter().flatten();
            held_out(history.event(entry)).map(|held_out| own.chain(held_out))
        };
        for (at, entry) in &evaluations {
            fields_of(*at, entry)?.for_each(|field| columns.add(&mut row, field));
        }
        evaluations.sort_by_key(|(at, _)| *at);
        for of_row in evaluations.chunk_by(|(at, _), (next, _)| at == next) {
            row.clear();
            for (at, entry) in of_row {
                fields_of(*at, entry)?.for_each(|field| columns.add(&mut row, field));
            }
            columns.count(&row);
        }
        Ok(Self { history, run, columns, steps, evaluations })
    }

    /// Columns, in the order of their first appearance: `attempt` and `undone`, then the fields of the records.
    pub fn columns(&self) -> &[Column] {
        &self.columns.all
    }

    /// Passes each row to `take`.
    ///
    /// # Errors
    /// The store fails, or an error of `take`.
    pub fn rows(&self, mut take: impl FnMut(&Row) -> Result<(), WriteError>) -> Result<(), WriteError> {
        let (mut row, mut at) = (Row::new(), 0);
        let with_step = self.evaluations.partition_point(|(at, _)| *at < self.steps.len());
        let (with_step, others) = self.evaluations.split_at(with_step);
        let mut waiting = with_step.iter().peekable();
        self.history.read::<WriteError>(self.run, self.steps.iter(), |entry, text| {
            self.columns.begin(&mut row);
            own_fields(entry).into_iter().chain(fields(text)?).for_each(|field| self.columns.set(&mut row, field));
            while let Some((_, evaluation)) = waiting.next_if(|(of, _)| *of == at) {
                held_out(self.history.event(evaluation))?.for_each(|field| self.columns.set(&mut row, field));
            }
            at += 1;
            take(&row)
        })?;
        for (_, entry) in others {
            self.columns.begin(&mut row);
            let held_out = held_out(self.history.event(entry))?;
            own_fields(entry).into_iter().chain(held_out).for_each(|field| self.columns.set(&mut row, field));
            take(&row)?;
        }
        Ok(())
    }
}

/// Returns the evaluations and their rows, in the order of execution.
fn evaluations(history: &History, entries: &[Entry]) -> serde_json::Result<Vec<(usize, Entry)>> {
    let key = |entry: &Entry| (entry.position.step, entry.is_undone);
    let events = entries.iter().filter(|entry| entry.is_event);
    let mut last_rows: HashMap<(u64, bool), Option<usize>> = events.map(|entry| (key(entry), None)).collect();
    let (mut evaluations, mut row) = (Vec::new(), 0);
    let mut end = entries.iter().filter(|entry| !entry.is_event).count();
    for entry in entries {
        let last_row = last_rows.get_mut(&key(entry));
        if !entry.is_event {
            last_row.into_iter().for_each(|last_row| *last_row = Some(row));
            row += 1;
        } else if is_evaluation(history.event(entry))? {
            let own_row = || {
                end += 1;
                end - 1
            };
            evaluations.push((last_row.and_then(|row| *row).unwrap_or_else(own_row), *entry));
        }
    }
    Ok(evaluations)
}

fn is_evaluation(line: &str) -> serde_json::Result<bool> {
    let is_evaluation = |(name, field): &(String, Field)| name == "event" && *field == Field::Text("evaluation".into());
    Ok(fields(line)?.iter().any(is_evaluation))
}

/// Fields of a row that do not come from its line, and the step.
fn own_fields(entry: &Entry) -> [(String, Field); 3] {
    [
        ("attempt".to_owned(), Field::Number(entry.position.attempt.to_string())),
        ("undone".to_owned(), Field::Bool(entry.is_undone)),
        ("step".to_owned(), Field::Number(entry.position.step.to_string())),
    ]
}

/// Fields of an evaluation, named as columns.
fn held_out(line: &str) -> serde_json::Result<impl Iterator<Item = (String, Field)>> {
    let fields = fields(line)?.into_iter().filter(|(name, _)| name != "event" && name != "step");
    Ok(fields.map(|(name, field)| (format!("{HELD_OUT}{name}"), field)))
}

/// Columns by name.
#[derive(Debug, Default)]
struct Columns {
    all: Vec<Column>,
    by_name: HashMap<String, usize>,
}

impl Columns {
    /// Sets a cell. Adds its column if it is new.
    fn add(&mut self, row: &mut Row, (name, field): (String, Field)) {
        let column = self.by_name.get(&name).copied().unwrap_or_else(|| {
            self.all.push(Column { name: name.clone(), counts: ValueCounts::default() });
            self.by_name.insert(name, self.all.len() - 1);
            self.all.len() - 1
        });
        row.resize(self.all.len(), None);
        row[column] = Some(field);
    }

    /// Counts the values of a complete row.
    fn count(&mut self, row: &Row) {
        for (column, field) in self.all.iter_mut().zip(row) {
            field.iter().for_each(|field| column.counts.add(field));
        }
    }

    /// Begins a row of all columns.
    fn begin(&self, row: &mut Row) {
        row.clear();
        row.resize(self.all.len(), None);
    }

    /// Sets a cell. Has no effect if there is no such column.
    fn set(&self, row: &mut Row, (name, field): (String, Field)) {
        if let Some(column) = self.by_name.get(&name) {
            row[*column] = Some(field);
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::super::history::tests::{evaluation, line, put, read, store};
    use super::*;

    /// Returns the history of a table with these rows: steps 1, 2 and 3 of attempt 1, step 3 of attempt 2, and the
    /// evaluation of step 0, which has its own row.
    pub(crate) fn history(name: &str) -> (History, Store) {
        let store = store(name);
        put(&store, 1, 0, [evaluation(0, 9.0), line(1, 5.0), line(2, f64::NAN), line(3, 3.0)].concat());
        // Attempt 1 did not evaluate step 2, so attempt 2 evaluates it.
        put(&store, 2, 2, [evaluation(2, 8.0), line(3, 2.5), evaluation(3, 7.0)].concat());
        (read(&store), store)
    }

    /// Cells of a column that have a value, with their rows.
    fn cells(table: &Table<'_>, name: &str) -> Vec<(usize, Field)> {
        let (column, mut row, mut cells) = (table.columns.by_name[name], 0, Vec::new());
        table
            .rows(|fields| {
                cells.extend(fields[column].clone().map(|field| (row, field)));
                row += 1;
                Ok(())
            })
            .unwrap();
        cells
    }

    #[test]
    fn evaluations_are_in_the_row_of_their_step() {
        let (history, store) = history("rows");
        let table = Table::new(&history, &store).unwrap();
        let digits = |name: &str| -> Vec<(usize, String)> {
            let cells = cells(&table, name).into_iter();
            cells.filter_map(|(row, field)| Some((row, format!("{}", field.number()?)))).collect()
        };
        let of =
            |cells: &[(usize, &str)]| cells.iter().map(|(row, text)| (*row, (*text).to_owned())).collect::<Vec<_>>();
        assert_eq!(digits("step"), of(&[(0, "1"), (1, "2"), (2, "3"), (3, "3"), (4, "0")]));
        assert_eq!(digits("attempt"), of(&[(0, "1"), (1, "1"), (2, "1"), (3, "2"), (4, "1")]));
        assert_eq!(digits("loss"), of(&[(0, "5"), (1, "NaN"), (2, "3"), (3, "2.5")]));
        assert_eq!(digits("held_out_x_loss"), of(&[(1, "8"), (3, "7"), (4, "9")]));
        assert_eq!(cells(&table, "undone")[2], (2, Field::Bool(true)));
        let names = &table.columns.by_name;
        assert!(!names.contains_key("held_out_step") && !names.contains_key("held_out_event"));
    }

    #[test]
    fn an_evaluation_of_a_repeated_step_replaces_the_one_before() {
        let store = store("replaced");
        put(&store, 1, 0, [line(1, 5.0), evaluation(1, 9.0), line(2, 4.0)].concat());
        put(&store, 1, 2, [evaluation(2, 8.0), line(3, 3.0), evaluation(3, 7.0)].concat());
        // These two undo the evaluation of step 3, which stays in its row. The first one is undone, too.
        put(&store, 2, 2, [evaluation(2, 8.5), line(3, 2.5), evaluation(3, 6.0)].concat());
        put(&store, 3, 2, [line(3, 2.5), evaluation(3, 5.0)].concat());
        let history = read(&store);
        let table = Table::new(&history, &store).unwrap();
        let number = |row: usize, digits: &str| (row, Field::Number(digits.into()));
        let expected =
            [number(0, "9"), number(1, "8.5"), number(2, "7"), number(3, "6"), number(4, "5"), number(5, "8")];
        assert_eq!(cells(&table, "held_out_x_loss"), expected);
        let types: Vec<ColumnType> = table.columns().iter().map(Column::column_type).take(3).collect();
        assert_eq!(types, [ColumnType::Int, ColumnType::Bool, ColumnType::Int]);
    }

    #[test]
    fn a_run_without_steps_has_rows_of_evaluations() {
        let store = store("evaluations");
        put(&store, 1, 0, evaluation(0, 9.0));
        let history = read(&store);
        let table = Table::new(&history, &store).unwrap();
        let names: Vec<&str> = table.columns().iter().map(|column| column.name.as_str()).collect();
        assert_eq!(names, ["attempt", "undone", "step", "held_out_x_loss", "held_out_samples"]);
        assert_eq!(cells(&table, "step"), [(0, Field::Number("0".into()))]);
    }
}
