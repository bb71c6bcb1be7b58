//! JSON lines and Parquet: a row is a document, or a sentence of one.

use std::collections::VecDeque;
use std::fs::File;

use lambert_config::prep::Damaged;
use parquet::column::reader::{ColumnReader, ColumnReaderImpl};
use parquet::data_type::ByteArrayType;
use parquet::errors::ParquetError;
use parquet::file::reader::{FileReader, SerializedFileReader};

use super::stored::Stored;
use super::text::{End, Lines};
use super::{DocumentReader, Note, Notes, RawDocument, SourceError, SourceFile};

/// Rows that make a document where no empty row ends it earlier.
const SENTENCES: usize = 512;

/// Gives the text of one row after another.
pub trait Rows: Send {
    /// Where the row starts (a byte of the file, or a row of it) and its text; `None` at the end.
    fn next(&mut self) -> Result<Option<(u64, Vec<u8>)>, SourceError>;
    /// What was left out since the last call.
    fn notes(&mut self) -> Notes;
}

/// Rows as documents.
pub struct Documents<R> {
    rows: R,
    sentences: bool,
    ordinal: u32,
}

impl<R: Rows> Documents<R> {
    /// Each row is a document, or with `sentences` a sentence of one.
    pub fn new(rows: R, sentences: bool) -> Self {
        Self { rows, sentences, ordinal: 0 }
    }

    fn gather(&mut self) -> Result<Option<(u64, Vec<u8>)>, SourceError> {
        let mut document: Option<(u64, Vec<u8>)> = None;
        for _ in 0..SENTENCES {
            match self.rows.next()? {
                None => break,
                Some((_, text)) if text.trim_ascii().is_empty() => {
                    if document.is_some() {
                        break;
                    }
                }
                Some((at, text)) => {
                    let (_, lines) = document.get_or_insert((at, Vec::new()));
                    lines.extend(text.iter().map(|&byte| if byte == b'\n' { b' ' } else { byte }));
                    lines.push(b'\n');
                }
            }
        }
        Ok(document)
    }
}

impl<R: Rows> DocumentReader for Documents<R> {
    fn next(&mut self) -> Result<Option<RawDocument>, SourceError> {
        let found = if self.sentences { self.gather()? } else { self.rows.next()? };
        let ordinal = self.ordinal;
        self.ordinal += 1;
        Ok(found.map(|(at, bytes)| RawDocument { ordinal, at, bytes }))
    }

    fn notes(&mut self) -> Notes {
        self.rows.notes()
    }
}

/// A JSON object a line.
pub struct JsonLines {
    lines: Lines,
    field: String,
    damaged: Damaged,
    notes: Notes,
}

impl JsonLines {
    /// The text is in `field` of each object.
    pub fn new(lines: Lines, field: String, damaged: Damaged) -> Self {
        Self { lines, field, damaged, notes: Notes::new() }
    }

    fn text(&self, line: &[u8]) -> Result<String, String> {
        let value: serde_json::Value =
            serde_json::from_slice(line).map_err(|error| format!("a JSON object on this line ({error})"))?;
        match value.get(&self.field) {
            Some(serde_json::Value::String(text)) => Ok(text.clone()),
            _ => Err(format!("a JSON object with a string in {:?} on this line", self.field)),
        }
    }
}

impl Rows for JsonLines {
    fn next(&mut self) -> Result<Option<(u64, Vec<u8>)>, SourceError> {
        let mut line = Vec::new();
        loop {
            line.clear();
            let at = self.lines.at();
            match self.lines.next(&mut line)? {
                End::File => return Ok(None),
                End::Gap(what) => {
                    self.notes.push(Note::new(what, at));
                    continue;
                }
                End::TooLong(_) if self.damaged == Damaged::Skip => {
                    self.notes.push(Note::new("jsonl: line of over 256 MiB", at));
                    continue;
                }
                End::TooLong(most) => {
                    let expected = format!("a line of at most {} MiB", most >> 20);
                    return Err(SourceError::Format { file: self.lines.name().to_owned(), at, expected });
                }
                End::Line => {}
            }
            if line.trim_ascii().is_empty() {
                continue;
            }
            match self.text(&line) {
                Ok(text) => return Ok(Some((at, text.into_bytes()))),
                Err(_) if self.damaged == Damaged::Skip => self.notes.push(Note::new("jsonl: bad line", at)),
                Err(expected) => {
                    return Err(SourceError::Format { file: self.lines.name().to_owned(), at, expected });
                }
            }
        }
    }

    fn notes(&mut self) -> Notes {
        std::mem::take(&mut self.notes)
    }
}

/// Rows of a column that are decoded at once: little beside the page that they are in.
const AT_ONCE: usize = 256;

/// A column of text of a Parquet file, page by page.
pub struct ParquetRows {
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
    pub fn open(file: &SourceFile, mut stored: Stored, field: &str) -> Result<Self, SourceError> {
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
