//! Parquet: a column per field, compressed with Snappy.

use std::io::{Error, Write};
use std::sync::Arc;

use arrow::array::{ArrayRef, BooleanBuilder, Float64Builder, Int64Builder, StringBuilder, UInt64Builder};
use arrow::datatypes::{self, DataType, Schema};
use arrow::record_batch::RecordBatch;
use parquet::arrow::ArrowWriter;
use parquet::basic::Compression;
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;

use super::WriteError;
use super::column_types::ColumnType;
use super::line::Field;
use super::table::Table;

/// Rows that are collected before they are encoded. The encoded columns of a row group (1,048,576 rows) are in memory until
/// it is complete.
const BATCH: usize = 8192;

/// Writes the table.
///
/// # Errors
/// `output` cannot be written, or the records cannot be read.
pub fn write(table: &Table<'_>, output: impl Write + Send) -> Result<(), WriteError> {
    let failed = |error: ParquetError| WriteError::Output(Error::other(error));
    let mut values: Vec<Values> = table.columns().iter().map(|column| Values::new(column.column_type())).collect();
    let columns = table.columns().iter().zip(&values);
    let fields = columns.map(|(column, values)| datatypes::Field::new(&column.name, values.data_type(), true));
    let schema = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
    let properties = WriterProperties::builder().set_compression(Compression::SNAPPY).build();
    let mut writer = ArrowWriter::try_new(output, Arc::clone(&schema), Some(properties)).map_err(failed)?;
    let mut write_batch = |values: &mut Vec<Values>| {
        let arrays: Vec<ArrayRef> = values.iter_mut().map(Values::finish).collect();
        let batch = RecordBatch::try_new(Arc::clone(&schema), arrays).map_err(|error| failed(error.into()))?;
        writer.write(&batch).map_err(failed)
    };
    let mut rows = 0;
    table.rows(|row| {
        values.iter_mut().zip(row).for_each(|(values, field)| values.push(field.as_ref()));
        rows += 1;
        if rows % BATCH == 0 { write_batch(&mut values) } else { Ok(()) }
    })?;
    if rows % BATCH > 0 {
        write_batch(&mut values)?;
    }
    writer.close().map(drop).map_err(failed)
}

/// Values of a column.
enum Values {
    Bool(BooleanBuilder),
    Int(Int64Builder),
    Unsigned(UInt64Builder),
    Float(Float64Builder),
    Text(StringBuilder),
}

impl Values {
    fn new(of: ColumnType) -> Self {
        match of {
            ColumnType::Bool => Self::Bool(BooleanBuilder::new()),
            ColumnType::Int => Self::Int(Int64Builder::new()),
            ColumnType::Unsigned => Self::Unsigned(UInt64Builder::new()),
            ColumnType::Float => Self::Float(Float64Builder::new()),
            ColumnType::Text => Self::Text(StringBuilder::new()),
        }
    }

    fn data_type(&self) -> DataType {
        match self {
            Self::Bool(_) => DataType::Boolean,
            Self::Int(_) => DataType::Int64,
            Self::Unsigned(_) => DataType::UInt64,
            Self::Float(_) => DataType::Float64,
            Self::Text(_) => DataType::Utf8,
        }
    }

    fn push(&mut self, field: Option<&Field>) {
        let digits = match field {
            Some(Field::Number(digits)) => Some(digits),
            _ => None,
        };
        match self {
            Self::Bool(values) => values.append_option(match field {
                Some(Field::Bool(value)) => Some(*value),
                _ => None,
            }),
            Self::Int(values) => values.append_option(digits.and_then(|digits| digits.parse().ok())),
            Self::Unsigned(values) => values.append_option(digits.and_then(|digits| digits.parse().ok())),
            Self::Float(values) => values.append_option(digits.and_then(|digits| digits.parse().ok())),
            Self::Text(values) => match field {
                None | Some(Field::Null) => values.append_null(),
                Some(Field::Bool(value)) => values.append_value(value.to_string()),
                Some(Field::Number(text) | Field::Text(text)) => values.append_value(text),
            },
        }
    }

    fn finish(&mut self) -> ArrayRef {
        match self {
            Self::Bool(values) => Arc::new(values.finish()),
            Self::Int(values) => Arc::new(values.finish()),
            Self::Unsigned(values) => Arc::new(values.finish()),
            Self::Float(values) => Arc::new(values.finish()),
            Self::Text(values) => Arc::new(values.finish()),
        }
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{Array, BooleanArray, Float64Array, Int64Array, StringArray};
    use bytes::Bytes;
    use parquet::arrow::arrow_reader::ParquetRecordBatchReader;

    use super::super::history::History;
    use super::super::history::tests::{line, put, read, store};
    use super::super::table::tests::history;
    use super::*;

    #[test]
    fn a_run_without_records_has_an_empty_table() {
        let mut bytes = Vec::new();
        let (history, store) = (History::default(), store("parquet-empty"));
        write(&Table::new(&history, &store).unwrap(), &mut bytes).unwrap();
        let mut reader = ParquetRecordBatchReader::try_new(Bytes::from(bytes), 100).unwrap();
        assert!(reader.next().is_none());
    }

    #[test]
    fn columns_are_read_back() {
        let mut bytes = Vec::new();
        let (history, store) = history("parquet");
        write(&Table::new(&history, &store).unwrap(), &mut bytes).unwrap();
        let batch = ParquetRecordBatchReader::try_new(Bytes::from(bytes), 100).unwrap().next().unwrap().unwrap();
        let column = |name: &str| batch.column_by_name(name).unwrap();
        let losses: Vec<Option<f64>> = column("loss").as_any().downcast_ref::<Float64Array>().unwrap().iter().collect();
        assert_eq!(losses, [Some(5.0), None, Some(3.0), Some(2.5), None]);
        let undone: Vec<Option<bool>> =
            column("undone").as_any().downcast_ref::<BooleanArray>().unwrap().iter().collect();
        assert_eq!(undone, [false, false, true, false, false].map(Some));
        assert!(column("step").as_any().is::<Int64Array>() && column("stage").as_any().is::<StringArray>());
        assert_eq!(column("held_out_x_loss").null_count(), 2);
    }

    #[test]
    fn rows_are_written_in_batches() {
        let store = store("parquet-batches");
        let count = 2 * BATCH as u64 + 1;
        put(&store, 1, 0, (1..=count).map(|step| line(step, step as f64)).collect());
        let mut bytes = Vec::new();
        let history = read(&store);
        write(&Table::new(&history, &store).unwrap(), &mut bytes).unwrap();
        let mut steps = 0;
        for batch in ParquetRecordBatchReader::try_new(Bytes::from(bytes), 10_000).unwrap() {
            let batch = batch.unwrap();
            for step in batch.column_by_name("step").unwrap().as_any().downcast_ref::<Int64Array>().unwrap() {
                steps += 1;
                assert_eq!(step, Some(steps));
            }
        }
        assert_eq!(steps, count as i64);
    }
}
