//! The sample files of a split: one of each bucket, and above these, where they are many, files into which neighbours were
//! merged, until there are few enough to be read at a time.
//!
//! A file takes the place of those that it was made from, which are removed. So a restart finds either it or them.

use std::fs::File;
use std::io::Write;
use std::path::PathBuf;

use super::PrepError;
use super::buckets::Split;
use super::collected::write_counts;
use super::job::Job;
use super::merge::{Cursor, merge};
use super::sample_file::Contents;
use super::sealed::{self, Sealed};
use crate::record::ids;

/// Sample files of a split.
pub struct Levels<'a> {
    job: &'a Job<'a>,
    split: String,
    /// How many files each level has, the buckets' first.
    counts: Vec<usize>,
}

impl<'a> Levels<'a> {
    /// Those of `split`, whether they are there or not.
    pub fn new(job: &'a Job<'a>, split: &Split) -> Self {
        let mut counts = vec![split.buckets()];
        while let Some(&last) = counts.last().filter(|&&last| last > job.scale.merged) {
            counts.push(last.div_ceil(job.scale.merged));
        }
        Self { job, split: split.work_name(), counts }
    }

    /// How many levels there are.
    pub fn len(&self) -> usize {
        self.counts.len()
    }

    /// How many files are on a level.
    pub fn files(&self, level: usize) -> usize {
        self.counts[level]
    }

    /// A file's path.
    pub fn path(&self, level: usize, index: usize) -> PathBuf {
        self.job.folder().join(format!("{}-{level}-{index:05}.samples", self.split))
    }

    /// Whether a file need not be made any more: it is there, or one that it went into.
    pub fn is_done(&self, level: usize, index: usize) -> bool {
        let mut above = (level..self.len()).scan(index, |index, level| {
            let this = *index;
            *index /= self.job.scale.merged;
            Some((level, this))
        });
        above.any(|(level, index)| self.path(level, index).exists())
    }

    /// The files that are left in the end, opened.
    pub fn top(&self) -> Result<Vec<SampleFile>, PrepError> {
        let level = self.len() - 1;
        (0..self.files(level)).map(|index| SampleFile::open(self.path(level, index))).collect()
    }

    /// Merges what belongs into a file above the lowest level, unless that is done.
    pub fn make(&self, level: usize, index: usize) -> Result<(), PrepError> {
        if self.is_done(level, index) {
            return Ok(());
        }
        let below = index * self.job.scale.merged..((index + 1) * self.job.scale.merged).min(self.files(level - 1));
        let files: Vec<SampleFile> =
            below.clone().map(|index| SampleFile::open(self.path(level - 1, index))).collect::<Result<_, _>>()?;
        let size = self.job.tokenizer.size();
        let counts = token_counts(&files, size)?;
        sealed::write(&self.path(level, index), |output| {
            let cursors = files.iter().map(|file| file.cursor(0, ids::width(size))).collect();
            merge(cursors, |sample| output.write_all(sample).map(|()| true))?;
            write_counts(&counts, output)?;
            Ok(files.iter().fold(Contents::default(), |sum, file| sum.with(&file.contents)))
        })?;
        below.into_iter().try_for_each(|index| {
            let path = self.path(level - 1, index);
            std::fs::remove_file(&path).map_err(|source| PrepError::Work { operation: "remove", path, source })
        })
    }
}

/// A sample file that is open.
pub struct SampleFile {
    sealed: Sealed,
    file: File,
    /// What it holds.
    pub contents: Contents,
}

impl SampleFile {
    fn open(path: PathBuf) -> Result<Self, PrepError> {
        let (sealed, contents) = Sealed::open(&path)?;
        Ok(Self { file: sealed.file()?, sealed, contents })
    }

    /// Its samples from byte `at` on.
    pub fn cursor(&self, at: u64, width: usize) -> Cursor<'_> {
        Cursor::new(&self.file, at..self.contents.bytes, width)
    }
}

/// How often each token id stands in the samples of some files; `[CLS]` and `[SEP]` are not counted.
pub fn token_counts(files: &[SampleFile], size: usize) -> Result<Vec<u64>, PrepError> {
    let mut counts = vec![0; size];
    for file in files {
        let bytes = file.sealed.read(file.contents.bytes, size * 8)?;
        for (count, word) in counts.iter_mut().zip(bytes.chunks_exact(8)) {
            *count += word.try_into().map_or(0, u64::from_le_bytes);
        }
    }
    Ok(counts)
}
