//! The second half, first step: the documents of each bucket to samples, sorted by the keys of the global shuffle.

use std::collections::BTreeMap;
use std::io::Write;
use std::ops::Range;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::duplicates::Removed;
use super::heads::Head;
use super::job::{Job, Run};
use super::spill::{DocumentId, HELD_OUT_CELLS, TRAIN_CELLS, Totals, id_width};
use super::{PrepError, sealed};
use crate::random::Key;
use crate::samples::{self, Bucket, Rules};

/// Tokens that a bucket should hold: little memory, and work for many threads.
const TOKENS: u64 = 4 << 20;
/// Documents that a bucket should hold at the least, so that pairs are of many documents.
const DOCUMENTS: u64 = 16;
/// Tokens beyond which a bucket is divided even if it holds few documents.
const MOST_TOKENS: u64 = 64 << 20;
/// The space of shuffle keys is cut into this many equal intervals for the index of a bucket's samples.
pub const INTERVALS: usize = 4096;
/// Bytes before the ids of a sample: key, length, start of the second segment, pair label.
pub const SAMPLE_HEAD: usize = 13;

/// One of the two datasets.
#[derive(Debug, Clone)]
pub struct Split {
    /// `train` or `held-out`.
    pub name: &'static str,
    /// How much goes in.
    pub totals: Totals,
    cells: Vec<Range<u16>>,
    only: Option<DocumentId>,
    except: Option<DocumentId>,
}

/// What a bucket's sample file holds.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Contents {
    /// Rows and bytes of each interval of keys that has any, in order.
    pub intervals: BTreeMap<usize, (u64, u64)>,
    /// Bytes of all samples; behind them stand the counts of every token id, 8 bytes each.
    pub bytes: u64,
    /// Samples.
    pub samples: u64,
    /// Tokens, special pieces included.
    pub tokens: u64,
    /// Samples whose second segment was replaced or swapped.
    pub positive_pairs: u64,
}

impl Split {
    /// Both datasets, as the documents that are there divide into them.
    pub fn all(job: &Job<'_>, runs: &[Run], removed: &Removed) -> Result<Vec<Self>, PrepError> {
        let totals = |cells: Range<u16>| {
            let mut sum = Totals::default();
            let parts = runs.iter().flat_map(|run| run.contents.cells.range(cells.clone()));
            parts.for_each(|(_, part)| sum += part.totals);
            removed.subtract(cells, &mut sum);
            sum
        };
        let cells = TRAIN_CELLS..TRAIN_CELLS + HELD_OUT_CELLS;
        let (mut train, mut held_out) = (totals(0..TRAIN_CELLS), totals(cells));
        let mut lone = None;
        if job.config.samples.held_out > 0.0 && held_out.documents == 0 && train.documents > 1 {
            let head = least(job, runs, removed)?;
            lone = head.map(|head| head.id);
            if let Some(head) = head {
                held_out = head.totals;
                train -= head.totals;
            }
        }
        let held_out_cells = match lone {
            Some(_) => divide(0, TRAIN_CELLS, 1),
            None => divide(TRAIN_CELLS, HELD_OUT_CELLS, bucket_count(held_out, HELD_OUT_CELLS)),
        };
        let train_cells = divide(0, TRAIN_CELLS, bucket_count(train, TRAIN_CELLS));
        Ok(vec![
            Self { name: "train", totals: train, cells: train_cells, only: None, except: lone },
            Self { name: "held-out", totals: held_out, cells: held_out_cells, only: lone, except: None },
        ])
    }

    /// Buckets.
    pub fn buckets(&self) -> usize {
        if self.totals.documents == 0 { 0 } else { self.cells.len() }
    }

    /// Tokens of a bucket, those of documents left out included.
    pub fn tokens(&self, runs: &[Run], bucket: usize) -> u64 {
        let cells = self.cells[bucket].clone();
        runs.iter().flat_map(|run| run.contents.cells.range(cells.clone())).map(|(_, part)| part.totals.tokens).sum()
    }

    fn keep(&self, id: DocumentId) -> bool {
        self.only.is_none_or(|only| only == id) && self.except != Some(id)
    }
}

/// The document that is held out where the configured share gives none: the one with the least key.
fn least(job: &Job<'_>, runs: &[Run], removed: &Removed) -> Result<Option<Head>, PrepError> {
    let mut least: Option<(u64, Head)> = None;
    for run in runs {
        run.each_head(|_, bytes| {
            let head = Head::read(bytes);
            let key = head.id.key(job.config.samples.seed, "least").value();
            if head.cell < TRAIN_CELLS && !removed.contains(head.id) && least.is_none_or(|(other, _)| key < other) {
                least = Some((key, head));
            }
        })?;
    }
    Ok(least.map(|(_, head)| head))
}

