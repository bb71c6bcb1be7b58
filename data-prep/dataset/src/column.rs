//! The columns of a row group, decoded from Parquet.

use parquet::column::reader::ColumnReader;
use parquet::errors::ParquetError;
use parquet::file::reader::FileReader;

use super::NO_PAIR;
use super::file::Reader;
use super::samples::RowGroup;

/// A column of a row group as Parquet stores it.
pub struct Column {
    /// The values that are there, those of all rows one after another.
    pub values: Vec<i32>,
    /// For each value or absent value how much of its path is there; 0 = it is absent.
    pub definition: Vec<i16>,
    /// For each value 0 = it begins a row.
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

    /// The values as labels of pairs, [`NO_PAIR`] where they are absent.
    pub fn labels(&self) -> Vec<u8> {
        let mut values = self.values.iter();
        self.definition
            .iter()
            .map(|&level| if level == 0 { None } else { values.next() })
            // What is no label at all becomes one that is refused.
            .map(|value| value.map_or(NO_PAIR, |&value| u8::try_from(value).unwrap_or(NO_PAIR - 1)))
            .collect()
    }
}
