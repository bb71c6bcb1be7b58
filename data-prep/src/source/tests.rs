//! Registry with an additional format. This format is detected, refused, checked and read like the other formats.

use std::path::Path;
use std::sync::Arc;

use lambert_config::PrepConfig;
use lambert_config::prep::{Documents, Source};

use super::format::{FileHead, FormatRegistry, InputFile, InputFormat};
use super::lines::{LineEnd, Lines};
use super::{
    DEFAULT_WINDOW, DocumentReader, RawDocument, SkipNotices, SourceError, SourceFile, StoredReader, extract,
    open_stored,
};
use super::{find, formats::FORMATS, settings};
use crate::extract::{Extracted, Extractor};

/// A format of records that begin with `#!` and are separated by a line `--`.
struct Cards;

struct CardReader {
    lines: Lines,
    ordinal: u32,
}

impl InputFormat for Cards {
    fn name(&self) -> &'static str {
        "cards"
    }

    fn documents(&self) -> &'static [Documents] {
        &[Documents::Row]
    }

    fn options(&self) -> &'static [&'static str] {
        &["headings"]
    }

    fn recognizes(&self, head: FileHead<'_>) -> bool {
        matches!(head, FileHead::Text(text) if text.starts_with(b"#!"))
    }

    fn looks_like(&self) -> Option<&'static str> {
        Some("a box of cards")
    }

    fn refusal(&self, _name: &str, head: &[u8], _formats: FormatRegistry) -> Option<String> {
        (!head.starts_with(b"#!")).then(|| "no box of cards".to_owned())
    }

    fn extractor(&self, file: &InputFile<'_>) -> Result<Extractor, SourceError> {
        let headings = file.source.headings;
        Ok(Extractor::new(move |text| match text.trim_start_matches("#!").split_once('\n') {
            Some((_, body)) if !headings => Extracted::Text(body.to_owned()),
            _ => Extracted::Text(text.into_owned()),
        }))
    }

    fn open(&self, file: &InputFile<'_>, stored: StoredReader) -> Result<Box<dyn DocumentReader>, SourceError> {
        let lines = Lines::whole(Box::new(file.text(stored)?), &file.file.name);
        Ok(Box::new(CardReader { lines, ordinal: 0 }))
    }
}

impl DocumentReader for CardReader {
    fn next(&mut self) -> Result<Option<RawDocument>, SourceError> {
        let (at, mut bytes) = (self.lines.offset(), Vec::new());
        loop {
            let before = bytes.len();
            let end = self.lines.next(&mut bytes)?;
            if end == LineEnd::File || &bytes[before..] == b"--\n" {
                bytes.truncate(before);
                self.ordinal += 1;
                let document = RawDocument { ordinal: self.ordinal - 1, offset: at, bytes };
                return Ok(Some(document).filter(|document| !document.bytes.is_empty()));
            }
        }
    }

    fn take_notices(&mut self) -> SkipNotices {
        SkipNotices::new()
    }
}

/// All formats and [`Cards`].
fn with_cards() -> FormatRegistry {
    let others: Vec<&'static dyn InputFormat> = FORMATS.all().skip(1).chain([&Cards as _]).collect();
    FormatRegistry::new(FORMATS.text, others.leak())
}

const CARD_FILE: &str = "#! One\nThe boat is wet.\n--\n#! Two\nThe net is old.\n";

fn source(path: &Path, format: &str) -> Source {
    Source { path: path.display().to_string(), format: format.into(), ..Source::default() }
}

/// Lists the files of a source.
fn files(source: &Source) -> Result<Vec<SourceFile>, SourceError> {
    find::find_files(with_cards(), std::slice::from_ref(source), 1)
}

fn read(source: &Source) -> Result<Vec<(u64, Extracted)>, SourceError> {
    let mut found = Vec::new();
    for file in files(source)? {
        let (stored, mut documents) = open_stored(with_cards(), source, &file, Arc::default(), DEFAULT_WINDOW)?;
        while let Some(raw) = documents.next()? {
            found.push((raw.offset, extract(source, &file, &raw, &mut |_| {})?));
        }
        assert_eq!(stored.finish().unwrap().len(), 64);
    }
    Ok(found)
}

