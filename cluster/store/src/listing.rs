//! What there is in a store.

use futures_util::TryStreamExt;
use object_store::path::Path;

use crate::error::Result;
use crate::names;
use crate::retry;
use crate::runtime;
use crate::store::Store;

/// An object in a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Object {
    /// Its name, relative to the store that was listed.
    pub path: String,
    /// Its size in bytes.
    pub bytes: u64,
    /// Another one when the object is replaced: its e_tag, or where the store has none the time of its last change.
    pub tag: String,
}

impl Store {
    /// All objects below `prefix` (a folder's name, or empty for everything), sorted by name. A prefix without
    /// objects gives an empty list.
    ///
    /// # Errors
    /// What the store says.
    pub fn list(&self, prefix: &str) -> Result<Vec<Object>> {
        let folder = names::folder(&self.root, prefix)?;
        let (store, place) = (self.clone(), self.place("list", prefix));
        runtime::wait(async move {
            let once = |_| store.backend.objects().list(Some(&folder)).try_collect::<Vec<_>>();
            let found = retry::attempts(&place, store.retried(), once).await?;
            let named = found.into_iter().filter_map(|meta| {
                let path = store.relative(&meta.location)?;
                let tag = meta.e_tag.unwrap_or_else(|| meta.last_modified.to_rfc3339());
                Some(Object { path, bytes: meta.size, tag })
            });
            let mut objects: Vec<_> = named.collect();
            objects.sort_by(|a, b| a.path.cmp(&b.path));
            Ok(objects)
        })
    }

    /// The names of the folders directly below `prefix`, sorted, without the prefix.
    ///
    /// # Errors
    /// What the store says.
    pub fn list_folders(&self, prefix: &str) -> Result<Vec<String>> {
        self.list_level(prefix).map(|(folders, _)| folders)
    }

    /// The names of the objects directly below `prefix`, those in folders not included, sorted, without the prefix.
    ///
    /// # Errors
    /// What the store says.
    pub fn list_names(&self, prefix: &str) -> Result<Vec<String>> {
        self.list_level(prefix).map(|(_, names)| names)
    }

    /// Folders and objects directly below `prefix`.
    fn list_level(&self, prefix: &str) -> Result<(Vec<String>, Vec<String>)> {
        let folder = names::folder(&self.root, prefix)?;
        let (store, place) = (self.clone(), self.place("list", prefix));
        runtime::wait(async move {
            let once = |_| store.backend.objects().list_with_delimiter(Some(&folder));
            let found = retry::attempts(&place, store.retried(), once).await?;
            let last = |path: &Path| path.filename().map(String::from);
            let mut folders: Vec<_> = found.common_prefixes.iter().filter_map(last).collect();
            let mut names: Vec<_> = found.objects.iter().filter_map(|meta| last(&meta.location)).collect();
            folders.sort();
            names.sort();
            Ok((folders, names))
        })
    }
}
