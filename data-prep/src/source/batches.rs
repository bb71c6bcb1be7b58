//! Distribution of the corpus over threads, in batches of whole documents.
//!
//! The contents of a batch depend on the files alone, so a restart can identify the batches that are already finished.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
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
    files: Mutex<FileQueue<'a>>,
    done: HashMap<(u32, u32), u64>,
    part: WorkPart,
    window: u64,
    bytes_read: Arc<AtomicU64>,
}

/// The files that no thread has started, and those that threads are reading.
struct FileQueue<'a> {
    remaining: std::vec::IntoIter<&'a SourceFile>,
    open: Vec<Arc<Mutex<FileStream>>>,
}

struct FileStream {
    file: SourceFile,
    number: u32,
    has_ended: bool,
    /// `None` until the first batch is read.
    readers: Option<Readers>,
}

/// Readers of one file.
struct Readers {
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
        let files = Mutex::new(FileQueue { remaining: files.into_iter(), open: Vec::new() });
        Self { sources, files, done, part, window, bytes_read: Arc::new(AtomicU64::new(0)) }
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
                None => match lock(&self.files).next() {
                    Some(stream) => stream,
                    None => return Ok(None),
                },
            };
            let batch = self.next_batch(&mut stream.lock().unwrap_or_else(PoisonError::into_inner))?;
            if let Some(batch) = batch {
                open_file.0 = Some(stream);
                return Ok(Some(batch));
            }
            lock(&self.files).open.retain(|other| !Arc::ptr_eq(other, &stream));
        }
    }

    fn open(&self, file: &SourceFile) -> Result<Readers, SourceError> {
        let source = &self.sources[file.source];
        let (stored, documents) = open_stored(FORMATS, source, file, self.bytes_read.clone(), self.window)?;
        Ok(Readers { stored, documents })
    }

    fn next_batch(&self, stream: &mut FileStream) -> Result<Option<DocumentBatch>, SourceError> {
        while !stream.has_ended {
            let batch = stream.next(|file| self.open(file));
            // The documents before the error are lost. With them, the next batch of this number would have other contents.
            stream.has_ended |= batch.is_err();
            let mut batch = batch?;
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

impl FileQueue<'_> {
    /// Returns the next file. If all files are started, returns one that another thread is reading.
    fn next(&mut self) -> Option<Arc<Mutex<FileStream>>> {
        let Some(file) = self.remaining.next() else { return self.open.last().cloned() };
        let stream = FileStream { file: SourceFile::clone(file), number: 0, has_ended: false, readers: None };
        let stream = Arc::new(Mutex::new(stream));
        self.open.push(stream.clone());
        Some(stream)
    }
}

impl FileStream {
    /// Reads the next batch. `open` opens the file for the first batch.
    fn next(
        &mut self,
        open: impl FnOnce(&SourceFile) -> Result<Readers, SourceError>,
    ) -> Result<DocumentBatch, SourceError> {
        let readers = match &mut self.readers {
            Some(readers) => readers,
            closed => closed.insert(open(&self.file)?),
        };
        let mut documents = Vec::new();
        let mut bytes = 0;
        while bytes < BATCH_BYTES && !self.has_ended {
            match readers.documents.next()? {
                Some(document) => {
                    bytes += document.bytes.len();
                    documents.push(document);
                }
                None => self.has_ended = true,
            }
        }
        let notices = readers.documents.take_notices();
        let number = self.number;
        self.number += 1;
        let read_error = |source| SourceError::Input { path: self.file.name.clone(), operation: "read", source };
        let sha256 = if self.has_ended { Some(readers.stored.finish().map_err(read_error)?) } else { None };
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
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A thread that starts while another one opens the only file must not stop.
    #[test]
    fn a_file_that_is_being_opened_is_shared() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.txt");
        std::fs::write(&path, "The boat.").unwrap();
        let sources = [Source { path: path.display().to_string(), ..Source::default() }];
        let files = crate::source::find_files(&sources, 1).unwrap();
        let queue = BatchQueue::new(&sources, files.iter().collect(), HashMap::new(), None, 1 << 20);
        let opening = lock(&queue.files).next();
        assert!(opening.is_some());
        let batch = queue.next(&mut OpenFile::default()).unwrap().unwrap();
        assert_eq!((batch.number, batch.is_last, batch.documents.len()), (0, true, 1));
        assert!(queue.next(&mut OpenFile::default()).unwrap().is_none());
    }
}
