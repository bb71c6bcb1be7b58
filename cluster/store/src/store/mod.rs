//! Object-store client with blocking calls.

mod observer;
mod read;
mod transfer;
mod write;

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use object_store::path::Path;
use object_store::{GetOptions, ObjectStoreExt};

use crate::error::{Error, Result};
use crate::folder::RequiredFolder;
use crate::names;
use crate::open::{self, StorageBackend, StoreSettings};
use crate::retry::{self, Progress, RetryPolicy, StoreRequest, Transfer};
use crate::runtime;
pub use observer::TransferObserver;
pub use transfer::Upload;

/// A local directory or an object-store prefix. A store is cheap to clone and usable from many threads.
///
/// Every call blocks the calling thread until the store responds, also on a thread of an async runtime. Remote requests
/// are retried according to [`StoreSettings::retry_policy`]. Local writes are fsynced and atomic, so after a crash an
/// object is either complete or absent.
#[derive(Clone)]
pub struct Store {
    pub(crate) backend: Arc<StorageBackend>,
    pub(crate) root: Path,
    pub(crate) url: String,
    pub(crate) retry_policy: RetryPolicy,
    /// Directory that must still exist when an object is written.
    required: Option<Arc<RequiredFolder>>,
    /// Receives the sizes of reads and writes.
    observer: Option<Arc<dyn TransferObserver>>,
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Store").field(&self.url).finish()
    }
}

impl Store {
    /// Opens a store without sending a request. The URL is a path, `file://`, `memory://name/prefix` (shared within the
    /// process), `s3://bucket/prefix`, `gs://bucket/prefix` or `az://container/prefix`.
    ///
    /// Credentials and endpoints come from the environment (`AWS_ACCESS_KEY_ID`, `AWS_ENDPOINT_URL`, ...), from the
    /// shared AWS files, or from the identity of the cloud instance.
    ///
    /// # Errors
    /// An unknown scheme, a URL with a password, or a configuration that the backend rejects.
    pub fn open(url: &str) -> Result<Self> {
        Self::open_with(url, StoreSettings::default())
    }

    /// Like [`Store::open`], with explicit settings.
    ///
    /// # Errors
    /// As for [`Store::open`].
    pub fn open_with(url: &str, settings: StoreSettings) -> Result<Self> {
        let opened = open::open(url, &settings)?;
        let (backend, root, url) = (Arc::new(opened.backend), opened.root, opened.url);
        Ok(Self { backend, root, url, retry_policy: settings.retry_policy, required: None, observer: None })
    }

    /// Returns the same store with another retry policy.
    #[must_use]
    pub fn with_retry_policy(&self, retry_policy: RetryPolicy) -> Self {
        Self { retry_policy, ..self.clone() }
    }

    /// Returns the same store, but without permission to recreate its root directory. If the directory of a local store
    /// is moved or removed from now on, writes fail with [`Error::FolderGone`]. Has no effect on buckets.
    #[must_use]
    pub fn require_folder(&self) -> Self {
        let required = self.is_local().then(|| Arc::new(RequiredFolder::at(PathBuf::from(&self.url))));
        Self { required, ..self.clone() }
    }

    /// URL of the store, as accepted by [`Store::open`]. Contains no credentials.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Returns the store at `prefix` below this one.
    ///
    /// # Errors
    /// [`Error::Name`] if `prefix` is not a plain relative name.
    pub fn join(&self, prefix: &str) -> Result<Self> {
        let prefix = prefix.trim_end_matches('/');
        let root = names::below(&self.root, prefix)?;
        Ok(Self { root, url: self.url_of(prefix), ..self.clone() })
    }

    /// Returns the file path of object `path` in a local store, or `None` for a remote store. The file need not exist.
    ///
    /// # Errors
    /// [`Error::Name`] if `path` is not a plain relative name.
    pub fn local_path(&self, path: &str) -> Result<Option<PathBuf>> {
        names::check(path)?;
        Ok(self.is_local().then(|| PathBuf::from(&self.url).join(path)))
    }

    /// Reads a whole object of any size. Use [`Store::get_at_most`] unless the object is known to be small.
    ///
    /// # Errors
    /// [`Error::NotFound`], or another store error.
    pub fn get(&self, path: &str) -> Result<Bytes> {
        self.get_at_most(path, u64::MAX)
    }

    /// Reads a whole object of at most `limit` bytes. Does not transfer a larger object.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::TooLarge`], or another store error.
    pub fn get_at_most(&self, path: &str, limit: u64) -> Result<Bytes> {
        let (store, name, request) = self.prepare("get", path)?;
        runtime::wait(async move { store.fetch(&name, &request, limit).await })
    }

