//! Untrusted datasets and inputs. Any manifest or shard is either read or refused, without a panic and in bounded memory. The
//! error contains the file name.
#![allow(clippy::unwrap_used)] // Tests fail by panicking.

#[path = "../../tests/support/samples.rs"]
mod samples;

use std::error::Error;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use lambert_config::prep::{FormatName, Source};
use lambert_data_prep::source::{find_files, open_reader};
use lambert_data_prep::statistics::{ScanOptions, scan};
use lambert_dataset::random::{Key, Rng};
use lambert_dataset::ranges::{self, CHECKSUMS, ShardRanges};
use lambert_dataset::{Dataset, DatasetError, Digest, Manifest, SourceCounts, TokenUsage, sha256_hex};
use samples::Shape;

/// Memory limit for any read, bytes. The datasets in these tests have a few kilobytes.
const MEMORY: u64 = 512 << 20;

fn write(folder: &Path) -> Vec<u8> {
    samples::write(folder, &Shape { rows: 60, longest: 16, rows_per_group: 10, shards: 2, pieces: 40 });
    std::fs::read(folder.join("manifest.json")).unwrap()
}

/// Reads all files and rows of a dataset.
fn read(url: &str) -> Result<(), DatasetError> {
    let dataset = Dataset::open(url)?;
    let _ = (dataset.sizes(), dataset.rows());
    (0..dataset.row_groups().len()).try_for_each(|group| dataset.lengths(group).map(drop))?;
    TokenUsage::of(&dataset)?;
    dataset.verify()
}

/// Reads the dataset and returns true if that succeeded. Fails the test on a panic, or if the error does not name a
/// file of the dataset.
fn attempt(folder: &Path, what: &str) -> bool {
    let result = catch_unwind(AssertUnwindSafe(|| read(folder.to_str().unwrap())));
    let Err(error) = result.unwrap_or_else(|_| panic!("{what}: a panic")) else { return true };
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(source) = cause {
        text += &format!(": {source}");
        cause = source.source();
    }
    let named = text.contains(&format!("{}/", folder.display()));
    assert!(named, "{what}: no file of the dataset is named in {text}");
    false
}

fn peak_memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().strip_suffix(" kB").unwrap().trim().parse::<u64>().unwrap() << 10
}

/// Returns a random run of bytes that satisfy `wanted`, or an empty range at the start if there is no such run.
fn some_run(bytes: &[u8], rng: &mut Rng, wanted: impl Fn(u8) -> bool) -> std::ops::Range<usize> {
    let starts: Vec<usize> =
        (0..bytes.len()).filter(|&at| wanted(bytes[at]) && (at == 0 || !wanted(bytes[at - 1]))).collect();
    let start = if starts.is_empty() { 0 } else { starts[rng.below(starts.len() as u64) as usize] };
    start..bytes.len().min(start + bytes[start..].iter().take_while(|&&byte| wanted(byte)).count())
}

/// Numbers at or beyond the limits of integer types.
const NUMBERS: [&str; 11] = [
    "0",
    "-1",
    "1.5",
    "65536",
    "4294967296",
    "9223372036854775807",
    "9223372036854775808",
    "18446744073709551615",
    "18446744073709551616",
    "1e300",
    "1e999",
];
const TEXTS: [&str; 7] = ["", "../victim", "/etc/passwd", "\\u0000", "a\\nb", "\u{1f600}", "manifest.json"];

fn change_json(bytes: &mut Vec<u8>, rng: &mut Rng) {
    match rng.below(6) {
        0 => {
            let at = rng.below(bytes.len() as u64) as usize;
            bytes[at] ^= 1 << rng.below(8);
        }
        1 => bytes.truncate(rng.below(bytes.len() as u64) as usize),
        2 | 3 => {
            let number = some_run(bytes, rng, |byte| byte.is_ascii_digit());
            bytes.splice(number, NUMBERS[rng.below(NUMBERS.len() as u64) as usize].bytes());
        }
        4 => {
            let text = some_run(bytes, rng, |byte| byte.is_ascii_alphanumeric() || byte == b'.' || byte == b'-');
            bytes.splice(text, TEXTS[rng.below(TEXTS.len() as u64) as usize].bytes());
        }
        _ => {
            let line = some_run(bytes, rng, |byte| byte != b'\n');
            let copy =
                if rng.chance(0.5) { Vec::new() } else { [&bytes[line.clone()], b"\n", &bytes[line.clone()]].concat() };
            bytes.splice(line, copy);
        }
    }
}

