//! Whole preparation jobs for the development corpora and for generated text, and failures of preparation jobs.

use std::path::Path;

use crate::common::{assert_same, config, corpora, generated, run, source, tree};
use lambert_config::prep::{Documents, Pair};
use lambert_data_prep::inspect::inspect;
use lambert_data_prep::prep::{self, PrepOptions, PrepStatus};
use lambert_dataset::Dataset;

#[test]
fn books_and_a_dump_become_a_dataset() {
    let Some(corpora) = corpora() else { return };
    let folder = tempfile::tempdir().unwrap();
    let dump = corpora.join("wiki/enwiki-latest-pages-articles1.xml-p000000010p000030302-shortened.xml.bz2");
    let sources = vec![
        source(&corpora.join("books/en/a*.txt"), "text", Documents::File),
        source(&corpora.join("books/en/doyle_lost_1912.txt"), "text", Documents::File),
        source(&dump, "wikipedia", Documents::File),
    ];
    let mut config = config(folder.path(), &corpora.join("vocab/bert-base-uncased-vocab.txt"), sources);
    config.samples.held_out = 0.05;
    let report = run(&config, 2).unwrap();
    assert_eq!(report.files, 5);
    let [train, held_out] = report.datasets.as_slice() else { panic!("{report:?}") };
    for dataset in [train, held_out] {
        Dataset::open(&dataset.url).unwrap().verify().unwrap();
    }
    let counts = &train.manifest.counts;
    eprintln!("{counts:?} entropy {}", train.manifest.unigram_entropy);
    assert!(counts.samples > 8_000 && counts.sentences > 30_000, "{counts:?}");
    assert!(counts.rejected["wikipedia: redirect"] > 50, "{counts:?}");
    assert!((6.0..7.5).contains(&train.manifest.unigram_entropy));
    let shares = counts.positive_pairs as f64 / counts.samples as f64;
    assert!((0.45..0.65).contains(&shares), "{shares}");

    let shown = inspect(&train.url, 400, false).unwrap();
    let text: String = shown.samples.iter().map(|sample| sample.first.clone() + "\n").collect();
    for markup in ["[[", "]]", "{ {", "} }", "gutenberg", "< ref", "http"] {
        assert!(!text.contains(markup), "{markup} in {}", text.lines().find(|line| line.contains(markup)).unwrap());
    }
}

#[test]
fn the_bytes_do_not_depend_on_threads_parts_or_kills() {
    let folder = tempfile::tempdir().unwrap();
    let (text, vocabulary) = generated(folder.path(), 6_000);
    let more = folder.path().join("more.txt");
    lambert_data_prep::grammar::generate(std::fs::File::create(&more).unwrap(), 500, 2).unwrap();
    let prepare = |name: &str, act: &dyn Fn(&lambert_config::PrepConfig)| {
        let sources = [&text, &more].map(|path| source(path, "text", Documents::BlankLine)).to_vec();
        let work = folder.path().join(name);
        std::fs::create_dir(&work).unwrap();
        let config = config(&work, &vocabulary, sources);
        act(&config);
        run(&config, 1).unwrap();
        assert!(!work.join("data.work").exists());
        tree(&work)
    };
    let plain = prepare("plain", &|_| {});
    let threads = prepare("threads", &|config| drop(run(config, 2).unwrap()));
    let parts = prepare("parts", &|config| {
        for part in [1, 0, 2] {
            prep::run(
                config,
                &PrepOptions {
                    threads: 1,
                    memory: prep::DEFAULT_MEMORY,
                    part: Some((part, 3)),
                    progress: &|_: &PrepStatus| {},
                },
            )
            .unwrap();
        }
    });
    assert_same(&plain, &threads);
    assert_same(&plain, &parts);
}

