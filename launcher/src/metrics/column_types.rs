//! Types of the columns of a table.

use super::line::Field;

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

/// Numbers of values of a column, without nulls, by the types that they fit.
#[derive(Debug, Clone, Copy, Default)]
pub struct ValueCounts {
    all: u64,
    bools: u64,
    ints: u64,
    unsigned: u64,
    numbers: u64,
}

impl ValueCounts {
    /// Counts a value.
    pub fn add(&mut self, field: &Field) {
        match field {
            Field::Null => return,
            Field::Bool(_) => self.bools += 1,
            Field::Number(digits) => {
                self.numbers += 1;
                self.ints += u64::from(digits.parse::<i64>().is_ok());
                self.unsigned += u64::from(digits.parse::<u64>().is_ok());
            }
            Field::Text(_) => {}
        }
        self.all += 1;
    }

    /// Returns the narrowest type that fits all values. Nulls fit every type.
    pub fn column_type(&self) -> ColumnType {
        let all = self.all;
        match () {
            () if all == 0 => ColumnType::Float,
            () if self.bools == all => ColumnType::Bool,
            () if self.ints == all => ColumnType::Int,
            () if self.unsigned == all => ColumnType::Unsigned,
            () if self.numbers == all => ColumnType::Float,
            () => ColumnType::Text,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_have_the_type_of_their_values() {
        let number = |digits: &str| Field::Number(digits.into());
        let kind = |fields: &[Field]| {
            let mut counts = ValueCounts::default();
            fields.iter().for_each(|field| counts.add(field));
            counts.column_type()
        };
        assert_eq!(kind(&[number("1"), Field::Null]), ColumnType::Int);
        assert_eq!(kind(&[number("1"), number("18446744073709551615")]), ColumnType::Unsigned);
        assert_eq!(kind(&[number("1"), number("1e-7")]), ColumnType::Float);
        assert_eq!(kind(&[number("-1"), number("18446744073709551615")]), ColumnType::Float);
        assert_eq!(kind(&[Field::Null]), ColumnType::Float);
        assert_eq!(kind(&[Field::Bool(true)]), ColumnType::Bool);
        assert_eq!(kind(&[Field::Text("a".into()), number("1")]), ColumnType::Text);
        assert_eq!(kind(&[Field::Bool(true), number("1")]), ColumnType::Text);
    }
}
