//! Parquet files with the text in one column.

use std::collections::VecDeque;
use std::fs::File;

use lambert_config::prep::{Damaged, Documents, Invalid, Source};
use parquet::column::reader::{ColumnReader, ColumnReaderImpl};
use parquet::data_type::ByteArrayType;
use parquet::errors::ParquetError;
use parquet::file::reader::{FileReader, SerializedFileReader};

use crate::caught::caught;
use crate::extract::Extractor;
use crate::source::format::{FileHead, InputFile, InputFormat};
use crate::source::lines::MAX_WHOLE_LINE_BYTES;
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
        let rows = ParquetRows::open(file.file, stored, file.source)?;
        Ok(Box::new(RowDocuments::new(rows, self.documents_of(file.source))))
    }
}

/// Number of rows decoded at a time. It is small compared with a page.
const ROWS_PER_READ: usize = 256;
/// Bytes of text after which fewer rows are decoded at a time. All rows can be the same entry of a dictionary, so a small page
/// can have many long rows.
const BYTES_PER_READ: usize = 16 << 20;

/// A decoded row.
enum Row {
    Text(Vec<u8>),
    /// The field, or a struct around it, is null.
    Missing,
    /// The text exceeds [`MAX_WHOLE_LINE_BYTES`].
    TooLong,
}

/// Reads a text column page by page.
struct ParquetRows {
    file: SerializedFileReader<File>,
    stored: StoredReader,
    name: String,
    column: usize,
    /// Index of the next row group.
    next_group: usize,
    open_group: Option<OpenRowGroup>,
    /// Number of the next row.
    row: u64,
    damaged: Damaged,
    invalid: Invalid,
    rows: VecDeque<Row>,
    notices: SkipNotices,
}

/// The current row group.
struct OpenRowGroup {
    column: ColumnReaderImpl<ByteArrayType>,
    /// Definition level of a value. A lower level means that the field, or a struct around it, is null.
    defined: i16,
    rows_left: usize,
}

impl OpenRowGroup {
    /// Decodes and copies a row. Returns `None` at the end of the column.
    fn next_row(&mut self) -> Result<Option<Row>, ParquetError> {
        let (mut values, mut levels) = (Vec::new(), Vec::new());
        let (count, ..) = self.column.read_records(1, Some(&mut levels), None, &mut values)?;
        if count == 0 {
            return Ok(None);
        }
        Ok(Some(match values.first() {
            Some(text) if text.len() > MAX_WHOLE_LINE_BYTES => Row::TooLong,
            Some(text) if self.defined == 0 || levels.first() == Some(&self.defined) => Row::Text(text.data().to_vec()),
            _ => Row::Missing,
        }))
    }
}

impl ParquetRows {
    /// Opens the column of the text. `stored` reads the same file for its hash, up to the end of the current row group.
    fn open(file: &SourceFile, mut stored: StoredReader, source: &Source) -> Result<Self, SourceError> {
        let (field, damaged, invalid) = (&source.field, source.damaged, source.invalid);
        let name = file.name.clone();
        let open = seekable(file, &mut stored)?;
        let reader = decode(|| SerializedFileReader::new(open).and_then(|reader| check_rows(&reader).map(|()| reader)))
            .map_err(|error| format_error(&name, error))?;
        let columns = reader.metadata().file_metadata().schema_descr().columns().to_vec();
        let Some(column) = columns.iter().position(|column| column.path().string() == *field) else {
            let names: Vec<String> = columns.iter().map(|column| column.path().string()).collect();
            let expected = format!("a column {field:?} (columns: {})", names.join(", "));
            return Err(SourceError::Format { file: name, offset: 0, expected });
        };
        let (rows, notices) = (VecDeque::new(), SkipNotices::new());
        let (next_group, open_group, row) = (0, None, 0);
        Ok(Self { file: reader, stored, name, column, next_group, open_group, row, damaged, invalid, rows, notices })
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
        let (mut rows, mut bytes) = (Vec::new(), 0);
        while rows.len() < group.rows_left.min(ROWS_PER_READ) && bytes < BYTES_PER_READ {
            let Some(row) = group.next_row()? else { break };
            bytes += if let Row::Text(text) = &row { text.len() } else { 0 };
            rows.push(row);
        }
        if rows.is_empty() {
            return Err(ParquetError::EOF("the column ends early".to_owned()));
        }
        group.rows_left -= rows.len();
        self.rows.extend(rows);
        Ok(())
    }

    /// Skips the rest of the current row group, or the next row group if none is open.
    fn skip_group(&mut self) {
        let left = self.open_group.take().map(|group| group.rows_left);
        self.row += left.unwrap_or_else(|| {
            self.next_group += 1;
            self.file.metadata().row_group(self.next_group - 1).num_rows() as usize
        }) as u64;
    }

