//! Opens a store from a URL.

use std::collections::HashMap;
use std::path::{Component, Path as FilePath, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::local::LocalFileSystem;
use object_store::memory::InMemory;
use object_store::multipart::MultipartStore;
use object_store::path::Path;
use object_store::{ClientConfigKey, ObjectStore, RetryConfig};
use url::Url;

use crate::aws_profile;
use crate::error::{Cause, Error, Result};
use crate::retry::RetryPolicy;
use crate::shown::shown;

/// Timeout of a connection attempt. A reachable host accepts a connection within milliseconds.
const CONNECT_TIMEOUT: &str = "5 s";

/// Timeout of the HTTP client for a whole request: none in practice. The retry module limits each attempt.
const CLIENT_TIMEOUT: &str = "7 days";

/// Connection settings of a store.
#[derive(Debug, Clone, Default)]
pub struct StoreSettings {
    /// Timeouts and backoff for remote stores.
    pub retry_policy: RetryPolicy,
    /// Configuration keys of the object_store crate (`aws_endpoint_url`, `google_service_account`, ...) with their
    /// values. They take precedence over the environment. Pass secrets in the environment instead.
    pub options: Vec<(String, String)>,
}

/// Storage backend.
pub(crate) enum StorageBackend {
    /// Local file system: writes are fsynced and atomic.
    Local(LocalFileSystem),
    /// Any other store, with multipart uploads.
    Remote { objects: Arc<dyn ObjectStore>, parts: Arc<dyn MultipartStore>, in_memory: bool },
}

impl StorageBackend {
    pub(crate) fn objects(&self) -> &dyn ObjectStore {
        match self {
            Self::Local(objects) => objects,
            Self::Remote { objects, .. } => objects.as_ref(),
        }
    }

    fn remote<T: ObjectStore + MultipartStore>(store: T) -> Self {
        let store = Arc::new(store);
        Self::Remote { objects: store.clone(), parts: store, in_memory: false }
    }
}

/// An opened store: backend, prefix, and URL for messages.
pub(crate) struct OpenedStore {
    pub backend: StorageBackend,
    pub root: Path,
    pub url: String,
}

pub(crate) fn open(url: &str, settings: &StoreSettings) -> Result<OpenedStore> {
    if !url.contains("://") {
        if let Some((scheme, rest)) = url.split_once(":/").filter(|(scheme, _)| SCHEMES.contains(scheme)) {
            return Err(refused(url, format!("a URL has two slashes: {scheme}://{rest}")));
        }
        return local(FilePath::new(url), url);
    }
    let parsed = Url::parse(url).map_err(|source| refused(url, format!("not a URL: {source}")))?;
    // If a secret starts with digits and a slash, these digits are the port: s3://KEY:12/secret@bucket.
    let has_password = parsed.password().is_some() || parsed.port().is_some() && url.contains('@');
    if has_password || parsed.query().is_some() || parsed.fragment().is_some() {
        let why = "it contains a password, a query or a fragment; pass credentials in the environment".to_string();
        return Err(refused(url, why));
    }
    match parsed.scheme() {
        "file" => {
            let path = parsed.to_file_path().map_err(|()| refused(url, "not a local path".into()))?;
            local(&path, url)
        }
        "memory" => memory(&parsed),
        "s3" | "s3a" => remote(&parsed, s3(&parsed, settings)),
        "gs" => remote(&parsed, gcs(&parsed, settings)),
        "az" | "abfs" | "abfss" => remote(&parsed, azure(&parsed, settings)),
        other => Err(refused(url, format!("unknown scheme {other:?}; supported: paths, file, s3, gs, az"))),
    }
}

/// Schemes of URLs.
const SCHEMES: [&str; 8] = ["file", "memory", "s3", "s3a", "gs", "az", "abfs", "abfss"];

fn refused(url: &str, why: String) -> Error {
    Error::Url { url: shown(url), why: Cause::new(why).to_string() }
}

fn local(path: &FilePath, given: &str) -> Result<OpenedStore> {
    let resolved = resolve(path).map_err(|why| refused(given, why))?;
    let url = resolved.to_str().ok_or_else(|| refused(given, "the path is not UTF-8".into()))?.to_string();
    let root = Path::parse(url.trim_start_matches('/')).map_err(|source| refused(given, source.to_string()))?;
    Ok(OpenedStore {
        backend: StorageBackend::Local(LocalFileSystem::new().with_fsync(true).with_automatic_cleanup(true)),
        root,
        url,
    })
}

/// Resolves symbolic links and `..` in a path whose last components may not exist yet.
fn resolve(path: &FilePath) -> Result<PathBuf, String> {
    let absolute = std::path::absolute(path).map_err(|source| source.to_string())?;
    let mut existing = absolute.as_path();
    loop {
        if let Ok(canonical) = existing.canonicalize() {
            let missing = absolute.strip_prefix(existing).unwrap_or(FilePath::new(""));
            let plain = missing.components().all(|part| matches!(part, Component::Normal(_)));
            return plain
                .then(|| canonical.components().chain(missing.components()).collect())
                .ok_or_else(|| "it has .. below a missing directory".into());
        }
        existing = existing.parent().ok_or("no part of the path exists")?;
    }
}

/// Opens an in-memory store. Within a process, the same name always opens the same store.
fn memory(url: &Url) -> Result<OpenedStore> {
    static STORES: OnceLock<Mutex<HashMap<String, Arc<InMemory>>>> = OnceLock::new();
    let name = url.host_str().unwrap_or("").to_string();
    let mut stores = STORES.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner);
    let store = stores.entry(name).or_default().clone();
    let backend = StorageBackend::Remote { objects: store.clone(), parts: store, in_memory: true };
    remote(url, Ok(backend))
}

