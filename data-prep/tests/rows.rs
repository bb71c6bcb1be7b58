//! Rows of JSON lines and of Parquet files: invalid bytes, codecs, null values and damage.

use std::path::Path;
use std::sync::Arc;

use lambert_config::prep::{Damaged, Invalid, Source};
use lambert_dataset::random::Key;
use parquet::basic::{BrotliLevel, Compression, GzipLevel, ZstdLevel};
use parquet::data_type::{ByteArray, ByteArrayType};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;

use crate::common::corpus::Corpus;
use crate::common::{config, run};

#[test]
fn invalid_bytes_in_json_lines_are_refused_or_replaced() {
    let corpus = Corpus::new();
    let line = serde_json::json!({"text": corpus.text.lines().next().unwrap()}).to_string() + "\n";
    let bad = b"{\"text\": \"The k\xffing is old.\"}\n";
    let mut source = corpus.source("a.jsonl", &[line.as_bytes(), bad].concat(), "jsonl");
    let message = corpus.prepare(vec![source.clone()]).unwrap_err().to_string();
    assert!(message.contains(&format!("a.jsonl: invalid UTF-8 at byte {};", line.len() + 15)), "{message}");
    source.invalid = Invalid::Replace;
    let manifest = corpus.prepare(vec![source.clone()]).unwrap();
    assert_eq!(manifest.counts.documents, 2);
    assert_eq!(manifest.counts.rejected["invalid UTF-8 replaced in a document"], 1);
    (source.invalid, source.damaged) = (Invalid::Refuse, Damaged::Skip);
    let manifest = corpus.prepare(vec![source]).unwrap();
    assert_eq!((manifest.counts.documents, manifest.counts.rejected["jsonl: bad line"]), (1, 1));
}

/// Python writes NaN, and a lone surrogate as an escape. Other writers have null for a missing text.
#[test]
fn json_lines_of_other_programs_are_read() {
    let corpus = Corpus::new();
    let text = serde_json::json!(corpus.text.lines().next().unwrap());
    let lines = format!(
        "{{\"score\": NaN, \"most\": -Infinity, \"doc\": {{\"text\" : {text}}}}}\n\
         {{\"doc\": {{\"text\": null}}}}\n\
         {{\"title\": \"\\ud83d\", \"large\": 1e999, \"doc\": {{\"text\": {text}}}}}\n\
         {{\"doc\": {{\"text\": \"The \\ud83d king is old.\"}}}}\n"
    );
    let mut source = corpus.source("a.jsonl", lines.as_bytes(), "auto");
    source.field = "doc.text".to_owned();
    let message = corpus.prepare(vec![source.clone()]).unwrap_err().to_string();
    assert!(message.contains("without lone surrogates"), "{message}");
    source.invalid = Invalid::Replace;
    let counts = corpus.prepare(vec![source]).unwrap().counts;
    assert_eq!((counts.documents, counts.rejected["jsonl: row without text"]), (3, 1), "{counts:?}");
    assert_eq!(counts.rejected["invalid UTF-8 replaced in a document"], 1);
}

#[test]
fn json_that_is_not_one_object_per_line_is_refused() {
    let corpus = Corpus::new();
    for (name, text) in [("a.json", "[{\"text\": \"The king.\"}]"), ("b.json", "{\n  \"text\": \"The king.\"\n}\n")] {
        let source = corpus.source(name, text.as_bytes(), "auto");
        let message = corpus.prepare(vec![source]).unwrap_err().to_string();
        assert!(message.contains("it looks like JSON that is not one object per line"), "{message}");
    }
}

