//! Parquet files with the text in one column.

use std::collections::VecDeque;
use std::fs::File;

use lambert_config::prep::Documents;
use parquet::column::reader::{ColumnReader, ColumnReaderImpl};
use parquet::data_type::ByteArrayType;
use parquet::errors::ParquetError;
use parquet::file::reader::{FileReader, SerializedFileReader};

use crate::extract::Extractor;
use crate::source::format::{FileHead, InputFile, InputFormat};
use crate::source::rows::{self, RowDocuments, RowReader};
use crate::source::{DocumentReader, SkipNotice, SkipNotices, SourceError, SourceFile, StoredReader};

/// First bytes of a Parquet file.
const MAGIC: &[u8] = b"PAR1";
/// Estimated bytes of text per byte of the file. Parquet pages are compressed.
const TEXT_PER_BYTE: f64 = 2.5;

/// The format `parquet`.
pub struct ParquetFormat;

impl InputFormat for ParquetFormat {
    fn name(&self) -> &'static str {
        "parquet"
    }

    fn documents(&self) -> &'static [Documents] {
        rows::DOCUMENTS
    }

    fn options(&self) -> &'static [&'static str] {
        &["field"]
    }

    fn recognizes(&self, head: FileHead<'_>) -> bool {
        matches!(head, FileHead::Stored(bytes) if bytes.starts_with(MAGIC))
    }

    fn looks_like(&self) -> Option<&'static str> {
        Some("a Parquet file")
    }

    fn text_per_byte(&self) -> f64 {
        TEXT_PER_BYTE
    }

    fn extractor(&self, file: &InputFile<'_>) -> Result<Extractor, SourceError> {
        Ok(rows::extractor(self.documents_of(file.source)))
    }

    fn open(&self, file: &InputFile<'_>, stored: StoredReader) -> Result<Box<dyn DocumentReader>, SourceError> {
        let rows = ParquetRows::open(file.file, stored, &file.source.field)?;
        Ok(Box::new(RowDocuments::new(rows, self.documents_of(file.source))))
    }
}

/// Number of rows decoded at a time. It is small compared with a page.
const ROWS_PER_READ: usize = 256;

/// Reads a text column page by page.
struct ParquetRows {
    file: SerializedFileReader<File>,
    stored: StoredReader,
    name: String,
    column: usize,
    /// Index of the next row group.
    next_group: usize,
    open_group: Option<OpenRowGroup>,
    row: u64,
    rows: VecDeque<Option<Vec<u8>>>,
    notices: SkipNotices,
}

/// The current row group.
struct OpenRowGroup {
    column: ColumnReaderImpl<ByteArrayType>,
    is_optional: bool,
    rows_left: usize,
}

impl ParquetRows {
    /// Opens the column `field`. `stored` reads the same file for its hash, up to the end of the current row group.
    fn open(file: &SourceFile, mut stored: StoredReader, field: &str) -> Result<Self, SourceError> {
        let name = file.name.clone();
        let reader =
            SerializedFileReader::new(seekable(file, &mut stored)?).map_err(|error| format_error(&name, error))?;
        let columns = reader.metadata().file_metadata().schema_descr().columns().to_vec();
        let Some(column) = columns.iter().position(|column| column.path().string() == field) else {
            let names: Vec<String> = columns.iter().map(|column| column.path().string()).collect();
            let expected = format!("a column {field:?} (columns: {})", names.join(", "));
            return Err(SourceError::Format { file: name, offset: 0, expected });
        };
        let (rows, notices) = (VecDeque::new(), SkipNotices::new());
        Ok(Self { file: reader, stored, name, column, next_group: 0, open_group: None, row: 0, rows, notices })
    }

    /// Opens the next row group, or decodes more rows of the current row group.
    fn decode_more(&mut self) -> Result<(), ParquetError> {
        let Some(group) = &mut self.open_group else {
            self.open_group = Some(self.open_next_group()?);
            self.next_group += 1;
            return Ok(());
        };
        if group.rows_left == 0 {
            self.open_group = None;
            return Ok(());
        }
        let (mut values, mut levels) = (Vec::new(), Vec::new());
        let (count, ..) =
            group.column.read_records(group.rows_left.min(ROWS_PER_READ), Some(&mut levels), None, &mut values)?;
        if count == 0 {
            return Err(ParquetError::EOF("the column ends early".to_owned()));
        }
        group.rows_left -= count;
        let mut values = values.iter().map(|value| value.data().to_vec());
        let present = (0..count).map(|row| !group.is_optional || levels.get(row).is_some_and(|&level| level > 0));
        self.rows.extend(present.map(|present| if present { values.next() } else { None }));
        Ok(())
    }

    fn open_next_group(&mut self) -> Result<OpenRowGroup, ParquetError> {
        let group = self.file.get_row_group(self.next_group)?;
        let ends = group.metadata().columns().iter().map(|column| {
            let (start, bytes) = column.byte_range();
            start + bytes
        });
        self.stored.skip_to(ends.max().unwrap_or(0)).map_err(|error| ParquetError::External(error.into()))?;
        let is_optional = group.metadata().column(self.column).column_descr().max_def_level() > 0;
        let rows_left = group.metadata().num_rows() as usize;
        match group.get_column_reader(self.column)? {
            ColumnReader::ByteArrayColumnReader(column) => Ok(OpenRowGroup { column, is_optional, rows_left }),
            _ => Err(ParquetError::General("the column is not a string column".to_owned())),
        }
    }
}

impl RowReader for ParquetRows {
    fn next(&mut self) -> Result<Option<(u64, Vec<u8>)>, SourceError> {
        loop {
            while let Some(row) = self.rows.pop_front() {
                self.row += 1;
                match row {
                    Some(text) => return Ok(Some((self.row - 1, text))),
                    None => self.notices.push(SkipNotice::new("parquet: row without text", self.row - 1)),
                }
            }
            if self.open_group.is_none() && self.next_group == self.file.num_row_groups() {
                return Ok(None);
            }
            self.decode_more().map_err(|error| format_error(&self.name, error))?;
        }
    }

    fn take_notices(&mut self) -> SkipNotices {
        std::mem::take(&mut self.notices)
    }
}

fn format_error(name: &str, error: ParquetError) -> SourceError {
    SourceError::Format { file: name.to_owned(), offset: 0, expected: format!("a Parquet file ({error})") }
}

/// Opens the local file, or copies an object to an unnamed temporary file.
fn seekable(file: &SourceFile, stored: &mut StoredReader) -> Result<File, SourceError> {
    let read_error = |source| SourceError::Input { path: file.name.clone(), operation: "read", source };
    if !file.is_remote() {
        return File::open(&file.name).map_err(read_error);
    }
    let mut copy = tempfile::tempfile().map_err(read_error)?;
    std::io::copy(stored, &mut copy).map_err(read_error)?;
    Ok(copy)
}
