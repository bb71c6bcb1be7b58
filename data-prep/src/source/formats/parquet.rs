//! Parquet: a column holds the text of the rows.

use std::collections::VecDeque;
use std::fs::File;

use lambert_config::prep::Documents;
use parquet::column::reader::{ColumnReader, ColumnReaderImpl};
use parquet::data_type::ByteArrayType;
use parquet::errors::ParquetError;
use parquet::file::reader::{FileReader, SerializedFileReader};

use crate::extract::Extractor;
use crate::source::format::{Head, InputFile, InputFormat};
use crate::source::rows::{self, RowDocuments, Rows};
use crate::source::{DocumentReader, Note, Notes, SourceError, SourceFile, Stored};

/// The first bytes of every file.
const MAGIC: &[u8] = b"PAR1";
/// Bytes of text in a stored byte, about: pages are compressed.
const TEXT_PER_BYTE: f64 = 2.5;

/// The format `parquet`.
pub struct Parquet;

impl InputFormat for Parquet {
    fn name(&self) -> &'static str {
        "parquet"
    }

    fn documents(&self) -> &'static [Documents] {
        rows::DOCUMENTS
    }

    fn options(&self) -> &'static [&'static str] {
        &["field"]
    }

    fn recognizes(&self, head: Head<'_>) -> bool {
        matches!(head, Head::Stored(bytes) if bytes.starts_with(MAGIC))
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

    fn open(&self, file: &InputFile<'_>, stored: Stored) -> Result<Box<dyn DocumentReader>, SourceError> {
        let rows = ParquetRows::open(file.file, stored, &file.source.field)?;
        Ok(Box::new(RowDocuments::new(rows, self.documents_of(file.source))))
    }
}

/// Rows of a column that are decoded at once: little beside the page that they are in.
const AT_ONCE: usize = 256;

/// A column of text of a Parquet file, page by page.
struct ParquetRows {
    file: SerializedFileReader<File>,
    stored: Stored,
    name: String,
    column: usize,
    /// The row group to be read next.
    group: usize,
    open: Option<Group>,
    row: u64,
    rows: VecDeque<Option<Vec<u8>>>,
    notes: Notes,
}

/// A row group that is being read.
struct Group {
    column: ColumnReaderImpl<ByteArrayType>,
    optional: bool,
    left: usize,
}

impl ParquetRows {
    /// The text is in the column `field`. `stored` is the same file; it goes along, a row group ahead, for its hash.
    fn open(file: &SourceFile, mut stored: Stored, field: &str) -> Result<Self, SourceError> {
        let name = file.name.clone();
        let reader = SerializedFileReader::new(local(file, &mut stored)?).map_err(|error| fault(&name, error))?;
        let columns = reader.metadata().file_metadata().schema_descr().columns().to_vec();
        let Some(column) = columns.iter().position(|column| column.path().string() == field) else {
            let names: Vec<String> = columns.iter().map(|column| column.path().string()).collect();
            let expected = format!("a column {field:?}; the columns are {}", names.join(", "));
            return Err(SourceError::Format { file: name, at: 0, expected });
        };
        let (rows, notes) = (VecDeque::new(), Notes::new());
        Ok(Self { file: reader, stored, name, column, group: 0, open: None, row: 0, rows, notes })
    }

    /// Begins the next row group, or decodes some rows of the one that is open.
    fn read_on(&mut self) -> Result<(), ParquetError> {
        let Some(group) = &mut self.open else {
            self.open = Some(self.next_group()?);
            self.group += 1;
            return Ok(());
        };
        if group.left == 0 {
            self.open = None;
            return Ok(());
        }
        let (mut values, mut levels) = (Vec::new(), Vec::new());
        let (count, ..) = group.column.read_records(group.left.min(AT_ONCE), Some(&mut levels), None, &mut values)?;
        if count == 0 {
            return Err(ParquetError::EOF("the column ends early".to_owned()));
        }
        group.left -= count;
        let mut values = values.iter().map(|value| value.data().to_vec());
        let present = (0..count).map(|row| !group.optional || levels.get(row).is_some_and(|&level| level > 0));
        self.rows.extend(present.map(|present| if present { values.next() } else { None }));
        Ok(())
    }

    fn next_group(&mut self) -> Result<Group, ParquetError> {
        let group = self.file.get_row_group(self.group)?;
        let ends = group.metadata().columns().iter().map(|column| {
            let (start, bytes) = column.byte_range();
            start + bytes
        });
        self.stored.pass(ends.max().unwrap_or(0)).map_err(|error| ParquetError::External(error.into()))?;
        let optional = group.metadata().column(self.column).column_descr().max_def_level() > 0;
        let left = group.metadata().num_rows() as usize;
        match group.get_column_reader(self.column)? {
            ColumnReader::ByteArrayColumnReader(column) => Ok(Group { column, optional, left }),
            _ => Err(ParquetError::General("the column does not hold text".to_owned())),
        }
    }
}

impl Rows for ParquetRows {
    fn next(&mut self) -> Result<Option<(u64, Vec<u8>)>, SourceError> {
        loop {
            while let Some(row) = self.rows.pop_front() {
                self.row += 1;
                match row {
                    Some(text) => return Ok(Some((self.row - 1, text))),
                    None => self.notes.push(Note::new("parquet: row without text", self.row - 1)),
                }
            }
            if self.open.is_none() && self.group == self.file.num_row_groups() {
                return Ok(None);
            }
            self.read_on().map_err(|error| fault(&self.name, error))?;
        }
    }

    fn notes(&mut self) -> Notes {
        std::mem::take(&mut self.notes)
    }
}

fn fault(name: &str, error: ParquetError) -> SourceError {
    SourceError::Format { file: name.to_owned(), at: 0, expected: format!("a Parquet file ({error})") }
}

/// The file itself, or a nameless copy of an object.
fn local(file: &SourceFile, stored: &mut Stored) -> Result<File, SourceError> {
    let fault = |source| SourceError::Input { path: file.name.clone(), operation: "read", source };
    if !file.is_remote() {
        return File::open(&file.name).map_err(fault);
    }
    let mut copy = tempfile::tempfile().map_err(fault)?;
    std::io::copy(stored, &mut copy).map_err(fault)?;
    Ok(copy)
}
