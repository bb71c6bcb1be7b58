//! Input formats, compressions and encodings. Also damage, duplicates and weights.

use std::io::Write;
use std::path::Path;

use crate::common::corpus::{Corpus, bzip2, counts, gzip};
use crate::common::{config, run};
use lambert_config::prep::{Damaged, Documents, Invalid, Source};

/// The text `The boat.`, compressed with `xz`. The tests do not link an xz encoder.
const XZ: &[u8] = &[
    0xfd, 0x37, 0x7a, 0x58, 0x5a, 0x00, 0x00, 0x04, 0xe6, 0xd6, 0xb4, 0x46, 0x02, 0x00, 0x21, 0x01, 0x16, 0x00, 0x00,
    0x00, 0x74, 0x2f, 0xe5, 0xa3, 0x01, 0x00, 0x09, 0x54, 0x68, 0x65, 0x20, 0x62, 0x6f, 0x61, 0x74, 0x2e, 0x0a, 0x00,
    0x00, 0x00, 0xcf, 0x5c, 0xae, 0xcc, 0x41, 0xa7, 0x78, 0x20, 0x00, 0x01, 0x22, 0x0a, 0x15, 0x1a, 0xe1, 0x67, 0x1f,
    0xb6, 0xf3, 0x7d, 0x01, 0x00, 0x00, 0x00, 0x00, 0x04, 0x59, 0x5a,
];

#[test]
fn every_compression_is_detected_and_all_members_are_read() {
    let corpus = Corpus::new();
    let half = corpus.text[..corpus.text.len() / 2].rfind("\n\n").unwrap() + 2;
    let (one, two) = corpus.text.as_bytes().split_at(half);
    let twice = |pack: &dyn Fn(&[u8]) -> Vec<u8>| [pack(one), pack(two)].concat();
    let zstd = |bytes: &[u8]| zstd::encode_all(bytes, 3).unwrap();
    for (name, bytes) in
        [("a.gz", twice(&gzip)), ("b.bz2", twice(&bzip2)), ("c.zst", twice(&zstd)), ("d", gzip(corpus.text.as_bytes()))]
    {
        let manifest = corpus.prepare(vec![corpus.source(name, &bytes, "text")]).unwrap();
        assert_eq!(counts(&manifest), corpus.plain(), "{name}");
    }
    let xz = corpus.prepare(vec![corpus.source("e.xz", XZ, "text")]).unwrap();
    assert_eq!(xz.counts.documents, 1);
}

#[test]
fn every_encoding_is_read() {
    let corpus = Corpus::new();
    let utf16 = |bytes_of: &dyn Fn(u16) -> [u8; 2]| {
        std::iter::once(0xfeff).chain(corpus.text.encode_utf16()).flat_map(bytes_of).collect::<Vec<u8>>()
    };
    let marked = [b"\xef\xbb\xbf", corpus.text.as_bytes()].concat();
    for (name, bytes) in [("le", utf16(&u16::to_le_bytes)), ("be", utf16(&u16::to_be_bytes)), ("mark", marked)] {
        assert_eq!(
            counts(&corpus.prepare(vec![corpus.source(name, &bytes, "text")]).unwrap()),
            corpus.plain(),
            "{name}"
        );
    }
    let mut latin = corpus.source("latin", b"Caf\xe9 the boat.\n", "text");
    assert!(corpus.prepare(vec![latin.clone()]).unwrap_err().to_string().contains("byte 3"));
    latin.invalid = Invalid::Replace;
    let manifest = corpus.prepare(vec![latin.clone()]).unwrap();
    assert_eq!(manifest.counts.rejected["invalid UTF-8 replaced in a document"], 1);
    latin.encoding = Some("windows-1252".to_owned());
    assert!(corpus.prepare(vec![latin.clone()]).unwrap().counts.rejected.is_empty());
    latin.encoding = Some("utf-99".to_owned());
    assert!(corpus.prepare(vec![latin]).unwrap_err().is_usage());
}

