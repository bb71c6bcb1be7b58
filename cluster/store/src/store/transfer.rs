//! Multipart uploads and parallel range downloads of large objects.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;

use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, future, stream};
use object_store::multipart::{MultipartStore, PartId};
use object_store::path::Path;
use object_store::{MultipartId, ObjectStoreExt, PutPayload};

use super::Store;
use crate::error::{self, Cause, Error, Result};
use crate::open::StorageBackend;
use crate::retry::{self, StoreRequest, Transfer};
use crate::runtime::{self, Pending};

/// Size of a part, bytes. It is large enough for good throughput on one connection, and small enough that a retry is
/// cheap.
const PIECE: u64 = 16 << 20;

/// Maximum number of parts per upload. It is the limit of S3.
const MAX_PARTS: u64 = 10_000;

/// Number of parts of an object that are transferred concurrently, if the process has slots for them.
const PARALLEL: usize = 8;

/// Handle of a background write. If the handle is dropped, the write continues until it ends or the process exits.
pub struct Upload {
    task: Pending<Result<String>>,
    done: Option<Result<String>>,
}

impl std::fmt::Debug for Upload {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Upload").field("done", &self.done).finish_non_exhaustive()
    }
}

impl Upload {
    /// Starts writing `bytes`. Concurrently calls `digest`, which returns their SHA-256 or an error.
    pub(crate) fn start(
        store: Store,
        name: Path,
        request: StoreRequest,
        bytes: Bytes,
        digest: impl FnOnce(&[u8]) -> Result<String> + Send + 'static,
    ) -> Self {
        let task = runtime::start(async move {
            let copy = bytes.clone();
            let hashed = runtime::compute(move || digest(&copy));
            let (sent, sha256) = future::join(upload(store, name, request, bytes), hashed).await;
            sent.and(sha256)
        });
        Self { task, done: None }
    }

    /// Returns true if the write has succeeded or failed. [`Upload::wait`] then returns immediately.
    pub fn is_done(&mut self) -> bool {
        if self.done.is_none() {
            self.done = self.task.take();
        }
        self.done.is_some()
    }

    /// Waits for completion and returns the SHA-256 of the written bytes.
    ///
    /// # Errors
    /// A store error, or the error that the digest returned.
    pub fn wait(self) -> Result<String> {
        let task = self.task;
        self.done.unwrap_or_else(|| task.wait())
    }
}

/// Writes `bytes` as `name` atomically.
pub(crate) async fn upload(store: Store, name: Path, request: StoreRequest, bytes: Bytes) -> Result<()> {
    match &*store.backend {
        StorageBackend::Remote { parts, .. } if bytes.len() as u64 > PIECE => {
            let upload = Multipart { store: &store, parts: parts.as_ref(), name: &name, request: &request };
            upload.run(&Content::Bytes(bytes)).await
        }
        backend => {
            let length = bytes.len() as u64;
            let payload = PutPayload::from_bytes(bytes);
            let once = |_, _| backend.objects().put(&name, payload.clone());
            let writing = retry::transfer(&request, store.retried(), Transfer::Upload(length), once);
            store.write(&request, writing).await?;
            store.report_transferred(length);
            Ok(())
        }
    }
}

/// Writes the first `bytes` bytes of a file as `name`. A multipart upload keeps only a few parts in memory at a time.
pub(crate) async fn upload_file(
    store: Store,
    name: Path,
    request: StoreRequest,
    file: Arc<File>,
    bytes: u64,
) -> Result<()> {
    match &*store.backend {
        StorageBackend::Remote { parts, .. } if bytes > PIECE => {
            let upload = Multipart { store: &store, parts: parts.as_ref(), name: &name, request: &request };
            upload.run(&Content::File(file, bytes)).await
        }
        _ => {
            let whole = Content::File(file, bytes).read(0..bytes, &request).await?;
            upload(store, name, request, whole).await
        }
    }
}

/// Content of an upload.
enum Content {
    Bytes(Bytes),
    /// A file, and the number of bytes to upload from its start.
    File(Arc<File>, u64),
}

impl Content {
    fn len(&self) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::File(_, bytes) => *bytes,
        }
    }

    async fn read(&self, range: Range<u64>, request: &StoreRequest) -> Result<Bytes> {
        match self {
            Self::Bytes(bytes) => Ok(slice(bytes, range)),
            Self::File(file, _) => {
                let file = file.clone();
                let read = runtime::compute(move || {
                    let mut buffer = vec![0; (range.end - range.start) as usize];
                    file.read_exact_at(&mut buffer, range.start).map(|()| buffer)
                });
                read.await.map(Bytes::from).map_err(|source| Error::Failed {
                    operation: request.operation,
                    url: request.url.clone(),
                    attempts: 1,
                    seconds: 0.0,
                    source: Cause::new(format_args!("cannot read the source file: {source}")),
                })
            }
        }
    }
}

