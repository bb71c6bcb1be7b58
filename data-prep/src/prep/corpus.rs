//! What the input files hold, by their sha256: the part of a dataset's identity that the configuration does not have.
//!
//! The hashes are computed while the files are read. A file is read again for its hash alone where a dataset is there
//! and it has to be seen whether it is still up to date, and where a restart finds a finished file with another stamp.

use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};

use lambert_store::Store;
use serde::{Deserialize, Serialize};

use super::job::{Job, Run};
use super::spill::ReadFile;
use super::{PrepError, Progress, Status};
use crate::source::{SourceError, SourceFile, Stored};
use lambert_dataset::parallel::parallel;
use lambert_dataset::{Corpus, sha256_hex};

/// Lies beside the datasets if objects of a store were read: their e_tags, so that they need not be read again.
const OBJECTS: &str = "inputs.json";

/// An object that was read.
#[derive(Debug, Serialize, Deserialize)]
struct Object {
    url: String,
    start: u64,
    bytes: u64,
    tag: String,
    sha256: String,
}

impl Object {
    fn is(&self, file: &SourceFile) -> bool {
        let tagged = !file.stamp.is_empty() && self.tag == file.stamp;
        tagged && self.url == file.name && self.start == file.start && self.bytes == file.bytes
    }
}

/// What was read, by the run files; an error if a file did not stay the same while it was.
pub fn read(job: &Job<'_>, runs: &[Run]) -> Result<Corpus, PrepError> {
    let found = read_files(job, runs)?;
    let mut batches = vec![(0, 0); job.files.len()];
    for batch in runs.iter().flat_map(|run| &run.contents.batches) {
        let (count, last) = &mut batches[batch.file as usize];
        *count += 1;
        *last = if batch.last { batch.number + 1 } else { *last };
    }
    let hash = |(file, (count, last)): (&SourceFile, &(u32, u32))| match found.get(&file.number) {
        Some(read) if count == last => Ok(read.sha256.clone()),
        _ => Err(changed(file)),
    };
    let hashes = job.files.iter().zip(&batches).map(hash).collect::<Result<Vec<_>, _>>()?;
    Ok(corpus(job, &hashes))
}

/// What the files hold now.
pub fn now(job: &Job<'_>, threads: usize, progress: &dyn Progress) -> Result<Corpus, PrepError> {
    let known = objects(job)?;
    let (done, total) = (AtomicU64::new(0), job.files.iter().map(|file| file.bytes).sum());
    let hashes = parallel(threads, job.files.len(), |index| -> Result<_, PrepError> {
        let file = &job.files[index];
        let hash = match known.iter().find(|object| object.is(file)) {
            Some(object) => object.sha256.clone(),
            None => hash(file, job.memory.window())?,
        };
        let done = done.fetch_add(file.bytes, Ordering::Relaxed) + file.bytes;
        progress.update(&Status { phase: "comparing", source: None, done, total, unit: "bytes", text_bytes: 0 });
        Ok(hash)
    })?;
    Ok(corpus(job, &hashes))
}

/// An error if a file that needs not be read any more holds something else now.
pub fn check_unchanged(job: &Job<'_>, runs: &[Run], complete: &HashSet<u32>, threads: usize) -> Result<(), PrepError> {
    let found = read_files(job, runs)?;
    let doubtful: Vec<(&SourceFile, &ReadFile)> = found
        .values()
        .map(|&read| (&job.files[read.file as usize], read))
        .filter(|(file, read)| complete.contains(&file.number) && (file.stamp != read.stamp || file.stamp.is_empty()))
        .collect();
    parallel(threads, doubtful.len(), |index| {
        let (file, read) = doubtful[index];
        if hash(file, job.memory.window())? == read.sha256 { Ok(()) } else { Err(changed(file)) }
    })
    .map(drop)
}

/// Writes down what objects of stores were read.
pub fn write_objects(job: &Job<'_>, runs: &[Run]) -> Result<(), PrepError> {
    let found = read_files(job, runs)?;
    let describe = |file: &SourceFile| {
        let read = found.get(&file.number)?;
        let (url, tag, sha256) = (file.name.clone(), read.stamp.clone(), read.sha256.clone());
        Some(Object { url, start: file.start, bytes: file.bytes, tag, sha256 })
    };
    let objects: Vec<Object> = job.files.iter().filter(|file| file.is_remote()).filter_map(describe).collect();
    if objects.is_empty() {
        return Ok(());
    }
    let url = job.config.output.url.trim_end_matches('/');
    let json = serde_json::to_vec_pretty(&objects).unwrap_or_default();
    let write = Store::open(url).and_then(|store| store.put(OBJECTS, json.into()));
    write.map_err(|source| PrepError::Store { url: url.to_owned(), source })
}

/// What [`write_objects`] wrote; nothing if it cannot be understood, so that everything is read.
fn objects(job: &Job<'_>) -> Result<Vec<Object>, PrepError> {
    if !job.files.iter().any(SourceFile::is_remote) {
        return Ok(Vec::new());
    }
    let url = job.config.output.url.trim_end_matches('/');
    match Store::open(url).and_then(|store| store.get(OBJECTS)) {
        Ok(bytes) => Ok(serde_json::from_slice(&bytes).unwrap_or_default()),
        Err(error) if error.is_not_found() => Ok(Vec::new()),
        Err(source) => Err(PrepError::Store { url: url.to_owned(), source }),
    }
}

/// What each file held, by its number. Several parts may have read the same file.
fn read_files<'a>(job: &Job<'_>, runs: &'a [Run]) -> Result<BTreeMap<u32, &'a ReadFile>, PrepError> {
    let mut found: BTreeMap<u32, &ReadFile> = BTreeMap::new();
    for read in runs.iter().flat_map(|run| &run.contents.files) {
        let file = job.files.get(read.file as usize).ok_or_else(|| job.other_work())?;
        let first = found.entry(read.file).or_insert(read);
        if first.sha256 != read.sha256 {
            return Err(changed(file));
        }
    }
    Ok(found)
}

fn corpus(job: &Job<'_>, hashes: &[String]) -> Corpus {
    let facts: Vec<(usize, &String)> = job.files.iter().map(|file| file.source).zip(hashes).collect();
    let bytes = job.files.iter().map(|file| file.bytes).sum();
    Corpus { bytes, sha256: sha256_hex(serde_json::json!(facts).to_string().as_bytes()) }
}

fn hash(file: &SourceFile, memory: u64) -> Result<String, PrepError> {
    let fault = |source| SourceError::Input { path: file.name.clone(), operation: "read", source };
    Ok(Stored::open(file, Default::default(), memory)?.finish().map_err(fault)?)
}

fn changed(file: &SourceFile) -> PrepError {
    SourceError::Changed { file: file.name.clone() }.into()
}
