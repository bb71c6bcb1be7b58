//! Samples without pairs. The dataset has every sentence exactly once per pass.

use std::collections::BTreeMap;
use std::path::Path;

use crate::common::{config, run, source};
use lambert_config::prep::{Documents, Packing, Pair};
use lambert_dataset::Dataset;
use lambert_dataset::random::Key;

const CLS: u32 = 2;
const SEP: u32 = 3;
const STOP: u32 = 5;
const WORDS: u32 = 3_100;
const LENGTH: usize = 64;

/// A vocabulary of whole words, so that text and token IDs correspond.
fn vocabulary(folder: &Path) -> std::path::PathBuf {
    let words: String = (0..WORDS).map(|word| format!("w{word}\n")).collect();
    let path = folder.join("vocab.txt");
    std::fs::write(&path, format!("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n.\n{words}")).unwrap();
    path
}

/// Documents as lists of sentences of token IDs. The first word of every sentence identifies the document.
fn documents(count: u64, longest: u64) -> Vec<Vec<Vec<u32>>> {
    let document = |number: u64| {
        let mut rng = Key::new(9).with(number).rng();
        let mut sentence = || -> Vec<u32> {
            let words = 1 + rng.below(longest - 2);
            let first = number as u32 % WORDS;
            let words = (0..words).map(|_| rng.below(u64::from(WORDS)) as u32);
            std::iter::once(first).chain(words).map(|word| 6 + word).chain([STOP]).collect()
        };
        (0..1 + number % 23).map(|_| sentence()).collect()
    };
    (0..count).map(document).collect()
}

/// Prepares the documents and returns the rows of the dataset.
fn rows(documents: &[Vec<Vec<u32>>], packing: Packing, passes: usize, short: f64) -> Vec<Vec<u32>> {
    let folder = tempfile::tempdir().unwrap();
    let line = |sentence: &Vec<u32>| {
        let word = |&id: &u32| if id == STOP { ".".to_owned() } else { format!("w{}", id - 6) };
        sentence.iter().map(word).collect::<Vec<_>>().join(" ") + "\n"
    };
    let text: String = documents.iter().map(|document| document.iter().map(line).collect::<String>() + "\n").collect();
    let path = folder.path().join("corpus.txt");
    std::fs::write(&path, text).unwrap();
    let mut config =
        config(folder.path(), &vocabulary(folder.path()), vec![source(&path, "sentences", Documents::BlankLine)]);
    let samples = &mut config.samples;
    (samples.pair, samples.packing, samples.passes, samples.held_out) = (Pair::None, packing, passes, 0.0);
    (samples.sequence_length, samples.short_sequence_probability) = (LENGTH, short);
    let report = run(&config, 2).unwrap();
    let manifest = &report.datasets[0].manifest;
    assert_eq!((manifest.samples.packing, manifest.counts.positive_pairs), (packing, 0));
    let dataset = Dataset::open(&report.datasets[0].url).unwrap();
    let group = |number| {
        let samples = dataset.read(number).unwrap();
        (0..samples.rows()).map(|row| samples.ids(row).to_vec()).collect::<Vec<_>>()
    };
    (0..dataset.row_groups().len()).flat_map(group).collect()
}

fn counted<T: Ord>(items: impl Iterator<Item = T>) -> BTreeMap<T, usize> {
    items.fold(BTreeMap::new(), |mut counts, item| {
        *counts.entry(item).or_default() += 1;
        counts
    })
}

/// Splits a row at `[SEP]` into its document fragments.
fn pieces(row: &[u32]) -> Vec<&[u32]> {
    assert!(row.len() <= LENGTH && row[0] == CLS && row[row.len() - 1] == SEP, "{row:?}");
    row[1..row.len() - 1].split(|&id| id == SEP).collect()
}

#[test]
fn every_sentence_is_used_exactly_once_per_pass() {
    let documents = documents(3_000, 40);
    let sentences = counted(documents.iter().flatten().cloned());
    for packing in [Packing::DocumentSentences, Packing::FullSentences] {
        for (passes, short) in [(1, 0.0), (3, 0.1)] {
            let rows = rows(&documents, packing, passes, short);
            // A short sample can split a sentence. If there are no short samples, all rows have whole sentences.
            let tokens = counted(rows.iter().flat_map(|row| pieces(row)).flatten().copied());
            let expected = counted(documents.iter().flatten().flatten().copied());
            assert_eq!(tokens, expected.into_iter().map(|(id, count)| (id, passes * count)).collect());
            if short == 0.0 {
                let whole =
                    rows.iter().flat_map(|row| pieces(row)).flat_map(|piece| piece.split_inclusive(|&id| id == STOP));
                assert_eq!(counted(whole.map(<[u32]>::to_vec)), sentences, "{packing:?}");
            }
        }
    }
}

#[test]
fn separators_occur_only_between_documents() {
    let documents = documents(3_000, 40);
    let document_of = |piece: &[u32]| {
        let firsts = counted(piece.split_inclusive(|&id| id == STOP).map(|sentence| sentence[0]));
        assert_eq!(firsts.len(), 1, "one document: {piece:?}");
        piece[0]
    };
    let mut tokens = Vec::new();
    for packing in [Packing::DocumentSentences, Packing::FullSentences] {
        let rows = rows(&documents, packing, 1, 0.0);
        let mut joined = 0;
        for row in &rows {
            let found: Vec<u32> = pieces(row).into_iter().map(document_of).collect();
            assert!(found.windows(2).all(|pair| pair[0] != pair[1]), "{found:?}");
            joined += usize::from(found.len() > 1);
        }
        assert_eq!(joined == 0, packing == Packing::DocumentSentences);
        let mean = rows.iter().map(Vec::len).sum::<usize>() as f64 / rows.len() as f64;
        // On average, a full sample ends half a sentence (20 tokens) below the limit. The gap is smaller if short
        // sentences fit.
        assert_eq!(mean > LENGTH as f64 - 15.0, packing == Packing::FullSentences, "{packing:?}: {mean}");
        tokens.push(rows.len());
    }
    assert!(tokens[1] < tokens[0], "{tokens:?}");
}

#[test]
fn a_sentence_longer_than_a_sample_continues_in_the_next() {
    let documents = documents(400, 300);
    let expected = counted(documents.iter().flatten().flatten().copied());
    for packing in [Packing::DocumentSentences, Packing::FullSentences] {
        let rows = rows(&documents, packing, 1, 0.0);
        assert_eq!(counted(rows.iter().flat_map(|row| pieces(row)).flatten().copied()), expected);
    }
}

#[test]
fn packing_defaults_to_single_documents_and_excludes_pairs() {
    use lambert_config::{Checked, PrepConfig};
    let parse = |samples: &str| -> PrepConfig {
        serde_json::from_str(&format!("{{\"samples\": {{\"pair\": {samples}}}}}")).unwrap()
    };
    let faulty = |config: &PrepConfig| {
        let mut issues = Vec::new();
        config.check(&mut issues);
        issues.iter().any(|issue| issue.to_string().contains("samples.packing"))
    };
    assert_eq!(parse("\"none\"").samples.packing, Packing::DocumentSentences);
    let full = parse("\"none\", \"packing\": \"full-sentences\"");
    assert!(full.samples.packing == Packing::FullSentences && !faulty(&full));
    assert!(faulty(&parse("\"nsp\", \"packing\": \"full-sentences\"")) && !faulty(&parse("\"nsp\"")));
}
