//! Writes shards from the sample files, in the global order of the shuffle keys.

use std::ops::Range;
use std::path::{Path, PathBuf};

use super::PrepError;
use super::job::JobContext;
use super::merge::merge;
use super::merge_passes::{MergePasses, SampleFile, token_counts};
use super::sample_file::{INTERVALS, SAMPLE_HEADER_BYTES, SampleFileContents};
use super::work_file::{self, WorkFile};
use crate::record::ids;
use lambert_dataset::{DatasetError, Sample, ShardWriter, WrittenShard, shard_name};

/// All samples of a split.
pub struct SortedSamples {
    files: Vec<SampleFile>,
    /// Offsets of the key intervals in each file, followed by the end of the last interval.
    starts: Vec<Vec<u64>>,
    /// Row number of the first sample of each interval, followed by the number of samples.
    rows: Vec<u64>,
    width: usize,
}

impl SortedSamples {
    /// Opens the sample files of the last merge pass.
    pub fn open(job: &JobContext<'_>, merge_passes: &MergePasses<'_>) -> Result<Self, PrepError> {
        let files = merge_passes.open_last()?;
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

    /// Number of samples.
    pub fn len(&self) -> u64 {
        self.rows[INTERVALS]
    }

    /// JSON trailers of the sample files.
    pub fn contents(&self) -> impl Iterator<Item = &SampleFileContents> {
        self.files.iter().map(|file| &file.contents)
    }

    /// Count of each token ID in the samples, without `[CLS]` and `[SEP]`.
    pub fn token_counts(&self, size: usize) -> Result<Vec<u64>, PrepError> {
        token_counts(&self.files, size)
    }

    /// Writes shard `index` of `count` to `folder`, unless it is complete.
    pub fn write_shard(
        &self,
        folder: &Path,
        job: &JobContext<'_>,
        index: usize,
        count: usize,
    ) -> Result<WrittenShard, PrepError> {
        let name = shard_name(index, count);
        let completion = completion_path(folder, &name);
        if completion.exists() {
            tracing::debug!(shard = %name, "shard kept from an earlier start");
            return WorkFile::open(&completion).map(|(_, shard)| shard);
        }
        let row = |shard: usize| (u128::from(self.len()) * shard as u128 / count as u128) as u64;
        let mut writer = ShardWriter::create(folder, &name, job.tokenizer.size(), job.config.output.rows_per_group)?;
        self.write_rows(job, row(index)..row(index + 1), &mut writer)?;
        let written = writer.finish()?;
        let (rows, bytes) = (written.shard.rows, written.shard.bytes);
        tracing::debug!(shard = %name, rows, bytes, folder = %folder.display(), "shard written");
        work_file::write(&completion, |_| Ok(written))
    }

    /// Passes the samples in the range `rows` to `writer`.
    fn write_rows(&self, job: &JobContext<'_>, rows: Range<u64>, writer: &mut ShardWriter) -> Result<(), PrepError> {
        let first = self.rows.partition_point(|&row| row <= rows.start).saturating_sub(1);
        let cursors = self.files.iter().zip(&self.starts).map(|(file, start)| file.cursor(start[first], self.width));
        let (mut row, mut ids, mut failed) = (self.rows[first], Vec::new(), None);
        let merged = merge(cursors.collect(), |sample| {
            if row >= rows.end {
                return Ok(false);
            }
            if row >= rows.start {
                failed = self.write_row(sample, &mut ids, writer).err();
            }
            row += 1;
            Ok(failed.is_none())
        });
        merged.map_err(|source| PrepError::WorkIo { operation: "read from", path: job.folder().to_owned(), source })?;
        failed.map_or(Ok(()), |error| Err(error.into()))
    }

    fn write_row(&self, sample: &[u8], ids: &mut Vec<u32>, writer: &mut ShardWriter) -> Result<(), DatasetError> {
        let word = |at: usize| u16::from_le_bytes([sample[at], sample[at + 1]]);
        let tokens = &sample[SAMPLE_HEADER_BYTES..];
        ids.clear();
        ids::read(tokens, self.width, ids);
        writer.push(Sample { input_ids: ids, segment_b_start: word(10), pair_label: sample[12] })
    }
}

/// Path of the file that marks a shard as complete and contains its [`WrittenShard`].
fn completion_path(folder: &Path, name: &str) -> PathBuf {
    folder.with_extension("done").join(format!("{name}.done"))
}
