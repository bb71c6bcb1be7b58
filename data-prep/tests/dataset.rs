//! Datasets are written, read back, and damaged in all ways that must be detected.

use std::path::Path;
use std::sync::Arc;

use lambert_config::prep::Pair;
use lambert_dataset::random::Key;
use lambert_dataset::ranges::{self, CHECKSUMS, ShardRanges};
use lambert_dataset::{Dataset, Digest, Manifest, NO_PAIR, Sample, SampleRules, sha256_hex};
use parquet::data_type::Int32Type;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;

const VOCABULARY: &[u8] = b"[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\nb\nc\n";

fn manifest() -> Manifest {
    crate::samples::manifest(16, 8, VOCABULARY)
}

/// Rows with different lengths.
fn rows(count: u64) -> Vec<(Vec<u32>, u16, u8)> {
    let row = |index: u64| {
        let mut rng = Key::new(5).with(index).rng();
        let length = rng.between(3, 16);
        let ids = (0..length).map(|_| rng.below(8) as u32).collect();
        (ids, rng.below(length) as u16, rng.below(2) as u8)
    };
    (0..count).map(row).collect()
}

fn write(folder: &Path, count: u64, shards: usize) -> Manifest {
    let rows = rows(count);
    let samples: Vec<Sample> = rows
        .iter()
        .map(|(ids, start, label)| Sample { input_ids: ids, segment_b_start: *start, pair_label: *label })
        .collect();
    lambert_dataset::write(folder, manifest(), VOCABULARY, &samples, shards, 10).unwrap()
}

/// Checksums of the byte ranges of each shard.
fn checksums(folder: &Path, manifest: &Manifest) -> Vec<ShardRanges> {
    ranges::parse(&std::fs::read(folder.join(CHECKSUMS)).unwrap(), manifest).unwrap()
}

#[test]
fn rows_are_read_back_in_order() {
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
fn a_flipped_byte_is_detected_before_a_row_is_used() {
    let folder = tempfile::tempdir().unwrap();
    let written = write(folder.path(), 95, 3);
    let (shard, ranges) = (&written.shards[1], &checksums(folder.path(), &written)[1]);
    assert!(ranges.footer() > 1, "{ranges:?}");
    let path = folder.path().join(&shard.path);
    let intact = std::fs::read(&path).unwrap();
    for at in [0, shard.bytes / 2, ranges.range(ranges.footer()).start, shard.bytes - 1] {
        let mut bytes = intact.clone();
        bytes[at as usize] ^= 1;
        std::fs::write(&path, &bytes).unwrap();
        let dataset = Dataset::open(folder.path().to_str().unwrap()).unwrap();
        // Damage in the footer concerns all row groups. Damage in a row group concerns only this row group.
        let damaged = (0..=ranges.footer()).find(|index| ranges.range(*index).contains(&at)).unwrap();
        for (number, group) in dataset.row_groups().iter().enumerate() {
            let is_damaged = group.shard == 1 && (damaged == group.index || damaged == ranges.footer());
            if !is_damaged {
                dataset.read(number).unwrap();
                continue;
            }
            for error in [dataset.read(number).unwrap_err(), dataset.lengths(number).unwrap_err()] {
                let message = error.to_string();
                assert!(message.contains(&shard.path) && message.contains("damaged"), "{message}");
            }
        }
        let error = dataset.verify().unwrap_err();
        assert_eq!(dataset.damaged_shard(&error), Some(1));
    }
    std::fs::write(&path, &intact).unwrap();
    Dataset::open(folder.path().to_str().unwrap()).unwrap().verify().unwrap();
}

/// Datasets of earlier versions have no checksums of byte ranges.
#[test]
fn without_ranges_the_whole_shard_is_verified_first() {
    let folder = tempfile::tempdir().unwrap();
    let manifest = write(folder.path(), 95, 3);
    std::fs::remove_file(folder.path().join(CHECKSUMS)).unwrap();
    let open = || Dataset::open(folder.path().to_str().unwrap()).unwrap();
    open().verify().unwrap();
    let shard = &manifest.shards[1];
    let path = folder.path().join(&shard.path);
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[shard.bytes as usize / 2] ^= 1;
    std::fs::write(&path, &bytes).unwrap();
    let dataset = open();
    for (number, group) in dataset.row_groups().iter().enumerate() {
        assert_eq!(dataset.read(number).is_err(), group.shard == 1);
    }
}

#[test]
fn checksums_of_another_dataset_or_with_impossible_ranges_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let written = write(folder.path(), 95, 3);
    let good = checksums(folder.path(), &written);
    let first = &written.shards[0].path;
    // Replaces the file, and returns the error.
    let refused = |content: &[u8], words: &str| {
        std::fs::write(folder.path().join(CHECKSUMS), content).unwrap();
        let dataset = Dataset::open(folder.path().to_str().unwrap()).unwrap();
        for error in [dataset.read(0).unwrap_err(), dataset.verify().unwrap_err()] {
            let message = error.to_string();
            assert!(message.contains("checksums.json does not belong") && message.contains(words), "{message}");
            assert_eq!(dataset.damaged_shard(&error), None);
        }
    };
    let changed = |change: &dyn Fn(&mut ShardRanges), words: &str| {
        let mut ranges = good.clone();
        change(&mut ranges[0]);
        refused(&ranges::to_json(&written, &ranges), &format!("{first}: {words}"));
    };
    changed(&|ranges| ranges.range_bytes[0] += 1, "the sizes of the ranges do not add up to the");
    changed(&|ranges| ranges.range_bytes[0] = u64::MAX, "the sizes of the ranges do not add up to the");
    changed(&|ranges| ranges.range_bytes.truncate(1), "1 sizes and 5 checksums of ranges, expected 5");
    changed(&|ranges| ranges.range_sha256.clear(), "5 sizes and 0 checksums of ranges, expected 5");
    refused(&ranges::to_json(&written, &good[..2]), "it has 2 shards, but the dataset has 3");
    let other = write(tempfile::tempdir().unwrap().path(), 94, 3);
    refused(&ranges::to_json(&other, &good), &format!("{}: its sha256 is", other.shards[1].path));
    let text = String::from_utf8(ranges::to_json(&written, &good)).unwrap();
    refused(&text.as_bytes()[..text.len() / 2], "EOF");
    let digest = good[0].range_sha256[0].to_string();
    for bad in ["", "../victim", &digest[1..], &digest.to_uppercase()] {
        refused(text.replace(&digest, bad).as_bytes(), "expected 64 hexadecimal digits");
    }
}

