//! Where documents come from: files of several formats, streamed in batches of whole documents.

mod ahead;
mod batches;
mod blocks;
mod damage;
mod error;
mod files;
mod mediawiki;
mod multistream;
mod open;
mod peek;
mod recognize;
mod rows;
mod stored;
mod text;
mod transcode;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use lambert_config::prep::{Documents, Format, Source};

pub use batches::{Batch, Batches, Part, is_read_by};
pub use error::SourceError;
pub use files::{SourceFile, find};
pub use stored::Stored;

/// A document as it stands in its file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RawDocument {
    /// Its number in the file, from 0.
    pub ordinal: u32,
    /// Where it starts: a byte of the decompressed file, or a row.
    pub at: u64,
    /// Its bytes: text, or a `<page>` element.
    pub bytes: Vec<u8>,
}

/// What was left out of a file.
pub type Notes = Vec<Note>;

/// Something that was left out or mended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note {
    /// A key of the manifest's `rejected`.
    pub what: &'static str,
    /// A byte of the decompressed file, or a row.
    pub at: u64,
    /// The title of a page, where it can be told.
    pub title: Option<String>,
}

impl Note {
    /// Without a title.
    pub fn new(what: &'static str, at: u64) -> Self {
        Self { what, at, title: None }
    }
}

/// Cuts a file into documents.
pub trait DocumentReader: Send {
    /// The next document, `None` at the end.
    fn next(&mut self) -> Result<Option<RawDocument>, SourceError>;

    /// What was left out since the last call.
    fn notes(&mut self) -> Notes;
}

/// The reader for a file of `source`. `counter` grows with the stored bytes that were read.
pub fn reader(
    source: &Source,
    file: &SourceFile,
    counter: Arc<AtomicU64>,
) -> Result<Box<dyn DocumentReader>, SourceError> {
    opened(source, file, counter, WINDOW).map(|(_, documents)| documents)
}

/// Bytes that a decompressor may have where no budget says otherwise.
const WINDOW: u64 = 1 << 30;

/// The same, and the stored file below it. A decompressor may have `window` bytes for what it looks back at.
fn opened(
    source: &Source,
    file: &SourceFile,
    counter: Arc<AtomicU64>,
    window: u64,
) -> Result<(Stored, Box<dyn DocumentReader>), SourceError> {
    let stored = Stored::open(file, counter, window)?;
    let below = stored.clone();
    let kind = source.documents(file.format);
    let sentences = kind == Documents::Sentence;
    if file.format == Format::Parquet {
        let rows = rows::ParquetRows::open(file, stored, &source.field)?;
        return Ok((below, Box::new(rows::Documents::new(rows, sentences))));
    }
    let input = Box::new(open::open(stored, file, source, window)?);
    if file.format == Format::Wikipedia {
        let pages = mediawiki::Pages::new(input, &file.name, file.start == 0, source.damaged);
        return Ok((below, Box::new(pages)));
    }
    if file.format == Format::Jsonl {
        let lines = text::Lines::whole(input, &file.name);
        let rows = rows::JsonLines::new(lines, source.field.clone(), source.damaged);
        return Ok((below, Box::new(rows::Documents::new(rows, sentences))));
    }
    let lines = text::Lines::new(input, &file.name);
    Ok((below, Box::new(text::Text::new(lines, kind == Documents::BlankLine))))
}