fn remote(url: &Url, backend: Result<StorageBackend>) -> Result<OpenedStore> {
    let backend = backend?;
    let root = Path::from_url_path(url.path()).map_err(|source| refused(url.as_str(), source.to_string()))?;
    Ok(OpenedStore { backend, root, url: url.as_str().trim_end_matches('/').to_string() })
}

/// Disables the retries of object_store. The retry module replaces them.
fn no_retries() -> RetryConfig {
    RetryConfig { max_retries: 0, ..RetryConfig::default() }
}

fn s3(url: &Url, settings: &StoreSettings) -> Result<StorageBackend> {
    let mut builder = AmazonS3Builder::from_env().with_url(url.as_str()).with_retry(no_retries());
    for (key, value) in &settings.options {
        let key: AmazonS3ConfigKey = key.to_lowercase().parse().map_err(|e| build_error(url, e))?;
        builder = builder.with_config(key, value);
    }
    builder = aws_profile::fill(builder).map_err(|why| refused(url.as_str(), why))?;
    let endpoint = builder.get_config_value(&AmazonS3ConfigKey::Endpoint);
    if endpoint.is_some_and(|endpoint| is_loopback_http(&endpoint)) {
        builder = builder.with_allow_http(true);
    }
    let builder = builder
        .with_config(AmazonS3ConfigKey::Client(ClientConfigKey::ConnectTimeout), CONNECT_TIMEOUT)
        .with_config(AmazonS3ConfigKey::Client(ClientConfigKey::Timeout), CLIENT_TIMEOUT);
    builder.build().map(StorageBackend::remote).map_err(|source| build_error(url, source))
}

fn gcs(url: &Url, settings: &StoreSettings) -> Result<StorageBackend> {
    let mut builder = GoogleCloudStorageBuilder::from_env().with_url(url.as_str()).with_retry(no_retries());
    for (key, value) in &settings.options {
        let key: GoogleConfigKey = key.to_lowercase().parse().map_err(|e| build_error(url, e))?;
        builder = builder.with_config(key, value);
    }
    let builder = builder
        .with_config(GoogleConfigKey::Client(ClientConfigKey::ConnectTimeout), CONNECT_TIMEOUT)
        .with_config(GoogleConfigKey::Client(ClientConfigKey::Timeout), CLIENT_TIMEOUT);
    builder.build().map(StorageBackend::remote).map_err(|source| build_error(url, source))
}

fn azure(url: &Url, settings: &StoreSettings) -> Result<StorageBackend> {
    let mut builder = MicrosoftAzureBuilder::from_env().with_url(url.as_str()).with_retry(no_retries());
    for (key, value) in &settings.options {
        let key: AzureConfigKey = key.to_lowercase().parse().map_err(|e| build_error(url, e))?;
        builder = builder.with_config(key, value);
    }
    let builder = builder
        .with_config(AzureConfigKey::Client(ClientConfigKey::ConnectTimeout), CONNECT_TIMEOUT)
        .with_config(AzureConfigKey::Client(ClientConfigKey::Timeout), CLIENT_TIMEOUT);
    builder.build().map(StorageBackend::remote).map_err(|source| build_error(url, source))
}

fn build_error(url: &Url, source: object_store::Error) -> Error {
    refused(url.as_str(), source.to_string())
}

/// True if an endpoint is plain HTTP on a loopback address. Requests to such an endpoint stay on this machine.
fn is_loopback_http(endpoint: &str) -> bool {
    let Ok(url) = Url::parse(endpoint) else { return false };
    let loopback = match url.host() {
        Some(url::Host::Domain(name)) => name == "localhost",
        Some(url::Host::Ipv4(address)) => address.is_loopback(),
        Some(url::Host::Ipv6(address)) => address.is_loopback(),
        None => false,
    };
    url.scheme() == "http" && loopback
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_in_a_url_is_rejected_and_not_echoed() {
        for url in [
            "s3://key:hunter2@bucket/x",
            "s3://key:wJalrXU/hunter2@bucket/x",
            "s3://key:12/hunter2@bucket/x",
            "az://c/x?sig=hunter2",
            "gs://b/x#hunter2",
            "ftp://user:hunter2/@host/x",
        ] {
            let Err(error) = open(url, &StoreSettings::default()) else { panic!("{url} was opened") };
            assert!(!error.to_string().contains("hunter2"), "{error}");
        }
    }

    #[test]
    fn an_unknown_scheme_error_lists_the_supported_ones() {
        let Err(error) = open("ftp://host/x", &StoreSettings::default()) else { panic!("opened") };
        assert!(error.to_string().contains("s3"), "{error}");
    }

    #[test]
    fn plain_http_is_allowed_only_on_loopback() {
        assert!(is_loopback_http("http://127.0.0.1:9000"));
        assert!(is_loopback_http("http://localhost:9000/"));
        assert!(is_loopback_http("http://[::1]:9000/"));
        assert!(!is_loopback_http("http://storage.example.org"));
        assert!(!is_loopback_http("http://localhost.example.org"));
    }

    #[test]
    fn a_missing_folder_can_be_opened() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new/run #1 100% ü");
        let opened = open(path.to_str().unwrap(), &StoreSettings::default()).unwrap();
        assert_eq!(opened.url, path.canonicalize().unwrap_or(path).to_str().unwrap());
    }
}