    fn open_next_group(&mut self) -> Result<OpenRowGroup, ParquetError> {
        let group = self.file.get_row_group(self.next_group)?;
        let ends = group.metadata().columns().iter().map(|column| {
            let (start, bytes) = column.byte_range();
            start + bytes
        });
        self.stored.skip_to(ends.max().unwrap_or(0)).map_err(|error| ParquetError::External(error.into()))?;
        let defined = group.metadata().column(self.column).column_descr().max_def_level();
        let rows_left = group.metadata().num_rows() as usize;
        match group.get_column_reader(self.column)? {
            ColumnReader::ByteArrayColumnReader(column) => Ok(OpenRowGroup { column, defined, rows_left }),
            _ => Err(ParquetError::General("the column is not a string column".to_owned())),
        }
    }
}

impl RowReader for ParquetRows {
    fn next(&mut self) -> Result<Option<(u64, Vec<u8>)>, SourceError> {
        loop {
            while let Some(row) = self.rows.pop_front() {
                self.row += 1;
                let number = self.row - 1;
                match row {
                    Row::Text(text) => {
                        if let (Invalid::Refuse, Err(error)) = (self.invalid, std::str::from_utf8(&text)) {
                            let (file, offset) = (format!("{}, row {number}", self.name), error.valid_up_to() as u64);
                            return Err(SourceError::NotUtf8 { file, offset });
                        }
                        return Ok(Some((number, text)));
                    }
                    Row::Missing => self.notices.push(SkipNotice::new("parquet: row without text", number)),
                    Row::TooLong if self.damaged == Damaged::Skip => {
                        self.notices.push(SkipNotice::new("parquet: row of over 256 MiB", number));
                    }
                    Row::TooLong => {
                        let expected = format!("a text of at most {} MiB", MAX_WHOLE_LINE_BYTES >> 20);
                        let file = format!("{}, row {number}", self.name);
                        return Err(SourceError::Format { file, offset: 0, expected });
                    }
                }
            }
            if self.open_group.is_none() && self.next_group == self.file.num_row_groups() {
                return Ok(None);
            }
            match decode(|| self.decode_more()) {
                Ok(()) => {}
                Err(_) if self.damaged == Damaged::Skip => {
                    self.notices.push(SkipNotice::new("parquet: damaged row group", self.row));
                    self.skip_group();
                }
                Err(error) => {
                    let group = self.next_group - usize::from(self.open_group.is_some());
                    return Err(format_error(&format!("{}, row group {group}", self.name), error));
                }
            }
        }
    }

    fn take_notices(&mut self) -> SkipNotices {
        std::mem::take(&mut self.notices)
    }
}

/// Checks that the row numbers of a file are numbers.
fn check_rows(file: &SerializedFileReader<File>) -> Result<(), ParquetError> {
    let mut groups = file.metadata().row_groups().iter();
    let rows = groups.try_fold(0_i64, |sum, group| sum.checked_add(group.num_rows()).filter(|_| group.num_rows() >= 0));
    rows.map(drop).ok_or_else(|| ParquetError::General("impossible numbers of rows in the footer".to_owned()))
}

/// Calls a function of the Parquet library, which panics on some damaged files.
fn decode<T>(work: impl FnOnce() -> Result<T, ParquetError>) -> Result<T, ParquetError> {
    caught(work).unwrap_or_else(|panic| Err(ParquetError::General(panic)))
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

#[cfg(test)]
mod tests {
    use parquet::data_type::ByteArray;
    use parquet::file::writer::SerializedFileWriter;
    use parquet::schema::parser::parse_message_type;

    use super::*;
    use crate::source::find_files;

    /// The file has less than 1 MB, and its rows have 256 MB.
    #[test]
    fn rows_of_one_dictionary_entry_are_not_all_in_memory() {
        let file = tempfile::Builder::new().suffix(".parquet").tempfile().unwrap();
        let schema = parse_message_type("message rows { required binary text (UTF8); }").unwrap();
        let mut writer = SerializedFileWriter::new(file.reopen().unwrap(), schema.into(), Default::default()).unwrap();
        let mut group = writer.next_row_group().unwrap();
        let mut column = group.next_column().unwrap().unwrap();
        let rows = vec![ByteArray::from(vec![b'x'; 1_000_000]); ROWS_PER_READ];
        column.typed::<ByteArrayType>().write_batch(&rows, None, None).unwrap();
        column.close().unwrap();
        group.close().unwrap();
        writer.close().unwrap();
        assert!(file.path().metadata().unwrap().len() < 2_000_000);

        let path = file.path().display().to_string();
        let source = Source { path, format: "parquet".into(), ..Source::default() };
        let found = &find_files(std::slice::from_ref(&source), 1).unwrap()[0];
        let stored = StoredReader::open(found, Default::default(), 1 << 30).unwrap();
        let mut rows = ParquetRows::open(found, stored, &source).unwrap();
        let mut count = 0;
        while let Some((number, text)) = rows.next().unwrap() {
            assert_eq!((number, text.len()), (count, 1_000_000));
            assert!(rows.rows.len() <= BYTES_PER_READ / text.len(), "{} rows in memory", rows.rows.len());
            count += 1;
        }
        assert_eq!(count, ROWS_PER_READ as u64);
    }
}
