//! Inputs, settings and work folder of a preparation job.

use std::io::Write;
use std::ops::Range;
use std::path::{Path, PathBuf};

use lambert_config::PrepConfig;
use lambert_config::prep::{Pair, Source};

use super::PrepError;
use super::fingerprints::DocumentFingerprint;
use super::job_file::{self, JobFile};
use super::lock::WorkFolderLock;
use super::memory::PrepMemory;
use super::spill::{CellEntry, SpillContents, record_bytes};
use super::work_file::{self, WorkFile};
use super::work_folder;
use crate::source::{self, SourceFile, WorkPart};
use lambert_dataset::tokenizer::{Tokenizer, TokenizerError};

/// Target size of a bucket, tokens. A bucket must fit into memory, and many threads need enough buckets.
const BUCKET_TOKENS: u64 = 4 << 20;

/// Inputs, settings and work folder of a preparation job.
pub struct JobContext<'a> {
    /// Configuration.
    pub config: &'a PrepConfig,
    /// The configured sources, followed by the excluded sources.
    pub sources: Vec<Source>,
    /// Tokenizer of the configured vocabulary.
    pub tokenizer: Tokenizer,
    /// Contents of the vocabulary file.
    pub vocabulary: Vec<u8>,
    /// Memory budget.
    pub memory: PrepMemory,
    /// Sizes of the units of work.
    pub limits: WorkLimits,
    /// Input files of all sources.
    pub files: Vec<SourceFile>,
    /// SHA-256 of all inputs that determine the bytes of the datasets, except for the file contents.
    pub fingerprint: String,
    folder: PathBuf,
}

/// Sizes of the units of work. Only `bucket_tokens` affects the bytes of a dataset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkLimits {
    /// Target size of a bucket, tokens.
    pub bucket_tokens: u64,
    /// Bytes of samples sorted in memory at a time.
    pub sort_bytes: usize,
    /// Sample files merged at a time.
    pub merge_files: usize,
    /// Upper limit on the bytes of fingerprints compared in memory at a time.
    pub compare_bytes: u64,
}

impl Default for WorkLimits {
    fn default() -> Self {
        Self { bucket_tokens: BUCKET_TOKENS, sort_bytes: 32 << 20, merge_files: 128, compare_bytes: u64::MAX }
    }
}

/// A spill file: tokenized documents with an index.
pub struct SpillFile {
    /// Token ids, fingerprints and cell table.
    pub file: WorkFile,
    /// Index of the file.
    pub contents: SpillContents,
}

impl SpillFile {
    /// Calls `each` with the index and the bytes of every fingerprint, in order.
    pub fn for_each_fingerprint(&self, mut each: impl FnMut(usize, &[u8])) -> Result<(), PrepError> {
        const AT_ONCE: u64 = 4096;
        let width = DocumentFingerprint::size(self.contents.has_signatures);
        for first in (0..self.contents.fingerprints).step_by(AT_ONCE as usize) {
            let count = AT_ONCE.min(self.contents.fingerprints - first) as usize;
            let bytes = self.file.read(self.contents.fingerprints_offset + first * width as u64, count * width)?;
            bytes
                .chunks_exact(width)
                .enumerate()
                .for_each(|(index, fingerprint)| each(first as usize + index, fingerprint));
        }
        Ok(())
    }

    /// Reads the table entries of a range of cells.
    pub fn cell_entries(&self, cells: Range<u16>) -> Result<Vec<CellEntry>, PrepError> {
        let at = self.contents.cells_offset + u64::from(cells.start) * CellEntry::BYTES as u64;
        let bytes = self.file.read(at, cells.len() * CellEntry::BYTES)?;
        Ok(bytes.chunks_exact(CellEntry::BYTES).map(CellEntry::read).collect())
    }

    /// Returns the offset and the length, in bytes, of the documents in a range of slices within a cell.
    pub fn slice_range(
        &self,
        cell: &CellEntry,
        slices: Range<u16>,
        seed: u64,
        width: usize,
    ) -> Result<(u64, u64), PrepError> {
        let fingerprint_bytes = DocumentFingerprint::size(self.contents.has_signatures);
        let at = self.contents.fingerprints_offset + cell.first_fingerprint * fingerprint_bytes as u64;
        let fingerprints = self.file.read(at, cell.totals.documents as usize * fingerprint_bytes)?;
        let (mut start, mut bytes) = (cell.offset, 0);
        for fingerprint in fingerprints.chunks_exact(fingerprint_bytes).map(DocumentFingerprint::read) {
            let (slice, length) = (fingerprint.id.slice(seed), record_bytes(&fingerprint.totals, width));
            if slice < slices.start {
                start += length;
            } else if slice < slices.end {
                bytes += length;
            }
        }
        Ok((start, bytes))
    }

    /// Reads the MinHash signature of the document with this fingerprint index.
    pub fn signature(&self, number: usize) -> Result<Vec<u8>, PrepError> {
        let (with_signature, without) = (DocumentFingerprint::size(true), DocumentFingerprint::size(false));
        self.file.read(
            self.contents.fingerprints_offset + (number * with_signature + without) as u64,
            with_signature - without,
        )
    }
}

