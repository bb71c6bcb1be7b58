//! External sort of the samples of a bucket by their shuffle keys. Sorted runs are written to unnamed temporary files
//! and then merged.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use super::job::JobContext;
use super::merge::{SampleCursor, merge};
use super::sample_file::{SampleFileContents, interval_of};
use super::{PrepError, work_file};
use crate::record::ids;
use lambert_dataset::random::Key;
use lambert_dataset::tokenizer::Special;

/// Sorts samples by key. Writes a sorted run to disk whenever the samples in memory reach
/// [`WorkLimits::sort_bytes`](super::job::WorkLimits::sort_bytes).
pub struct SortBuffer<'a> {
    job: &'a JobContext<'a>,
    width: usize,
    special: Special,
    bytes: Vec<u8>,
    /// Key of each sample, with its start and end in `bytes`.
    records: Vec<(u64, usize, usize)>,
    counts: Vec<u64>,
    contents: SampleFileContents,
    /// Sorted runs on disk with their lengths in bytes, in the order of creation.
    spilled: Vec<(File, u64)>,
}

impl<'a> SortBuffer<'a> {
    pub fn new(job: &'a JobContext<'a>) -> Self {
        let size = job.tokenizer.size();
        Self {
            job,
            width: ids::width(size),
            special: job.tokenizer.special(),
            bytes: Vec::new(),
            records: Vec::new(),
            counts: vec![0; size],
            contents: SampleFileContents::default(),
            spilled: Vec::new(),
        }
    }

    /// Adds a sample. Its shuffle key is derived from `key` and the index of the sample.
    pub fn push(&mut self, key: Key, ids: &[u32], segment_b_start: u16, label: u8) -> Result<(), PrepError> {
        let key = key.with(self.contents.samples).value();
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&key.to_le_bytes());
        self.bytes.extend_from_slice(&(ids.len() as u16).to_le_bytes());
        self.bytes.extend_from_slice(&segment_b_start.to_le_bytes());
        self.bytes.push(label);
        ids::write(ids, self.width, &mut self.bytes);
        ids.iter().for_each(|&id| self.counts[id as usize] += 1);
        let length = (self.bytes.len() - start) as u64;
        self.records.push((key, start, self.bytes.len()));
        self.contents.samples += 1;
        self.contents.bytes += length;
        self.contents.tokens += ids.len() as u64;
        self.contents.positive_pairs += u64::from(label == 1);
        let interval = self.contents.intervals.entry(interval_of(key)).or_default();
        (interval.0, interval.1) = (interval.0 + 1, interval.1 + length);
        if self.bytes.len() >= self.job.limits.sort_bytes { self.spill() } else { Ok(()) }
    }

    fn spill(&mut self) -> Result<(), PrepError> {
        let folder = self.job.folder();
        let mut write = || {
            let file = tempfile::tempfile_in(folder)?;
            let mut output = BufWriter::with_capacity(1 << 20, &file);
            write_sorted(&self.bytes, &mut self.records, &mut output)?;
            output.flush()?;
            drop(output);
            Ok((file, self.bytes.len() as u64))
        };
        let written =
            write().map_err(|source| PrepError::WorkIo { operation: "write to", path: folder.to_owned(), source })?;
        self.spilled.push(written);
        self.bytes.clear();
        self.records.clear();
        Ok(())
    }

    /// Writes the sorted samples to `path`, followed by the token counts.
    pub fn finish(mut self, path: &Path) -> Result<(), PrepError> {
        if !self.spilled.is_empty() {
            self.spill()?;
        }
        // The counts leave out the [CLS] and [SEP] that frame a sample. They include [UNK] tokens.
        self.counts[self.special.cls as usize] = 0;
        self.counts[self.special.sep as usize] = 0;
        work_file::write(path, |output| {
            if self.spilled.is_empty() {
                write_sorted(&self.bytes, &mut self.records, output)?;
            } else {
                let cursors =
                    self.spilled.iter().map(|(file, bytes)| SampleCursor::new(file, 0..*bytes, self.width)).collect();
                merge(cursors, |sample| output.write_all(sample).map(|()| true))?;
            }
            write_counts(&self.counts, output)?;
            Ok(self.contents)
        })
        .map(drop)
    }
}

/// Writes the samples in key order. Samples with equal keys keep the order of insertion.
fn write_sorted(bytes: &[u8], records: &mut [(u64, usize, usize)], output: &mut impl Write) -> std::io::Result<()> {
    records.sort_unstable();
    records.iter().try_for_each(|&(_, start, end)| output.write_all(&bytes[start..end]))
}

/// Writes the count of every token ID, 8 bytes each.
pub fn write_counts(counts: &[u64], output: &mut impl Write) -> std::io::Result<()> {
    counts.iter().try_for_each(|count| output.write_all(&count.to_le_bytes()))
}