#[test]
fn every_format_gives_the_same_documents() {
    let corpus = Corpus::new();
    let documents: Vec<&str> = corpus.text.trim_end().split("\n\n").collect();
    let lines: String = documents.iter().map(|text| serde_json::json!({"text": text}).to_string() + "\n").collect();
    let jsonl = corpus.source("a.jsonl", lines.as_bytes(), "jsonl");
    let sentences = corpus.source("b.txt", corpus.text.as_bytes(), "sentences");
    let rows: String = corpus.text.lines().map(|text| serde_json::json!({"body": text}).to_string() + "\n").collect();
    let mut by_sentence = corpus.source("c.jsonl", rows.as_bytes(), "jsonl");
    by_sentence.documents = Some(Documents::Sentence);
    by_sentence.field = "body".to_owned();
    let mut parquet = corpus.source("d.parquet", b"", "parquet");
    write_parquet(Path::new(&parquet.path), &documents);
    for source in [jsonl, sentences, by_sentence, parquet.clone()] {
        assert_eq!(counts(&corpus.prepare(vec![source.clone()]).unwrap()), corpus.plain(), "{}", source.path);
    }
    parquet.field = "body".to_owned();
    let message = corpus.prepare(vec![parquet]).unwrap_err().to_string();
    assert!(message.contains("\"body\"") && message.contains("text"), "{message}");
}

fn write_parquet(path: &Path, documents: &[&str]) {
    use parquet::data_type::{ByteArray, ByteArrayType};
    let schema = "message rows { optional binary text (UTF8); }";
    let schema = std::sync::Arc::new(parquet::schema::parser::parse_message_type(schema).unwrap());
    let file = std::fs::File::create(path).unwrap();
    let mut writer = parquet::file::writer::SerializedFileWriter::new(file, schema, Default::default()).unwrap();
    for chunk in documents.chunks(25) {
        let values: Vec<ByteArray> = chunk.iter().map(|text| ByteArray::from(*text)).collect();
        let mut group = writer.next_row_group().unwrap();
        let mut column = group.next_column().unwrap().unwrap();
        // The last row of each group is null.
        let levels: Vec<i16> = (0..=chunk.len()).map(|row| i16::from(row < chunk.len())).collect();
        column.typed::<ByteArrayType>().write_batch(&values, Some(&levels), None).unwrap();
        column.close().unwrap();
        group.close().unwrap();
    }
    writer.close().unwrap();
}

