//! Operations on many objects at once.

use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};
use object_store::path::Path;

use crate::error::Result;
use crate::names;
use crate::retry;
use crate::runtime;
use crate::store::Store;

/// Small objects that are fetched at the same time.
const PARALLEL: usize = 32;

/// Objects that one attempt deletes: what S3 takes in a request.
const DELETED_TOGETHER: usize = 1000;

impl Store {
    /// Small objects of at most `limit` bytes each, in the order of `paths`; several are fetched at the same time.
    ///
    /// # Errors
    /// As for [`Store::get_at_most`], of the first that fails.
    pub fn get_all(&self, paths: &[String], limit: u64) -> Result<Vec<Bytes>> {
        let asked = paths.iter().map(|path| self.ask("get", path)).collect::<Result<Vec<_>>>()?;
        runtime::wait(async move {
            let read = |(store, name, place): (Self, Path, retry::Place)| async move {
                store.fetch(&name, &place, limit).await
            };
            stream::iter(asked).map(read).buffered(PARALLEL).try_collect().await
        })
    }

    /// Deletes objects, many in a request where the store can; that one of them is not there is no error.
    ///
    /// # Errors
    /// What the store says; some objects may be deleted then.
    pub fn delete_all(&self, paths: &[String]) -> Result<()> {
        for some in paths.chunks(DELETED_TOGETHER) {
            let names = some.iter().map(|path| names::below(&self.root, path)).collect::<Result<Vec<_>>>()?;
            // The first stands for all in messages.
            let (store, place) = (self.clone(), self.place("delete", &some[0]));
            runtime::wait(async move {
                let once = |_| delete(&store, names.clone());
                retry::attempts(&place, store.retried(), once).await
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
