//! Table of step records: a row per record and a column per field.

use std::collections::{BTreeMap, HashMap};

use lambert_store::Store;
use lambert_store::run::AttemptStep;

use super::WriteError;
use super::history::History;
use super::line::{Field, fields};

/// Prefix of the columns of evaluations.
const HELD_OUT: &str = "held_out_";

/// Rows of all attempts, in the order of execution.
#[derive(Debug, Default)]
pub struct Table {
    pub rows: usize,
    /// Columns, in the order of their first appearance: `attempt` and `undone`, then the fields of the records.
    pub columns: Vec<Column>,
    by_name: HashMap<String, usize>,
}

/// Column of a table.
#[derive(Debug)]
pub struct Column {
    pub name: String,
    /// Values by row; rows without the field are absent.
    pub cells: BTreeMap<usize, Field>,
}

/// Type of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ColumnType {
    Bool,
    /// Signed 64-bit integer.
    Int,
    /// Unsigned 64-bit integer.
    Unsigned,
    Float,
    Text,
}

impl Column {
    /// Returns the narrowest type that fits all values. Nulls fit every type.
    pub fn column_type(&self) -> ColumnType {
        let numbers = || self.cells.values().filter(|field| **field != Field::Null);
        let are = |is: fn(&Field) -> bool| numbers().all(is);
        let is_number =
            |parses: fn(&str) -> bool| numbers().all(|field| matches!(field, Field::Number(digits) if parses(digits)));
        if numbers().next().is_none() {
            ColumnType::Float
        } else if are(|field| matches!(field, Field::Bool(_))) {
            ColumnType::Bool
        } else if is_number(|digits| digits.parse::<i64>().is_ok()) {
            ColumnType::Int
        } else if is_number(|digits| digits.parse::<u64>().is_ok()) {
            ColumnType::Unsigned
        } else if is_number(|_| true) {
            ColumnType::Float
        } else {
            ColumnType::Text
        }
    }
}

impl Table {
    /// Builds the table. An evaluation is added to the row of its step. This row is from the attempt of the evaluation
    /// or from an earlier attempt, and has the same value of `undone` as the evaluation. Without such a row, the
    /// evaluation gets its own row at the end.
    ///
    /// # Errors
    /// The store fails, or a line is not a JSON object.
    pub fn new(history: &History, run: &Store) -> Result<Self, WriteError> {
        let mut table = Self::default();
        let mut last_of_step: HashMap<(u64, bool), usize> = HashMap::new();
        let entries = history.entries();
        history.read::<WriteError>(run, entries.iter().filter(|entry| !entry.is_event), |entry, text| {
            let row = table.add_row(entry.position, entry.is_undone);
            for (name, field) in fields(text)? {
                table.set(row, &name, field);
            }
            Ok(())
        })?;
        let mut row = 0;
        for entry in &entries {
            let step = (entry.position.step, entry.is_undone);
            if !entry.is_event {
                last_of_step.insert(step, row);
                row += 1;
                continue;
            }
            let fields = fields(history.event(entry))?;
            let is_evaluation =
                |(name, field): &(String, Field)| name == "event" && *field == Field::Text("evaluation".into());
            if !fields.iter().any(is_evaluation) {
                continue;
            }
            let of_step = last_of_step.get(&step).copied();
            let row = of_step.unwrap_or_else(|| table.add_row(entry.position, entry.is_undone));
            for (name, field) in fields.into_iter().filter(|(name, _)| name != "event" && name != "step") {
                table.set(row, &format!("{HELD_OUT}{name}"), field);
            }
        }
        Ok(table)
    }

    fn add_row(&mut self, position: AttemptStep, is_undone: bool) -> usize {
        let row = self.rows;
        self.rows += 1;
        self.set(row, "attempt", Field::Number(position.attempt.to_string()));
        self.set(row, "undone", Field::Bool(is_undone));
        self.set(row, "step", Field::Number(position.step.to_string()));
        row
    }

    fn set(&mut self, row: usize, name: &str, field: Field) {
        let index = self.by_name.get(name).copied().unwrap_or_else(|| {
            self.columns.push(Column { name: name.to_owned(), cells: BTreeMap::new() });
            self.by_name.insert(name.to_owned(), self.columns.len() - 1);
            self.columns.len() - 1
        });
        self.columns[index].cells.insert(row, field);
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::super::history::tests::{evaluation, line, put, read, store};
    use super::*;

    /// Returns a table with these rows: steps 1, 2 and 3 of attempt 1, step 3 of attempt 2, and the evaluation of step
    /// 0, which has its own row.
    pub(crate) fn table(name: &str) -> Table {
        let store = store(name);
        put(&store, 1, 0, [evaluation(0, 9.0), line(1, 5.0), line(2, f64::NAN), line(3, 3.0)].concat());
        // Attempt 1 did not evaluate step 2, so attempt 2 evaluates it.
        put(&store, 2, 2, [evaluation(2, 8.0), line(3, 2.5), evaluation(3, 7.0)].concat());
        Table::new(&read(&store), &store).unwrap()
    }

    fn column<'a>(table: &'a Table, name: &str) -> &'a Column {
        &table.columns[table.by_name[name]]
    }

    #[test]
    fn evaluations_are_in_the_row_of_their_step() {
        let table = table("rows");
        let digits = |name: &str| -> Vec<(usize, String)> {
            let cells = column(&table, name).cells.iter();
            cells.filter_map(|(row, field)| Some((*row, format!("{}", field.number()?)))).collect()
        };
        let of =
            |cells: &[(usize, &str)]| cells.iter().map(|(row, text)| (*row, (*text).to_owned())).collect::<Vec<_>>();
        assert_eq!(digits("step"), of(&[(0, "1"), (1, "2"), (2, "3"), (3, "3"), (4, "0")]));
        assert_eq!(digits("attempt"), of(&[(0, "1"), (1, "1"), (2, "1"), (3, "2"), (4, "1")]));
        assert_eq!(digits("loss"), of(&[(0, "5"), (1, "NaN"), (2, "3"), (3, "2.5")]));
        assert_eq!(digits("held_out_x_loss"), of(&[(1, "8"), (3, "7"), (4, "9")]));
        assert_eq!(column(&table, "undone").cells[&2], Field::Bool(true));
        assert!(!table.by_name.contains_key("held_out_step") && !table.by_name.contains_key("held_out_event"));
    }

    #[test]
    fn columns_have_the_type_of_their_values() {
        let number = |digits: &str| Field::Number(digits.into());
        let kind = |fields: &[Field]| {
            Column { name: String::new(), cells: fields.iter().cloned().enumerate().collect() }.column_type()
        };
        assert_eq!(kind(&[number("1"), Field::Null]), ColumnType::Int);
        assert_eq!(kind(&[number("1"), number("18446744073709551615")]), ColumnType::Unsigned);
        assert_eq!(kind(&[number("1"), number("1e-7")]), ColumnType::Float);
        assert_eq!(kind(&[number("-1"), number("18446744073709551615")]), ColumnType::Float);
        assert_eq!(kind(&[Field::Null]), ColumnType::Float);
        assert_eq!(kind(&[Field::Bool(true)]), ColumnType::Bool);
        assert_eq!(kind(&[Field::Text("a".into()), number("1")]), ColumnType::Text);
    }
}
