//! The held-out share of the tokens. Whole documents are held out if their tokens can meet the share. Otherwise blocks
//! of long documents are held out.

use std::path::{Path, PathBuf};

use crate::common::{assert_same, config, corpora, generated, run, source, tree};
use lambert_config::PrepConfig;
use lambert_config::prep::{Documents, Pair, Source};
use lambert_data_prep::prep::{self, PrepOptions, PrepReport, PrepStatus};
use lambert_dataset::{Dataset, HeldOut, Manifest};

/// Writes generated text as books. `sizes` has the number of generated documents per book. Also returns the vocabulary
/// file.
fn books(folder: &Path, sizes: &[usize]) -> (Vec<Source>, PathBuf) {
    let (text, vocabulary) = generated(folder, sizes.iter().sum::<usize>() as u64);
    let text = std::fs::read_to_string(text).unwrap();
    let mut documents = text.trim_end().split("\n\n");
    let mut write = |(number, size): (usize, &usize)| {
        let path = folder.join(format!("book-{number:02}.txt"));
        let book: Vec<&str> = documents.by_ref().take(*size).collect();
        std::fs::write(&path, book.join("\n")).unwrap();
        source(&path, "text", Documents::File)
    };
    (sizes.iter().enumerate().map(&mut write).collect(), vocabulary)
}

fn books_config(folder: &Path, sizes: &[usize]) -> PrepConfig {
    let (sources, vocabulary) = books(folder, sizes);
    let mut config = config(folder, &vocabulary, sources);
    config.samples.held_out = 0.05;
    config
}

/// Returns both manifests and the achieved share. The manifests have the share only if the split by cell missed the
/// target.
fn manifests(report: &PrepReport) -> (&Manifest, &Manifest, &HeldOut) {
    let [train, held_out] = report.datasets.as_slice() else { panic!("{report:?}") };
    assert_eq!(train.manifest.held_out, held_out.manifest.held_out);
    for dataset in &report.datasets {
        Dataset::open(&dataset.url).unwrap().verify().unwrap();
    }
    (&train.manifest, &held_out.manifest, report.held_out.as_ref().unwrap())
}

/// Checks that the two splits together have every sentence of the corpus.
fn assert_divided(train: &Manifest, held_out: &Manifest) {
    let sentences: u64 = train.sources.iter().map(|source| source.sentences).sum();
    assert_eq!(train.counts.sentences + held_out.counts.sentences, sentences);
    assert!(train.counts.samples > 0 && held_out.counts.samples > 0);
}

/// The expected values are the first 16 digits of the SHA-256 of each manifest. A change of this program must not
/// change them.
#[test]
fn a_split_by_cell_that_meets_the_share_keeps_its_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let (text, vocabulary) = generated(folder.path(), 1000);
    let identities = |name: &str, text: &Path, held_out: f64| {
        let sources = vec![source(text, "text", Documents::BlankLine)];
        let mut config = config(&folder.path().join(name), &vocabulary, sources);
        config.samples.held_out = held_out;
        let report = run(&config, 2).unwrap();
        let (train, ..) = manifests(&report);
        assert_eq!(train.held_out, None);
        let share = report.held_out.unwrap();
        assert!((share.achieved / held_out - 1.0).abs() < 0.5, "{share:?}");
        report
            .datasets
            .iter()
            .map(|made| Dataset::open(&made.url).unwrap().manifest_sha256()[..16].to_owned())
            .collect()
    };
    let drawn: Vec<String> = identities("drawn", &text, 0.05);
    assert_eq!(drawn, ["ac1b32ed7ebef98f", "77029000f5a5426f"]);
    // No document is in a held-out cell, so the document with the smallest key is held out.
    let short = folder.path().join("short.txt");
    let documents = std::fs::read_to_string(&text).unwrap();
    std::fs::write(&short, documents.split("\n\n").take(24).collect::<Vec<_>>().join("\n\n")).unwrap();
    let lone: Vec<String> = identities("lone", &short, 0.04);
    assert_eq!(lone, ["9ded7a459badb7f4", "fca916dd49710611"]);
}

