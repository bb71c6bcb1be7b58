//! A place in an object store, with blocking calls.

mod read;
mod transfer;
mod write;

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use object_store::path::Path;
use object_store::{GetOptions, ObjectStore, ObjectStoreExt};

use crate::error::{Error, Result};
use crate::folder::Folder;
use crate::names;
use crate::open::{self, Backend, Settings};
use crate::retry::{self, Patience, Place};
use crate::runtime;
pub use transfer::Upload;

/// A folder or an object-store prefix. Cheap to clone, usable from many threads at once.
///
/// Every call blocks its thread until the store has answered, and may also be made on a thread of an
/// asynchronous runtime (it holds up that thread). Remote stores are retried within [`Settings::patience`];
/// local writes are on the disk when a call returns, and a name is there completely or not at all, whenever the
/// process is killed.
#[derive(Clone)]
pub struct Store {
    pub(crate) backend: Arc<Backend>,
    pub(crate) root: Path,
    pub(crate) url: String,
    pub(crate) patience: Patience,
    /// What is written goes below this folder, which must be there.
    required: Option<Arc<Folder>>,
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Store").field(&self.url).finish()
    }
}

impl Store {
    /// Opens a path, `file://`, `memory://name/prefix` (shared within the process), `s3://bucket/prefix`,
    /// `gs://bucket/prefix` or `az://container/prefix`. Nothing is read or created yet.
    ///
    /// Credentials and endpoints come from the environment (`AWS_ACCESS_KEY_ID`, `AWS_ENDPOINT_URL`, ...) or from
    /// the machine's own identity at its provider.
    ///
    /// # Errors
    /// A URL of an unknown kind, one that holds a password, or a configuration that its provider refuses.
    pub fn open(url: &str) -> Result<Self> {
        Self::open_with(url, Settings::default())
    }

    /// Like [`Store::open`], with settings of one's own.
    ///
    /// # Errors
    /// As for [`Store::open`].
    pub fn open_with(url: &str, settings: Settings) -> Result<Self> {
        let opened = open::open(url, &settings)?;
        let (backend, root, url) = (Arc::new(opened.backend), opened.root, opened.url);
        Ok(Self { backend, root, url, patience: settings.patience, required: None })
    }

    /// The same store with another patience: a background save can wait longer than a person.
    #[must_use]
    pub fn with_patience(&self, patience: Patience) -> Self {
        Self { patience, ..self.clone() }
    }

    /// The same store for one who uses what is there: if it is a folder that is moved or removed from now on, writing fails
    /// with [`Error::FolderGone`] and does not make it again. Buckets have no folders.
    #[must_use]
    pub fn require_folder(&self) -> Self {
        let required = self.is_local().then(|| Arc::new(Folder::at(PathBuf::from(&self.url))));
        Self { required, ..self.clone() }
    }

    /// Where this is, as it can be given to [`Store::open`] again. Holds no credential.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The same store, one or more levels down.
    ///
    /// # Errors
    /// [`Error::Name`] if `prefix` is no plain relative name.
    pub fn join(&self, prefix: &str) -> Result<Self> {
        let prefix = prefix.trim_end_matches('/');
        let root = names::below(&self.root, prefix)?;
        Ok(Self { root, url: self.url_of(prefix), ..self.clone() })
    }

    /// The file that holds `path`, if this store is a folder of this machine. The file need not exist.
    ///
    /// # Errors
    /// [`Error::Name`] if `path` is no plain relative name.
    pub fn local_path(&self, path: &str) -> Result<Option<PathBuf>> {
        names::check(path)?;
        Ok(self.is_local().then(|| PathBuf::from(&self.url).join(path)))
    }

    /// A whole object, whatever its size. Where the size is not known to be small use [`Store::get_at_most`].
    ///
    /// # Errors
    /// [`Error::NotFound`] if there is none; else what the store says.
    pub fn get(&self, path: &str) -> Result<Bytes> {
        self.get_at_most(path, u64::MAX)
    }

    /// A whole object that must not have more than `limit` bytes; a larger one is not read at all.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::TooLarge`], else what the store says.
    pub fn get_at_most(&self, path: &str, limit: u64) -> Result<Bytes> {
        let (store, name, place) = self.ask("get", path)?;
        runtime::wait(async move { store.fetch(&name, &place, limit).await })
    }