/// The shard is intact: its checksum in the manifest is correct.
#[test]
fn a_wrong_checksum_of_a_range_is_not_reported_as_a_damaged_shard() {
    let folder = tempfile::tempdir().unwrap();
    let written = write(folder.path(), 95, 3);
    let mut all = checksums(folder.path(), &written);
    all[1].range_sha256[1].0[0] ^= 1;
    std::fs::write(folder.path().join(CHECKSUMS), ranges::to_json(&written, &all)).unwrap();
    let dataset = Dataset::open(folder.path().to_str().unwrap()).unwrap();
    let error = dataset.verify().unwrap_err();
    let message = error.to_string();
    let range = all[1].range(1);
    let words = format!("{} is intact, but bytes {} to {} have", written.shards[1].path, range.start, range.end - 1);
    assert!(message.contains("checksums.json does not belong") && message.contains(&words), "{message}");
    assert_eq!(dataset.damaged_shard(&error), None);
    let group = dataset.row_groups().iter().position(|group| group.shard == 1).unwrap();
    assert!(dataset.read(group + 1).unwrap_err().to_string().contains("according to checksums.json"));
}

/// Each range has the correct checksum, but the row groups of the footer are elsewhere.
#[test]
fn a_row_group_outside_its_range_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let written = write(folder.path(), 95, 3);
    let bytes = std::fs::read(folder.path().join(&written.shards[1].path)).unwrap();
    let mut all = checksums(folder.path(), &written);
    let ranges = &mut all[1];
    (ranges.range_bytes[0], ranges.range_bytes[1]) = (ranges.range_bytes[0] - 9, ranges.range_bytes[1] + 9);
    for index in [0, 1] {
        let range = ranges.range(index);
        ranges.range_sha256[index] = Digest::of(&bytes[range.start as usize..range.end as usize]);
    }
    std::fs::write(folder.path().join(CHECKSUMS), ranges::to_json(&written, &all)).unwrap();
    let dataset = Dataset::open(folder.path().to_str().unwrap()).unwrap();
    let group = dataset.row_groups().iter().position(|group| group.shard == 1).unwrap();
    let error = dataset.read(group).unwrap_err();
    assert_eq!(dataset.damaged_shard(&error), Some(1), "{error}");
    assert!(std::error::Error::source(&error).unwrap().to_string().contains("expected a range within"), "{error:?}");
}

#[test]
fn missing_or_truncated_files_are_named_on_open() {
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
fn a_changed_vocabulary_is_detected() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), 30, 2);
    let path = folder.path().join("vocab.txt");
    std::fs::write(&path, String::from_utf8_lossy(VOCABULARY).replace('a', "x")).unwrap();
    let dataset = Dataset::open(folder.path().to_str().unwrap()).unwrap();
    assert!(dataset.vocabulary().unwrap_err().to_string().contains("vocab.txt"));
}

#[test]
fn invalid_rows_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |ids: &[u32], start| {
        let sample = Sample { input_ids: ids, segment_b_start: start, pair_label: 0 };
        lambert_dataset::write(folder.path(), manifest(), VOCABULARY, &[sample], 1, 10).is_err()
    };
    assert!(refused(&[], 0) && refused(&[2, 3], 2) && refused(&vec![5; 70_000], 0));
    assert!(!refused(&[2, 3], 0));
}