#[test]
fn an_existing_dataset_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    let (text, vocabulary) = generated(folder.path(), 300);
    let mut config = config(folder.path(), &vocabulary, vec![source(&text, "text", Documents::BlankLine)]);
    assert!(!run(&config, 1).unwrap().unchanged);
    let before = tree(folder.path());
    assert!(run(&config, 1).unwrap().unchanged);
    config.samples.seed = 2;
    let error = run(&config, 1).unwrap_err();
    assert!(error.is_usage() && error.to_string().contains("another"), "{error}");
    assert_same(&before, &tree(folder.path()));
}

#[test]
fn a_removed_held_out_dataset_is_written_again() {
    let folder = tempfile::tempdir().unwrap();
    let (text, vocabulary) = generated(folder.path(), 300);
    let mut config = config(folder.path(), &vocabulary, vec![source(&text, "text", Documents::BlankLine)]);
    config.samples.held_out = 0.1;
    run(&config, 1).unwrap();
    let before = tree(folder.path());
    std::fs::remove_dir_all(folder.path().join("data/held-out")).unwrap();
    let report = run(&config, 1).unwrap();
    assert!(!report.unchanged && report.datasets.len() == 2, "{report:?}");
    assert_same(&before, &tree(folder.path()));

    // A version that read other documents could have held out documents that are now in `train`.
    std::fs::remove_dir_all(folder.path().join("data/held-out")).unwrap();
    let manifest = folder.path().join("data/train/manifest.json");
    let mut old: serde_json::Value = serde_json::from_slice(&std::fs::read(&manifest).unwrap()).unwrap();
    old["sources"][0]["documents"] = 301.into();
    std::fs::write(&manifest, old.to_string()).unwrap();
    let error = run(&config, 1).unwrap_err().to_string();
    assert!(error.contains("data/train holds a dataset of another corpus or configuration"), "{error}");
}

/// One document is divided into blocks, and the manifest has the achieved share.
#[test]
fn a_removed_held_out_dataset_of_blocks_is_written_again() {
    let folder = tempfile::tempdir().unwrap();
    let (text, vocabulary) = generated(folder.path(), 300);
    let mut config = config(folder.path(), &vocabulary, vec![source(&text, "text", Documents::File)]);
    config.samples.held_out = 0.1;
    let report = run(&config, 1).unwrap();
    assert!(report.datasets[0].manifest.held_out.is_some());
    let before = tree(folder.path());
    std::fs::remove_dir_all(folder.path().join("data/held-out")).unwrap();
    assert!(!run(&config, 1).unwrap().unchanged);
    assert_same(&before, &tree(folder.path()));
    assert!(run(&config, 1).unwrap().unchanged);
}

#[test]
fn seeds_and_pair_objectives_change_the_samples() {
    let folder = tempfile::tempdir().unwrap();
    let (text, vocabulary) = generated(folder.path(), 400);
    let mut identities = std::collections::HashSet::new();
    for (index, (seed, pair)) in
        [(1, Pair::Nsp), (2, Pair::Nsp), (1, Pair::Sop), (1, Pair::None)].into_iter().enumerate()
    {
        let work = folder.path().join(index.to_string());
        let mut config = config(&work, &vocabulary, vec![source(&text, "text", Documents::BlankLine)]);
        (config.samples.seed, config.samples.pair, config.samples.passes) = (seed, pair, 2);
        let report = run(&config, 1).unwrap();
        let dataset = Dataset::open(&report.datasets[0].url).unwrap();
        dataset.verify().unwrap();
        assert_eq!(dataset.manifest().counts.positive_pairs == 0, pair == Pair::None);
        identities.insert(dataset.manifest_sha256().to_owned());
    }
    assert_eq!(identities.len(), 4);
}

