//! Where documents come from: files of several formats, streamed in batches of whole documents.

mod batches;
mod files;
mod mediawiki;
mod open;
mod text;

use std::io::BufRead;

pub use batches::{Batch, Batches};
pub use files::{SourceFile, find};
pub use open::open;

use lambert_config::prep::{Documents, Format, Source};

use crate::prep::PrepError;

/// A document as it stands in its file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RawDocument {
    /// Its number in the file, from 0.
    pub ordinal: u32,
    /// Where it starts in the decompressed file, in bytes.
    pub at: u64,
    /// Its bytes: text, or a `<page>` element.
    pub bytes: Vec<u8>,
}

/// Cuts a stream into documents.
pub trait DocumentReader: Send {
    /// The next document, `None` at the end.
    fn next(&mut self) -> Result<Option<RawDocument>, PrepError>;
}

/// The reader for the files of `source`.
pub fn reader(source: &Source, input: Box<dyn BufRead + Send>, name: &str) -> Box<dyn DocumentReader> {
    let name = name.to_owned();
    match (source.format, source.documents) {
        (Format::Wikipedia, _) => Box::new(mediawiki::Pages::new(input, name)),
        (Format::Text, Documents::File) => Box::new(text::WholeFile::new(input, name)),
        (Format::Text, Documents::BlankLine) => Box::new(text::Blocks::new(input, name)),
    }
}