#[test]
fn an_added_format_is_detected_and_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("box");
    let packed = zstd::encode_all(CARD_FILE.as_bytes(), 3).unwrap();
    let text = |text: &str| Extracted::Text(text.to_owned());
    for bytes in [CARD_FILE.as_bytes(), &packed] {
        std::fs::write(&path, bytes).unwrap();
        for format in ["auto", "cards"] {
            let source = source(&path, format);
            assert_eq!(files(&source).unwrap()[0].format.name(), "cards");
            let expected = [(0, text("The boat is wet.\n")), (27, text("The net is old.\n"))];
            assert_eq!(read(&source).unwrap(), expected, "{format}");
            let headings = Source { headings: true, ..source };
            assert_eq!(read(&headings).unwrap()[1], (27, text("#! Two\nThe net is old.\n")));
        }
    }
    std::fs::write(&path, "The boat is wet.\n").unwrap();
    assert_eq!(files(&source(&path, "auto")).unwrap()[0].format.name(), "text");
}

#[test]
fn an_added_format_is_refused_as_text() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("box");
    std::fs::write(&path, CARD_FILE).unwrap();
    for format in ["text", "sentences"] {
        let message = read(&source(&path, format)).unwrap_err().to_string();
        let expected = "box as text: it looks like a box of cards; use format = \"cards\"";
        assert!(message.ends_with(expected), "{message}");
    }
    std::fs::write(&path, "The boat is wet.\n").unwrap();
    let message = read(&source(&path, "cards")).unwrap_err().to_string();
    assert!(message.ends_with("box as text: it looks like no box of cards"), "{message}");
}

#[test]
fn credentials_in_a_url_are_not_echoed() {
    for url in ["s3://key:wJalrXU/hunter2@bucket/x", "gs://bucket/x#hunter2/y", "az://c/data?sig=hunter2"] {
        let error = files(&source(Path::new(url), "text")).err().unwrap();
        let message = lambert_store::error::chain(&error);
        assert!(message.contains("...") && !message.contains("hunter2"), "{message}");
    }
}

#[test]
fn settings_are_checked_against_the_registry() {
    let path = Path::new("in");
    let wrong = |format: &str, documents| Source { documents: Some(documents), ..source(path, format) };
    let mut config = PrepConfig {
        source: vec![wrong("cards", Documents::File), wrong("carts", Documents::File), wrong("auto", Documents::Row)],
        exclude: vec![wrong("text", Documents::Row), wrong("jsonl", Documents::Sentence)],
        ..PrepConfig::default()
    };
    let check = |config: &PrepConfig| {
        let mut issues = Vec::new();
        settings::check(with_cards(), config, &mut issues);
        issues.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    let unknown = "source.1.format: unknown format \"carts\", expected one of auto, text, sentences, jsonl, parquet, \
                   wikipedia, cards";
    let expected = [
        "source.0.documents: format = \"cards\" takes row, not file",
        unknown,
        "exclude.0.documents: format = \"text\" takes file or blank-line, not row",
    ];
    assert_eq!(check(&config), expected);
    let error = find::find_files(with_cards(), &config.source[1..], 1).unwrap_err();
    assert!(error.is_usage() && error.to_string() == unknown.replace("source.1", "source.0"), "{error}");
    config.source = vec![Source { headings: true, lists: true, ..source(path, "cards") }];
    config.exclude = vec![Source { field: "content".to_owned(), ..source(path, "text") }];
    assert_eq!(check(&config), [""; 0]);
    let unused: Vec<String> = settings::unused(with_cards(), &config).iter().map(ToString::to_string).collect();
    let expected = [
        "source.0.lists: has no effect with format = \"cards\"",
        "exclude.0.field: has no effect with format = \"text\"",
    ];
    assert_eq!(unused, expected);
}

/// If two formats recognized a file, the file would always be read as the first of them.
#[test]
fn at_most_one_format_recognizes_a_file() {
    let heads: [(&str, FileHead<'_>); 5] = [
        ("parquet", FileHead::Stored(b"PAR1\x15\x04\x15")),
        ("wikipedia", FileHead::Text(b"\n<?xml version='1.0'?>\n<mediawiki xmlns='x'>")),
        ("jsonl", FileHead::Text(b"{\"text\": \"<mediawiki\"}\n")),
        ("cards", FileHead::Text(CARD_FILE.as_bytes())),
        ("", FileHead::Text(b"About <mediawiki> elements")),
    ];
    for (expected, head) in heads {
        let names = with_cards().all().filter(|format| format.recognizes(head)).map(InputFormat::name);
        assert_eq!(names.collect::<Vec<_>>().concat(), expected);
    }
}
