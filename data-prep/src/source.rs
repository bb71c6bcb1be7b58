//! Where documents come from: files of several formats, streamed in batches of whole documents.
//!
//! A format is one file in `formats`, behind the trait of `format`; the list of them is in `formats` itself.

mod ahead;
mod batches;
mod blocks;
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
use lambert_config::load::Fault;
use lambert_config::prep::{Invalid, Source};

pub use batches::{Batch, Batches, Part, is_read_by};
pub use error::SourceError;
pub use format::{Head, InputFile, InputFormat, Registry};
pub use stored::Stored;

use crate::extract::{Extracted, Extractor};
use formats::FORMATS;

/// One input file, or a run of whole bzip2 streams of one.
#[derive(Debug, Clone)]
pub struct SourceFile {
    /// Which `[[source]]`, from 0.
    pub source: usize,
    /// Its number among all files of all sources, from 0.
    pub number: u32,
    /// Its path or URL.
    pub name: String,
    /// The format that reads it: as configured, or as its first bytes show.
    pub format: &'static dyn InputFormat,
    /// The extractor for its documents.
    pub extractor: Extractor,
    /// Where it starts in the stored file; 0 unless the file was divided.
    pub start: u64,
    /// Its size as it is stored.
    pub bytes: u64,
    /// Changes when the file does: nanoseconds since 1970, or what a store calls the e_tag. Says when to look twice,
    /// and decides nothing.
    pub stamp: String,
}

impl SourceFile {
    /// Tells whether this lies in an object store.
    pub fn is_remote(&self) -> bool {
        is_url(&self.name)
    }

    /// This file as a format gets to see it.
    fn with<'a>(&'a self, source: &'a Source, formats: Registry, window: u64) -> InputFile<'a> {
        InputFile { file: self, source, format: Some(self.format), formats, window }
    }
}

fn is_url(path: &str) -> bool {
    path.contains("://")
}

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

/// Adds a fault for each unknown format of a preparation, and for each `documents` that its format does not take.
pub fn check(config: &PrepConfig, faults: &mut Vec<Fault>) {
    settings::check(FORMATS, config, faults);
}

/// The settings of a preparation's sources that have no effect, because the format of the source does not read them.
#[must_use]
pub fn unused_settings(config: &PrepConfig) -> Vec<Fault> {
    settings::unused(FORMATS, config)
}

/// All files of all sources: the sources in their order, the files of each sorted by path. `threads` look at them.
pub fn find(sources: &[Source], threads: usize) -> Result<Vec<SourceFile>, SourceError> {
    find::find(FORMATS, sources, threads)
}

/// The reader for a file of `source`. `counter` grows with the stored bytes that were read.
pub fn reader(
    source: &Source,
    file: &SourceFile,
    counter: Arc<AtomicU64>,
) -> Result<Box<dyn DocumentReader>, SourceError> {
    opened(FORMATS, source, file, counter, WINDOW).map(|(_, documents)| documents)
}

/// Bytes that a decompressor may have where no budget says otherwise.
const WINDOW: u64 = 1 << 30;

/// The same, and the stored file below it. A decompressor may have `window` bytes for what it looks back at.
fn opened(
    formats: Registry,
    source: &Source,
    file: &SourceFile,
    counter: Arc<AtomicU64>,
    window: u64,
) -> Result<(Stored, Box<dyn DocumentReader>), SourceError> {
    let stored = Stored::open(file, counter, window)?;
    let documents = file.format.open(&file.with(source, formats, window), stored.clone())?;
    Ok((stored, documents))
}

/// Takes the prose out of a document of `file`, which is of `source`. Tells `notes` what was mended.
pub fn extract(
    source: &Source,
    file: &SourceFile,
    raw: &RawDocument,
    notes: &mut dyn FnMut(&'static str),
) -> Result<Extracted, SourceError> {
    let text = match (std::str::from_utf8(&raw.bytes), source.invalid) {
        (Ok(text), _) => Cow::Borrowed(text),
        (Err(_), Invalid::Replace) => {
            notes("invalid UTF-8 replaced in a document");
            String::from_utf8_lossy(&raw.bytes)
        }
        (Err(error), Invalid::Refuse) => {
            return Err(SourceError::NotUtf8 { file: file.name.clone(), at: raw.at + error.valid_up_to() as u64 });
        }
    };
    Ok(file.extractor.extract(text))
}
