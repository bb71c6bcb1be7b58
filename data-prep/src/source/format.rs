//! The trait of input formats, and their registry with format detection.

use std::io::Read;
use std::ops::Range;
use std::sync::Arc;

use lambert_config::prep::{Documents, FormatName, Source};

use super::damage::Gap;
use super::peek::PeekReader;
use super::{DocumentReader, SourceError, SourceFile, StoredReader, open};
use crate::extract::Extractor;

/// The first bytes of a file.
#[derive(Debug, Clone, Copy)]
pub enum FileHead<'a> {
    /// First bytes of the file before decompression.
    Stored(&'a [u8]),
    /// First bytes of the decompressed text, in UTF-8.
    Text(&'a [u8]),
}

/// An input format.
pub trait InputFormat: Sync {
    /// Name in `source.format`.
    fn name(&self) -> &'static str;

    /// Supported values of `source.documents`, the default first.
    fn documents(&self) -> &'static [Documents];

    /// Source keys that this format reads in addition to the keys that all formats read.
    fn options(&self) -> &'static [&'static str] {
        &[]
    }

    /// True if a file that starts with `head` has this format. Text formats examine [`FileHead::Text`], all others
    /// [`FileHead::Stored`].
    fn recognizes(&self, head: FileHead<'_>) -> bool;

    /// Name for the error message about a file that has this format although its source is configured as text. `None`
    /// if such a file may be read as text.
    fn looks_like(&self) -> Option<&'static str> {
        None
    }

    /// File name extensions. A file with such a name and the contents of this format is not read as text.
    fn extensions(&self) -> &'static [&'static str] {
        &[]
    }

    /// Reason why the text of file `name`, which starts with `head`, does not have this format. In the message, the reason
    /// follows "it looks like".
    fn refusal(&self, _name: &str, _head: &[u8], _formats: FormatRegistry) -> Option<String> {
        None
    }

    /// Describes text that starts with `head` if it is a variant of this format that cannot be read, and would otherwise count as
    /// plain text. In the message, the description follows "it looks like".
    fn unreadable_variant(&self, _head: &[u8]) -> Option<&'static str> {
        None
    }

    /// Estimated bytes of text per decompressed byte, for the disk space estimate.
    fn text_per_byte(&self) -> f64 {
        1.0
    }

    /// True if a file with this name (without folder) is not an input itself but accompanies files of this format.
    fn ignores(&self, _name: &str) -> bool {
        false
    }

    /// Byte ranges of the file, before decompression, that can be read independently.
    ///
    /// # Errors
    /// The file cannot be read.
    fn parts(&self, file: &SourceFile) -> Result<Vec<Range<u64>>, SourceError> {
        Ok(std::iter::once(0..file.bytes).collect())
    }

    /// Creates the extractor for the documents of a file.
    ///
    /// # Errors
    /// The file cannot be read.
    fn extractor(&self, file: &InputFile<'_>) -> Result<Extractor, SourceError>;

    /// Creates a reader of the documents of a file or of a range of a file. `stored` reads the bytes before
    /// decompression.
    ///
    /// # Errors
    /// The file cannot be read or does not have this format.
    fn open(&self, file: &InputFile<'_>, stored: StoredReader) -> Result<Box<dyn DocumentReader>, SourceError>;

    /// Returns `source.documents` if this format supports it, else the default.
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

/// A file with its source and the context for reading it.
#[derive(Clone, Copy)]
pub struct InputFile<'a> {
    /// The file, or a range of a file.
    pub file: &'a SourceFile,
    /// Source of the file.
    pub source: &'a Source,
    /// Format of the file, if known.
    pub format: Option<&'static dyn InputFormat>,
    /// All formats.
    pub formats: FormatRegistry,
    /// Upper limit on the decompression window, bytes.
    pub window: u64,
}

impl InputFile<'_> {
    /// Decompresses `stored` and converts it to UTF-8.
    ///
    /// # Errors
    /// The file is not text or looks like another format.
    pub fn text(&self, stored: StoredReader) -> Result<PeekReader, SourceError> {
        open::open(stored, self.file, self.source, self.window, &|head| {
            let stored = self.formats.likely_format(FileHead::Stored(head));
            stored.or_else(|| self.format?.refusal(&self.file.name, head, self.formats))
        })
    }

    /// Opens the text in order to examine its first bytes.
    ///
    /// # Errors
    /// The file cannot be opened, is not text, or looks like another format.
    pub fn peek(&self) -> Result<PeekReader, SourceError> {
        self.text(StoredReader::open(self.file, Arc::default(), 0)?)
    }
}