/// The error for a vocabulary file that cannot be read.
fn unreadable_vocabulary(path: &Path, source: std::io::Error) -> PrepError {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    if source.kind() == std::io::ErrorKind::NotFound {
        let message = format!(
            "{} does not exist; make it with `lambert vocab` from the text (--config takes this configuration), or name another file",
            path.display()
        );
        return PrepError::InvalidSetting { key: "vocabulary.file".to_owned(), message };
    }
    PrepError::Vocabulary(TokenizerError::Read { path, source })
}

impl<'a> JobContext<'a> {
    /// Reads the vocabulary and lists the input files, with `threads` threads. Writes nothing.
    pub fn new(
        config: &'a PrepConfig,
        memory: PrepMemory,
        limits: WorkLimits,
        threads: usize,
    ) -> Result<Self, PrepError> {
        let folder = work_folder::path(config);
        work_folder::check_apart(config, &folder)?;
        let path = Path::new(&config.vocabulary.file);
        let vocabulary = std::fs::read(path).map_err(|source| unreadable_vocabulary(path, source))?;
        let tokenizer = Tokenizer::begin(&vocabulary, config.vocabulary.lowercase, &config.vocabulary.file)?;
        if config.samples.pair != Pair::None && tokenizer.file().is_some_and(|file| file.has_double_separator) {
            let message = format!(
                "{} puts two separators between the segments of a pair; expected \"none\"",
                config.vocabulary.file
            );
            return Err(PrepError::InvalidSetting { key: "samples.pair".to_owned(), message });
        }
        let sources: Vec<Source> = config.source.iter().chain(&config.exclude).cloned().collect();
        let files = source::find_files(&sources, threads)?;
        let fingerprint = job_file::fingerprint(config, &vocabulary, &files);
        Ok(Self { config, sources, tokenizer, vocabulary, memory, limits, files, fingerprint, folder })
    }

    /// Creates or reopens the work folder, and locks `part` in it.
    ///
    /// # Errors
    /// The folder has files of another job, or files that are not from a preparation.
    pub fn open_folder(&self, part: WorkPart) -> Result<WorkFolderLock, PrepError> {
        work_folder::check_own(&self.folder)?;
        let job_file = JobFile::new(self.config, &self.vocabulary, &self.files);
        let path = self.folder.join(work_folder::JOB_FILE);
        let spill_folder = self.spill_folder();
        std::fs::create_dir_all(&spill_folder).map_err(|source| PrepError::WorkIo {
            operation: "create",
            path: spill_folder.clone(),
            source,
        })?;
        let lock = WorkFolderLock::acquire(&self.folder, part)?;
        let found =
            std::fs::read(&path).ok().map(|bytes| serde_json::from_slice::<JobFile>(&bytes).unwrap_or_default());
        if found.as_ref() == Some(&job_file) {
            return Ok(lock);
        }
        if let Some(difference) = found.and_then(|found| job_file.difference(&found)) {
            // Nothing is lost if no file was tokenized. A process of several cannot know what the others do.
            let is_empty = part.is_none() && list_spill_files(&spill_folder)?.is_empty();
            if !is_empty {
                return Err(self.foreign_folder_error(difference));
            }
        }
        let json = serde_json::to_vec(&job_file).unwrap_or_default();
        work_file::write_atomically(&path, |mut file| file.write_all(&json)).map(|()| lock)
    }

    /// The error for a work folder that belongs to another job, which differs in `difference`.
    pub fn foreign_folder_error(&self, difference: &'static str) -> PrepError {
        PrepError::ForeignWorkFolder { folder: self.folder.clone(), difference }
    }

    /// Removes a leftover work folder. It exists if a process was killed after it had published the datasets.
    pub fn remove_leftovers(&self) -> Result<(), PrepError> {
        if !work_folder::is_job(&self.folder) {
            return Ok(());
        }
        match self.open_folder(None) {
            Ok(_lock) => self.remove_folder(),
            // Another job owns the folder.
            Err(PrepError::ForeignWorkFolder { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Removes the files of this job from the work folder, and the folder if no other file is in it.
    pub fn remove_folder(&self) -> Result<(), PrepError> {
        work_folder::remove(&self.folder)
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Folder of the spill files.
    pub fn spill_folder(&self) -> PathBuf {
        self.folder.join(work_folder::SPILL_FOLDER)
    }

    /// Opens all spill files, in the order of their names.
    pub fn spill_files(&self) -> Result<Vec<SpillFile>, PrepError> {
        let paths = list_spill_files(&self.spill_folder())?;
        paths.iter().map(|path| WorkFile::open(path).map(|(file, contents)| SpillFile { file, contents })).collect()
    }
}

/// Lists the paths of the spill files in `folder`, sorted.
pub fn list_spill_files(folder: &Path) -> Result<Vec<PathBuf>, PrepError> {
    let io_error = |source| PrepError::WorkIo { operation: "list", path: folder.to_owned(), source };
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(io_error)? {
        let path = entry.map_err(io_error)?.path();
        if path.extension().is_some_and(|extension| extension == "docs") {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths)
}
