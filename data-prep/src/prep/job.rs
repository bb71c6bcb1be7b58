//! What a preparation works on, and its folder: made once, found again by a restart.

use std::io::Write;
use std::ops::Range;
use std::path::{Path, PathBuf};

use lambert_config::PrepConfig;
use lambert_config::prep::Source;
use serde::{Deserialize, Serialize};

use super::PrepError;
use super::heads::Head;
use super::lock::Lock;
use super::memory::Memory;
use super::sealed::{self, Sealed};
use super::spill::{CellPart, Contents, record_bytes};
use crate::source::{self, Part, SourceFile};
use lambert_dataset::sha256_hex;
use lambert_dataset::tokenizer::Tokenizer;

/// The version of the work folder and of everything that decides the bytes of a dataset.
const VERSION: u32 = 3;

/// Tokens that a bucket should hold: little memory, and work for many threads.
const BUCKET_TOKENS: u64 = 4 << 20;

/// See the module.
pub struct Job<'a> {
    /// What was asked for.
    pub config: &'a PrepConfig,
    /// Its sources, then those to be excluded.
    pub sources: Vec<Source>,
    /// Its vocabulary.
    pub tokenizer: Tokenizer,
    /// The bytes of vocab.txt.
    pub vocabulary: Vec<u8>,
    /// What it may take.
    pub memory: Memory,
    /// How the work is cut.
    pub scale: Scale,
    /// All input files.
    pub files: Vec<SourceFile>,
    /// What decides the bytes of the dataset besides what the files hold, as a sha256.
    pub fingerprint: String,
    folder: PathBuf,
}

/// How the work is cut into pieces. Only the first decides bytes of a dataset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scale {
    /// Tokens that a bucket should hold.
    pub bucket: u64,
    /// Bytes of samples that are sorted in memory.
    pub sorted: usize,
    /// Sample files that are read at a time.
    pub merged: usize,
    /// Bytes of heads that are compared in memory, at the most.
    pub compared: u64,
}

impl Default for Scale {
    fn default() -> Self {
        Self { bucket: BUCKET_TOKENS, sorted: 32 << 20, merged: 128, compared: u64::MAX }
    }
}

/// A run file that is there.
pub struct Run {
    /// Its documents.
    pub file: Sealed,
    /// Where they are.
    pub contents: Contents,
}

impl Run {
    /// Calls `each` with the number and the bytes of every head, in order.
    pub fn each_head(&self, mut each: impl FnMut(usize, &[u8])) -> Result<(), PrepError> {
        const AT_ONCE: u64 = 4096;
        let width = Head::bytes(self.contents.signed);
        for first in (0..self.contents.heads).step_by(AT_ONCE as usize) {
            let count = AT_ONCE.min(self.contents.heads - first) as usize;
            let bytes = self.file.read(self.contents.heads_at + first * width as u64, count * width)?;
            bytes.chunks_exact(width).enumerate().for_each(|(index, head)| each(first as usize + index, head));
        }
        Ok(())
    }

    /// What some neighbouring cells have here.
    pub fn cells(&self, cells: Range<u16>) -> Result<Vec<CellPart>, PrepError> {
        let at = self.contents.cells_at + u64::from(cells.start) * CellPart::BYTES as u64;
        let bytes = self.file.read(at, cells.len() * CellPart::BYTES)?;
        Ok(bytes.chunks_exact(CellPart::BYTES).map(CellPart::read).collect())
    }

    /// Where the documents of some neighbouring parts of a cell are, and how long they are.
    pub fn parts(&self, cell: &CellPart, parts: Range<u16>, seed: u64, width: usize) -> Result<(u64, u64), PrepError> {
        let head_bytes = Head::bytes(self.contents.signed);
        let at = self.contents.heads_at + cell.head * head_bytes as u64;
        let heads = self.file.read(at, cell.totals.documents as usize * head_bytes)?;
        let (mut start, mut bytes) = (cell.at, 0);
        for head in heads.chunks_exact(head_bytes).map(Head::read) {
            let (part, length) = (head.id.part(seed), record_bytes(&head.totals, width));
            if part < parts.start {
                start += length;
            } else if part < parts.end {
                bytes += length;
            }
        }
        Ok((start, bytes))
    }

    /// The signature of a document, by the number of its head.
    pub fn signature(&self, number: usize) -> Result<Vec<u8>, PrepError> {
        let (whole, head) = (Head::bytes(true), Head::bytes(false));
        self.file.read(self.contents.heads_at + (number * whole + head) as u64, whole - head)
    }
}

/// `job.json`: whose work this is.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Owner {
    fingerprint: String,
}