#[test]
fn one_book_is_split_into_blocks() {
    let folder = tempfile::tempdir().unwrap();
    let config = books_config(folder.path(), &[2000]);
    let report = run(&config, 2).unwrap();
    let (train, held_out, share) = manifests(&report);
    assert_divided(train, held_out);
    assert!((0.04..0.06).contains(&share.achieved), "{share:?}");
    assert_eq!(train.held_out.as_ref(), Some(share));
    // There are eight blocks, and some may be adjacent. The rest of the book is training data.
    let block = share.block_tokens.unwrap();
    let tokens = train.sources[0].tokens;
    assert_eq!(block, tokens * 5 / 100 / 8);
    assert_eq!((train.counts.documents, held_out.counts.documents), (1, 1));
    let found = held_out.counts.tokens as f64 / (held_out.counts.tokens + train.counts.tokens) as f64;
    assert!((0.04..0.06).contains(&found), "{found} of the tokens of samples");
}

#[test]
fn a_book_and_a_page_are_split_by_tokens() {
    for sizes in [[2000, 1], [1, 2000]] {
        let folder = tempfile::tempdir().unwrap();
        let report = run(&books_config(folder.path(), &sizes), 1).unwrap();
        let (train, held_out, share) = manifests(&report);
        assert_divided(train, held_out);
        assert!((0.04..0.06).contains(&share.achieved) && share.block_tokens.is_some(), "{sizes:?}: {share:?}");
    }
}

#[test]
fn whole_documents_are_selected_if_they_meet_the_share() {
    let folder = tempfile::tempdir().unwrap();
    let mut sizes = vec![600, 500, 400, 300];
    sizes.extend([12; 10]);
    let report = run(&books_config(folder.path(), &sizes), 1).unwrap();
    let (train, held_out, share) = manifests(&report);
    assert_divided(train, held_out);
    assert!((0.04..0.06).contains(&share.achieved), "{share:?}");
    assert_eq!((share.block_tokens, train.held_out.as_ref()), (None, Some(share)));
    assert_eq!(train.counts.documents + held_out.counts.documents, sizes.len() as u64, "no document is in both");
}

#[test]
fn blocks_do_not_depend_on_threads_parts_or_kills() {
    let folder = tempfile::tempdir().unwrap();
    let (sources, vocabulary) = books(folder.path(), &[700, 300, 3, 500]);
    let prepare = |name: &str, act: &dyn Fn(&PrepConfig)| {
        let work = folder.path().join(name);
        std::fs::create_dir(&work).unwrap();
        let mut config = config(&work, &vocabulary, sources.clone());
        config.samples.held_out = 0.05;
        act(&config);
        let report = run(&config, 1).unwrap();
        assert!(report.held_out.unwrap().block_tokens.is_some());
        tree(&work)
    };
    let plain = prepare("plain", &|_| {});
    assert_same(&plain, &prepare("threads", &|config| drop(run(config, 4).unwrap())));
    let parts = prepare("parts", &|config| {
        for part in [2, 0, 1] {
            let part = Some((part, 3));
            let options =
                PrepOptions { threads: 2, memory: prep::DEFAULT_MEMORY, part, progress: &|_: &PrepStatus| {} };
            prep::run(config, &options).unwrap();
        }
    });
    assert_same(&plain, &parts);
}

#[test]
fn an_unchanged_preparation_reports_the_share() {
    let folder = tempfile::tempdir().unwrap();
    let config = books_config(folder.path(), &[300]);
    let first = run(&config, 1).unwrap();
    let second = run(&config, 1).unwrap();
    assert!(second.unchanged && second.held_out.is_some());
    assert_eq!(first.held_out, second.held_out);
}

#[test]
fn an_indivisible_corpus_is_all_training_data() {
    let folder = tempfile::tempdir().unwrap();
    let (_, vocabulary) = generated(folder.path(), 30);
    let text = folder.path().join("one.txt");
    std::fs::write(&text, "The keeper of the garden opens the gate.").unwrap();
    let mut config = config(folder.path(), &vocabulary, vec![source(&text, "text", Documents::File)]);
    config.samples.pair = Pair::None;
    let report = run(&config, 1).unwrap();
    assert_eq!(report.datasets.len(), 1);
    assert_eq!(report.held_out.unwrap().achieved, 0.0);
}

