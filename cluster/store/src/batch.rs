//! Batched reads and deletes.

use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};
use object_store::path::Path;

use crate::error::Result;
use crate::names;
use crate::retry;
use crate::runtime;
use crate::store::Store;

/// Number of concurrent reads in [`Store::get_all`].
const PARALLEL: usize = 32;

/// Maximum number of objects per delete request. It is the limit of S3.
const DELETE_BATCH: usize = 1000;

impl Store {
    /// Reads the objects at `paths`, several of them concurrently, and returns them in the order of `paths`. Each
    /// object may have at most `limit` bytes.
    ///
    /// # Errors
    /// As for [`Store::get_at_most`]. The first error ends the call.
    pub fn get_all(&self, paths: &[String], limit: u64) -> Result<Vec<Bytes>> {
        let asked = paths.iter().map(|path| self.prepare("get", path)).collect::<Result<Vec<_>>>()?;
        runtime::wait(async move {
            let read = |(store, name, request): (Self, Path, retry::StoreRequest)| async move {
                store.fetch(&name, &request, limit).await
            };
            stream::iter(asked).map(read).buffered(PARALLEL).try_collect().await
        })
    }

    /// Deletes objects. If the store supports it, each request deletes many objects. Missing objects are not an error.
    ///
    /// # Errors
    /// A store error. Some of the objects may have been deleted.
    pub fn delete_all(&self, paths: &[String]) -> Result<()> {
        for some in paths.chunks(DELETE_BATCH) {
            let names = some.iter().map(|path| names::below(&self.root, path)).collect::<Result<Vec<_>>>()?;
            // Error messages name only the first object of the request.
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
