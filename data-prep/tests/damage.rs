//! Damaged files. Either they are refused with file name and offset, or the damage is skipped and counted and the
//! intact parts are kept.

use std::path::Path;

use crate::common::corpus::{bzip2, gzip};
use crate::common::{assert_same, config, corpora, generated, run, source, tree};
use lambert_config::prep::{Damaged, Documents, Source};
use lambert_data_prep::prep::{self, PrepError, PrepOptions, PrepProgress, PrepStatus};
use lambert_data_prep::source::SkipNotice;
use lambert_dataset::Manifest;

const BLOCK: &str = "bzip2: damaged block";

/// Prepares one file. `damaged` says if damage is refused or skipped.
fn prepare(
    bytes: &[u8],
    name: &str,
    format: &str,
    documents: Option<Documents>,
    damaged: Damaged,
) -> Result<Manifest, PrepError> {
    let folder = tempfile::tempdir().unwrap();
    let (_, vocabulary) = generated(folder.path(), 30);
    let path = folder.path().join(name);
    std::fs::write(&path, bytes).unwrap();
    let source =
        Source { path: path.display().to_string(), format: format.into(), documents, damaged, ..Source::default() };
    let mut config = config(folder.path(), &vocabulary, vec![source]);
    config.samples.held_out = 0.0;
    let report = run(&config, 2).map(|report| report.datasets[0].manifest.clone());
    assert_eq!(std::fs::read(&path).unwrap(), bytes, "inputs are never changed");
    report
}

fn refused(bytes: &[u8], name: &str, format: &str, words: &[&str]) {
    let error = prepare(bytes, name, format, None, Damaged::Refuse).unwrap_err();
    assert!(!error.is_usage());
    words.iter().for_each(|word| assert!(error.to_string().contains(word), "no {word:?} in {error}"));
}

/// A dump of pages. Each page repeats one sentence that contains the page number.
fn dump(pages: usize) -> String {
    let page = |number: usize| {
        let text = format!("The boat of number {number} is wet. ").repeat(40);
        format!(
            "<page><title>Page {number}</title><ns>0</ns><id>{number}</id><revision><text>{text}</text></revision></page>\n"
        )
    };
    format!("<mediawiki>\n{}</mediawiki>\n", (0..pages).map(page).collect::<String>())
}

#[test]
fn a_damaged_block_loses_only_its_own_pages() {
    let pages = 600;
    let mut packed = bzip2(dump(pages).as_bytes());
    let middle = packed.len() / 2;
    packed[middle] ^= 4;
    refused(&packed, "dump.xml.bz2", "wikipedia", &["dump.xml.bz2", "past byte"]);
    let manifest = prepare(&packed, "dump.xml.bz2", "wikipedia", None, Damaged::Skip).unwrap();
    assert_eq!(manifest.counts.rejected[BLOCK], 1);
    assert_eq!(manifest.counts.rejected["wikipedia: cut page"], 1, "the page that the gap cuts in two");
    let lost = pages as u64 - manifest.counts.documents;
    // A block has 100 kB, and a page has 1.3 kB.
    assert!((60..90).contains(&lost), "{lost}");
    // All pages have the same number of sentences, so no page was assembled from two pages.
    assert_eq!(manifest.counts.sentences, 40 * manifest.counts.documents);
}

#[test]
fn the_first_or_the_last_block_may_be_damaged() {
    let pages = 300;
    let packed = bzip2(dump(pages).as_bytes());
    for at in [100, packed.len() - 100] {
        let mut packed = packed.clone();
        packed[at] ^= 4;
        let manifest = prepare(&packed, "dump.xml.bz2", "wikipedia", None, Damaged::Skip).unwrap();
        assert_eq!(manifest.counts.rejected[BLOCK], 1);
        assert_eq!(manifest.counts.sentences, 40 * manifest.counts.documents);
        assert!(manifest.counts.documents > 150, "{at}: {:?}", manifest.counts);
    }
}

#[test]
fn text_and_rows_continue_after_a_gap() {
    let sentence = |number: usize| format!("The king of number {number} is brave.");
    let lines: String = (0..20_000).map(|number| sentence(number) + "\n").collect();
    let rows: String =
        (0..20_000).map(|number| serde_json::json!({"text": sentence(number)}).to_string() + "\n").collect();
    for (name, text, format, documents, documents_expected) in [
        ("one.txt.bz2", &lines, "text", Some(Documents::File), 2..=2),
        ("rows.jsonl.bz2", &rows, "jsonl", None, 15_000..=19_500),
    ] {
        let mut packed = bzip2(text.as_bytes());
        let middle = packed.len() / 2;
        packed[middle] ^= 1;
        let manifest = prepare(&packed, name, format, documents, Damaged::Skip).unwrap();
        assert_eq!(manifest.counts.rejected, [(BLOCK.to_owned(), 1)].into(), "{name}");
        assert!(documents_expected.contains(&manifest.counts.documents), "{name}: {:?}", manifest.counts);
        assert!((15_000..19_500).contains(&manifest.counts.sentences), "{name}: {:?}", manifest.counts);
    }
}