/// Number of bytes, before decompression, that are examined to detect binary formats.
const STORED_HEAD: u64 = 512;

/// The list of input formats.
#[derive(Clone, Copy)]
pub struct FormatRegistry {
    /// Fallback for files that no other format recognizes.
    pub text: &'static dyn InputFormat,
    formats: &'static [&'static dyn InputFormat],
}

impl FormatRegistry {
    /// Creates a registry of `text`, the fallback, and `formats`.
    pub const fn new(text: &'static dyn InputFormat, formats: &'static [&'static dyn InputFormat]) -> Self {
        Self { text, formats }
    }

    /// All formats, in the order used in messages.
    pub fn all(self) -> impl Iterator<Item = &'static dyn InputFormat> {
        std::iter::once(self.text).chain(self.formats.iter().copied())
    }

    /// Looks up a format by name. Returns `None` for `auto`.
    ///
    /// # Errors
    /// The name is unknown. The message lists the valid names.
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

    /// Detects the format of a file from its first bytes.
    ///
    /// # Errors
    /// The file cannot be read, or no format supports its contents.
    pub fn recognize(self, input: &InputFile<'_>) -> Result<&'static dyn InputFormat, SourceError> {
        let name = &input.file.name;
        let mut head = Vec::new();
        let read_error = |source| SourceError::Input { path: name.clone(), operation: "read", source };
        StoredReader::open(input.file, Arc::default(), 0)?
            .take(STORED_HEAD)
            .read_to_end(&mut head)
            .map_err(read_error)?;
        if let Some(format) = self.recognized_by(FileHead::Stored(&head)) {
            return Ok(format);
        }
        let text = InputFile { format: None, ..*input }.peek()?;
        let recognized = self.recognized_by(FileHead::Text(text.head()));
        if let (None, Some(found)) = (recognized, self.all().find_map(|format| format.unreadable_variant(text.head())))
        {
            return Err(SourceError::NotText { file: name.clone(), found: found.to_owned() });
        }
        let format = recognized.unwrap_or(self.text);
        let is_empty = text.head().is_empty();
        match text.into_error().filter(|error| is_empty && Gap::of(error).is_none()) {
            Some(source) => Err(SourceError::Stream { file: name.clone(), offset: 0, source }),
            None => Ok(format),
        }
    }

    fn recognized_by(self, head: FileHead<'_>) -> Option<&'static dyn InputFormat> {
        self.all().find(|format| format.recognizes(head))
    }

    /// Describes the format of a file that was configured as text. In the message, the description follows "it looks
    /// like".
    pub fn likely_format(self, head: FileHead<'_>) -> Option<String> {
        let found = self.recognized_by(head)?;
        Some(format!("{}; use format = \"{}\"", found.looks_like()?, found.name()))
    }

    /// Describes the format of file `name` if both its extension and its first bytes have the same format. In the message, the
    /// description follows "it looks like".
    pub fn format_by_name(self, name: &str, head: &[u8]) -> Option<String> {
        let format = self.recognized_by(FileHead::Text(head))?;
        let file = name.rsplit('/').next().unwrap_or(name).to_lowercase();
        // Such as `a.jsonl.gz` and `a.jsonl-00000-of-00002`.
        let is = |part: &str, extension: &str| {
            part.strip_prefix(extension).is_some_and(|rest| !rest.starts_with(char::is_alphanumeric))
        };
        let has = |extension: &&str| file.split('.').skip(1).any(|part| is(part, extension));
        let extension = format.extensions().iter().find(|extension| has(extension))?;
        Some(format!("a {extension} file; use format = \"{}\" or \"auto\"", format.name()))
    }

    /// True if a file with this name (without folder) is skipped. This applies to sources whose path is a folder.
    pub fn ignores(self, format: Option<&'static dyn InputFormat>, name: &str) -> bool {
        format.map_or_else(|| self.all().any(|format| format.ignores(name)), |format| format.ignores(name))
    }
}
