//! Merge passes over the sample files of a split. Pass 0 has one file per bucket. Each later pass merges groups of
//! adjacent files, until few enough files remain to be read at the same time.
//!
//! The inputs of a merged file are removed after the merged file is complete. So a restart finds the merged file, its
//! inputs, or both.

use std::fs::File;
use std::io::Write;
use std::path::PathBuf;

use super::PrepError;
use super::buckets::DatasetSplit;
use super::job::JobContext;
use super::merge::{SampleCursor, merge};
use super::sample_file::SampleFileContents;
use super::sort_buffer::write_counts;
use super::work_file::{self, WorkFile};
use crate::record::ids;

/// The sample files of a split after each pass.
pub struct MergePasses<'a> {
    job: &'a JobContext<'a>,
    split: String,
    /// Number of files after each pass. Entry 0 is the number of buckets.
    counts: Vec<usize>,
}

impl<'a> MergePasses<'a> {
    /// Plans the passes of `split`. The files need not exist.
    pub fn new(job: &'a JobContext<'a>, split: &DatasetSplit) -> Self {
        let mut counts = vec![split.buckets()];
        while let Some(&last) = counts.last().filter(|&&last| last > job.limits.merge_files) {
            counts.push(last.div_ceil(job.limits.merge_files));
        }
        Self { job, split: split.file_prefix(), counts }
    }

    /// Number of passes, including pass 0.
    pub fn passes(&self) -> usize {
        self.counts.len()
    }

    /// Number of files after a pass.
    pub fn files(&self, pass: usize) -> usize {
        self.counts[pass]
    }

    /// Path of a file.
    pub fn path(&self, pass: usize, index: usize) -> PathBuf {
        self.job.folder().join(format!("{}-{pass}-{index:05}.samples", self.split))
    }

    /// True if the file exists or was merged into an existing file.
    pub fn is_done(&self, pass: usize, index: usize) -> bool {
        let mut outputs = (pass..self.passes()).scan(index, |index, pass| {
            let current = *index;
            *index /= self.job.limits.merge_files;
            Some((pass, current))
        });
        outputs.any(|(pass, index)| self.path(pass, index).exists())
    }

    /// Opens the files of the last pass.
    pub fn open_last(&self) -> Result<Vec<SampleFile>, PrepError> {
        let pass = self.passes() - 1;
        (0..self.files(pass)).map(|index| SampleFile::open(self.path(pass, index))).collect()
    }

    /// Writes a file of pass 1 or later from its inputs, unless [`Self::is_done`] is true.
    pub fn merge_file(&self, pass: usize, index: usize) -> Result<(), PrepError> {
        if self.is_done(pass, index) {
            return Ok(());
        }
        let inputs =
            index * self.job.limits.merge_files..((index + 1) * self.job.limits.merge_files).min(self.files(pass - 1));
        let files: Vec<SampleFile> =
            inputs.clone().map(|index| SampleFile::open(self.path(pass - 1, index))).collect::<Result<_, _>>()?;
        let size = self.job.tokenizer.size();
        let counts = token_counts(&files, size)?;
        work_file::write(&self.path(pass, index), |output| {
            let cursors = files.iter().map(|file| file.cursor(0, ids::width(size))).collect();
            merge(cursors, |sample| output.write_all(sample).map(|()| true))?;
            write_counts(&counts, output)?;
            Ok(files.iter().fold(SampleFileContents::default(), |sum, file| sum.merged_with(&file.contents)))
        })?;
        inputs.into_iter().try_for_each(|index| {
            let path = self.path(pass - 1, index);
            std::fs::remove_file(&path).map_err(|source| PrepError::WorkIo { operation: "remove", path, source })
        })
    }
}

/// An open sample file.
pub struct SampleFile {
    work_file: WorkFile,
    file: File,
    /// JSON trailer.
    pub contents: SampleFileContents,
}

impl SampleFile {
    fn open(path: PathBuf) -> Result<Self, PrepError> {
        let (work_file, contents) = WorkFile::open(&path)?;
        Ok(Self { file: work_file.file()?, work_file, contents })
    }

    /// Returns a cursor over the samples from byte `at` on.
    pub fn cursor(&self, at: u64, width: usize) -> SampleCursor<'_> {
        SampleCursor::new(&self.file, at..self.contents.bytes, width)
    }
}

/// Sums the counts of each token ID over the samples of `files`, without `[CLS]` and `[SEP]`.
pub fn token_counts(files: &[SampleFile], size: usize) -> Result<Vec<u64>, PrepError> {
    let mut counts = vec![0; size];
    for file in files {
        let bytes = file.work_file.read(file.contents.bytes, size * 8)?;
        for (count, word) in counts.iter_mut().zip(bytes.chunks_exact(8)) {
            *count += word.try_into().map_or(0, u64::from_le_bytes);
        }
    }
    Ok(counts)
}
