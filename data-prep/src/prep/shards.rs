//! The second half, second step: the samples of all buckets in the order of their keys, to shards.

use std::path::{Path, PathBuf};

use super::PrepError;
use super::buckets::{self, Contents, INTERVALS, SAMPLE_HEAD, Split};
use super::job::Job;
use super::sealed::{self, Sealed};
use super::spill::id_width;
use crate::dataset::{Sample, Shard, ShardWriter, shard_name};

/// Bytes of samples that are sorted at once, about.
const SORTED: u64 = 16 << 20;

/// All samples of a split, as its buckets left them.
pub struct Sorted {
    files: Vec<(Sealed, Contents)>,
    /// Where each interval's samples start in each file, and where the last ones end.
    starts: Vec<Vec<u64>>,
    /// The number of the first sample of each interval, and of all samples.
    rows: Vec<u64>,
    width: usize,
}

impl Sorted {
    /// Opens the sample files of every bucket.
    pub fn open(job: &Job<'_>, split: &Split) -> Result<Self, PrepError> {
        let files: Vec<(Sealed, Contents)> = (0..split.buckets())
            .map(|bucket| Sealed::open(&buckets::path(job, split, bucket)))
            .collect::<Result<_, _>>()?;
        let mut rows = vec![0; INTERVALS + 1];
        let mut starts = Vec::new();
        for (_, contents) in &files {
            let mut start = vec![0; INTERVALS + 1];
            for interval in 0..INTERVALS {
                let (count, bytes) = contents.intervals.get(&interval).copied().unwrap_or_default();
                start[interval + 1] = start[interval] + bytes;
                rows[interval + 1] += count;
            }
            starts.push(start);
        }
        (0..INTERVALS).for_each(|interval| rows[interval + 1] += rows[interval]);
        Ok(Self { files, starts, rows, width: id_width(job.tokenizer.size()) })
    }

    /// Samples.
    pub fn len(&self) -> u64 {
        self.rows[INTERVALS]
    }

    /// What the buckets counted, one after another.
    pub fn contents(&self) -> impl Iterator<Item = &Contents> {
        self.files.iter().map(|(_, contents)| contents)
    }

    /// How often each token id stands in the samples; `[CLS]` and `[SEP]` are not counted.
    pub fn token_counts(&self, size: usize) -> Result<Vec<u64>, PrepError> {
        let mut counts = vec![0; size];
        for (file, contents) in &self.files {
            let bytes = file.read(contents.bytes, size * 8)?;
            for (count, word) in counts.iter_mut().zip(bytes.chunks_exact(8)) {
                *count += word.try_into().map_or(0, u64::from_le_bytes);
            }
        }
        Ok(counts)
    }

    /// Writes shard `index` of `count` to `folder`, unless it is there.
    pub fn write_shard(&self, folder: &Path, job: &Job<'_>, index: usize, count: usize) -> Result<Shard, PrepError> {
        let name = shard_name(index, count);
        let done = done_path(folder, &name);
        if done.exists() {
            return Sealed::open(&done).map(|(_, shard)| shard);
        }
        let row = |shard: usize| (u128::from(self.len()) * shard as u128 / count as u128) as u64;
        let mut writer = ShardWriter::create(folder, &name, job.tokenizer.size(), job.config.output.rows_per_group)?;
        self.each(row(index)..row(index + 1), &mut writer)?;
        let shard = writer.finish()?;
        sealed::write(&done, |_| Ok(shard))
    }

    /// Gives the samples with the numbers `wanted` to `writer`.
    fn each(&self, wanted: std::ops::Range<u64>, writer: &mut ShardWriter) -> Result<(), PrepError> {
        let mut first = self.rows.partition_point(|&row| row <= wanted.start).saturating_sub(1);
        while first < INTERVALS && self.rows[first] < wanted.end {
            let mut last = first + 1;
            while last < INTERVALS && self.rows[last] < wanted.end && self.bytes(first, last + 1) <= SORTED {
                last += 1;
            }
            self.emit(first, last, &wanted, writer)?;
            first = last;
        }
        Ok(())
    }

    fn bytes(&self, first: usize, last: usize) -> u64 {
        self.starts.iter().map(|start| start[last] - start[first]).sum()
    }

    /// Sorts the samples of some intervals and gives those that are `wanted` to `writer`.
    fn emit(
        &self,
        first: usize,
        last: usize,
        wanted: &std::ops::Range<u64>,
        writer: &mut ShardWriter,
    ) -> Result<(), PrepError> {
        let mut loaded = Vec::new();
        for ((file, _), start) in self.files.iter().zip(&self.starts) {
            loaded.push(file.read(start[first], (start[last] - start[first]) as usize)?);
        }
        let mut found: Vec<(u64, usize, usize)> = Vec::new();
        for (bucket, bytes) in loaded.iter().enumerate() {
            let mut at = 0;
            while at < bytes.len() {
                found.push((number(bytes, at, 8), bucket, at));
                at += SAMPLE_HEAD + number(bytes, at + 8, 2) as usize * self.width;
            }
        }
        found.sort_unstable();
        let skip = wanted.start.saturating_sub(self.rows[first]) as usize;
        let take = (wanted.end - self.rows[first].max(wanted.start)) as usize;
        let mut ids = Vec::new();
        for &(_, bucket, at) in found.iter().skip(skip).take(take) {
            let bytes = &loaded[bucket];
            let length = number(bytes, at + 8, 2) as usize;
            ids.clear();
            ids.extend(
                (0..length).map(|index| number(bytes, at + SAMPLE_HEAD + index * self.width, self.width) as u32),
            );
            let (segment_b_start, pair_label) = (number(bytes, at + 10, 2) as u16, bytes[at + 12]);
            writer.push(Sample { input_ids: &ids, segment_b_start, pair_label })?;
        }
        Ok(())
    }
}

fn number(bytes: &[u8], at: usize, width: usize) -> u64 {
    let mut word = [0; 8];
    word[..width].copy_from_slice(&bytes[at..at + width]);
    u64::from_le_bytes(word)
}

/// The file that says a shard is finished, and what its manifest entry is.
fn done_path(folder: &Path, name: &str) -> PathBuf {
    folder.with_extension("done").join(format!("{name}.done"))
}