/// `format` is "text" by default. With it, a corpus of JSON lines would be read with its braces and keys.
#[test]
fn json_lines_are_not_read_as_text() {
    let corpus = Corpus::new();
    let line = serde_json::json!({"text": corpus.text.lines().next().unwrap()}).to_string() + "\n";
    for name in ["a.jsonl", "b.NDJSON", "c.jsonl-00000-of-00002", "d.00000-of-01024.json"] {
        let message = corpus.prepare(vec![corpus.source(name, line.as_bytes(), "text")]).unwrap_err().to_string();
        let is_named = ["a jsonl file", "a ndjson file", "a json file"].iter().any(|file| message.contains(file));
        assert!(is_named && message.contains("use format = \"jsonl\" or \"auto\""), "{message}");
    }
    // A text may start with JSON, and a file may have any name.
    corpus.prepare(vec![corpus.source("c.txt", line.as_bytes(), "text")]).unwrap();
    corpus.prepare(vec![corpus.source("d.jsonl", corpus.text.as_bytes(), "text")]).unwrap();
}

/// Writes `rows` with their definition levels, in row groups of 20 rows.
fn write(path: &Path, schema: &str, rows: &[(&str, i16)], codec: Compression) {
    let defined = rows.iter().map(|(_, level)| *level).max().unwrap();
    let schema = Arc::new(parse_message_type(schema).unwrap());
    let properties = WriterProperties::builder().set_compression(codec).build();
    let file = std::fs::File::create(path).unwrap();
    let mut writer = SerializedFileWriter::new(file, schema, Arc::new(properties)).unwrap();
    for rows in rows.chunks(20) {
        let present = rows.iter().filter(|(_, level)| *level == defined);
        let values: Vec<ByteArray> = present.map(|(text, _)| ByteArray::from(*text)).collect();
        let levels: Vec<i16> = rows.iter().map(|(_, level)| *level).collect();
        let mut group = writer.next_row_group().unwrap();
        let mut column = group.next_column().unwrap().unwrap();
        column.typed::<ByteArrayType>().write_batch(&values, Some(&levels), None).unwrap();
        column.close().unwrap();
        group.close().unwrap();
    }
    writer.close().unwrap();
}

const TEXT: &str = "message rows { optional binary text (UTF8); }";

fn documents(corpus: &Corpus) -> Vec<(&str, i16)> {
    corpus.text.trim_end().split("\n\n").map(|text| (text, 1)).collect()
}

#[test]
fn parquet_of_every_codec_is_read() {
    let corpus = Corpus::new();
    let rows = documents(&corpus);
    for codec in [
        Compression::UNCOMPRESSED,
        Compression::SNAPPY,
        Compression::GZIP(GzipLevel::default()),
        Compression::BROTLI(BrotliLevel::default()),
        Compression::LZ4,
        Compression::LZ4_RAW,
        Compression::ZSTD(ZstdLevel::default()),
    ] {
        let source = corpus.source("a.parquet", b"", "parquet");
        write(Path::new(&source.path), TEXT, &rows, codec);
        let manifest = corpus.prepare(vec![source]).unwrap_or_else(|error| panic!("{codec}: {error}"));
        assert_eq!(manifest.counts.documents, rows.len() as u64, "{codec}");
    }
}

#[test]
fn rows_without_text_in_a_nullable_struct_have_their_numbers() {
    let corpus = Corpus::new();
    let texts: Vec<&str> = corpus.text.trim_end().split("\n\n").collect();
    // A null text, and a null struct.
    let rows = [(texts[0], 2), ("", 1), (texts[1], 2), ("", 0), (texts[2], 2)];
    let mut source = corpus.source("a.parquet", b"", "parquet");
    let schema = "message rows { optional group doc { optional binary text (UTF8); } }";
    write(Path::new(&source.path), schema, &rows, Compression::UNCOMPRESSED);
    source.field = "doc.text".to_owned();
    let work = tempfile::tempdir().unwrap();
    let mut config = config(work.path(), &corpus.path().join("vocab.txt"), vec![source]);
    config.samples.held_out = 0.0;
    assert_eq!(run(&config, 1).unwrap().datasets[0].manifest.counts.documents, 3);
    let rejected = std::fs::read(work.path().join("data/train/rejected.json")).unwrap();
    let rejected: Vec<serde_json::Value> = serde_json::from_slice(&rejected).unwrap();
    let numbers: Vec<u64> = rejected.iter().map(|item| item["offset"].as_u64().unwrap()).collect();
    assert_eq!(numbers, [1, 3], "{rejected:?}");
}

