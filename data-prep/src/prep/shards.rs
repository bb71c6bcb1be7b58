//! The second half, last step: the samples of all files in the order of their keys, to shards.

use std::ops::Range;
use std::path::{Path, PathBuf};

use super::PrepError;
use super::job::Job;
use super::levels::{Levels, SampleFile, token_counts};
use super::merge::merge;
use super::sample_file::{Contents, INTERVALS, SAMPLE_HEAD};
use super::sealed::{self, Sealed};
use crate::record::ids;
use lambert_dataset::{DatasetError, Sample, Shard, ShardWriter, shard_name};

/// All samples of a split.
pub struct Sorted {
    files: Vec<SampleFile>,
    /// Where each interval's samples start in each file, and where the last ones end.
    starts: Vec<Vec<u64>>,
    /// The number of the first sample of each interval, and of all samples.
    rows: Vec<u64>,
    width: usize,
}

impl Sorted {
    /// Opens the sample files.
    pub fn open(job: &Job<'_>, levels: &Levels<'_>) -> Result<Self, PrepError> {
        let files = levels.top()?;
        let mut rows = vec![0; INTERVALS + 1];
        let mut starts = Vec::new();
        for file in &files {
            let mut start = vec![0; INTERVALS + 1];
            for interval in 0..INTERVALS {
                let (count, bytes) = file.contents.intervals.get(&interval).copied().unwrap_or_default();
                start[interval + 1] = start[interval] + bytes;
                rows[interval + 1] += count;
            }
            starts.push(start);
        }
        (0..INTERVALS).for_each(|interval| rows[interval + 1] += rows[interval]);
        Ok(Self { files, starts, rows, width: ids::width(job.tokenizer.size()) })
    }

    /// Samples.
    pub fn len(&self) -> u64 {
        self.rows[INTERVALS]
    }

    /// What the files hold, one after another.
    pub fn contents(&self) -> impl Iterator<Item = &Contents> {
        self.files.iter().map(|file| &file.contents)
    }

    /// How often each token id stands in the samples; `[CLS]` and `[SEP]` are not counted.
    pub fn token_counts(&self, size: usize) -> Result<Vec<u64>, PrepError> {
        token_counts(&self.files, size)
    }

    /// Writes shard `index` of `count` to `folder`, unless it is there.
    pub fn write_shard(&self, folder: &Path, job: &Job<'_>, index: usize, count: usize) -> Result<Shard, PrepError> {
        let name = shard_name(index, count);
        let done = done_path(folder, &name);
        if done.exists() {
            tracing::debug!(shard = %name, "shard kept from an earlier start");
            return Sealed::open(&done).map(|(_, shard)| shard);
        }
        let row = |shard: usize| (u128::from(self.len()) * shard as u128 / count as u128) as u64;
        let mut writer = ShardWriter::create(folder, &name, job.tokenizer.size(), job.config.output.rows_per_group)?;
        self.each(job, row(index)..row(index + 1), &mut writer)?;
        let shard = writer.finish()?;
        tracing::debug!(shard = %name, rows = shard.rows, bytes = shard.bytes, folder = %folder.display(), "shard written");
        sealed::write(&done, |_| Ok(shard))
    }

    /// Gives the samples with the numbers `wanted` to `writer`.
    fn each(&self, job: &Job<'_>, wanted: Range<u64>, writer: &mut ShardWriter) -> Result<(), PrepError> {
        let first = self.rows.partition_point(|&row| row <= wanted.start).saturating_sub(1);
        let cursors = self.files.iter().zip(&self.starts).map(|(file, start)| file.cursor(start[first], self.width));
        let (mut row, mut ids, mut failed) = (self.rows[first], Vec::new(), None);
        let merged = merge(cursors.collect(), |sample| {
            if row >= wanted.end {
                return Ok(false);
            }
            if row >= wanted.start {
                failed = self.write(sample, &mut ids, writer).err();
            }
            row += 1;
            Ok(failed.is_none())
        });
        merged.map_err(|source| PrepError::Work { operation: "read from", path: job.folder().to_owned(), source })?;
        failed.map_or(Ok(()), |error| Err(error.into()))
    }

    fn write(&self, sample: &[u8], ids: &mut Vec<u32>, writer: &mut ShardWriter) -> Result<(), DatasetError> {
        let word = |at: usize| u16::from_le_bytes([sample[at], sample[at + 1]]);
        let tokens = &sample[SAMPLE_HEAD..];
        ids.clear();
        ids::read(tokens, self.width, ids);
        writer.push(Sample { input_ids: ids, segment_b_start: word(10), pair_label: sample[12] })
    }
}

/// The file that says a shard is finished, and what its manifest entry is.
fn done_path(folder: &Path, name: &str) -> PathBuf {
    folder.with_extension("done").join(format!("{name}.done"))
}