/// A document of one sentence has no order. All other sentences are in samples.
#[test]
fn sentence_order_leaves_out_and_counts_single_sentences() {
    let folder = tempfile::tempdir().unwrap();
    let (_, vocabulary) = generated(folder.path(), 30);
    let prepare = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        let mut config = config(&folder.path().join(name).with_extension("out"), &vocabulary, vec![]);
        config.source = vec![source(&path, "text", Documents::BlankLine)];
        (config.samples.pair, config.samples.held_out) = (Pair::Sop, 0.0);
        // The target of a sample is at most 5 tokens, so each sentence would fill it alone.
        (config.samples.sequence_length, config.samples.short_sequence_probability) = (8, 0.5);
        run(&config, 1)
    };
    let message = prepare("single.txt", "The boat is here.\n\nThe cow is there.\n").unwrap_err().to_string();
    assert!(message.contains("documents: of one sentence, which has no order (2)"), "{message}");
    let five = "The boat is here now. The cow is there now. The boat is there now. The cow is here now. The boat is.";
    let report = prepare("mixed.txt", &format!("The boat is here.\n\n{five}\n")).unwrap();
    let manifest = &report.datasets[0].manifest;
    assert_eq!((manifest.counts.documents, manifest.counts.samples), (1, 2), "two sentences, then three");
    assert_eq!(manifest.counts.rejected["documents: of one sentence, which has no order"], 1);
}

#[test]
fn at_least_one_sentence_is_held_out() {
    let folder = tempfile::tempdir().unwrap();
    let (text, vocabulary) = generated(folder.path(), 10);
    let mut config = config(folder.path(), &vocabulary, vec![source(&text, "text", Documents::BlankLine)]);
    config.samples.held_out = 0.001;
    let report = run(&config, 1).unwrap();
    let counts: Vec<_> = report.datasets.iter().map(|dataset| &dataset.manifest.counts).collect();
    // The target is fewer tokens than a sentence has, so the shortest sentence is held out.
    assert_eq!((counts[0].documents, counts[1].documents, counts[1].sentences), (10, 1, 1));
    config.samples.held_out = 0.0;
    config.output.url = folder.path().join("none").display().to_string();
    assert_eq!(run(&config, 1).unwrap().datasets.len(), 1);
}

/// Prepares an invalid input. Returns the error message, and true if the error is a usage error.
fn refused(name: &str, bytes: &[u8], format: &str) -> (String, bool) {
    let folder = tempfile::tempdir().unwrap();
    let (_, vocabulary) = generated(folder.path(), 30);
    let input = folder.path().join(name);
    std::fs::write(&input, bytes).unwrap();
    let config = config(folder.path(), &vocabulary, vec![source(&input, format, Documents::BlankLine)]);
    let error = run(&config, 2).unwrap_err();
    assert!(!folder.path().join("data/train/manifest.json").exists());
    assert_eq!(std::fs::read(&input).unwrap(), bytes);
    let mut message = error.to_string();
    let mut cause: &dyn std::error::Error = &error;
    while let Some(source) = cause.source() {
        message = format!("{message}: {source}");
        cause = source;
    }
    (message, error.is_usage())
}

#[test]
fn bad_inputs_are_reported_with_file_and_offset() {
    let (message, usage) = refused("latin.txt", b"Caf\xe9 au lait.\n", "text");
    assert!(message.contains("latin.txt") && message.contains("byte 3") && !usage, "{message}");
    let (message, usage) = refused("empty.txt", b" \n\n", "text");
    assert!(message.contains("empty") && !usage, "{message}");
    let (message, usage) = refused("text.xml", b"This is no dump.\n", "wikipedia");
    assert!(message.contains("<mediawiki>") && message.contains("text.xml") && !usage, "{message}");
    let cut = b"<mediawiki>\n<page>\n<title>A</title>\n<ns>0</ns><text>Some";
    let (message, _) = refused("cut.xml", cut, "wikipedia");
    assert!(message.contains("byte 18") && message.contains("</page>"), "{message}");
}

