//! What an input format says about itself, and the registry that is asked for the format of a file.

use std::io::Read;
use std::ops::Range;
use std::sync::Arc;

use lambert_config::prep::{Documents, FormatName, Source};

use super::damage::Gap;
use super::peek::Peeked;
use super::{DocumentReader, SourceError, SourceFile, Stored, open};
use crate::extract::Extractor;

/// The first bytes of a file.
#[derive(Debug, Clone, Copy)]
pub enum Head<'a> {
    /// As they are stored.
    Stored(&'a [u8]),
    /// Decompressed, in UTF-8.
    Text(&'a [u8]),
}

/// An input format. Its name, its documents and its options are settings of a source; all else is asked for a file.
pub trait InputFormat: Sync {
    /// The name in `source.format`.
    fn name(&self) -> &'static str;

    /// The values of `source.documents` that it takes, the default first.
    fn documents(&self) -> &'static [Documents];

    /// The keys of a source that it reads beside those that every format has.
    fn options(&self) -> &'static [&'static str] {
        &[]
    }

    /// Tells whether a file that begins with `head` is of this format. A format of text looks at [`Head::Text`], any
    /// other one at [`Head::Stored`].
    fn recognizes(&self, head: Head<'_>) -> bool;

    /// The words for a file of this format in a message that refuses it as text; `None` if it may be read as text.
    fn looks_like(&self) -> Option<&'static str> {
        None
    }

    /// The reason why text that begins with `head` cannot be read as this format, in words that follow "it looks like".
    fn refusal(&self, _head: &[u8], _formats: Registry) -> Option<String> {
        None
    }

    /// Bytes of text in a byte of a decompressed file, about: for the estimate of disk space.
    fn text_per_byte(&self) -> f64 {
        1.0
    }

    /// Tells whether a file of this name (without its folder) comes along with files of this format and is not read.
    fn ignores(&self, _name: &str) -> bool {
        false
    }

    /// The ranges of stored bytes that can be read independently of each other.
    ///
    /// # Errors
    /// The file cannot be read.
    fn parts(&self, file: &SourceFile) -> Result<Vec<Range<u64>>, SourceError> {
        Ok(std::iter::once(0..file.bytes).collect())
    }

    /// The extractor for the documents of a file.
    ///
    /// # Errors
    /// The file cannot be read.
    fn extractor(&self, file: &InputFile<'_>) -> Result<Extractor, SourceError>;

    /// A reader for the documents of a file, or of a part of it, whose bytes are `stored`.
    ///
    /// # Errors
    /// The file cannot be read, or is not of this format.
    fn open(&self, file: &InputFile<'_>, stored: Stored) -> Result<Box<dyn DocumentReader>, SourceError>;

    /// The documents of a source's files in this format: as configured where it takes that, or its default.
    fn documents_of(&self, source: &Source) -> Documents {
        let default = self.documents().first().copied().unwrap_or(Documents::File);
        source.documents.filter(|documents| self.documents().contains(documents)).unwrap_or(default)
    }
}

impl std::fmt::Debug for dyn InputFormat {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// A file with its source, as a format gets to see it.
#[derive(Clone, Copy)]
pub struct InputFile<'a> {
    /// The file, or a part of it.
    pub file: &'a SourceFile,
    /// Its source.
    pub source: &'a Source,
    /// The format that reads it, if that is known yet.
    pub format: Option<&'static dyn InputFormat>,
    /// All formats.
    pub formats: Registry,
    /// Bytes that a decompressor may have for what it looks back at.
    pub window: u64,
}

impl InputFile<'_> {
    /// The text in `stored`: decompressed, in UTF-8.
    ///
    /// # Errors
    /// It is no text, or looks like another format.
    pub fn text(&self, stored: Stored) -> Result<Peeked, SourceError> {
        open::open(stored, self.file, self.source, self.window, &|head| {
            let stored = self.formats.look_alike(Head::Stored(head));
            stored.or_else(|| self.format?.refusal(head, self.formats))
        })
    }

    /// The text, to look at its beginning.
    ///
    /// # Errors
    /// As [`InputFile::text`], or the file cannot be opened.
    pub fn peek(&self) -> Result<Peeked, SourceError> {
        self.text(Stored::open(self.file, Arc::default(), 0)?)
    }
}

/// Stored bytes by which a format that is not text is recognized.
const STORED_HEAD: u64 = 512;

/// A list of formats.
#[derive(Clone, Copy)]
pub struct Registry {
    /// The format of a file that no other recognizes.
    pub text: &'static dyn InputFormat,
    others: &'static [&'static dyn InputFormat],
}

impl Registry {
    /// The formats `others`, and `text` for what none of them recognizes.
    pub const fn new(text: &'static dyn InputFormat, others: &'static [&'static dyn InputFormat]) -> Self {
        Self { text, others }
    }

    /// All formats, in the order in which messages name them.
    pub fn all(self) -> impl Iterator<Item = &'static dyn InputFormat> {
        std::iter::once(self.text).chain(self.others.iter().copied())
    }

    /// The format of this name; `None` for `auto`.
    ///
    /// # Errors
    /// There is none, as a message with the names that there are.
    pub fn named(self, name: &FormatName) -> Result<Option<&'static dyn InputFormat>, String> {
        if name.is_auto() {
            return Ok(None);
        }
        let found = self.all().find(|format| format.name() == name.as_str());
        found.map(Some).ok_or_else(|| {
            let names: Vec<&str> = self.all().map(InputFormat::name).collect();
            format!("unknown format {:?}, expected one of {}, {}", name.as_str(), FormatName::AUTO, names.join(", "))
        })
    }

    /// The format of a file by its first bytes.
    ///
    /// # Errors
    /// The file cannot be read, or no format reads what it holds.
    pub fn recognize(self, input: &InputFile<'_>) -> Result<&'static dyn InputFormat, SourceError> {
        let name = &input.file.name;
        let mut head = Vec::new();
        let fault = |source| SourceError::Input { path: name.clone(), operation: "read", source };
        Stored::open(input.file, Arc::default(), 0)?.take(STORED_HEAD).read_to_end(&mut head).map_err(fault)?;
        if let Some(format) = self.recognizing(Head::Stored(&head)) {
            return Ok(format);
        }
        let text = InputFile { format: None, ..*input }.peek()?;
        let format = self.recognizing(Head::Text(text.head())).unwrap_or(self.text);
        let unread = text.head().is_empty();
        match text.into_error().filter(|error| unread && Gap::of(error).is_none()) {
            Some(source) => Err(SourceError::Stream { file: name.clone(), at: 0, source }),
            None => Ok(format),
        }
    }

    fn recognizing(self, head: Head<'_>) -> Option<&'static dyn InputFormat> {
        self.all().find(|format| format.recognizes(head))
    }

    /// The format that a file is of although it is read as text, in words that follow "it looks like".
    pub fn look_alike(self, head: Head<'_>) -> Option<String> {
        let found = self.recognizing(head)?;
        Some(format!("{}; format = \"{}\" reads it", found.looks_like()?, found.name()))
    }

    /// Tells whether a file of this name (without its folder) is left out where a source names its folder.
    pub fn ignores(self, format: Option<&'static dyn InputFormat>, name: &str) -> bool {
        format.map_or_else(|| self.all().any(|format| format.ignores(name)), |format| format.ignores(name))
    }
}
