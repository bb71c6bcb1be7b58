//! Listings of a store.

use std::io;
use std::path::Path as FilePath;

use futures_util::TryStreamExt;
use object_store::ObjectStoreExt;
use object_store::path::Path;

use crate::error::Result;
use crate::local_listing;
use crate::names;
use crate::object::Object;
use crate::retry::{self, StoreRequest, Transfer};
use crate::runtime;
use crate::store::Store;

impl Store {
    /// Lists all objects below `prefix`, sorted by name. An empty prefix means the whole store. A prefix without
    /// objects yields an empty list.
    ///
    /// # Errors
    /// A store error.
    pub fn list(&self, prefix: &str) -> Result<Vec<Object>> {
        let folder = names::folder(&self.root, prefix)?;
        let (store, request) = (self.clone(), self.request("list", prefix));
        if self.is_local() {
            let below = prefix.trim_end_matches('/');
            let mut objects = list_local(&request, |folder| local_listing::tree(folder, below))?;
            objects.sort_by(|a, b| a.path.cmp(&b.path));
            return Ok(objects);
        }
        runtime::wait(async move {
            let once = |_| store.backend.objects().list(Some(&folder)).try_collect::<Vec<_>>();
            let found = retry::attempts(&request, store.retried(), once).await?;
            let named = found.into_iter().filter_map(|meta| Some(Object::new(store.relative(&meta.location)?, meta)));
            let mut objects: Vec<_> = named.collect();
            objects.sort_by(|a, b| a.path.cmp(&b.path));
            Ok(objects)
        })
    }

    /// Describes an object, or returns `None` if it does not exist.
    ///
    /// # Errors
    /// A store error.
    pub fn object(&self, path: &str) -> Result<Option<Object>> {
        let (store, name, request) = self.prepare("head", path)?;
        let found = runtime::wait(async move {
            let once = |_, _| store.backend.objects().head(&name);
            retry::transfer(&request, store.retried(), Transfer::Lookup, once).await
        });
        match found {
            Ok(meta) => Ok(Some(Object::new(path.to_owned(), meta))),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Lists the folders (common prefixes) directly below `prefix`. The names are sorted and relative to `prefix`.
    ///
    /// # Errors
    /// A store error.
    pub fn list_folders(&self, prefix: &str) -> Result<Vec<String>> {
        self.list_level(prefix).map(|(folders, _)| folders)
    }

    /// Lists the objects directly below `prefix`, without the objects in its folders. The names are sorted and relative
    /// to `prefix`.
    ///
    /// # Errors
    /// A store error.
    pub fn list_names(&self, prefix: &str) -> Result<Vec<String>> {
        self.list_level(prefix).map(|(_, names)| names)
    }

    /// Lists folders and objects directly below `prefix`.
    fn list_level(&self, prefix: &str) -> Result<(Vec<String>, Vec<String>)> {
        let folder = names::folder(&self.root, prefix)?;
        let (store, request) = (self.clone(), self.request("list", prefix));
        if self.is_local() {
            let (mut folders, mut names) = list_local(&request, local_listing::level)?;
            folders.sort();
            names.sort();
            return Ok((folders, names));
        }
        runtime::wait(async move {
            let once = |_| store.backend.objects().list_with_delimiter(Some(&folder));
            let found = retry::attempts(&request, store.retried(), once).await?;
            let last = |path: &Path| path.filename().map(String::from);
            let mut folders: Vec<_> = found.common_prefixes.iter().filter_map(last).collect();
            let mut names: Vec<_> = found.objects.iter().filter_map(|meta| last(&meta.location)).collect();
            folders.sort();
            names.sort();
            Ok((folders, names))
        })
    }
}

fn list_local<T>(request: &StoreRequest, list: impl Fn(&FilePath) -> io::Result<T>) -> Result<T> {
    list(FilePath::new(&request.url)).map_err(|error| retry::local_error(request, &error))
}