impl<'a> Job<'a> {
    /// Reads the vocabulary and finds the input files, on `threads` threads; writes nothing.
    pub fn new(config: &'a PrepConfig, memory: Memory, scale: Scale, threads: usize) -> Result<Self, PrepError> {
        let path = Path::new(&config.vocabulary.file);
        let vocabulary = std::fs::read(path).map_err(|source| {
            PrepError::Vocabulary(lambert_dataset::tokenizer::TokenizerError::Read { path: path.to_owned(), source })
        })?;
        let tokenizer = Tokenizer::begin(&vocabulary, config.vocabulary.lowercase, &config.vocabulary.file)?;
        let sources: Vec<Source> = config.source.iter().chain(&config.exclude).cloned().collect();
        let files = source::find(&sources, threads)?;
        let fingerprint = fingerprint(config, &vocabulary, &files);
        let folder = work_folder(config);
        Ok(Self { config, sources, tokenizer, vocabulary, memory, scale, files, fingerprint, folder })
    }

    /// Makes the work folder, or takes up the one that is there, and keeps others off this part of the work.
    pub fn begin(&self, part: Part) -> Result<Lock, PrepError> {
        let owner = Owner { fingerprint: self.fingerprint.clone() };
        let path = self.folder.join("job.json");
        let runs = self.runs_folder();
        std::fs::create_dir_all(&runs).map_err(|source| PrepError::Work {
            operation: "create",
            path: runs.clone(),
            source,
        })?;
        let lock = Lock::take(&self.folder, part)?;
        match std::fs::read(&path) {
            Ok(bytes) => match serde_json::from_slice::<Owner>(&bytes) {
                Ok(found) if found == owner => Ok(lock),
                _ => Err(self.other_work()),
            },
            Err(_) => {
                let json = serde_json::to_vec(&owner).unwrap_or_default();
                sealed::whole(&path, |mut file| file.write_all(&json)).map(|()| lock)
            }
        }
    }

    /// The work folder is not this job's.
    pub fn other_work(&self) -> PrepError {
        PrepError::OtherWork { folder: self.folder.clone() }
    }

    /// Removes what a preparation left behind that was killed after its last step.
    pub fn clear(&self) -> Result<(), PrepError> {
        if !self.folder.join("job.json").exists() {
            return Ok(());
        }
        match self.begin(None) {
            Ok(_lock) => self.remove(),
            // Not this job's: then it is for its owner.
            Err(PrepError::OtherWork { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Removes the work folder.
    pub fn remove(&self) -> Result<(), PrepError> {
        let path = self.folder.clone();
        std::fs::remove_dir_all(&path).map_err(|source| PrepError::Work { operation: "remove", path, source })
    }

    /// The work folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Where the run files are.
    pub fn runs_folder(&self) -> PathBuf {
        self.folder.join("documents")
    }

    /// All run files that are there.
    pub fn runs(&self) -> Result<Vec<Run>, PrepError> {
        let paths = run_files(&self.runs_folder())?;
        paths.iter().map(|path| Sealed::open(path).map(|(file, contents)| Run { file, contents })).collect()
    }
}

/// What decides the bytes of the dataset; where it goes and where its work lies does not.
fn fingerprint(config: &PrepConfig, vocabulary: &[u8], files: &[SourceFile]) -> String {
    let mut config = config.clone();
    config.output.url.clear();
    config.output.work = None;
    config.output.check_space = true;
    config.slurm = lambert_config::run::Slurm::default();
    config.vocabulary.file.clear();
    config.source.iter_mut().chain(&mut config.exclude).for_each(|source| source.path.clear());
    let sizes: Vec<(usize, u64)> = files.iter().map(|file| (file.source, file.bytes)).collect();
    let facts = serde_json::json!([VERSION, config, sha256_hex(vocabulary), sizes]);
    sha256_hex(facts.to_string().as_bytes())
}

/// `output.work`, or a folder beside the output.
fn work_folder(config: &PrepConfig) -> PathBuf {
    let url = config.output.url.trim_end_matches('/');
    match &config.output.work {
        Some(folder) => PathBuf::from(folder),
        None if url.contains("://") && !url.starts_with("file://") => {
            PathBuf::from(format!("lambert-prep-{}.work", &sha256_hex(url.as_bytes())[..16]))
        }
        None => PathBuf::from(format!("{}.work", url.strip_prefix("file://").unwrap_or(url))),
    }
}

/// The names of the run files in `folder`, sorted.
pub fn run_files(folder: &Path) -> Result<Vec<PathBuf>, PrepError> {
    let fault = |source| PrepError::Work { operation: "list", path: folder.to_owned(), source };
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(fault)? {
        let path = entry.map_err(fault)?.path();
        if path.extension().is_some_and(|extension| extension == "docs") {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths)
}
