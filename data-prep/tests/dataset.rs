//! Datasets: written, read back, and damaged in every way that must be noticed.
#![allow(clippy::unwrap_used)] // A panic is a test's report.

use std::path::Path;

use lambert_config::prep::{Packing, Pair};
use lambert_data_prep::dataset::{
    self, Counts, Dataset, Manifest, NO_PAIR, Sample, SampleRules, VERSION, VocabularyFile,
};
use lambert_data_prep::random::Key;
use lambert_data_prep::tokenizer::Special;

const VOCABULARY: &[u8] = b"[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\nb\nc\n";

fn manifest() -> Manifest {
    Manifest {
        version: VERSION,
        split: "train".to_owned(),
        preparation: String::new(),
        corpus: Default::default(),
        sequence_length: 16,
        lowercase: true,
        vocabulary: VocabularyFile { path: String::new(), size: 8, bytes: 0, sha256: String::new() },
        special: Special { pad: 0, unk: 1, cls: 2, sep: 3, mask: 4 },
        samples: SampleRules {
            pair: Pair::Nsp,
            packing: Packing::default(),
            short_sequence_probability: 0.1,
            passes: 1,
            held_out: 0.0,
            seed: 1,
        },
        counts: Counts::default(),
        sources: Vec::new(),
        unigram_entropy: 1.0,
        shards: Vec::new(),
    }
}

/// Rows of many lengths, with and without a pair.
fn rows(count: u64) -> Vec<(Vec<u32>, u16, u8)> {
    let row = |index: u64| {
        let mut rng = Key::new(5).with(index).rng();
        let length = rng.between(3, 16);
        let ids = (0..length).map(|_| rng.below(8) as u32).collect();
        let label = [0, 1, NO_PAIR][rng.below(3) as usize];
        (ids, if label == NO_PAIR { 0 } else { rng.below(length) as u16 }, label)
    };
    (0..count).map(row).collect()
}

fn write(folder: &Path, count: u64, shards: usize) -> Manifest {
    let rows = rows(count);
    let samples: Vec<Sample> = rows
        .iter()
        .map(|(ids, start, label)| Sample { input_ids: ids, segment_b_start: *start, pair_label: *label })
        .collect();
    dataset::write(folder, manifest(), VOCABULARY, &samples, shards, 10).unwrap()
}

#[test]
fn rows_come_back_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let written = write(folder.path(), 95, 3);
    let dataset = Dataset::open(folder.path().to_str().unwrap()).unwrap();
    assert_eq!(dataset.manifest(), &written);
    assert_eq!(dataset.rows(), 95);
    assert_eq!(written.shards.iter().map(|shard| shard.rows).collect::<Vec<_>>(), [31, 32, 32]);
    let mut found = Vec::new();
    for (number, group) in dataset.row_groups().iter().enumerate() {
        assert_eq!(group.first_row, found.len() as u64);
        let samples = dataset.read(number).unwrap();
        let lengths = dataset.lengths(number).unwrap();
        assert_eq!(samples.rows() as u64, group.rows);
        for (row, &length) in lengths.iter().enumerate() {
            assert_eq!(samples.ids(row).len(), usize::from(length));
            found.push((samples.ids(row).to_vec(), samples.segment_b_start[row], samples.pair_label[row]));
        }
    }
    assert_eq!(found, rows(95));
    assert_eq!(dataset.vocabulary().unwrap(), VOCABULARY);
    dataset.verify().unwrap();
}

#[test]
fn equal_rows_give_equal_bytes() {
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let written = folders.each_ref().map(|folder| write(folder.path(), 40, 2));
    assert_eq!(written[0], written[1]);
    let identity =
        |index: usize| Dataset::open(folders[index].path().to_str().unwrap()).unwrap().manifest_sha256().to_owned();
    assert_eq!(identity(0), identity(1));
}

#[test]
fn a_flipped_byte_is_found_before_a_row_is_used() {
    let folder = tempfile::tempdir().unwrap();
    let written = write(folder.path(), 95, 3);
    let name = &written.shards[1].path;
    let path = folder.path().join(name);
    for at in [0, written.shards[1].bytes / 2, written.shards[1].bytes - 1] {
        let intact = std::fs::read(&path).unwrap();
        let mut bytes = intact.clone();
        bytes[at as usize] ^= 1;
        std::fs::write(&path, &bytes).unwrap();
        let dataset = Dataset::open(folder.path().to_str().unwrap()).unwrap();
        dataset.read(0).unwrap();
        let second = dataset.row_groups().iter().position(|group| group.shard == 1).unwrap();
        for error in [dataset.read(second).unwrap_err(), dataset.lengths(second).unwrap_err()] {
            let message = error.to_string();
            assert!(message.contains(name) && message.contains("damaged"), "{message}");
        }
        assert!(dataset.verify().is_err());
        std::fs::write(&path, &intact).unwrap();
    }
}

#[test]
fn what_is_missing_or_cut_is_named_at_opening() {
    let folder = tempfile::tempdir().unwrap();
    let written = write(folder.path(), 30, 2);
    let url = folder.path().to_str().unwrap();
    let message = || match Dataset::open(url) {
        Ok(_) => panic!("opened"),
        Err(error) => error.to_string(),
    };
    let shard = folder.path().join(&written.shards[0].path);
    let bytes = std::fs::read(&shard).unwrap();
    std::fs::write(&shard, &bytes[..bytes.len() - 1]).unwrap();
    assert!(message().contains(&written.shards[0].path), "{}", message());
    std::fs::remove_file(&shard).unwrap();
    assert!(message().contains("no such file"), "{}", message());
    std::fs::write(&shard, &bytes).unwrap();

    let manifest = folder.path().join("manifest.json");
    let text = std::fs::read_to_string(&manifest).unwrap();
    std::fs::write(&manifest, text.replace("\"version\": 1", "\"version\": 9")).unwrap();
    assert!(message().contains("version 9"), "{}", message());
    std::fs::write(&manifest, text.replace("\"rows\": 15", "\"rows\": 14")).unwrap();
    assert!(message().contains("row groups"), "{}", message());
    std::fs::write(&manifest, &text[..text.len() / 2]).unwrap();
    assert!(message().contains("manifest.json"), "{}", message());
    std::fs::remove_file(&manifest).unwrap();
    assert!(message().contains("not a dataset"), "{}", message());
}

#[test]
fn a_changed_vocabulary_is_noticed() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), 30, 2);
    let path = folder.path().join("vocab.txt");
    std::fs::write(&path, String::from_utf8_lossy(VOCABULARY).replace('a', "x")).unwrap();
    let dataset = Dataset::open(folder.path().to_str().unwrap()).unwrap();
    assert!(dataset.vocabulary().unwrap_err().to_string().contains("vocab.txt"));
}

#[test]
fn rows_that_cannot_be_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |ids: &[u32], start| {
        let sample = Sample { input_ids: ids, segment_b_start: start, pair_label: 0 };
        dataset::write(folder.path(), manifest(), VOCABULARY, &[sample], 1, 10).is_err()
    };
    assert!(refused(&[], 0) && refused(&[2, 3], 2) && refused(&vec![5; 70_000], 0));
    assert!(!refused(&[2, 3], 0));
}