#[test]
fn token_usage_overlaps_within_a_language_and_not_across_languages() {
    let Some(corpora) = corpora() else { return };
    let folder = tempfile::tempdir().unwrap();
    let vocabulary = corpora.join("vocab/bert-base-uncased-vocab.txt");
    let usage = |name: &str, path: &str, split: usize| {
        let format = if path.ends_with(".bz2") { "wikipedia" } else { "text" };
        let sources = vec![source(&corpora.join(path), format, Documents::File)];
        let mut config = config(&folder.path().join(name), &vocabulary, sources);
        config.samples.held_out = 0.05;
        let report = run(&config, 2).unwrap();
        let dataset = Dataset::open(&report.datasets[split].url).unwrap();
        lambert_dataset::TokenUsage::of(&dataset).unwrap().unwrap()
    };
    let book = usage("book", "books/en/austen_emma_158-0.txt", 0);
    let own = usage("own", "books/en/austen_emma_158-0.txt", 1);
    let other = usage("other", "books/en/doyle_lost_1912.txt", 0);
    let wiki = usage("wiki", "wiki/enwiki-latest-pages-articles1.xml-p000000010p000030302-shortened.xml.bz2", 0);
    let german = usage("german", "books/de/fontane_irrungen.txt", 0);
    let french = usage("french", "books/fr/FRA02702_Maupassant.txt", 0);
    let chinese = usage("chinese", "books/zh/shuihuzhuan.txt", 0);
    let overlaps = [&own, &other, &wiki, &german, &french, &chinese].map(|usage| book.overlap(usage));
    let unknown = [&book, &wiki, &german, &chinese].map(|usage| usage.unknown());
    eprintln!("overlaps {overlaps:.3?}, unknown {unknown:.3?}");
    assert!((book.overlap(&book) - 1.0).abs() < 1e-9);
    // Run plans print a warning if the overlap is below 0.3.
    assert!(overlaps[..3].iter().all(|overlap| *overlap > 0.4), "{overlaps:?}");
    assert!(overlaps[3..].iter().all(|overlap| *overlap < 0.25), "{overlaps:?}");
    assert!(unknown[..3].iter().all(|unknown| *unknown < 0.01) && unknown[3] > 0.05, "{unknown:?}");
}

#[test]
fn real_text_is_split_by_tokens() {
    let Some(corpora) = corpora() else { return };
    let vocabulary = corpora.join("vocab/bert-base-uncased-vocab.txt");
    let book = source(&corpora.join("books/en/austen_emma_158-0.txt"), "text", Documents::File);
    let page = source(&corpora.join("wiki/minidumps/dawiki-mini-pages-articles.xml.bz2"), "wikipedia", Documents::File);
    let folder = tempfile::tempdir().unwrap();
    let dump = ten_pages(&corpora, folder.path());
    let pages = source(&dump, "wikipedia", Documents::File);
    let four = ["ainsworth_jack-sheppard_pg16215", "austen_emma_158-0", "doyle_lost_1912", "burnett_lord_1886"];
    let four = four.map(|name| source(&corpora.join(format!("books/en/{name}.txt")), "text", Documents::File));
    for (name, sources) in [
        ("book", vec![book.clone()]),
        ("book and page", vec![book, page]),
        ("ten pages", vec![pages]),
        ("four", four.to_vec()),
    ] {
        let work = tempfile::tempdir().unwrap();
        let mut config = config(work.path(), &vocabulary, sources);
        config.samples.held_out = 0.05;
        let report = run(&config, 2).unwrap();
        let (train, held_out, share) = manifests(&report);
        eprintln!("{name}: {share:?}, {} and {} samples", train.counts.samples, held_out.counts.samples);
        assert_divided(train, held_out);
        assert!((0.025..=0.075).contains(&share.achieved), "{name}: {share:?}");
    }
}

/// Writes ten pages of the English dump as a dump.
fn ten_pages(corpora: &Path, folder: &Path) -> PathBuf {
    let dump = corpora.join("wiki/enwiki-latest-pages-articles1.xml-p000000010p000030302-shortened.xml.bz2");
    let mut text = String::new();
    std::io::Read::read_to_string(&mut bzip2::read::MultiBzDecoder::new(std::fs::File::open(dump).unwrap()), &mut text)
        .unwrap();
    let pages = text.split("  <page>").skip(1).filter(|page| !page.contains("<redirect")).take(10);
    let pages: String =
        pages.map(|page| format!("  <page>{}</page>\n", page.split("</page>").next().unwrap())).collect();
    let path = folder.join("ten.xml");
    std::fs::write(&path, format!("<mediawiki>\n{pages}</mediawiki>\n")).unwrap();
    path
}