#[test]
fn a_truncated_bz2_is_detected() {
    let Some(corpora) = corpora() else { return };
    let bytes = std::fs::read(corpora.join("wiki/minidumps/frwiki-mini-pages-articles.xml.bz2")).unwrap();
    let (message, usage) = refused("cut.xml.bz2", &bytes[..bytes.len() * 2 / 3], "wikipedia");
    assert!(message.contains("cut.xml.bz2") && message.contains("byte") && !usage, "{message}");
}

#[test]
fn wrong_configurations_are_usage_errors() {
    let folder = tempfile::tempdir().unwrap();
    let (text, vocabulary) = generated(folder.path(), 30);
    let message = |path: &Path, vocabulary: &Path| {
        let error = run(&config(folder.path(), vocabulary, vec![source(path, "text", Documents::File)]), 1);
        let error = error.unwrap_err();
        assert!(error.is_usage(), "{error}");
        format!("{error}: {}", std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default())
    };
    let missing = message(&folder.path().join("no-such-file.txt"), &vocabulary);
    assert!(missing.contains("source.0.path") && missing.contains("no-such-file.txt"), "{missing}");
    let glob = message(&folder.path().join("*.nothing"), &vocabulary);
    assert!(glob.contains("*.nothing"), "{glob}");
    let maskless = folder.path().join("maskless.txt");
    let pieces = std::fs::read_to_string(&vocabulary).unwrap();
    std::fs::write(&maskless, pieces.replace("[MASK]\n", "")).unwrap();
    assert!(message(&text, &maskless).contains("[MASK]"), "{}", message(&text, &maskless));
    assert!(message(&text, &folder.path().join("none.txt")).contains("none.txt"));
}

#[test]
fn a_disk_that_is_too_small_is_detected_before_the_work_starts() {
    let folder = tempfile::tempdir().unwrap();
    let (text, vocabulary) = generated(folder.path(), 30);
    // The file is sparse and has three petabytes.
    let sparse = std::fs::File::create(folder.path().join("sparse.txt")).unwrap();
    sparse.set_len(3 << 50).unwrap_or_else(|_| sparse.set_len(15 << 40).unwrap());
    let huge = folder.path().join("sparse.txt");
    let sources = [&text, &huge].map(|path| source(path, "text", Documents::BlankLine)).to_vec();
    let config = config(folder.path(), &vocabulary, sources);
    let error = run(&config, 1).unwrap_err();
    assert!(matches!(error, prep::PrepError::DiskSpace { needed, free, .. } if needed > free), "{error}");
    assert!(error.to_string().contains("output.check_space"), "{error}");
    assert!(!folder.path().join("data.work").exists());
}

#[test]
fn the_manifest_has_the_counts_of_each_source() {
    let folder = tempfile::tempdir().unwrap();
    let (text, vocabulary) = generated(folder.path(), 40);
    let once = source(&text, "text", Documents::BlankLine);
    let mut config = config(folder.path(), &vocabulary, vec![once.clone(), once]);
    config.documents.remove_duplicates = true;
    config.samples.held_out = 0.2;
    let report = run(&config, 2).unwrap();
    let sources = &report.datasets[0].manifest.sources;
    assert_eq!(sources, &report.datasets[1].manifest.sources);
    let [first, second] = sources.as_slice() else { panic!("{sources:?}") };
    assert_eq!((first.found, first.documents, first.duplicates, first.files), (40, 40, 0, 1));
    assert_eq!((second.found, second.documents, second.duplicates, second.tokens), (40, 0, 40, first.tokens));
    let bytes = std::fs::metadata(&text).unwrap().len();
    assert_eq!(first.stored_bytes, bytes);
    // The blank lines between documents are not part of any document.
    assert!((bytes - 80..=bytes).contains(&first.text_bytes), "{first:?} of {bytes}");
    let sentences: u64 = report.datasets.iter().map(|dataset| dataset.manifest.counts.sentences).sum();
    assert_eq!(first.sentences, sentences);
}
