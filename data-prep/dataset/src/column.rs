//! Decoding of the columns of a row group from Parquet.

use std::sync::Arc;

use parquet::column::reader::{ColumnReader, get_column_reader};
use parquet::errors::ParquetError;
use parquet::file::metadata::RowGroupMetaData;
use parquet::file::serialized_reader::SerializedPageReader;

use super::NO_PAIR;
use super::shard_file::ShardFile;

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
    /// Decodes column `index` of a row group with `rows` rows, which `file` contains.
    pub fn read(file: &ShardFile, group: &RowGroupMetaData, rows: usize, index: usize) -> Result<Self, ParquetError> {
        let column = group.column(index);
        let pages = SerializedPageReader::new(Arc::new(file.clone()), column, rows, None)?;
        let ColumnReader::Int32ColumnReader(mut reader) = get_column_reader(column.column_descr_ptr(), Box::new(pages))
        else {
            return Err(ParquetError::General(format!("column {index} is not of 32-bit integers")));
        };
        let expected = usize::try_from(column.num_values()).unwrap_or(0);
        let mut read = Self {
            values: Vec::with_capacity(expected),
            definition: Vec::with_capacity(expected),
            repetition: Vec::with_capacity(expected),
        };
        let mut done = 0;
        while done < rows {
            let (count, ..) = reader.read_records(
                rows - done,
                Some(&mut read.definition),
                Some(&mut read.repetition),
                &mut read.values,
            )?;
            if count == 0 {
                return Err(ParquetError::EOF(format!("column {index} ends after {done} of {rows} rows")));
            }
            done += count;
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