#[test]
fn a_truncated_archive_is_read_up_to_the_damage() {
    let lines: String = (0..20_000).map(|number| format!("The king of number {number} is brave.\n")).collect();
    let whole = gzip(lines.as_bytes());
    let garbage = [whole.clone(), b"this is not gzip any more".to_vec()].concat();
    refused(&garbage, "garbage.gz", "text", &["garbage.gz"]);
    let rest = "damaged file: the rest of it";
    let manifest = prepare(&garbage, "garbage.gz", "text", None, Damaged::Skip).unwrap();
    assert_eq!((manifest.counts.sentences, manifest.counts.rejected[rest]), (20_000, 1));
    for packed in [whole, zstd::encode_all(lines.as_bytes(), 3).unwrap(), bzip2(lines.as_bytes())] {
        let torn = &packed[..packed.len() * 2 / 3];
        refused(torn, "torn", "text", &["torn"]);
        let manifest = prepare(torn, "torn", "text", None, Damaged::Skip).unwrap();
        let counts = &manifest.counts;
        assert!((7_000..15_000).contains(&counts.sentences), "{counts:?}");
        assert_eq!(counts.rejected.values().sum::<u64>(), 1, "{counts:?}");
    }
}

#[test]
fn a_truncated_page_is_refused_or_skipped() {
    let whole = dump(50);
    let cut = &whole[..whole.len() - 700];
    refused(cut.as_bytes(), "cut.xml", "wikipedia", &["cut.xml", "</page>"]);
    let manifest = prepare(cut.as_bytes(), "cut.xml", "wikipedia", None, Damaged::Skip).unwrap();
    assert_eq!((manifest.counts.documents, manifest.counts.rejected["wikipedia: cut page"]), (49, 1));
}

#[test]
fn long_lines_single_words_and_files_without_text_are_handled() {
    let unbroken = "x".repeat(10 << 20);
    let spaced = "boat ".repeat(2 << 20);
    let cut = "sentences: of over 1024 tokens, cut";
    for text in [&unbroken, &spaced] {
        let manifest = prepare(text.as_bytes(), "line.txt", "text", None, Damaged::Refuse).unwrap();
        assert!(manifest.counts.samples > 0 && manifest.counts.rejected.get(cut).copied().unwrap_or(0) <= 1);
    }
    let manifest = prepare(spaced.as_bytes(), "line.txt", "text", None, Damaged::Refuse).unwrap();
    assert_eq!(manifest.counts.rejected[cut], 1);
    assert!(manifest.counts.sentences >= 2048, "2 Mi words, 1024 pieces a part: {:?}", manifest.counts);
    let nul = "The boat\0 is wet.\n\n\0\0\n";
    let manifest = prepare(nul.as_bytes(), "nul.txt", "text", None, Damaged::Refuse).unwrap();
    assert_eq!(manifest.counts.documents, 1);
    refused(b"\0\0\0\n", "nothing.txt", "text", &["nothing.txt", "a binary file"]);
    // Extraction removes zero-width spaces, so no text remains.
    refused("\u{200b}\u{200b}\n".as_bytes(), "nothing.txt", "text", &["without a sentence (1)"]);
}

