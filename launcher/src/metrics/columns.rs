//! Parquet: a column per field, compressed with Snappy.

use std::io::Write;
use std::sync::Arc;

use arrow::array::{ArrayRef, BooleanArray, Float64Array, Int64Array, StringArray, UInt64Array};
use arrow::datatypes::Schema;
use arrow::record_batch::RecordBatch;
use parquet::arrow::ArrowWriter;
use parquet::basic::Compression;
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;

use super::line::Field;
use super::table::{Column, ColumnType, Table};

/// Writes the table.
///
/// # Errors
/// `output` cannot be written.
pub fn write(table: &Table, output: impl Write + Send) -> Result<(), ParquetError> {
    let columns = table.columns.iter().map(|column| (&column.name, array(column, table.rows), true));
    let batch = match table.columns.is_empty() {
        true => RecordBatch::new_empty(Arc::new(Schema::empty())),
        false => RecordBatch::try_from_iter_with_nullable(columns)?,
    };
    let properties = WriterProperties::builder().set_compression(Compression::SNAPPY).build();
    let mut writer = ArrowWriter::try_new(output, batch.schema(), Some(properties))?;
    writer.write(&batch)?;
    writer.close()?;
    Ok(())
}

fn array(column: &Column, rows: usize) -> ArrayRef {
    let cells = (0..rows).map(|row| column.cells.get(&row));
    let digits = |field: Option<&'_ Field>| match field {
        Some(Field::Number(digits)) => Some(digits.clone()),
        _ => None,
    };
    match column.column_type() {
        ColumnType::Bool => Arc::new(BooleanArray::from_iter(cells.map(|field| match field {
            Some(Field::Bool(value)) => Some(*value),
            _ => None,
        }))),
        ColumnType::Int => Arc::new(Int64Array::from_iter(cells.map(|field| digits(field)?.parse().ok()))),
        ColumnType::Unsigned => Arc::new(UInt64Array::from_iter(cells.map(|field| digits(field)?.parse().ok()))),
        ColumnType::Float => Arc::new(Float64Array::from_iter(cells.map(|field| digits(field)?.parse::<f64>().ok()))),
        ColumnType::Text => Arc::new(StringArray::from_iter(cells.map(|field| match field? {
            Field::Null => None,
            Field::Bool(value) => Some(value.to_string()),
            Field::Number(text) | Field::Text(text) => Some(text.clone()),
        }))),
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::Array;
    use bytes::Bytes;
    use parquet::arrow::arrow_reader::ParquetRecordBatchReader;

    use super::super::table::tests::table;
    use super::*;

    #[test]
    fn a_run_without_records_has_an_empty_table() {
        let mut bytes = Vec::new();
        write(&Table::default(), &mut bytes).unwrap();
        let mut reader = ParquetRecordBatchReader::try_new(Bytes::from(bytes), 100).unwrap();
        assert!(reader.next().is_none());
    }

    #[test]
    fn columns_are_read_back() {
        let mut bytes = Vec::new();
        write(&table("parquet"), &mut bytes).unwrap();
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
}