    /// Reads a whole object of at most `limit` bytes.
    pub(crate) async fn fetch(&self, name: &Path, place: &Place, limit: u64) -> Result<Bytes> {
        let once = |_| async {
            let answer = self.backend.objects().get(name).await?;
            let bytes = answer.meta.size;
            if bytes > limit {
                return Ok(Fetched::TooLarge(bytes));
            }
            complete(bytes, answer.bytes().await?).map(Fetched::Object)
        };
        match retry::attempts(place, self.retried(), once).await? {
            Fetched::Object(bytes) => Ok(bytes),
            Fetched::TooLarge(bytes) => Err(Error::TooLarge { url: place.url.clone(), bytes, limit }),
        }
    }

    /// The bytes `range` of an object.
    ///
    /// # Errors
    /// [`Error::NotFound`], a range beyond the object's end, else what the store says.
    pub fn get_range(&self, path: &str, range: Range<u64>) -> Result<Bytes> {
        if range.is_empty() {
            return Ok(Bytes::new());
        }
        let (store, name, place) = self.ask("get range of", path)?;
        runtime::wait(async move {
            let once = |_| part(store.backend.objects(), &name, &range);
            retry::attempts(&place, store.retried(), once).await
        })
    }

    /// The size of an object in bytes, or `None` if there is none.
    ///
    /// # Errors
    /// What the store says.
    pub fn head(&self, path: &str) -> Result<Option<u64>> {
        let (store, name, place) = self.ask("look at", path)?;
        let found = runtime::wait(async move {
            let once = |_| store.backend.objects().head(&name);
            retry::attempts(&place, store.retried(), once).await
        });
        match found {
            Ok(meta) => Ok(Some(meta.size)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Whether this is a folder of this machine or of a shared file system.
    pub fn is_local(&self) -> bool {
        matches!(*self.backend, Backend::Local(_))
    }

    /// The patience to retry with, where retrying helps at all.
    pub(crate) fn retried(&self) -> Option<&Patience> {
        matches!(*self.backend, Backend::Remote { in_memory: false, .. }).then_some(&self.patience)
    }

    pub(crate) fn url_of(&self, path: &str) -> String {
        if path.is_empty() { self.url.clone() } else { format!("{}/{path}", self.url) }
    }

    pub(crate) fn place(&self, operation: &'static str, path: &str) -> Place {
        Place { operation, url: self.url_of(path) }
    }

    /// What every request needs: the store to take along, the checked full name, and words for messages.
    pub(crate) fn ask(&self, operation: &'static str, path: &str) -> Result<(Self, Path, Place)> {
        Ok((self.clone(), names::below(&self.root, path)?, self.place(operation, path)))
    }

    pub(crate) fn relative(&self, full: &Path) -> Option<String> {
        let parts: Vec<_> = full.prefix_match(&self.root)?.map(|part| part.as_ref().to_string()).collect();
        Some(parts.join("/"))
    }
}

/// The answer to a read with a size limit. An object above the limit is not read, and not tried again.
enum Fetched {
    /// The whole object.
    Object(Bytes),
    /// The size of an object above the limit, bytes.
    TooLarge(u64),
}

/// A body that ends early can look like a success; its length cannot.
pub(crate) fn complete(wanted: u64, body: Bytes) -> object_store::Result<Bytes> {
    if body.len() as u64 == wanted {
        return Ok(body);
    }
    let source = format!("the answer has {} bytes where {wanted} were announced", body.len()).into();
    Err(object_store::Error::Generic { store: "answer", source })
}

/// The bytes `range` of an object. Where the object ends before `range` does, S3 and Azure answer with the bytes that there
/// are; that is an error, and not one to try again.
pub(crate) async fn part(objects: &dyn ObjectStore, name: &Path, range: &Range<u64>) -> object_store::Result<Bytes> {
    let options = GetOptions { range: Some(range.clone().into()), ..GetOptions::default() };
    let answer = objects.get_opts(name, options).await?;
    let bytes = answer.meta.size;
    if bytes < range.end {
        let source = format!("the object has {bytes} bytes, and bytes up to {} were asked for", range.end).into();
        return Err(object_store::Error::Precondition { path: name.to_string(), source });
    }
    complete(range.end - range.start, answer.bytes().await?)
}
