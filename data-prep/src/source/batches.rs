//! Distribution of the corpus over threads, in batches of whole documents.
//!
//! The contents of a batch depend on the files alone, so a restart can identify the batches that are already finished.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use lambert_config::prep::Source;
use twox_hash::XxHash3_64;

use super::formats::FORMATS;
use super::{DocumentReader, RawDocument, SkipNotices, SourceError, SourceFile, StoredReader, open_stored};

/// Target size of a batch, bytes. Larger batches make the queue cheaper. Smaller batches let all threads finish at
/// about the same time.
const BATCH_BYTES: usize = 1 << 20;

/// A batch of documents of one file.
#[derive(Debug)]
pub struct DocumentBatch {
    /// File number.
    pub file: u32,
    /// Index of the batch in its file.
    pub number: u32,
    /// True for the last batch of its file.
    pub is_last: bool,
    /// True if this part processes the batch. If false, `documents` is empty.
    pub is_assigned: bool,
    /// SHA-256 of the file before decompression. Set only in the last batch of the file.
    pub sha256: Option<String>,
    /// Whole documents.
    pub documents: Vec<RawDocument>,
    /// Skipped or repaired parts of the file that were found while this batch was read.
    pub notices: SkipNotices,
}

impl DocumentBatch {
    /// Total size of the documents, bytes.
    pub fn bytes(&self) -> usize {
        self.documents.iter().map(|document| document.bytes.len()).sum()
    }

    /// Hash of the documents. A restart compares it to detect changed files.
    pub fn digest(&self) -> u64 {
        self.documents.iter().fold(0, |seed, document| XxHash3_64::oneshot_with_seed(seed, &document.bytes))
    }
}

/// Part of the corpus that this process reads, as (index, number of parts). `None` is the whole corpus.
pub type WorkPart = Option<(usize, usize)>;

/// File size, before decompression, above which the batches of a file are distributed over all parts. A smaller file
/// belongs to one part.
const SHARED_FILE_BYTES: u64 = 32 << 20;

/// True if `part` has to read the file.
pub fn is_read_by(file: &SourceFile, part: WorkPart) -> bool {
    part.is_none_or(|(index, parts)| file.bytes > SHARED_FILE_BYTES || file.number as usize % parts == index)
}

/// True if `part` processes the batch. `part` must be a part that reads the file.
fn is_assigned_to(file: &SourceFile, batch: u32, part: WorkPart) -> bool {
    part.is_none_or(|(index, parts)| {
        file.bytes <= SHARED_FILE_BYTES || (file.number as usize + batch as usize) % parts == index
    })
}

/// Hands out batches to threads.
pub struct BatchQueue<'a> {
    sources: &'a [Source],
    files: Vec<&'a SourceFile>,
    next_file: AtomicUsize,
    open: Mutex<Vec<Arc<Mutex<FileStream>>>>,
    done: HashMap<(u32, u32), u64>,
    part: WorkPart,
    window: u64,
    bytes_read: Arc<AtomicU64>,
}

struct FileStream {
    file: SourceFile,
    number: u32,
    has_ended: bool,
    stored: StoredReader,
    documents: Box<dyn DocumentReader>,
}

/// The file that a thread reads from.
#[derive(Default)]
pub struct OpenFile(Option<Arc<Mutex<FileStream>>>);

impl<'a> BatchQueue<'a> {
    /// Creates a queue of the batches of `files`. Leaves out the batches of other parts and the batches in `done`.
    /// `done` maps (file, batch) to the digest of the batch. Decompression windows are limited to `window` bytes.
    pub fn new(
        sources: &'a [Source],
        files: Vec<&'a SourceFile>,
        done: HashMap<(u32, u32), u64>,
        part: WorkPart,
        window: u64,
    ) -> Self {
        let (next_file, bytes_read) = (AtomicUsize::new(0), Arc::new(AtomicU64::new(0)));
        Self { sources, files, next_file, open: Mutex::new(Vec::new()), done, part, window, bytes_read }
    }

    /// Number of bytes read so far, before decompression.
    pub fn bytes_read(&self) -> u64 {
        self.bytes_read.load(Ordering::Relaxed)
    }

    /// Returns the next batch for a thread, or `None` at the end.
    pub fn next(&self, open_file: &mut OpenFile) -> Result<Option<DocumentBatch>, SourceError> {
        loop {
            let stream = match open_file.0.take() {
                Some(stream) => stream,
                None => match self.open_next()? {
                    Some(stream) => stream,
                    None => return Ok(None),
                },
            };
            let batch = self.next_batch(&mut stream.lock().unwrap_or_else(PoisonError::into_inner))?;
            if let Some(batch) = batch {
                open_file.0 = Some(stream);
                return Ok(Some(batch));
            }
            lock(&self.open).retain(|other| !Arc::ptr_eq(other, &stream));
        }
    }

    /// Opens the next file. If no file is left to open, returns a file that another thread is reading.
    fn open_next(&self) -> Result<Option<Arc<Mutex<FileStream>>>, SourceError> {
        let Some(file) = self.files.get(self.next_file.fetch_add(1, Ordering::Relaxed)) else {
            return Ok(lock(&self.open).last().cloned());
        };
        let source = &self.sources[file.source];
        let (stored, documents) = open_stored(FORMATS, source, file, self.bytes_read.clone(), self.window)?;
        let file = SourceFile::clone(file);
        let stream = Arc::new(Mutex::new(FileStream { file, number: 0, has_ended: false, stored, documents }));
        lock(&self.open).push(stream.clone());
        Ok(Some(stream))
    }

    fn next_batch(&self, stream: &mut FileStream) -> Result<Option<DocumentBatch>, SourceError> {
        while !stream.has_ended {
            let mut batch = stream.next()?;
            let done = self.done.get(&(batch.file, batch.number));
            if done.is_some_and(|digest| *digest != batch.digest()) {
                return Err(SourceError::Changed { file: stream.file.name.clone() });
            }
            batch.is_assigned = done.is_none() && is_assigned_to(&stream.file, batch.number, self.part);
            if batch.is_assigned {
                return Ok(Some(batch));
            }
            // The last batch contains the hash of the file. So it is returned even if it belongs to another part.
            if batch.is_last {
                (batch.documents, batch.notices) = (Vec::new(), SkipNotices::new());
                return Ok(Some(batch));
            }
        }
        Ok(None)
    }
}

impl FileStream {
    fn next(&mut self) -> Result<DocumentBatch, SourceError> {
        let mut documents = Vec::new();
        let mut bytes = 0;
        while bytes < BATCH_BYTES && !self.has_ended {
            match self.documents.next()? {
                Some(document) => {
                    bytes += document.bytes.len();
                    documents.push(document);
                }
                None => self.has_ended = true,
            }
        }
        let notices = self.documents.take_notices();
        let number = self.number;
        self.number += 1;
        let sha256 = if self.has_ended { Some(self.finish()?) } else { None };
        Ok(DocumentBatch {
            file: self.file.number,
            number,
            is_last: self.has_ended,
            is_assigned: true,
            sha256,
            documents,
            notices,
        })
    }

    fn finish(&mut self) -> Result<String, SourceError> {
        let read_error = |source| SourceError::Input { path: self.file.name.clone(), operation: "read", source };
        self.stored.finish().map_err(read_error)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