fn change_bytes(bytes: &mut Vec<u8>, rng: &mut Rng) {
    // At least half of the changes are in the footer, which contains the offsets.
    let first = if rng.chance(0.5) { bytes.len() - bytes.len().min(600) } else { 0 };
    let mut place = |bytes: &[u8]| first + rng.below((bytes.len() - first) as u64) as usize;
    let at = place(bytes);
    match rng.below(5) {
        0 | 1 => bytes[at] ^= 1 << rng.below(8),
        2 => bytes[at] = [0, 1, 0x7f, 0x80, 0xff][rng.below(5) as usize],
        3 => {
            let end = bytes.len().min(at + 1 + rng.below(9) as usize);
            bytes[at..end].fill(0xff);
        }
        _ => {
            let end = bytes.len().min(at + rng.below(40) as usize);
            bytes.drain(at..end);
        }
    }
}

#[test]
fn changed_checksums_are_read_or_refused() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path());
    let file = folder.path().join(CHECKSUMS);
    let original = std::fs::read(&file).unwrap();
    let mut read = 0;
    for seed in 0..1000 {
        let mut rng = Key::new(seed).rng();
        let mut bytes = original.clone();
        (0..=rng.below(3)).for_each(|_| {
            if !bytes.is_empty() {
                change_json(&mut bytes, &mut rng);
            }
        });
        std::fs::write(&file, &bytes).unwrap();
        read += u32::from(attempt(folder.path(), &format!("checksums of seed {seed}")));
    }
    assert!((1..500).contains(&read), "{read} of 1000 were read");
    assert!(peak_memory() < MEMORY, "{} bytes of memory", peak_memory());
}

#[test]
fn a_changed_manifest_is_read_or_refused() {
    let folder = tempfile::tempdir().unwrap();
    let original = write(folder.path());
    let mut read = 0;
    for seed in 0..3000 {
        let mut rng = Key::new(seed).rng();
        let mut bytes = original.clone();
        (0..=rng.below(3)).for_each(|_| {
            if !bytes.is_empty() {
                change_json(&mut bytes, &mut rng);
            }
        });
        std::fs::write(folder.path().join("manifest.json"), &bytes).unwrap();
        read += u32::from(attempt(folder.path(), &format!("manifest of seed {seed}")));
    }
    assert!((1..2000).contains(&read), "{read} of 3000 were read");
    assert!(peak_memory() < MEMORY, "{} bytes of memory", peak_memory());
}

/// Returns ranges for the file content `bytes`, with correct checksums. The last range has the change of the size.
fn fitted(ranges: &ShardRanges, bytes: &[u8]) -> ShardRanges {
    let mut fitted = ShardRanges::default();
    for index in 0..=ranges.footer() {
        let all = bytes.len() as u64;
        let (start, end) = (ranges.range(index).start.min(all), ranges.range(index).end.min(all));
        let end = if index == ranges.footer() { all } else { end };
        fitted.push(end - start, Digest::of(&bytes[start as usize..end as usize]));
    }
    fitted
}

/// The manifest has the SHA-256 of the changed bytes, so that the Parquet library reads them.
#[test]
fn a_changed_shard_is_read_or_refused() {
    let folder = tempfile::tempdir().unwrap();
    let manifest = Manifest::from_json(&write(folder.path())).unwrap();
    let path = folder.path().join(&manifest.shards[0].path);
    let original = std::fs::read(&path).unwrap();
    let checksums = ranges::parse(&std::fs::read(folder.path().join(CHECKSUMS)).unwrap(), &manifest).unwrap();
    let mut read = 0;
    for seed in 0..3000 {
        let mut rng = Key::new(seed).rng();
        let mut bytes = original.clone();
        (0..=rng.below(3)).for_each(|_| {
            if bytes.len() > 1 {
                change_bytes(&mut bytes, &mut rng);
            }
        });
        std::fs::write(&path, &bytes).unwrap();
        let mut manifest = manifest.clone();
        let shard = &mut manifest.shards[0];
        (shard.bytes, shard.sha256) = (bytes.len() as u64, sha256_hex(&bytes));
        let mut checksums = checksums.clone();
        checksums[0] = fitted(&checksums[0], &bytes);
        let file = folder.path().join(CHECKSUMS);
        match rng.chance(0.5) {
            true => std::fs::write(file, ranges::to_json(&manifest, &checksums)).unwrap(),
            false => drop(std::fs::remove_file(file)),
        }
        std::fs::write(folder.path().join("manifest.json"), manifest.to_json()).unwrap();
        read += u32::from(attempt(folder.path(), &format!("shard of seed {seed}")));
    }
    assert!((1..2000).contains(&read), "{read} of 3000 were read");
    assert!(peak_memory() < MEMORY, "{} bytes of memory", peak_memory());
}

