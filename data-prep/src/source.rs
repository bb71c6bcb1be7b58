//! Where documents come from: files of several formats, streamed in batches of whole documents.

mod batches;
mod files;
mod mediawiki;
mod multistream;
mod open;
mod rows;
mod text;
mod transcode;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use lambert_config::prep::{Documents, Format, Source};

pub use batches::{Batch, Batches, Part, is_read_by};
pub use files::{SourceFile, find};
pub use open::{Input, open};

use crate::prep::PrepError;

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

/// What was left out of a file: reason and count.
pub type Notes = Vec<(&'static str, u64)>;

/// Cuts a file into documents.
pub trait DocumentReader: Send {
    /// The next document, `None` at the end.
    fn next(&mut self) -> Result<Option<RawDocument>, PrepError>;

    /// What was left out since the last call.
    fn notes(&mut self) -> Notes;
}

/// The reader for a file of `source`. `counter` grows with the stored bytes that were read.
pub fn reader(
    source: &Source,
    file: &SourceFile,
    counter: Arc<AtomicU64>,
) -> Result<Box<dyn DocumentReader>, PrepError> {
    let sentences = source.documents() == Documents::Sentence;
    if source.format == Format::Parquet {
        counter.fetch_add(file.bytes, std::sync::atomic::Ordering::Relaxed);
        return Ok(Box::new(rows::Documents::new(rows::ParquetRows::open(file, &source.field)?, sentences)));
    }
    let input = open(file, source, counter)?;
    if source.format == Format::Wikipedia {
        return Ok(Box::new(mediawiki::Pages::new(input, &file.name, file.start == 0, source.damaged)));
    }
    let lines = text::Lines::new(input, &file.name);
    Ok(if source.format == Format::Jsonl {
        let rows = rows::JsonLines::new(lines, source.field.clone(), source.damaged);
        Box::new(rows::Documents::new(rows, sentences))
    } else {
        Box::new(text::Text::new(lines, source.documents() == Documents::BlankLine))
    })
}
