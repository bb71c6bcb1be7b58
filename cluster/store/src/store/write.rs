//! Writes, creates and deletes objects.

use std::fs::File;
use std::sync::Arc;

use bytes::Bytes;
use object_store::path::Path;
use object_store::{GetOptions, ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload};

use super::{Store, Upload, transfer};
use crate::error::{Error, Result};
use crate::retry::{self, StoreRequest};
use crate::{hash, runtime};

/// Maximum number of attempts to create an object that other processes delete concurrently.
const MAX_CREATE_ATTEMPTS: u32 = 8;

impl Store {
    /// Writes an object, or replaces an existing one. Sends a large object to a remote store as a multipart upload.
    ///
    /// # Errors
    /// A store error.
    pub fn put(&self, path: &str, bytes: Bytes) -> Result<()> {
        let (store, name, request) = self.prepare("put", path)?;
        runtime::wait(transfer::upload(store, name, request, bytes))
    }

    /// Writes the first `bytes` bytes of `file` as an object. A multipart upload keeps only a few parts in memory at a
    /// time.
    ///
    /// # Errors
    /// The file cannot be read, or a store error.
    pub fn put_file(&self, path: &str, file: File, bytes: u64) -> Result<()> {
        let (store, name, request) = self.prepare("put", path)?;
        runtime::wait(transfer::upload_file(store, name, request, Arc::new(file), bytes))
    }

    /// Like [`Store::put`], but also returns the SHA-256 of `bytes`, which is computed concurrently.
    ///
    /// # Errors
    /// A store error.
    pub fn put_hashed(&self, path: &str, bytes: Bytes) -> Result<String> {
        self.put_in_background(path, bytes)?.wait()
    }

    /// Starts [`Store::put_hashed`] in the background. Several uploads may run concurrently.
    ///
    /// # Errors
    /// [`Error::Name`]. [`Upload::wait`] returns all other errors.
    pub fn put_in_background(&self, path: &str, bytes: Bytes) -> Result<Upload> {
        self.put_digested(path, bytes, |bytes| Ok(hash::sha256(bytes)))
    }

    /// Like [`Store::put_in_background`], with a `digest` that may reject the bytes.
    pub(crate) fn put_digested(
        &self,
        path: &str,
        bytes: Bytes,
        digest: impl FnOnce(&[u8]) -> Result<String> + Send + 'static,
    ) -> Result<Upload> {
        let (store, name, request) = self.prepare("put", path)?;
        Ok(Upload::start(store, name, request, bytes, digest))
    }

    /// Creates an object unless it exists. Returns true if it was created.
    ///
    /// If a response was lost and the object now exists with exactly these bytes, the object counts as created by this
    /// call. To distinguish concurrent writers, include a random token in the bytes.
    ///
    /// # Errors
    /// A store error. An existing object is not an error.
    pub fn put_new(&self, path: &str, bytes: Bytes) -> Result<bool> {
        let (store, name, request) = self.prepare("create", path)?;
        let length = bytes.len() as u64;
        let created = runtime::wait(async move {
            store
                .write(&request, async {
                    let once = |attempt| create(store.backend.objects(), &name, bytes.clone(), attempt);
                    retry::attempts(&request, store.retried(), once).await
                })
                .await
        })?;
        self.report_transferred(if created { length } else { 0 });
        Ok(created)
    }

    /// Deletes an object. A missing object is not an error.
    ///
    /// # Errors
    /// A store error.
    pub fn delete(&self, path: &str) -> Result<()> {
        let (store, name, request) = self.prepare("delete", path)?;
        let done = runtime::wait(async move {
            let once = |_| store.backend.objects().delete(&name);
            retry::attempts(&request, store.retried(), once).await
        });
        done.or_else(|error| if error.is_not_found() { Ok(()) } else { Err(error) })
    }

    /// Runs `writing` for the object of `request`. Fails if the required directory is missing. If the directory is
    /// moved during the write, the write recreates it at its old path. The recreated path is then removed.
    pub(crate) async fn write<T>(&self, request: &StoreRequest, writing: impl Future<Output = Result<T>>) -> Result<T> {
        let Some(folder) = self.required.as_deref() else { return writing.await };
        let gone = || Error::FolderGone {
            operation: request.operation,
            url: request.url.clone(),
            folder: folder.path().display().to_string(),
        };
        if !folder.is_there() {
            return Err(gone());
        }
        let written = writing.await;
        if folder.is_there() {
            return written;
        }
        folder.undo(std::path::Path::new(&request.url));
        Err(gone())
    }
}

/// Creates an object unless it exists. Returns true if it was created. Tries again if the existing object is deleted
/// before it can be read.
async fn create(objects: &dyn ObjectStore, name: &Path, bytes: Bytes, attempt: u32) -> object_store::Result<bool> {
    for _ in 0..MAX_CREATE_ATTEMPTS {
        let options = PutOptions::from(PutMode::Create);
        match objects.put_opts(name, PutPayload::from_bytes(bytes.clone()), options).await {
            Ok(_) => return Ok(true),
            Err(object_store::Error::AlreadyExists { .. } | object_store::Error::Precondition { .. }) => {}
            Err(error) => return Err(error),
        }
        // A retry may find the object of an earlier attempt whose response was lost.
        match objects.get_opts(name, GetOptions::default()).await {
            Ok(answer) => {
                return Ok(attempt > 1 && answer.meta.size == bytes.len() as u64 && answer.bytes().await? == bytes);
            }
            Err(object_store::Error::NotFound { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    let source = format!("reported as existing and then as missing, {MAX_CREATE_ATTEMPTS} times").into();
    Err(object_store::Error::Generic { store: "create", source })
}
