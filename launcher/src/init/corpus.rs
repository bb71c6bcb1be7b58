//! Text sources of a preparation file.

use std::collections::BTreeSet;
use std::path::Path;

use lambert_data_prep::source::{self, SourceError};

use super::document::Section;
use crate::cli;

/// Text source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TextSource {
    /// File, directory, glob or URL, as the output directory sees it.
    pub path: String,
    format: &'static str,
    /// Document boundaries; the default of the format if absent.
    documents: Option<&'static str>,
    /// Advice on how to get the text, if it is not there yet.
    pub missing: Option<String>,
}

/// Default path of books.
const BOOKS: &str = "corpus/books";
/// Default path of a Wikipedia dump.
const WIKIPEDIA: &str = "corpus/wiki/*.xml.bz2";
/// English Wikipedia.
const DUMPS: &str = "https://dumps.wikimedia.org/enwiki/latest/";

/// Returns the sources that the arguments name, each once.
///
/// # Errors
/// A path that does not exist, or whose files cannot be listed.
pub fn sources(arguments: &cli::Init) -> Result<Vec<TextSource>, SourceError> {
    let has = |kind| arguments.source.contains(&kind);
    let mut sources = Vec::new();
    if has(cli::SourceKind::Books) {
        let advice = format!("put plain text, one file per book, into {BOOKS}");
        sources.push(known(arguments, ("--books", arguments.books.as_deref(), BOOKS), "text", advice)?);
    }
    if has(cli::SourceKind::Wikipedia) {
        let advice = format!("download *-pages-articles-multistream.xml.bz2 from {DUMPS} into corpus/wiki");
        sources.push(known(arguments, ("--wikipedia", arguments.wikipedia.as_deref(), WIKIPEDIA), "wikipedia", advice)?);
    }
    for path in &arguments.input {
        let files = source::list("--input", path)?;
        let format = common_format(&files);
        let documents = (format == "text").then_some(if files.len() == 1 { "blank-line" } else { "file" });
        let path = seen_from(&arguments.output, path);
        sources.push(TextSource { path, format, documents, missing: None });
    }
    Ok(sources)
}

/// A source whose path has a default, as (option, value, default). Only a given path must exist.
fn known(
    arguments: &cli::Init,
    (option, given, default): (&str, Option<&str>, &str),
    format: &'static str,
    advice: String,
) -> Result<TextSource, SourceError> {
    let missing = match given {
        Some(path) => source::list(option, path).map(|_| None)?,
        None => source::list(option, &arguments.output.join(default).to_string_lossy()).err().map(|_| advice),
    };
    let path = given.map_or_else(|| default.to_owned(), |path| seen_from(&arguments.output, path));
    Ok(TextSource { path, format, documents: (format == "text").then_some("file"), missing })
}

/// Returns a path that is valid in the folder `output`. Paths and globs on this machine become absolute unless `output`
/// is the working directory.
fn seen_from(output: &Path, path: &str) -> String {
    if output == Path::new(".") || path.contains("://") {
        return path.to_owned();
    }
    std::path::absolute(path).map_or_else(|_| path.to_owned(), |path| path.to_string_lossy().into_owned())
}

/// Returns the format of all files, or `auto` if their formats differ.
fn common_format(files: &[String]) -> &'static str {
    let formats: BTreeSet<&str> = files.iter().map(|file| format_of(file)).collect();
    if formats.len() == 1 { files.first().map_or("auto", |file| format_of(file)) } else { "auto" }
}

/// Returns the format that the extension of a file names, or `auto`. A suffix of a compression is skipped.
fn format_of(file: &str) -> &'static str {
    let name = file.to_ascii_lowercase();
    let name = [".gz", ".bz2", ".zst", ".xz"].iter().find_map(|suffix| name.strip_suffix(suffix)).unwrap_or(&name);
    match Path::new(name).extension().and_then(|extension| extension.to_str()) {
        Some("txt" | "text" | "md") => "text",
        Some("jsonl" | "ndjson") => "jsonl",
        Some("parquet") => "parquet",
        _ => "auto",
    }
}

impl TextSource {
    /// Renders the section of the preparation file.
    pub fn section(&self) -> Section {
        let mut section = Section::new("[[source]]");
        section.set("path", self.path.as_str()).set("format", self.format);
        if let Some(documents) = self.documents {
            section.set("documents", documents);
        }
        if ["jsonl", "parquet"].contains(&self.format) {
            section.set("field", "text");
        }
        section
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extensions_name_formats() {
        let formats = ["a.txt", "b/c.JSONL.zst", "d.ndjson", "e.parquet", "part-0", "w.xml.bz2", "f.json"].map(format_of);
        assert_eq!(formats, ["text", "jsonl", "jsonl", "parquet", "auto", "auto", "auto"]);
        let files = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        assert_eq!(common_format(&files(&["a.txt", "b.txt.gz"])), "text");
        assert_eq!(common_format(&files(&["a.txt", "b.jsonl"])), "auto");
    }

    #[test]
    fn paths_are_seen_from_the_output_directory() {
        assert_eq!(seen_from(Path::new("."), "notes.jsonl"), "notes.jsonl");
        let here = std::env::current_dir().unwrap();
        assert_eq!(seen_from(Path::new("out"), "a/*.txt"), here.join("a/*.txt").to_string_lossy());
        assert_eq!(seen_from(Path::new("out"), "s3://bucket/a"), "s3://bucket/a");
    }
}
