//! The samples of a bucket on their way into its file, sorted by their keys. Of many samples only some are in memory: the
//! others wait, sorted, in nameless files.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use super::job::Job;
use super::merge::{Cursor, merge};
use super::sample_file::{Contents, interval};
use super::{PrepError, sealed};
use crate::record::ids;
use lambert_dataset::random::Key;
use lambert_dataset::tokenizer::Special;

/// See the module.
pub struct Collected<'a> {
    job: &'a Job<'a>,
    width: usize,
    special: Special,
    bytes: Vec<u8>,
    /// Key, start and end in `bytes`.
    records: Vec<(u64, usize, usize)>,
    counts: Vec<u64>,
    contents: Contents,
    /// Those that were written already, in the order of their making.
    sorted: Vec<(File, u64)>,
}

impl<'a> Collected<'a> {
    /// None yet.
    pub fn new(job: &'a Job<'a>) -> Self {
        let size = job.tokenizer.size();
        Self {
            job,
            width: ids::width(size),
            special: job.tokenizer.special(),
            bytes: Vec::new(),
            records: Vec::new(),
            counts: vec![0; size],
            contents: Contents::default(),
            sorted: Vec::new(),
        }
    }

    /// Adds a sample; its own key follows from `key` and its number.
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
        let interval = self.contents.intervals.entry(interval(key)).or_default();
        (interval.0, interval.1) = (interval.0 + 1, interval.1 + length);
        if self.bytes.len() >= self.job.scale.sorted { self.put_aside() } else { Ok(()) }
    }

    fn put_aside(&mut self) -> Result<(), PrepError> {
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
            write().map_err(|source| PrepError::Work { operation: "write to", path: folder.to_owned(), source })?;
        self.sorted.push(written);
        self.bytes.clear();
        self.records.clear();
        Ok(())
    }

    /// Writes all of them to `path`, the counts of the token ids behind them.
    pub fn write(mut self, path: &Path) -> Result<(), PrepError> {
        if !self.sorted.is_empty() {
            self.put_aside()?;
        }
        // Those that frame the segments are not counted, but an [UNK] in the text is.
        self.counts[self.special.cls as usize] = 0;
        self.counts[self.special.sep as usize] = 0;
        sealed::write(path, |output| {
            if self.sorted.is_empty() {
                write_sorted(&self.bytes, &mut self.records, output)?;
            } else {
                let cursors =
                    self.sorted.iter().map(|(file, bytes)| Cursor::new(file, 0..*bytes, self.width)).collect();
                merge(cursors, |sample| output.write_all(sample).map(|()| true))?;
            }
            write_counts(&self.counts, output)?;
            Ok(self.contents)
        })
        .map(drop)
    }
}

/// Samples in the order of their keys, equal ones in that of their making.
fn write_sorted(bytes: &[u8], records: &mut [(u64, usize, usize)], output: &mut impl Write) -> std::io::Result<()> {
    records.sort_unstable();
    records.iter().try_for_each(|&(_, start, end)| output.write_all(&bytes[start..end]))
}

/// The counts of all token ids, 8 bytes each.
pub fn write_counts(counts: &[u64], output: &mut impl Write) -> std::io::Result<()> {
    counts.iter().try_for_each(|count| output.write_all(&count.to_le_bytes()))
}