/// A tar archive of one file, in the layout of `tar`.
fn tar(text: &[u8]) -> Vec<u8> {
    let mut head = [0; 512];
    for (at, field) in [(0, "books/one.txt"), (100, "0000644"), (148, "        "), (156, "0"), (257, "ustar\x0000root")]
    {
        head[at..at + field.len()].copy_from_slice(field.as_bytes());
    }
    head[124..135].copy_from_slice(format!("{:011o}", text.len()).as_bytes());
    let sum: u32 = head.iter().map(|&byte| u32::from(byte)).sum();
    head[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    let mut archive = [&head, text].concat();
    archive.resize(archive.len().next_multiple_of(512) + 1024, 0);
    archive
}

#[test]
fn binary_files_are_refused_with_their_detected_type() {
    let corpus = Corpus::new();
    let archive = tar(corpus.text.as_bytes());
    let png = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\x01\0\0\0\x01\0\x08\x06\0\0\0\x5c\x72\xa8\x66";
    let jpeg = b"\xff\xd8\xff\xe0\0\x10JFIF\0\x01\x01\0\0\x01\0\x01\0\0\xff\xdb\0\x43\0\x08\x06\x06\x07";
    let mut rng = lambert_dataset::random::Key::new(1).rng();
    let noise: Vec<u8> = (0..5000).map(|_| rng.below(256) as u8).collect();
    let zip = [&b"PK\x03\x04\x14\0\0\0\x08\0"[..], &noise[..300]].concat();
    let wide: Vec<u8> = corpus.text.encode_utf16().flat_map(u16::to_le_bytes).collect();
    let pdf = b"%PDF-1.7\n1 0 obj\n<< /Type /Catalog >>\nendobj\n";
    let cases: [(&str, Vec<u8>, &[&str]); 12] = [
        ("books.tar", archive.clone(), &["tar archive", "unpack"]),
        ("books.tar.gz", gzip(&archive), &["tar archive", "unpack"]),
        ("books.txt", bzip2(&archive), &["tar archive", "unpack"]),
        ("twice.gz", gzip(&gzip(corpus.text.as_bytes())), &["compressed twice", "gzip"]),
        ("paper.pdf", pdf.to_vec(), &["PDF"]),
        ("paper.pdf.gz", gzip(pdf), &["PDF"]),
        ("map.png", png.to_vec(), &["binary", "image/png"]),
        ("photo.jpg", jpeg.to_vec(), &["binary", "image/jpeg"]),
        ("book.epub", zip, &["binary", "application/"]),
        ("noise", noise, &["binary"]),
        ("wide.txt", wide, &["UTF-16", "encoding = \"utf-16le\""]),
        ("dump.xml", format!("{DUMP}{REST}").into_bytes(), &["MediaWiki", "format = \"wikipedia\""]),
    ];
    for (name, bytes, words) in cases {
        for invalid in [Invalid::Refuse, Invalid::Replace] {
            let source = Source { invalid, ..corpus.source(name, &bytes, "text") };
            let message = corpus.prepare(vec![source]).unwrap_err().to_string();
            for word in [&[name, "looks like"], words].concat() {
                assert!(message.contains(word), "no {word:?} in {message}");
            }
        }
    }
    let dump = corpus.source("dump.xml.tar.gz", &gzip(&archive), "wikipedia");
    assert!(corpus.prepare(vec![dump]).unwrap_err().to_string().contains("tar archive"));
    let mut parquet = corpus.source("d.parquet", b"", "text");
    write_parquet(Path::new(&parquet.path), &["The boat is wet."]);
    assert!(corpus.prepare(vec![parquet.clone()]).unwrap_err().to_string().contains("format = \"parquet\""));
    parquet.format = "auto".into();
    corpus.prepare(vec![parquet]).unwrap();
}

#[test]
fn every_format_is_detected_from_its_first_bytes() {
    let corpus = Corpus::new();
    let documents: Vec<&str> = corpus.text.trim_end().split("\n\n").collect();
    let lines: String = documents.iter().map(|text| serde_json::json!({"text": text}).to_string() + "\n").collect();
    let page = |text: &&str| format!("<page><title>A</title><ns>0</ns><text>{text}</text></page>\n");
    let dump = format!("<mediawiki>\n{}</mediawiki>\n", documents.iter().map(page).collect::<String>());
    let utf16: Vec<u8> = std::iter::once(0xfeff).chain(corpus.text.encode_utf16()).flat_map(u16::to_be_bytes).collect();
    let cases = [
        ("one", corpus.text.clone().into_bytes()),
        ("two", gzip(corpus.text.as_bytes())),
        ("three", utf16),
        ("four", lines.clone().into_bytes()),
        ("five", bzip2(lines.as_bytes())),
        ("six", dump.clone().into_bytes()),
        ("seven", bzip2(dump.as_bytes())),
        ("eight", zstd::encode_all(dump.as_bytes(), 3).unwrap()),
    ];
    let [plain, ..] = corpus.plain();
    let auto = |path: String| Source {
        path,
        format: "auto".into(),
        documents: Some(Documents::BlankLine),
        ..Source::default()
    };
    for (name, bytes) in &cases {
        let source = auto(corpus.source(&format!("in/{name}"), bytes, "text").path);
        assert_eq!(corpus.prepare(vec![source]).unwrap().counts.documents, plain, "{name}");
    }
    write_parquet(&corpus.path().join("in/nine"), &documents);
    // One folder contains all these files.
    let all = corpus.prepare(vec![auto(corpus.path().join("in").display().to_string())]).unwrap();
    assert_eq!(all.counts.documents, plain * (cases.len() as u64 + 1));
}

#[test]
fn a_long_json_line_is_read_whole_or_refused_with_a_message() {
    let corpus = Corpus::new();
    let short = "{\"text\": \"The cow is brown.\"}\n";
    let long = "The boat is wet. ".repeat(1_300_000);
    let line = format!("{{\"text\": {long:?}}}\n");
    assert!(line.len() > 20 << 20);
    let rows = corpus.source("rows.jsonl", [short, &line, short].concat().as_bytes(), "jsonl");
    let manifest = corpus.prepare(vec![rows]).unwrap();
    assert_eq!((manifest.counts.documents, manifest.counts.sentences), (3, 1_300_002));
    drop(line);

    // A small compressed file can contain a line that is larger than the memory.
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packed.write_all(format!("{short}{{\"text\": \"").as_bytes()).unwrap();
    (0..257).for_each(|_| packed.write_all(&vec![b'x'; 1 << 20]).unwrap());
    packed.write_all(format!("\"}}\n{short}").as_bytes()).unwrap();
    let mut rows = corpus.source("endless.jsonl.gz", &packed.finish().unwrap(), "jsonl");
    let message = corpus.prepare(vec![rows.clone()]).unwrap_err().to_string();
    assert!(message.contains("endless.jsonl.gz, byte 30") && message.contains("at most 256 MiB"), "{message}");
    rows.damaged = Damaged::Skip;
    let manifest = corpus.prepare(vec![rows]).unwrap();
    assert_eq!((manifest.counts.documents, manifest.counts.rejected["jsonl: line of over 256 MiB"]), (2, 1));
}

#[test]
fn zstd_with_skippable_frames_and_long_windows_is_read() {
    let corpus = Corpus::new();
    let packed = zstd::encode_all(corpus.text.as_bytes(), 3).unwrap();
    for mark in [0x50, 0x5f] {
        let skipped = [&[mark, 0x2a, 0x4d, 0x18, 5, 0, 0, 0], &b"index"[..]].concat();
        let bytes = [&skipped[..], &packed, &skipped].concat();
        let manifest = corpus.prepare(vec![corpus.source("a.zst", &bytes, "text")]).unwrap();
        assert_eq!(counts(&manifest), corpus.plain());
    }
    // With `zstd --long=28`, the frame declares the full window, even if the content uses only a little of it.
    let mut encoder = zstd::stream::write::Encoder::new(Vec::new(), 1).unwrap();
    encoder.window_log(28).unwrap();
    encoder.long_distance_matching(true).unwrap();
    encoder.write_all(corpus.text.as_bytes()).unwrap();
    let packed = encoder.finish().unwrap();
    let manifest = corpus.prepare(vec![corpus.source("long.zst", &packed, "text")]).unwrap();
    assert_eq!(counts(&manifest), corpus.plain());
}

/// The threads share the memory budget. With 256 threads, each thread has 3 MiB, but decompressing the file needs 8
/// MiB.
#[test]
fn a_decompression_window_above_the_memory_budget_is_refused() {
    let corpus = Corpus::new();
    let mut encoder = zstd::stream::write::Encoder::new(Vec::new(), 1).unwrap();
    encoder.window_log(23).unwrap();
    encoder.write_all(corpus.text.as_bytes()).unwrap();
    for (name, bytes) in [("small.xz", XZ.to_vec()), ("small.zst", encoder.finish().unwrap())] {
        let mut source = corpus.source(name, &bytes, "text");
        // Even if damage is skipped, this error is reported.
        for damaged in [Damaged::Refuse, Damaged::Skip] {
            source.damaged = damaged;
            let work = tempfile::tempdir().unwrap();
            let config = config(work.path(), &corpus.path().join("vocab.txt"), vec![source.clone()]);
            let error = run(&config, 256).unwrap_err();
            let cause = std::error::Error::source(&error).unwrap().to_string();
            assert!(error.to_string().contains(name) && cause.contains("more than the 3 MiB available"), "{cause}");
            run(&config, 2).unwrap();
        }
    }
}

#[test]
fn inputs_and_outputs_may_be_store_objects() {
    let corpus = Corpus::new();
    let store = lambert_store::Store::open("memory://corpus/books").unwrap();
    store.put("one.txt", corpus.text.clone().into_bytes().into()).unwrap();
    store.put("two.gz", gzip(corpus.text.as_bytes()).into()).unwrap();
    store.put("three.md", "# no".into()).unwrap();
    let source =
        |path: &str| Source { path: path.to_owned(), documents: Some(Documents::BlankLine), ..Source::default() };
    let [documents, ..] = corpus.plain();
    let glob =
        corpus.prepare(vec![source("memory://corpus/books/*.txt"), source("memory://corpus/books/t*.gz")]).unwrap();
    assert_eq!(glob.counts.documents, 2 * documents);
    let missing = corpus.prepare(vec![source("memory://corpus/none/*")]).unwrap_err();
    assert!(missing.is_usage(), "{missing}");

    let work = tempfile::tempdir().unwrap();
    let mut config =
        config(work.path(), &corpus.path().join("vocab.txt"), vec![source("memory://corpus/books/one.txt")]);
    config.output.url = "memory://corpus/output".to_owned();
    config.output.work = Some(work.path().join("work").display().to_string());
    let report = run(&config, 1).unwrap();
    for dataset in &report.datasets {
        lambert_dataset::Dataset::open(&dataset.url).unwrap().verify().unwrap();
    }
    assert!(run(&config, 1).unwrap().unchanged);
}

const DUMP: &str = "<mediawiki><page><title>A</title><ns>0</ns><text>The boat is wet. The net is old.</text></page>\n\
    <page><title>B</title><ns>0</ns><text>The cow is";
const REST: &str = "<page><title>C</title><ns>0</ns><text>The king is brave.</text></page></mediawiki>";

#[test]
fn damage_is_refused_or_skipped_and_counted() {
    let corpus = Corpus::new();
    let mut cut = corpus.source("cut.xml", format!("{DUMP}{REST}").as_bytes(), "wikipedia");
    assert!(corpus.prepare(vec![cut.clone()]).unwrap_err().to_string().contains("</page>"));
    cut.damaged = Damaged::Skip;
    let manifest = corpus.prepare(vec![cut]).unwrap();
    assert_eq!((manifest.counts.documents, manifest.counts.rejected["wikipedia: cut page"]), (2, 1));

    let packed = gzip(corpus.text.repeat(40).as_bytes());
    let mut torn = corpus.source("torn.gz", &packed[..packed.len() / 2], "text");
    assert!(corpus.prepare(vec![torn.clone()]).unwrap_err().to_string().contains("torn.gz"));
    torn.damaged = Damaged::Skip;
    let manifest = corpus.prepare(vec![torn]).unwrap();
    assert!(manifest.counts.documents > 100);
    assert_eq!(manifest.counts.rejected["damaged file: the rest of it"], 1);

    let mut rows = corpus.source("rows.jsonl", b"{\"text\": \"The boat.\"}\n{\"text\": 3}\nnonsense\n\n", "jsonl");
    assert!(corpus.prepare(vec![rows.clone()]).unwrap_err().to_string().contains("byte 22"));
    rows.damaged = Damaged::Skip;
    assert_eq!(corpus.prepare(vec![rows]).unwrap().counts.rejected["jsonl: bad line"], 2);
}

#[test]
fn unusual_texts_and_file_names_are_handled() {
    let corpus = Corpus::new();
    let long = "boat ".repeat(2_000_000);
    let unbroken = "x".repeat(3_000_000);
    let nul = "The boat\0 is wet.\n\n\0\0\n";
    for (name, text) in [("long", long.as_str()), ("unbroken", &unbroken), ("nul", nul)] {
        let manifest = corpus.prepare(vec![corpus.source(name, text.as_bytes(), "text")]).unwrap();
        assert!(manifest.counts.samples > 0, "{name}");
    }
    for name in ["with space.txt", "quo'te\".txt", ".dot.txt", "-dash.txt", "ümläut [1].txt", "folder.txt/inner.txt"]
    {
        let mut source = corpus.source(name, b"The boat is wet. The net is old.", "text");
        if name.contains('/') {
            source.path = corpus.path().join("folder.txt").display().to_string();
        }
        assert_eq!(corpus.prepare(vec![source]).unwrap().counts.documents, 1, "{name}");
    }
}

#[test]
fn duplicates_are_removed_on_request() {
    let corpus = Corpus::new();
    let [documents, ..] = corpus.plain();
    let text = corpus.source("one.txt", corpus.text.as_bytes(), "text");
    // The corpus has every document three times: unchanged, with one word changed, and unchanged again.
    let changed = corpus
        .text
        .replacen(". ", ", then . ", 0)
        .split("\n\n")
        .map(|text| text.replacen('.', " again.", 1))
        .collect::<Vec<_>>();
    let changed = corpus.source("changed.txt", changed.join("\n\n").as_bytes(), "text");
    let all = vec![text.clone(), changed.clone(), text.clone()];
    let kept = corpus.prepare(all.clone()).unwrap();
    assert_eq!((kept.counts.documents, kept.counts.rejected.len()), (3 * documents, 0));

    let exact = corpus.prepare_with(all.clone(), |config| config.documents.remove_duplicates = true).unwrap();
    assert_eq!(exact.counts.rejected["documents: duplicate"], documents);
    assert_eq!(exact.counts.documents, 2 * documents);

    let near = corpus.prepare_with(all, |config| config.documents.remove_near_duplicates = 0.7).unwrap();
    let alike = near.counts.rejected["documents: near-duplicate"];
    assert!(alike > documents * 3 / 4, "{alike} of {documents}");
    assert_eq!(near.counts.documents, 2 * documents - alike);

    let excluded =
        corpus.prepare_with(vec![changed, text.clone()], |config| config.exclude = vec![text.clone()]).unwrap();
    assert_eq!(excluded.counts.rejected["documents: in the excluded set"], documents);
    let short = corpus.prepare_with(vec![text], |config| config.documents.minimum_tokens = 100_000).unwrap_err();
    assert!(short.to_string().contains("too short"), "{short}");
}

#[test]
fn a_weight_repeats_documents_with_different_pairs() {
    let corpus = Corpus::new();
    let mut source = corpus.source("one.txt", corpus.text.as_bytes(), "text");
    let once = corpus.prepare(vec![source.clone()]).unwrap().counts.samples;
    source.weight = 3;
    let thrice = corpus.prepare(vec![source]).unwrap().counts.samples;
    assert!(thrice.abs_diff(3 * once) < once / 3, "{once} {thrice}");
}