#[test]
fn pipes_and_symlink_loops_do_not_block() {
    let folder = tempfile::tempdir().unwrap();
    let (text, vocabulary) = generated(folder.path(), 30);
    let inputs = folder.path().join("inputs");
    std::fs::create_dir(&inputs).unwrap();
    std::fs::copy(text, inputs.join("text.txt")).unwrap();
    let pipe = inputs.join("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let source = |path: &Path| Source { path: path.display().to_string(), ..Source::default() };
    assert_eq!(run(&config(folder.path(), &vocabulary, vec![source(&inputs)]), 1).unwrap().files, 1);
    let error = run(&config(&inputs, &vocabulary, vec![source(&pipe)]), 1).unwrap_err();
    assert!(error.is_usage() && error.to_string().contains("neither a file nor a folder"), "{error}");
    let round = inputs.join("round");
    std::os::unix::fs::symlink(&round, &round).unwrap();
    let error = run(&config(&inputs, &vocabulary, vec![source(&inputs)]), 1).unwrap_err();
    assert!(error.to_string().contains("round"), "{error}");
}

#[test]
fn a_multistream_dump_equals_the_single_stream_dump_without_its_index() {
    let Some(corpora) = corpora() else { return };
    let folder = tempfile::tempdir().unwrap();
    let inputs = folder.path().join("inputs");
    std::fs::create_dir(&inputs).unwrap();
    let copy = |name: &str| {
        std::fs::copy(corpora.join("wiki/multistream").join(name), inputs.join(name)).unwrap();
    };
    let vocabulary = corpora.join("vocab/bert-base-uncased-vocab.txt");
    let made = |name: &str, path: &Path| {
        let source = Source { path: path.display().to_string(), format: "wikipedia".into(), ..Source::default() };
        let report = run(&config(&folder.path().join(name), &vocabulary, vec![source]), 2).unwrap();
        report.datasets[0].manifest.clone()
    };
    copy("enwiki-206-pages-articles-multistream.xml.bz2");
    let alone = made("alone", &inputs);
    copy("enwiki-206-pages-articles-multistream-index.txt.bz2");
    let beside = made("beside", &inputs);
    let single = "wiki/enwiki-latest-pages-articles1.xml-p000000010p000030302-shortened.xml.bz2";
    let single = made("single", &corpora.join(single));
    assert_eq!(alone, beside);
    assert_eq!((&alone.counts, &alone.shards), (&single.counts, &single.shards));
}

#[test]
fn a_damaged_block_in_a_real_dump() {
    let Some(corpora) = corpora() else { return };
    let name = "enwiki-latest-pages-articles1.xml-p000000010p000030302-shortened.xml.bz2";
    let mut dump = std::fs::read(corpora.join("wiki").join(name)).unwrap();
    let whole = prepare(&dump, name, "wikipedia", None, Damaged::Refuse).unwrap();
    let skipping = prepare(&dump, name, "wikipedia", None, Damaged::Skip).unwrap();
    assert_eq!(whole.counts, skipping.counts, "block by block is the same where nothing is damaged");
    assert_eq!(whole.shards[0].sha256, skipping.shards[0].sha256);
    let middle = dump.len() / 2;
    dump[middle] ^= 0x40;
    refused(&dump, name, "wikipedia", &["past byte"]);
    let mended = prepare(&dump, name, "wikipedia", None, Damaged::Skip).unwrap();
    eprintln!("{} of {} documents are left", mended.counts.documents, whole.counts.documents);
    assert_eq!(mended.counts.rejected[BLOCK], 1);
    // A block has 900 kB of the 6.1 MB of text.
    assert!(mended.counts.documents < whole.counts.documents && mended.counts.documents > whole.counts.documents / 2);
}

/// Collects the notices that the job reports.
#[derive(Default)]
struct Named(std::sync::Mutex<Vec<(String, SkipNotice)>>);

impl PrepProgress for Named {
    fn skipped(&self, file: &str, notice: &SkipNotice) {
        self.0.lock().unwrap().push((file.to_owned(), notice.clone()));
    }

    fn update(&self, _status: &PrepStatus) {}
}

#[test]
fn skipped_parts_are_reported_with_file_and_offset() {
    let folder = tempfile::tempdir().unwrap();
    let (_, vocabulary) = generated(folder.path(), 30);
    let whole = dump(3);
    let second_end = whole.match_indices("</page>").nth(1).unwrap().0;
    let second = whole.match_indices("<page>").nth(1).unwrap().0 + "<page>".len();
    let mut cut = whole.clone();
    cut.replace_range(second_end..second_end + "</page>".len(), "");
    let lines = "{\"text\": \"The boat.\"}\n{\"text\": 3}\n";
    let source = |name: &str, text: &str, format: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        let damaged = Damaged::Skip;
        Source { path: path.display().to_string(), format: format.into(), damaged, ..Source::default() }
    };
    let sources = vec![source("cut.xml", &cut, "wikipedia"), source("rows.jsonl", lines, "jsonl")];
    let named = Named::default();
    let config = config(folder.path(), &vocabulary, sources);
    prep::run(&config, &PrepOptions { threads: 1, memory: prep::DEFAULT_MEMORY, part: None, progress: &named })
        .unwrap();
    let named = named.0.into_inner().unwrap();
    let page = SkipNotice { reason: "wikipedia: cut page", offset: second as u64, title: Some("Page 1".to_owned()) };
    let line = SkipNotice::new("jsonl: bad line", 22);
    for (file, notice) in [("cut.xml", page), ("rows.jsonl", line)] {
        assert!(named.iter().any(|(name, found)| name.ends_with(file) && *found == notice), "{notice:?} in {named:?}");
    }
}

/// After the error of one thread, other threads must not read on: their batches would lack the documents before the error.
#[test]
fn a_refused_file_is_read_again_as_a_whole() {
    let folder = tempfile::tempdir().unwrap();
    let (text, vocabulary) = generated(folder.path(), 6_000);
    let text = std::fs::read_to_string(text).unwrap();
    let rows = text.split("\n\n").map(|text| serde_json::json!({ "text": text }).to_string() + "\n");
    let rows: Vec<String> = rows.collect();
    let bad = rows.len() * 4 / 5;
    let rows = [&rows[..bad], &["{\"text\": 3}\n".to_owned()], &rows[bad..]].concat().concat();
    assert!(rows.len() > 3 << 20, "several batches");
    let path = folder.path().join("rows.jsonl");
    std::fs::write(&path, rows).unwrap();
    let prepare = |name: &str, refused: usize| {
        let work = folder.path().join(name);
        std::fs::create_dir(&work).unwrap();
        let mut config = config(&work, &vocabulary, vec![source(&path, "jsonl", Documents::File)]);
        for _ in 0..refused {
            run(&config, 8).unwrap_err();
        }
        config.source[0].damaged = Damaged::Skip;
        assert_eq!(run(&config, 8).unwrap().datasets[0].manifest.counts.rejected["jsonl: bad line"], 1);
        tree(&work)
    };
    assert_same(&prepare("skipped", 0), &prepare("refused", 2));
}
