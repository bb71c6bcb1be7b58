//! Objects written, created and removed.

use std::fs::File;
use std::sync::Arc;

use bytes::Bytes;
use object_store::path::Path;
use object_store::{GetOptions, ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload};

use super::{Store, Upload, transfer};
use crate::error::{Error, Result};
use crate::retry::{self, Place};
use crate::{hash, runtime};

/// How often an object is created that was there at first and then was not.
const CREATIONS: u32 = 8;

impl Store {
    /// Writes an object, in place of any that has the name; large ones in parallel parts where the store has them.
    ///
    /// # Errors
    /// What the store says.
    pub fn put(&self, path: &str, bytes: Bytes) -> Result<()> {
        let (store, name, place) = self.ask("put", path)?;
        runtime::wait(transfer::upload(store, name, place, bytes))
    }

    /// Writes an object of the first `bytes` bytes of `file`. A few pieces of it are in memory at a time where the store
    /// takes large objects in parts.
    ///
    /// # Errors
    /// The file cannot be read, or what the store says.
    pub fn put_file(&self, path: &str, file: File, bytes: u64) -> Result<()> {
        let (store, name, place) = self.ask("put", path)?;
        runtime::wait(transfer::upload_file(store, name, place, Arc::new(file), bytes))
    }

    /// Like [`Store::put`]; returns the SHA-256 of `bytes`, computed while they are on their way.
    ///
    /// # Errors
    /// What the store says.
    pub fn put_hashed(&self, path: &str, bytes: Bytes) -> Result<String> {
        self.put_in_background(path, bytes)?.wait()
    }

    /// Starts what [`Store::put_hashed`] does and returns at once. Several may be under way.
    ///
    /// # Errors
    /// [`Error::Name`]; everything else comes out of the [`Upload`].
    pub fn put_in_background(&self, path: &str, bytes: Bytes) -> Result<Upload> {
        self.put_digested(path, bytes, |bytes| Ok(hash::sha256(bytes)))
    }

    /// The same with a `digest` that may refuse the bytes.
    pub(crate) fn put_digested(
        &self,
        path: &str,
        bytes: Bytes,
        digest: impl FnOnce(&[u8]) -> Result<String> + Send + 'static,
    ) -> Result<Upload> {
        let (store, name, place) = self.ask("put", path)?;
        Ok(Upload::start(store, name, place, bytes, digest))
    }

    /// Writes an object only if there is none of the name; returns whether it was written.
    ///
    /// If an answer was lost on the way and the object is then found with exactly these bytes, it counts as
    /// written by this call; so bytes that tell writers apart (a random mark) make the result exact.
    ///
    /// # Errors
    /// What the store says; "it exists" is not an error.
    pub fn put_new(&self, path: &str, bytes: Bytes) -> Result<bool> {
        let (store, name, place) = self.ask("create", path)?;
        runtime::wait(async move {
            store
                .write(&place, async {
                    let once = |attempt| create(store.backend.objects(), &name, bytes.clone(), attempt);
                    retry::attempts(&place, store.retried(), once).await
                })
                .await
        })
    }

    /// Removes an object; that there is none is no error.
    ///
    /// # Errors
    /// What the store says.
    pub fn delete(&self, path: &str) -> Result<()> {
        let (store, name, place) = self.ask("delete", path)?;
        let done = runtime::wait(async move {
            let once = |_| store.backend.objects().delete(&name);
            retry::attempts(&place, store.retried(), once).await
        });
        done.or_else(|error| if error.is_not_found() { Ok(()) } else { Err(error) })
    }

    /// Writes the object at `place`. Fails where the folder that must be there is not: a store makes the missing folders of what it
    /// writes, so what was made in its old place, should it be moved in this moment, is removed again.
    pub(crate) async fn write<T>(&self, place: &Place, writing: impl Future<Output = Result<T>>) -> Result<T> {
        let Some(folder) = self.required.as_deref() else { return writing.await };
        let gone = || Error::FolderGone {
            operation: place.operation,
            url: place.url.clone(),
            folder: folder.path().display().to_string(),
        };
        if !folder.is_there() {
            return Err(gone());
        }
        let written = writing.await;
        if folder.is_there() {
            return written;
        }
        folder.undo(std::path::Path::new(&place.url));
        Err(gone())
    }
}

/// Creates an object, unless there is one; whether it has. One that is removed while it is looked at is no reason not to.
async fn create(objects: &dyn ObjectStore, name: &Path, bytes: Bytes, attempt: u32) -> object_store::Result<bool> {
    for _ in 0..CREATIONS {
        let options = PutOptions::from(PutMode::Create);
        match objects.put_opts(name, PutPayload::from_bytes(bytes.clone()), options).await {
            Ok(_) => return Ok(true),
            Err(object_store::Error::AlreadyExists { .. } | object_store::Error::Precondition { .. }) => {}
            Err(error) => return Err(error),
        }
        // A later attempt may find what an earlier one wrote before its answer was lost.
        match objects.get_opts(name, GetOptions::default()).await {
            Ok(answer) => {
                return Ok(attempt > 1 && answer.meta.size == bytes.len() as u64 && answer.bytes().await? == bytes);
            }
            Err(object_store::Error::NotFound { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    let source = format!("refused as existing, and then not there, {CREATIONS} times").into();
    Err(object_store::Error::Generic { store: "create", source })
}