fn bucket_count(totals: Totals, cells: u16) -> u16 {
    let wanted = totals.tokens.div_ceil(TOKENS).min(totals.documents / DOCUMENTS);
    let needed = totals.tokens.div_ceil(MOST_TOKENS);
    wanted.max(needed).clamp(1, u64::from(cells)).next_power_of_two() as u16
}

fn divide(first: u16, cells: u16, buckets: u16) -> Vec<Range<u16>> {
    let size = cells / buckets;
    (0..buckets).map(|bucket| first + bucket * size..first + (bucket + 1) * size).collect()
}

/// Where the samples of a bucket go.
pub fn path(job: &Job<'_>, split: &Split, bucket: usize) -> PathBuf {
    job.folder().join(format!("{}-{bucket:05}.samples", split.name))
}

/// Makes the samples of a bucket, unless they are there.
pub fn make(job: &Job<'_>, runs: &[Run], removed: &Removed, split: &Split, bucket: usize) -> Result<(), PrepError> {
    let path = path(job, split, bucket);
    if path.exists() {
        return Ok(());
    }
    let documents = load(job, runs, removed, split, bucket)?;
    let weight = |id: DocumentId| job.sources[job.files[id.file as usize].source].weight;
    let rules = Rules { samples: &job.config.samples, special: job.tokenizer.special(), weight: &weight };
    let mut collected = Collected::new(job.tokenizer.size());
    let key = Key::new(rules.samples.seed).with_bytes(b"shuffle").with_bytes(split.name.as_bytes()).with(bucket as u64);
    samples::make(&documents, &rules, &mut |ids, start, label| {
        collected.push(key.with(collected.records.len() as u64), ids, start, label, &rules);
    });
    drop(documents);
    collected.write(&path).map(drop)
}

fn load(job: &Job<'_>, runs: &[Run], removed: &Removed, split: &Split, bucket: usize) -> Result<Bucket, PrepError> {
    let cells = split.cells[bucket].clone();
    let mut bytes = Vec::new();
    for run in runs {
        let parts: Vec<_> = run.contents.cells.range(cells.clone()).map(|(_, part)| part).collect();
        let (Some(first), Some(last)) = (parts.first(), parts.last()) else { continue };
        bytes.extend_from_slice(&run.file.read(first.at, (last.at + last.bytes - first.at) as usize)?);
    }
    Bucket::new(bytes, id_width(job.tokenizer.size()), |id| split.keep(id) && !removed.contains(id))
        .ok_or_else(|| PrepError::Damaged { path: job.runs_folder() })
}

struct Collected {
    width: usize,
    bytes: Vec<u8>,
    /// Key, number, start and end in `bytes`.
    records: Vec<(u64, u32, usize, usize)>,
    counts: Vec<u64>,
    contents: Contents,
}

impl Collected {
    fn new(vocabulary_size: usize) -> Self {
        let (bytes, records, contents) = (Vec::new(), Vec::new(), Contents::default());
        Self { width: id_width(vocabulary_size), bytes, records, counts: vec![0; vocabulary_size], contents }
    }

    fn push(&mut self, key: Key, ids: &[u32], segment_b_start: u16, label: u8, rules: &Rules<'_>) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&key.value().to_le_bytes());
        self.bytes.extend_from_slice(&(ids.len() as u16).to_le_bytes());
        self.bytes.extend_from_slice(&segment_b_start.to_le_bytes());
        self.bytes.push(label);
        let width = self.width;
        for id in ids {
            self.bytes.extend_from_slice(&id.to_le_bytes()[..width]);
            self.counts[*id as usize] += 1;
        }
        // Those that frame the segments, not an [UNK] in the text.
        self.counts[rules.special.cls as usize] = 0;
        self.counts[rules.special.sep as usize] = 0;
        self.records.push((key.value(), self.records.len() as u32, start, self.bytes.len()));
        self.contents.samples += 1;
        self.contents.tokens += ids.len() as u64;
        self.contents.positive_pairs += u64::from(label == 1);
    }

    fn write(mut self, path: &std::path::Path) -> Result<Contents, PrepError> {
        self.records.sort_unstable();
        let mut contents = self.contents;
        sealed::write(path, |output| {
            for &(key, _, start, end) in &self.records {
                let interval = contents.intervals.entry(interval(key)).or_default();
                interval.0 += 1;
                interval.1 += (end - start) as u64;
                output.write_all(&self.bytes[start..end])?;
            }
            contents.bytes = self.bytes.len() as u64;
            self.counts.iter().try_for_each(|count| output.write_all(&count.to_le_bytes()))?;
            Ok(contents)
        })
    }
}

/// Which of the [`INTERVALS`] a key lies in.
fn interval(key: u64) -> usize {
    (key >> (u64::BITS - INTERVALS.trailing_zeros())) as usize
}