/// The library panics on some damaged files. The job says which row group is damaged, or leaves it out.
#[test]
fn damaged_parquet_is_refused_by_row_group_or_left_out() {
    let corpus = Corpus::new();
    let source = corpus.source("a.parquet", b"", "parquet");
    let path = Path::new(&source.path);
    write(path, TEXT, &documents(&corpus), Compression::SNAPPY);
    let bytes = std::fs::read(path).unwrap();
    let footer = u32::from_le_bytes(bytes[bytes.len() - 8..bytes.len() - 4].try_into().unwrap()) as usize + 8;
    let mut rng = Key::new(1).rng();
    let (mut refused, mut left_out) = (0, 0);
    for _ in 0..40 {
        let mut damaged = bytes.clone();
        damaged[rng.below((bytes.len() - footer) as u64) as usize] ^= 1 << rng.below(8);
        std::fs::write(path, &damaged).unwrap();
        if let Err(error) = corpus.prepare(vec![source.clone()]) {
            let message = error.to_string();
            assert!(message.contains("a.parquet, row group ") || message.contains("invalid UTF-8"), "{message}");
            refused += 1;
        }
        let skipping = Source { damaged: Damaged::Skip, invalid: Invalid::Replace, ..source.clone() };
        let counts = corpus.prepare(vec![skipping]).unwrap().counts;
        left_out += u64::from(counts.rejected.contains_key("parquet: damaged row group"));
        assert!(counts.documents >= 40, "one of three row groups is left out");
    }
    assert!(refused > 5 && left_out > 5, "{refused} refused, {left_out} with a row group left out");
}

/// A footer byte is changed so that a row group has -1 rows.
#[test]
fn a_negative_number_of_rows_is_refused() {
    let corpus = Corpus::new();
    let mut source = corpus.source("a.parquet", b"", "parquet");
    let path = Path::new(&source.path).to_owned();
    write(&path, TEXT, &documents(&corpus), Compression::SNAPPY);
    let bytes = std::fs::read(&path).unwrap();
    let footer =
        bytes.len() - 8 - u32::from_le_bytes(bytes[bytes.len() - 8..bytes.len() - 4].try_into().unwrap()) as usize;
    // In the footer, an integer is 2 n if it is positive, and -2 n - 1 if it is negative.
    let mut found = 0;
    for at in (footer..bytes.len() - 8).filter(|&at| bytes[at] == 2 * 20) {
        let mut changed = bytes.clone();
        changed[at] = 1;
        std::fs::write(&path, changed).unwrap();
        for damaged in [Damaged::Refuse, Damaged::Skip] {
            source.damaged = damaged;
            let message =
                corpus.prepare(vec![source.clone()]).map_or_else(|error| error.to_string(), |_| String::new());
            found += u32::from(message.contains("a.parquet") && message.contains("impossible numbers of rows"));
        }
    }
    assert!(found >= 2, "{found}");
}

#[test]
fn a_row_of_more_than_256_mib_is_refused_or_left_out() {
    let corpus = Corpus::new();
    let mut source = corpus.source("a.parquet", b"", "parquet");
    let long = "x".repeat((256 << 20) + 1);
    write(
        Path::new(&source.path),
        TEXT,
        &[("The cow is brown.", 1), (&long, 1), ("The boat.", 1)],
        Compression::SNAPPY,
    );
    drop(long);
    let message = corpus.prepare(vec![source.clone()]).unwrap_err().to_string();
    assert!(message.contains("a.parquet, row 1") && message.contains("at most 256 MiB"), "{message}");
    source.damaged = Damaged::Skip;
    let counts = corpus.prepare(vec![source]).unwrap().counts;
    assert_eq!((counts.documents, counts.rejected["parquet: row of over 256 MiB"]), (2, 1));
}
