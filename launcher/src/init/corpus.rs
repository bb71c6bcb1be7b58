//! Text sources of a preparation file.

use std::path::Path;

use lambert_config::prep::{Documents, FormatName, Source};
use lambert_data_prep::source::{self, InputFormat, SourceError, SourceFile};

use super::InitError;
use super::document::{Document, Section};
use crate::cli::{self, SourceKind};

/// Text source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TextSource {
    /// Section of the preparation file.
    pub section: Section,
    /// Advice on how to get the text, if it is not there yet.
    pub advice: Option<&'static str>,
}

/// Heading of a source.
pub const HEADING: &str = "[[source]]";

/// A corpus for which the shipped configurations have a source.
struct KnownCorpus<'a> {
    kind: SourceKind,
    option: &'static str,
    path: Option<&'a str>,
    advice: &'static str,
}

/// Returns the sources that the arguments name, each once. `shipped` has the sources of books and Wikipedia, in this
/// order.
///
/// # Errors
/// A path that does not exist, or a file that cannot be read.
pub fn sources(arguments: &cli::Init, shipped: &mut Document) -> Result<Vec<TextSource>, InitError> {
    let known = [
        KnownCorpus {
            kind: SourceKind::Books,
            option: "--books",
            path: arguments.books.as_deref(),
            advice: "put plain text, one file per book, into corpus/books",
        },
        KnownCorpus {
            kind: SourceKind::Wikipedia,
            option: "--wikipedia",
            path: arguments.wikipedia.as_deref(),
            advice: "put *-pages-articles-multistream.xml.bz2 from https://dumps.wikimedia.org/enwiki/latest/ into corpus/wiki",
        },
    ];
    let known = known.iter().zip(shipped.all(HEADING)).filter(|(corpus, _)| arguments.source.contains(&corpus.kind));
    let mut sources =
        known.map(|(corpus, section)| corpus.source(arguments, section)).collect::<Result<Vec<_>, _>>()?;
    for path in &arguments.input {
        let section = own_text(&arguments.output, path, arguments.input.len() == 1)?;
        sources.push(TextSource { section, advice: None });
    }
    Ok(sources)
}

impl KnownCorpus<'_> {
    /// Returns the shipped source, with the path that the user gave. Only this path must exist already.
    fn source(&self, arguments: &cli::Init, shipped: &Section) -> Result<TextSource, InitError> {
        let (mut section, mut advice) = (shipped.clone(), None);
        let of = |key| shipped.get(key).unwrap_or_default().trim_matches('"');
        let format = of("format").into();
        match self.path {
            Some(path) => {
                files(self.option, path, format)?;
                section.set("path", seen_from(&arguments.output, path));
            }
            None => {
                let default = arguments.output.join(of("path"));
                advice = files(self.option, &default.to_string_lossy(), format).err().map(|_| self.advice);
            }
        }
        Ok(TextSource { section, advice })
    }
}

/// Returns the source at `path`, whose format is detected from the first bytes of each file. If the text is one file, which is
/// the only input, blank lines separate its documents. `is_only` is true if there is no other input.
fn own_text(output: &Path, path: &str, is_only: bool) -> Result<Section, InitError> {
    let found = files("--input", path, FormatName::AUTO.into())?;
    let mut section = Section::new(HEADING);
    section.set("path", seen_from(output, path));
    match common_format(&found) {
        Some(format) => {
            section.set("format", format.name());
            if format.documents().contains(&Documents::BlankLine) {
                let documents = if is_only && found.len() == 1 { Documents::BlankLine } else { Documents::File };
                section.set("documents", documents.to_string());
            }
            if format.options().contains(&"field") {
                section.set("field", Source::default().field);
            }
        }
        None => {
            section.set("format", FormatName::AUTO);
        }
    }
    Ok(section)
}

/// Returns the format of all files, or `None` if their formats differ.
fn common_format(files: &[SourceFile]) -> Option<&'static dyn InputFormat> {
    let first = files.first()?.format;
    files.iter().all(|file| file.format.name() == first.name()).then_some(first)
}

/// Lists the files at `path`. Errors name `option`.
fn files(option: &'static str, path: &str, format: FormatName) -> Result<Vec<SourceFile>, InitError> {
    let source = Source { path: path.to_owned(), format, ..Source::default() };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    source::find_files(&[source], threads).map_err(|error| match error {
        SourceError::NoFiles { path, reason, .. } => InitError::NoFiles { option, path, reason },
        source => InitError::Input { option, source: Box::new(source) },
    })
}

/// Returns a path that is valid in the folder `output`. Paths and globs on this machine become absolute unless `output`
/// is the working directory.
fn seen_from(output: &Path, path: &str) -> String {
    if output == Path::new(".") || path.contains("://") {
        return path.to_owned();
    }
    std::path::absolute(path).map_or_else(|_| path.to_owned(), |path| path.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_seen_from_the_output_directory() {
        assert_eq!(seen_from(Path::new("."), "notes.jsonl"), "notes.jsonl");
        let here = std::env::current_dir().unwrap();
        assert_eq!(seen_from(Path::new("out"), "a/*.txt"), here.join("a/*.txt").to_string_lossy());
        assert_eq!(seen_from(Path::new("out"), "s3://bucket/a"), "s3://bucket/a");
    }

    #[test]
    fn formats_are_detected() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, text).unwrap();
            path.to_str().unwrap().to_owned()
        };
        let section = |path: &str| {
            let section = own_text(Path::new("."), path, true).unwrap();
            ["format", "documents", "field"].map(|key| section.get(key).map(str::to_owned))
        };
        let expected = |values: [Option<&str>; 3]| values.map(|value| value.map(|value| format!("\"{value}\"")));
        let text = write("a/1.txt", "One sentence.\n\nAnother document.\n");
        assert_eq!(section(&text), expected([Some("text"), Some("blank-line"), None]));
        let rows = write("rows.json", "{\"text\": \"One sentence.\"}\n");
        assert_eq!(section(&rows), expected([Some("jsonl"), None, Some("text")]));
        write("a/2.txt", "More.\n");
        let all = folder.path().join("a");
        assert_eq!(section(all.to_str().unwrap()), expected([Some("text"), Some("file"), None]));
        write("a/3.jsonl", "{\"text\": \"One sentence.\"}\n");
        assert_eq!(section(all.to_str().unwrap()), expected([Some("auto"), None, None]));
        let missing = own_text(Path::new("."), "no/such.jsonl", true).unwrap_err();
        assert!(missing.to_string().starts_with("--input no/such.jsonl: No such file"), "{missing}");
    }
}