    /// Reads a whole object of at most `limit` bytes.
    pub(crate) async fn fetch(&self, name: &Path, request: &StoreRequest, limit: u64) -> Result<Bytes> {
        let once = |_, progress: Progress| async move {
            let answer = self.backend.objects().get(name).await?;
            let bytes = answer.meta.size;
            if bytes > limit {
                return Ok(LimitedRead::TooLarge(bytes));
            }
            self.body(bytes, answer, &progress).await.map(LimitedRead::Object)
        };
        // The size is unknown before the response.
        match retry::transfer(request, self.retried(), Transfer::Download(0), once).await? {
            LimitedRead::Object(bytes) => Ok(bytes),
            LimitedRead::TooLarge(bytes) => Err(Error::TooLarge { url: request.url.clone(), bytes, limit }),
        }
    }

    /// Reads the byte range `range` of an object.
    ///
    /// # Errors
    /// [`Error::NotFound`], a range beyond the end of the object, or another store error.
    pub fn get_range(&self, path: &str, range: Range<u64>) -> Result<Bytes> {
        if range.is_empty() {
            return Ok(Bytes::new());
        }
        let (store, name, request) = self.prepare("get range of", path)?;
        runtime::wait(async move { store.part(&name, &request, &range).await })
    }

    /// Returns the size of an object in bytes, or `None` if the object does not exist.
    ///
    /// # Errors
    /// A store error.
    pub fn head(&self, path: &str) -> Result<Option<u64>> {
        Ok(self.object(path)?.map(|object| object.bytes))
    }

    /// True for a directory on a local or shared file system.
    pub fn is_local(&self) -> bool {
        matches!(*self.backend, StorageBackend::Local(_))
    }

    /// Retry policy of a remote store. `None` for local disks and memory, where requests are not retried.
    pub(crate) fn retried(&self) -> Option<&RetryPolicy> {
        matches!(*self.backend, StorageBackend::Remote { in_memory: false, .. }).then_some(&self.retry_policy)
    }

    pub(crate) fn url_of(&self, path: &str) -> String {
        if path.is_empty() { self.url.clone() } else { format!("{}/{path}", self.url) }
    }

    pub(crate) fn request(&self, operation: &'static str, path: &str) -> StoreRequest {
        StoreRequest { operation, url: self.url_of(path) }
    }

    /// Returns the parts of a request: a clone of the store, the checked full name, and operation and URL for messages.
    pub(crate) fn prepare(&self, operation: &'static str, path: &str) -> Result<(Self, Path, StoreRequest)> {
        Ok((self.clone(), names::below(&self.root, path)?, self.request(operation, path)))
    }

    pub(crate) fn relative(&self, full: &Path) -> Option<String> {
        let parts: Vec<_> = full.prefix_match(&self.root)?.map(|part| part.as_ref().to_string()).collect();
        Some(parts.join("/"))
    }

    /// Reads the bytes `range` of an object. S3 and Azure truncate a range that exceeds the object. This function returns
    /// a permanent error instead.
    pub(crate) async fn part(&self, name: &Path, request: &StoreRequest, range: &Range<u64>) -> Result<Bytes> {
        let transfer = Transfer::Download(range.end - range.start);
        retry::transfer(request, self.retried(), transfer, |_, progress| self.part_once(name, range, progress)).await
    }

    async fn part_once(&self, name: &Path, range: &Range<u64>, progress: Progress) -> object_store::Result<Bytes> {
        let options = GetOptions { range: Some(range.clone().into()), ..GetOptions::default() };
        let answer = self.backend.objects().get_opts(name, options).await?;
        let bytes = answer.meta.size;
        if bytes < range.end {
            let source = format!("the object has {bytes} bytes, the requested range ends at {}", range.end).into();
            return Err(object_store::Error::Precondition { path: name.to_string(), source });
        }
        self.body(range.end - range.start, answer, &progress).await
    }
}

/// Result of a size-limited read. An object above the limit is not an error here, so that the read is not retried.
enum LimitedRead {
    /// The whole object.
    Object(Bytes),
    /// The object is larger than the limit and was not read. The value is its size in bytes.
    TooLarge(u64),
}

/// Checks the length of a response body, because a truncated response can look like a success.
pub(crate) fn complete(expected: u64, body: Bytes) -> object_store::Result<Bytes> {
    if body.len() as u64 == expected {
        return Ok(body);
    }
    let source = format!("the response has {} bytes, expected {expected}", body.len()).into();
    Err(object_store::Error::Generic { store: "answer", source })
}