/// Replaces a string in the manifest and returns the error that opening the dataset reports.
fn refused(from: &str, to: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    let text = String::from_utf8(write(folder.path())).unwrap();
    let changed = text.replacen(from, to, 1);
    assert_ne!(text, changed, "no {from:?}");
    std::fs::write(folder.path().join("manifest.json"), changed).unwrap();
    let opened = catch_unwind(AssertUnwindSafe(|| Dataset::open(folder.path().to_str().unwrap())));
    let error = opened.unwrap_or_else(|_| panic!("{to}: a panic")).map(drop).unwrap_err().to_string();
    assert!(error.contains("manifest.json: "), "{error}");
    error
}

#[test]
fn impossible_numbers_are_refused_when_a_dataset_is_opened() {
    let rows = refused("        10,", "        18446744073709551615,");
    assert!(rows.contains("its row groups have too many"), "{rows}");
    let size = refused("\"size\": 40", "\"size\": 4000000000000");
    assert!(size.contains("a vocabulary of 4000000000000 tokens in"), "{size}");
    let length = refused("\"sequence_length\": 16", "\"sequence_length\": 100000");
    assert!(length.contains("sequence_length is 100000, expected 1 to 65535"), "{length}");
    let name = refused("\"path\": \"vocab.txt\"", "\"path\": \"../vocab.txt\"");
    assert!(name.contains("\"../vocab.txt\" is not a file name"), "{name}");
}

#[test]
fn counts_that_add_up_to_too_many_do_not_overflow() {
    let folder = tempfile::tempdir().unwrap();
    let mut manifest = Manifest::from_json(&write(folder.path())).unwrap();
    let source = SourceCounts {
        format: FormatName::default(),
        excluded: false,
        files: 1,
        stored_bytes: 1,
        text_bytes: 1,
        found: 1,
        documents: 1,
        duplicates: u64::MAX,
        sentences: 1,
        tokens: 1,
    };
    manifest.sources = vec![source; 2];
    std::fs::write(folder.path().join("manifest.json"), manifest.to_json()).unwrap();
    let url = folder.path().to_str().unwrap();
    let options = ScanOptions { threads: 1, samples: None, seed: 1, progress: &|_, _| {} };
    assert_eq!(scan(url, &options).unwrap().duplicates.removed_documents, u64::MAX);
    manifest.shards.iter_mut().for_each(|shard| shard.bytes = u64::MAX);
    std::fs::write(folder.path().join("manifest.json"), manifest.to_json()).unwrap();
    assert!(!attempt(folder.path(), "shards of u64::MAX bytes"));
}

#[test]
fn a_manifest_that_is_too_large_is_not_read() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path());
    let file = std::fs::File::options().write(true).open(folder.path().join("manifest.json")).unwrap();
    // The file is sparse.
    file.set_len(1 << 40).unwrap();
    let error = Dataset::open(folder.path().to_str().unwrap()).map(drop).unwrap_err();
    let cause = error.source().unwrap().to_string();
    assert!(cause.contains("manifest.json") && cause.contains("268435456"), "{cause}");
}

/// As a `serde_json::Value`, the line would take more than 1 GB.
#[test]
fn other_fields_of_a_json_line_take_no_memory() {
    let file = tempfile::Builder::new().suffix(".jsonl").tempfile().unwrap();
    let line = format!("{{\"text\": \"The cow.\", \"x\": [{}0]}}\n", "0,".repeat(16 << 20));
    std::fs::write(file.path(), line).unwrap();
    let source = Source { path: file.path().display().to_string(), format: "jsonl".into(), ..Source::default() };
    let found = &find_files(std::slice::from_ref(&source), 1).unwrap()[0];
    let document = open_reader(&source, found, Default::default()).unwrap().next().unwrap().unwrap();
    assert_eq!(document.bytes, b"The cow.");
    assert!(peak_memory() < MEMORY, "{} bytes of memory", peak_memory());
}
