//! Decoding of the columns of a row group from Parquet.

use parquet::column::reader::ColumnReader;
use parquet::errors::ParquetError;
use parquet::file::reader::FileReader;

use super::NO_PAIR;
use super::file::Reader;
use super::samples::RowGroup;

/// Column of a row group, as Parquet stores it.
pub struct Column {
    /// Non-null values of all rows.
    pub values: Vec<i32>,
    /// Definition level of each value. 0 = null.
    pub definition: Vec<i16>,
    /// Repetition level of each value. 0 = start of a row.
    pub repetition: Vec<i16>,
}

impl Column {
    /// Decodes column `index` of a row group.
    pub fn read(reader: &Reader, group: RowGroup, index: usize) -> Result<Self, ParquetError> {
        let ColumnReader::Int32ColumnReader(mut column) =
            reader.get_row_group(group.index)?.get_column_reader(index)?
        else {
            return Err(ParquetError::General(format!("column {index} is not of 32-bit integers")));
        };
        let expected = reader.metadata().row_group(group.index).column(index).num_values();
        let expected = usize::try_from(expected).unwrap_or(0);
        let mut read = Self {
            values: Vec::with_capacity(expected),
            definition: Vec::with_capacity(expected),
            repetition: Vec::with_capacity(expected),
        };
        let mut rows = 0;
        while rows < group.rows as usize {
            let (count, ..) = column.read_records(
                group.rows as usize - rows,
                Some(&mut read.definition),
                Some(&mut read.repetition),
                &mut read.values,
            )?;
            if count == 0 {
                return Err(ParquetError::EOF(format!("column {index} ends after {rows} of {} rows", group.rows)));
            }
            rows += count;
        }
        Ok(read)
    }

    /// Returns the values as pair labels, with [`NO_PAIR`] for null.
    pub fn labels(&self) -> Vec<u8> {
        let mut values = self.values.iter();
        self.definition
            .iter()
            .map(|&level| if level == 0 { None } else { values.next() })
            // Values out of range become an invalid label, which validation rejects.
            .map(|value| value.map_or(NO_PAIR, |&value| u8::try_from(value).unwrap_or(NO_PAIR - 1)))
            .collect()
    }
}
