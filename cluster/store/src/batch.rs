//! Batched reads and deletes.

use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};
use object_store::path::Path;

use crate::error::Result;
use crate::names;
use crate::retry;
use crate::runtime;
use crate::store::Store;

/// Concurrent reads of small objects.
const PARALLEL: usize = 32;

/// Objects per delete request: S3's limit.
const DELETE_BATCH: usize = 1000;

impl Store {
    /// Reads small objects of at most `limit` bytes each, in the order of `paths`, several concurrently.
    ///
    /// # Errors
    /// As for [`Store::get_at_most`]; the first error ends the batch.
    pub fn get_all(&self, paths: &[String], limit: u64) -> Result<Vec<Bytes>> {
        let asked = paths.iter().map(|path| self.prepare("get", path)).collect::<Result<Vec<_>>>()?;
        runtime::wait(async move {
            let read = |(store, name, request): (Self, Path, retry::StoreRequest)| async move {
                store.fetch(&name, &request, limit).await
            };
            stream::iter(asked).map(read).buffered(PARALLEL).try_collect().await
        })
    }

    /// Deletes objects, batched where the store supports it. Missing objects are not an error.
    ///
    /// # Errors
    /// A store error; some objects may have been deleted.
    pub fn delete_all(&self, paths: &[String]) -> Result<()> {
        for some in paths.chunks(DELETE_BATCH) {
            let names = some.iter().map(|path| names::below(&self.root, path)).collect::<Result<Vec<_>>>()?;
            // Messages name the first object of a batch.
            let (store, request) = (self.clone(), self.request("delete", &some[0]));
            runtime::wait(async move {
                let once = |_| delete(&store, names.clone());
                retry::attempts(&request, store.retried(), once).await
            })?;
        }
        Ok(())
    }
}

async fn delete(store: &Store, names: Vec<Path>) -> object_store::Result<()> {
    let mut deleted = store.backend.objects().delete_stream(stream::iter(names).map(Ok).boxed());
    while let Some(deleted) = deleted.next().await {
        match deleted {
            Ok(_) | Err(object_store::Error::NotFound { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