/// A multipart upload. Each request is retried separately.
struct Multipart<'a> {
    store: &'a Store,
    parts: &'a dyn MultipartStore,
    name: &'a Path,
    request: &'a StoreRequest,
}

impl Multipart<'_> {
    async fn run(&self, content: &Content) -> Result<()> {
        let begin = |_| self.parts.create_multipart(self.name);
        let id = retry::attempts(self.request, self.store.retried(), begin).await?;
        let done = self.send_and_complete(&id, content).await;
        if done.is_err() {
            // The parts of an unfinished upload cost money until they are removed. If this request fails too, the
            // lifecycle rule of the bucket removes the parts (docs/guides/object-stores.md).
            let _ = self.parts.abort_multipart(self.name, &id).await;
        }
        done
    }

    async fn send_and_complete(&self, id: &MultipartId, content: &Content) -> Result<()> {
        let pieces = pieces(content.len()).into_iter().enumerate();
        let sent = stream::iter(pieces.map(|(i, range)| async move {
            let bytes = content.read(range, self.request).await?;
            self.send(id, i, bytes).await
        }));
        let parts: Vec<PartId> = sent.buffered(PARALLEL).try_collect().await?;
        let finish = |attempt| self.finish(id, parts.clone(), content.len(), attempt);
        retry::attempts(self.request, self.store.retried(), finish).await
    }

    async fn send(&self, id: &MultipartId, index: usize, bytes: Bytes) -> Result<PartId> {
        let length = bytes.len() as u64;
        let payload = PutPayload::from_bytes(bytes);
        let once = |_, _| self.parts.put_part(self.name, id, index, payload.clone());
        let part = retry::transfer(self.request, self.store.retried(), Transfer::Upload(length), once).await?;
        self.store.report_transferred(length);
        Ok(part)
    }

    async fn finish(&self, id: &MultipartId, parts: Vec<PartId>, bytes: u64, attempt: u32) -> object_store::Result<()> {
        match self.parts.complete_multipart(self.name, id, parts).await {
            // An earlier attempt may have completed the upload, and its response was lost.
            Err(error) if attempt > 1 && is_of_no_upload(&error) => {
                let there = self.store.backend.objects().head(self.name).await?;
                if there.size == bytes { Ok(()) } else { Err(lost_upload()) }
            }
            done => done.map(drop),
        }
    }
}

/// True if the store does not know the upload. For that, most stores return "not found", some return "denied". Azure
/// returns status 400 with the code InvalidBlockList.
fn is_of_no_upload(error: &object_store::Error) -> bool {
    match error {
        object_store::Error::NotFound { .. } | object_store::Error::PermissionDenied { .. } => true,
        error => error::chain(error).contains("InvalidBlockList"),
    }
}

fn lost_upload() -> object_store::Error {
    object_store::Error::NotSupported { source: "the store has lost the parts of an upload".into() }
}

/// Downloads `bytes` bytes of `name` and passes them to `take` in order, on the calling thread.
pub(crate) fn download(
    store: Store,
    name: Path,
    request: StoreRequest,
    bytes: u64,
    mut take: impl FnMut(&[u8]),
) -> Result<()> {
    let (sender, receiver) = sync_channel(1);
    let fetching = runtime::start(async move {
        let fetch = async |range| store.part(&name, &request, &range).await;
        let mut fetched = stream::iter(pieces(bytes)).map(fetch).buffered(PARALLEL);
        while let Some(piece) = fetched.next().await {
            let sent = sender.send(piece?);
            if sent.is_err() {
                break;
            }
        }
        Ok(())
    });
    receiver.iter().for_each(|piece: Bytes| take(&piece));
    fetching.wait()
}

/// Splits `0..bytes` into ranges of equal size. The last range may be shorter.
fn pieces(bytes: u64) -> Vec<Range<u64>> {
    let piece = PIECE.max(bytes.div_ceil(MAX_PARTS));
    (0..bytes.div_ceil(piece)).map(|i| i * piece..((i + 1) * piece).min(bytes)).collect()
}

fn slice(bytes: &Bytes, range: Range<u64>) -> Bytes {
    bytes.slice(range.start as usize..range.end as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_every_byte_once_within_the_part_limit() {
        for bytes in [0, 1, PIECE - 1, PIECE, PIECE + 1, 5 * PIECE, MAX_PARTS * PIECE + 1, 1 << 50] {
            let pieces = pieces(bytes);
            assert!(pieces.len() as u64 <= MAX_PARTS);
            let mut next = 0;
            for piece in pieces {
                assert_eq!(piece.start, next);
                next = piece.end;
            }
            assert_eq!(next, bytes);
        }
    }
}
