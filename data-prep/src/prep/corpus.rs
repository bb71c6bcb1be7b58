//! SHA-256 of the input files. A dataset is identified by the configuration and by these hashes.
//!
//! Files are hashed while they are tokenized. A file is read again for its hash in two cases. The first case is the
//! check whether an existing dataset is up to date. The second case is a tokenized file whose stamp (modification time
//! or ETag) has changed or is unknown.

use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};

use lambert_store::Store;
use serde::{Deserialize, Serialize};

use super::job::{JobContext, SpillFile};
use super::spill::FinishedFile;
use super::{PrepError, PrepProgress, PrepStatus};
use crate::source::{SourceError, SourceFile, StoredReader};
use lambert_dataset::parallel::parallel;
use lambert_dataset::{Corpus, sha256_hex};

/// File that lists the ETags of all input objects. It is beside the datasets. An object with an unchanged ETag is not
/// read again.
const OBJECTS_FILE: &str = "inputs.json";

/// An input object in a store, at the time it was tokenized.
#[derive(Debug, Serialize, Deserialize)]
struct InputObject {
    url: String,
    start: u64,
    bytes: u64,
    tag: String,
    sha256: String,
}

impl InputObject {
    fn matches(&self, file: &SourceFile) -> bool {
        let tagged = !file.stamp.is_empty() && self.tag == file.stamp;
        tagged && self.url == file.name && self.start == file.start && self.bytes == file.bytes
    }
}

/// Identity of the corpus as it was tokenized.
///
/// # Errors
/// A file changed while it was read.
pub fn as_tokenized(job: &JobContext<'_>, spill_files: &[SpillFile]) -> Result<Corpus, PrepError> {
    let found = finished_files(job, spill_files)?;
    let mut batches = vec![(0, 0); job.files.len()];
    for batch in spill_files.iter().flat_map(|spill_file| &spill_file.contents.batches) {
        let (count, last) = &mut batches[batch.file as usize];
        *count += 1;
        *last = if batch.is_last { batch.number + 1 } else { *last };
    }
    let hash = |(file, (count, last)): (&SourceFile, &(u32, u32))| match found.get(&file.number) {
        Some(read) if count == last => Ok(read.sha256.clone()),
        _ => Err(changed_error(file)),
    };
    let hashes = job.files.iter().zip(&batches).map(hash).collect::<Result<Vec<_>, _>>()?;
    Ok(combine(job, &hashes))
}

/// Identity of the corpus as it is now.
pub fn current(job: &JobContext<'_>, threads: usize, progress: &dyn PrepProgress) -> Result<Corpus, PrepError> {
    let known = recorded_objects(job)?;
    let (done, total) = (AtomicU64::new(0), job.files.iter().map(|file| file.bytes).sum());
    let hashes = parallel(threads, job.files.len(), |index| -> Result<_, PrepError> {
        let file = &job.files[index];
        let hash = match known.iter().find(|object| object.matches(file)) {
            Some(object) => object.sha256.clone(),
            None => hash_file(file, job.memory.decompressor_window())?,
        };
        let done = done.fetch_add(file.bytes, Ordering::Relaxed) + file.bytes;
        progress.update(&PrepStatus { phase: "comparing", source: None, done, total, unit: "bytes", text_bytes: 0 });
        Ok(hash)
    })?;
    Ok(combine(job, &hashes))
}

/// Recomputes the hash of every completely tokenized file whose stamp has changed or is unknown.
///
/// # Errors
/// The contents of such a file have changed.
pub fn check_unchanged(
    job: &JobContext<'_>,
    spill_files: &[SpillFile],
    complete: &HashSet<u32>,
    threads: usize,
) -> Result<(), PrepError> {
    let found = finished_files(job, spill_files)?;
    let candidates: Vec<(&SourceFile, &FinishedFile)> = found
        .values()
        .map(|&read| (&job.files[read.file as usize], read))
        .filter(|(file, read)| complete.contains(&file.number) && (file.stamp != read.stamp || file.stamp.is_empty()))
        .collect();
    parallel(threads, candidates.len(), |index| {
        let (file, read) = candidates[index];
        if hash_file(file, job.memory.decompressor_window())? == read.sha256 {
            Ok(())
        } else {
            Err(changed_error(file))
        }
    })
    .map(drop)
}

/// Writes the ETags and hashes of the input objects to a file beside the datasets.
pub fn record_objects(job: &JobContext<'_>, spill_files: &[SpillFile]) -> Result<(), PrepError> {
    let found = finished_files(job, spill_files)?;
    let describe = |file: &SourceFile| {
        let read = found.get(&file.number)?;
        let (url, tag, sha256) = (file.name.clone(), read.stamp.clone(), read.sha256.clone());
        Some(InputObject { url, start: file.start, bytes: file.bytes, tag, sha256 })
    };
    let objects: Vec<InputObject> = job.files.iter().filter(|file| file.is_remote()).filter_map(describe).collect();
    if objects.is_empty() {
        return Ok(());
    }
    let url = job.config.output.url.trim_end_matches('/');
    let json = serde_json::to_vec_pretty(&objects).unwrap_or_default();
    let write = Store::open(url).and_then(|store| store.put(OBJECTS_FILE, json.into()));
    write.map_err(|source| PrepError::Store { url: url.to_owned(), source })
}

/// Reads the output of [`record_objects`]. Returns an empty list if the file is missing or invalid, so that all objects
/// are read.
fn recorded_objects(job: &JobContext<'_>) -> Result<Vec<InputObject>, PrepError> {
    if !job.files.iter().any(SourceFile::is_remote) {
        return Ok(Vec::new());
    }
    let url = job.config.output.url.trim_end_matches('/');
    match Store::open(url).and_then(|store| store.get(OBJECTS_FILE)) {
        Ok(bytes) => Ok(serde_json::from_slice(&bytes).unwrap_or_default()),
        Err(error) if error.is_not_found() => Ok(Vec::new()),
        Err(source) => Err(PrepError::Store { url: url.to_owned(), source }),
    }
}

/// Hash and stamp of each file that was read, by file number. Several parts can have read the same file.
fn finished_files<'a>(
    job: &JobContext<'_>,
    spill_files: &'a [SpillFile],
) -> Result<BTreeMap<u32, &'a FinishedFile>, PrepError> {
    let mut found: BTreeMap<u32, &FinishedFile> = BTreeMap::new();
    for read in spill_files.iter().flat_map(|spill_file| &spill_file.contents.files) {
        let file = job.files.get(read.file as usize).ok_or_else(|| job.foreign_folder_error("corpus"))?;
        let first = found.entry(read.file).or_insert(read);
        if first.sha256 != read.sha256 {
            return Err(changed_error(file));
        }
    }
    Ok(found)
}

fn combine(job: &JobContext<'_>, hashes: &[String]) -> Corpus {
    let hashes_by_source: Vec<(usize, &String)> = job.files.iter().map(|file| file.source).zip(hashes).collect();
    let bytes = job.files.iter().map(|file| file.bytes).sum();
    Corpus { bytes, sha256: sha256_hex(serde_json::json!(hashes_by_source).to_string().as_bytes()) }
}

fn hash_file(file: &SourceFile, memory: u64) -> Result<String, PrepError> {
    let read_error = |source| SourceError::Input { path: file.name.clone(), operation: "read", source };
    Ok(StoredReader::open(file, Default::default(), memory)?.finish().map_err(read_error)?)
}

fn changed_error(file: &SourceFile) -> PrepError {
    SourceError::Changed { file: file.name.clone() }.into()
}
