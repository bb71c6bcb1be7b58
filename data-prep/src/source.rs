//! Document sources: files of several formats, streamed in batches of whole documents.
//!
//! Each format has a file in `formats` that implements the trait in `format`. The module `formats` lists all formats.

mod batches;
mod bzip2_blocks;
mod damage;
mod error;
mod file_type;
mod find;
mod format;
mod formats;
mod input;
mod lines;
mod open;
mod peek;
mod read_ahead;
mod rows;
mod settings;
mod stored;
#[cfg(test)]
mod tests;
mod transcode;

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use lambert_config::PrepConfig;
use lambert_config::load::ConfigIssue;
use lambert_config::prep::{Invalid, Source};

pub use batches::{BatchQueue, DocumentBatch, WorkPart, is_read_by};
pub use error::SourceError;
pub use format::{FileHead, FormatRegistry, InputFile, InputFormat};
pub use stored::StoredReader;

use crate::extract::{Extracted, Extractor};
use formats::FORMATS;

/// An input file, or a range of whole bzip2 streams of an input file.
#[derive(Debug, Clone)]
pub struct SourceFile {
    /// Index of the `[[source]]` of this file.
    pub source: usize,
    /// Number of the file across all sources, from 0.
    pub number: u32,
    /// Path or URL.
    pub name: String,
    /// Format, as configured or detected from the first bytes.
    pub format: &'static dyn InputFormat,
    /// Extractor for its documents.
    pub extractor: Extractor,
    /// Start of the range, as an offset in the file before decompression. 0 if the file is not read in ranges.
    pub start: u64,
    /// Size of the file or range before decompression, bytes.
    pub bytes: u64,
    /// Modification time in nanoseconds since 1970, or the ETag of an object. A changed stamp only triggers a check of
    /// the contents.
    pub stamp: String,
}

impl SourceFile {
    /// True if the file is in an object store.
    pub fn is_remote(&self) -> bool {
        is_url(&self.name)
    }

    /// Combines the file and its source into the input of a format.
    fn to_input<'a>(&'a self, source: &'a Source, formats: FormatRegistry, window: u64) -> InputFile<'a> {
        InputFile { file: self, source, format: Some(self.format), formats, window }
    }
}

fn is_url(path: &str) -> bool {
    path.contains("://")
}

/// A document before extraction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RawDocument {
    /// Index of the document in its file.
    pub ordinal: u32,
    /// Position in the file: byte offset in the decompressed text, or row.
    pub offset: u64,
    /// Contents: text, or a `<page>` element.
    pub bytes: Vec<u8>,
}

/// Skipped or repaired parts of a file.
pub type SkipNotices = Vec<SkipNotice>;

/// A skipped or repaired part of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SkipNotice {
    /// Reason, which is a key of `rejected` in the manifest.
    pub reason: &'static str,
    /// Position in the file: byte offset in the decompressed text, or row.
    pub offset: u64,
    /// Title of the page, if known.
    pub title: Option<String>,
}

impl SkipNotice {
    /// Creates a notice without a title.
    pub fn new(reason: &'static str, offset: u64) -> Self {
        Self { reason, offset, title: None }
    }
}

/// Splits a file into documents.
pub trait DocumentReader: Send {
    /// Returns the next document, or `None` at the end.
    fn next(&mut self) -> Result<Option<RawDocument>, SourceError>;

    /// Returns the notices since the last call.
    fn take_notices(&mut self) -> SkipNotices;
}

/// Adds an issue for each unknown format and for each `documents` value that its format does not support.
pub fn check_settings(config: &PrepConfig, issues: &mut Vec<ConfigIssue>) {
    settings::check(FORMATS, config, issues);
}

/// Lists the source settings that have no effect because the format of the source does not read them.
#[must_use]
pub fn unused_settings(config: &PrepConfig) -> Vec<ConfigIssue> {
    settings::unused(FORMATS, config)
}

/// Lists all files in the order of the sources, sorted by path within each source. `threads` threads inspect the files.
///
/// # Errors
/// A source has no files, a file cannot be read, or a file has an unusable format.
pub fn find_files(sources: &[Source], threads: usize) -> Result<Vec<SourceFile>, SourceError> {
    find::find_files(FORMATS, sources, threads)
}

/// Opens a file of `source`. `counter` counts the bytes that were read, before decompression.
///
/// # Errors
/// The file cannot be opened, or does not have the format of its source.
pub fn open_reader(
    source: &Source,
    file: &SourceFile,
    counter: Arc<AtomicU64>,
) -> Result<Box<dyn DocumentReader>, SourceError> {
    open_stored(FORMATS, source, file, counter, DEFAULT_WINDOW).map(|(_, documents)| documents)
}

/// Largest decompression window if there is no memory budget, bytes.
const DEFAULT_WINDOW: u64 = 1 << 30;

/// Opens a file with a decompression window of up to `window` bytes. Also returns the reader of the bytes before
/// decompression.
fn open_stored(
    formats: FormatRegistry,
    source: &Source,
    file: &SourceFile,
    counter: Arc<AtomicU64>,
    window: u64,
) -> Result<(StoredReader, Box<dyn DocumentReader>), SourceError> {
    let stored = StoredReader::open(file, counter, window)?;
    let documents = file.format.open(&file.to_input(source, formats, window), stored.clone())?;
    Ok((stored, documents))
}

/// Reason of the notice of a document whose invalid bytes were replaced.
const INVALID_REPLACED: &str = "invalid UTF-8 replaced in a document";

/// Extracts the prose of a document of `file`. Reports repairs to `notices`.
///
/// # Errors
/// The document is not UTF-8, and `source.invalid` is `refuse`.
pub fn extract(
    source: &Source,
    file: &SourceFile,
    raw: &RawDocument,
    notices: &mut dyn FnMut(&'static str),
) -> Result<Extracted, SourceError> {
    let text = match (std::str::from_utf8(&raw.bytes), source.invalid) {
        (Ok(text), _) => Cow::Borrowed(text),
        (Err(_), Invalid::Replace) => {
            notices(INVALID_REPLACED);
            String::from_utf8_lossy(&raw.bytes)
        }
        (Err(error), Invalid::Refuse) => {
            return Err(SourceError::NotUtf8 {
                file: file.name.clone(),
                offset: raw.offset + error.valid_up_to() as u64,
            });
        }
    };
    Ok(file.extractor.extract(text))
}
