//! The corpus in batches of whole documents, dealt to any number of threads.
//!
//! Which documents a batch holds depends on the files alone, so that a restart can tell which batches are done.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use lambert_config::prep::Source;
use twox_hash::XxHash3_64;

use super::formats::FORMATS;
use super::{DocumentReader, Notes, RawDocument, SourceError, SourceFile, Stored, opened};

/// Bytes of documents in a batch: enough that taking one costs nothing, little enough that threads end together.
const BATCH: usize = 1 << 20;

/// Some documents of one file.
#[derive(Debug)]
pub struct Batch {
    /// The file's number.
    pub file: u32,
    /// The batch's number in the file, from 0.
    pub number: u32,
    /// Whether the file ends here.
    pub last: bool,
    /// Whether the work is this part's; if not, no documents are here.
    pub mine: bool,
    /// With the last batch: the sha256 of the stored file.
    pub sha256: Option<String>,
    /// Whole documents.
    pub documents: Vec<RawDocument>,
    /// What was left out between them.
    pub notes: Notes,
}

impl Batch {
    /// Bytes of the documents.
    pub fn bytes(&self) -> usize {
        self.documents.iter().map(|document| document.bytes.len()).sum()
    }

    /// A hash of the documents: tells a restart whether the file is still what it was.
    pub fn digest(&self) -> u64 {
        self.documents.iter().fold(0, |seed, document| XxHash3_64::oneshot_with_seed(seed, &document.bytes))
    }
}

/// One of several processes that share the work: its number, from 0, and how many there are.
pub type Part = Option<(usize, usize)>;

/// Files of more stored bytes are shared by their batches, smaller ones go to one part as a whole.
const SHARED: u64 = 32 << 20;

/// Whether a file can hold work for this part, so that it has to be read.
pub fn is_read_by(file: &SourceFile, part: Part) -> bool {
    part.is_none_or(|(index, parts)| file.bytes > SHARED || file.number as usize % parts == index)
}

/// Whether a batch of a file that is read is this part's work.
fn is_done_by(file: &SourceFile, batch: u32, part: Part) -> bool {
    part.is_none_or(|(index, parts)| file.bytes <= SHARED || (file.number as usize + batch as usize) % parts == index)
}

/// Gives out batches; see the module.
pub struct Batches<'a> {
    sources: &'a [Source],
    files: Vec<&'a SourceFile>,
    next_file: AtomicUsize,
    open: Mutex<Vec<Arc<Mutex<Stream>>>>,
    done: HashMap<(u32, u32), u64>,
    part: Part,
    window: u64,
    read: Arc<AtomicU64>,
}

struct Stream {
    file: SourceFile,
    number: u32,
    ended: bool,
    stored: Stored,
    documents: Box<dyn DocumentReader>,
}

/// What a thread is reading.
#[derive(Default)]
pub struct Place(Option<Arc<Mutex<Stream>>>);

impl<'a> Batches<'a> {
    /// The batches of `files` that are this part's, except those in `done` (file, number, with their digests).
    /// A decompressor may have `window` bytes for what it looks back at.
    pub fn new(
        sources: &'a [Source],
        files: Vec<&'a SourceFile>,
        done: HashMap<(u32, u32), u64>,
        part: Part,
        window: u64,
    ) -> Self {
        let (next_file, read) = (AtomicUsize::new(0), Arc::new(AtomicU64::new(0)));
        Self { sources, files, next_file, open: Mutex::new(Vec::new()), done, part, window, read }
    }

    /// Stored bytes that were read.
    pub fn bytes_read(&self) -> u64 {
        self.read.load(Ordering::Relaxed)
    }

    /// The next batch for a thread; `None` at the end.
    pub fn next(&self, place: &mut Place) -> Result<Option<Batch>, SourceError> {
        loop {
            let stream = match place.0.take() {
                Some(stream) => stream,
                None => match self.stream()? {
                    Some(stream) => stream,
                    None => return Ok(None),
                },
            };
            let batch = self.batch(&mut stream.lock().unwrap_or_else(PoisonError::into_inner))?;
            if let Some(batch) = batch {
                place.0 = Some(stream);
                return Ok(Some(batch));
            }
            lock(&self.open).retain(|other| !Arc::ptr_eq(other, &stream));
        }
    }

    /// A file that nobody has opened, else one that another thread is reading.
    fn stream(&self) -> Result<Option<Arc<Mutex<Stream>>>, SourceError> {
        let Some(file) = self.files.get(self.next_file.fetch_add(1, Ordering::Relaxed)) else {
            return Ok(lock(&self.open).last().cloned());
        };
        let source = &self.sources[file.source];
        let (stored, documents) = opened(FORMATS, source, file, self.read.clone(), self.window)?;
        let file = SourceFile::clone(file);
        let stream = Arc::new(Mutex::new(Stream { file, number: 0, ended: false, stored, documents }));
        lock(&self.open).push(stream.clone());
        Ok(Some(stream))
    }

    fn batch(&self, stream: &mut Stream) -> Result<Option<Batch>, SourceError> {
        while !stream.ended {
            let mut batch = stream.next()?;
            let done = self.done.get(&(batch.file, batch.number));
            if done.is_some_and(|digest| *digest != batch.digest()) {
                return Err(SourceError::Changed { file: stream.file.name.clone() });
            }
            batch.mine = done.is_none() && is_done_by(&stream.file, batch.number, self.part);
            if batch.mine {
                return Ok(Some(batch));
            }
            // Who reads a file to its end says what it held, whoever does the last batch.
            if batch.last {
                (batch.documents, batch.notes) = (Vec::new(), Notes::new());
                return Ok(Some(batch));
            }
        }
        Ok(None)
    }
}

impl Stream {
    fn next(&mut self) -> Result<Batch, SourceError> {
        let mut documents = Vec::new();
        let mut bytes = 0;
        while bytes < BATCH && !self.ended {
            match self.documents.next()? {
                Some(document) => {
                    bytes += document.bytes.len();
                    documents.push(document);
                }
                None => self.ended = true,
            }
        }
        let notes = self.documents.notes();
        let number = self.number;
        self.number += 1;
        let sha256 = if self.ended { Some(self.finish()?) } else { None };
        Ok(Batch { file: self.file.number, number, last: self.ended, mine: true, sha256, documents, notes })
    }

    fn finish(&mut self) -> Result<String, SourceError> {
        let fault = |source| SourceError::Input { path: self.file.name.clone(), operation: "read", source };
        self.stored.finish().map_err(fault)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