#[test]
fn rows_without_pairs_have_no_label() {
    let folder = tempfile::tempdir().unwrap();
    let sample = |pair_label| Sample { input_ids: &[2, 5, 3], segment_b_start: 0, pair_label };
    let manifest = |pair| Manifest { samples: SampleRules { pair, ..manifest().samples }, ..manifest() };
    let read = |pair, label| {
        lambert_dataset::write(folder.path(), manifest(pair), VOCABULARY, &[sample(label)], 1, 10).unwrap();
        Dataset::open(folder.path().to_str().unwrap()).unwrap().read(0).map(|samples| samples.pair_label)
    };
    assert_eq!(read(Pair::None, NO_PAIR).unwrap(), [NO_PAIR]);
    assert_eq!(read(Pair::Sop, 1).unwrap(), [1]);
    let refused = |pair, label| read(pair, label).unwrap_err().to_string();
    assert!(refused(Pair::Nsp, NO_PAIR).contains("row 0 has no pair label, expected 0 or 1"));
    assert!(refused(Pair::None, 1).contains("row 0 has pair label 1, expected none"));
}

/// Columns of a shard with the rows [2, 5, 3] and [2, 6, 3].
struct Columns {
    length: [i32; 2],
    segment_b_start: [i32; 2],
    pair_label: [i32; 2],
}

/// A dataset whose shard was written by another program.
fn foreign(folder: &Path, columns: &Columns) -> Dataset {
    let sample = |ids| Sample { input_ids: ids, segment_b_start: 2, pair_label: 1 };
    let mut manifest =
        lambert_dataset::write(folder, manifest(), VOCABULARY, &[sample(&[2, 5, 3]), sample(&[2, 6, 3])], 1, 10)
            .unwrap();
    let schema = "message sample {
        required group input_ids (LIST) { repeated group list { required int32 element (INTEGER(16,false)); } }
        required int32 length (INTEGER(16,false));
        required int32 segment_b_start (INTEGER(16,false));
        optional int32 pair_label (INTEGER(8,false));
    }";
    let schema = Arc::new(parse_message_type(schema).unwrap());
    let mut bytes = Vec::new();
    let mut writer = SerializedFileWriter::new(&mut bytes, schema, Default::default()).unwrap();
    let mut group = writer.next_row_group().unwrap();
    type Levels<'a> = Option<&'a [i16]>;
    let columns: [(&[i32], Levels<'_>, Levels<'_>); 4] = [
        (&[2, 5, 3, 2, 6, 3], Some(&[1; 6]), Some(&[0, 1, 1, 0, 1, 1])),
        (&columns.length, None, None),
        (&columns.segment_b_start, None, None),
        (&columns.pair_label, Some(&[1; 2]), None),
    ];
    for (values, definition, repetition) in columns {
        let mut column = group.next_column().unwrap().unwrap();
        column.typed::<Int32Type>().write_batch(values, definition, repetition).unwrap();
        column.close().unwrap();
    }
    group.close().unwrap();
    writer.close().unwrap();
    let shard = &mut manifest.shards[0];
    (shard.bytes, shard.sha256) = (bytes.len() as u64, sha256_hex(&bytes));
    std::fs::remove_file(folder.join(CHECKSUMS)).unwrap();
    std::fs::write(folder.join(&shard.path), bytes).unwrap();
    std::fs::write(folder.join("manifest.json"), manifest.to_json()).unwrap();
    Dataset::open(folder.to_str().unwrap()).unwrap()
}

#[test]
fn rows_of_other_programs_are_checked_when_read() {
    let folder = tempfile::tempdir().unwrap();
    let good = || Columns { length: [3, 3], segment_b_start: [2, 3], pair_label: [0, 1] };
    let read = foreign(folder.path(), &good()).read(0).unwrap();
    assert_eq!(
        (read.ids(1), &read.segment_b_start[..], &read.pair_label[..]),
        (&[2, 6, 3][..], &[2, 3][..], &[0, 1][..])
    );
    let refused = |columns: Columns, words: &str| {
        let dataset = foreign(folder.path(), &columns);
        let message = dataset.read(0).unwrap_err().to_string();
        assert!(message.contains(words) && message.contains("row group 0"), "{message}");
        if columns.length != [3, 3] && columns.length != [2, 3] {
            assert_eq!(dataset.lengths(0).unwrap_err().to_string(), message);
        }
    };
    for length in [0, -1, 17, 1 << 16] {
        let words = format!("row 1 has {length} tokens, expected 1 to 16");
        refused(Columns { length: [3, length], ..good() }, &words);
    }
    refused(Columns { length: [2, 3], segment_b_start: [0, 0], ..good() }, "input_ids has 6 values, expected 5");
    for start in [4, -1, 1 << 16] {
        let words = format!("row 0: the second segment starts at {start}, but the row has 3 tokens");
        refused(Columns { segment_b_start: [start, 0], ..good() }, &words);
    }
    refused(Columns { pair_label: [2, 0], ..good() }, "row 0 has pair label 2, expected 0 or 1");
    refused(Columns { pair_label: [0, -1], ..good() }, "row 1 has pair label 254, expected 0 or 1");
}
