//! From a URL to a place in an object store.

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
use crate::retry::Patience;

/// Connecting takes milliseconds or does not work at all.
const CONNECT_TIMEOUT: &str = "5 s";

/// How to reach a store, beyond its URL.
#[derive(Debug, Clone, Default)]
pub struct Settings {
    /// How long to wait for a remote store.
    pub patience: Patience,
    /// object_store's own configuration keys (`aws_endpoint_url`, `google_service_account`, ...) with their values.
    /// They win over the environment. Secrets belong in the environment.
    pub options: Vec<(String, String)>,
}

/// Where the objects are.
pub(crate) enum Backend {
    /// A folder of this machine: written through to the disk, each name complete or absent.
    Local(LocalFileSystem),
    /// Anything else, with uploads in parts.
    Remote { objects: Arc<dyn ObjectStore>, parts: Arc<dyn MultipartStore>, in_memory: bool },
}

impl Backend {
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

/// What a URL leads to: the store, the prefix in it, and how to write the place in messages.
pub(crate) struct Opened {
    pub backend: Backend,
    pub root: Path,
    pub url: String,
}

pub(crate) fn open(url: &str, settings: &Settings) -> Result<Opened> {
    if !url.contains("://") {
        return local(FilePath::new(url), url);
    }
    let parsed = Url::parse(url).map_err(|source| refused(url, format!("not a URL: {source}")))?;
    if parsed.password().is_some() || parsed.query().is_some() || parsed.fragment().is_some() {
        let bare = format!("{}://{}{}", parsed.scheme(), parsed.host_str().unwrap_or(""), parsed.path());
        let why = "a password, a ? or a # in it; credentials belong in the environment".to_string();
        return Err(refused(&bare, why));
    }
    match parsed.scheme() {
        "file" => {
            let path = parsed.to_file_path().map_err(|()| refused(url, "not a path of this machine".into()))?;
            local(&path, url)
        }
        "memory" => memory(&parsed),
        "s3" | "s3a" => remote(&parsed, s3(&parsed, settings)),
        "gs" => remote(&parsed, gcs(&parsed, settings)),
        "az" | "abfs" | "abfss" => remote(&parsed, azure(&parsed, settings)),
        other => Err(refused(url, format!("unknown kind {other:?}; known are paths, file, memory, s3, gs and az"))),
    }
}

fn refused(url: &str, why: String) -> Error {
    Error::Url { url: url.to_string(), why: Cause::new(why).to_string() }
}

fn local(path: &FilePath, shown: &str) -> Result<Opened> {
    let resolved = resolve(path).map_err(|why| refused(shown, why))?;
    let url = resolved.to_str().ok_or_else(|| refused(shown, "the path is not UTF-8".into()))?.to_string();
    let root = Path::parse(url.trim_start_matches('/')).map_err(|source| refused(shown, source.to_string()))?;
    Ok(Opened {
        backend: Backend::Local(LocalFileSystem::new().with_fsync(true).with_automatic_cleanup(true)),
        root,
        url,
    })
}

/// The absolute path without symbolic links and `..`, whether or not its last parts exist yet.
fn resolve(path: &FilePath) -> Result<PathBuf, String> {
    let absolute = std::path::absolute(path).map_err(|source| source.to_string())?;
    let mut there = absolute.as_path();
    loop {
        if let Ok(found) = there.canonicalize() {
            let missing = absolute.strip_prefix(there).unwrap_or(FilePath::new(""));
            let plain = missing.components().all(|part| matches!(part, Component::Normal(_)));
            return plain
                .then(|| found.components().chain(missing.components()).collect())
                .ok_or_else(|| "it goes through a missing folder and ..".into());
        }
        there = there.parent().ok_or("no part of the path exists")?;
    }
}

/// Stores in memory are shared by name within the process, so that what one opening writes another finds.
fn memory(url: &Url) -> Result<Opened> {
    static STORES: OnceLock<Mutex<HashMap<String, Arc<InMemory>>>> = OnceLock::new();
    let name = url.host_str().unwrap_or("").to_string();
    let mut stores = STORES.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner);
    let store = stores.entry(name).or_default().clone();
    let backend = Backend::Remote { objects: store.clone(), parts: store, in_memory: true };
    remote(url, Ok(backend))
}

fn remote(url: &Url, backend: Result<Backend>) -> Result<Opened> {
    let backend = backend?;
    let root = Path::from_url_path(url.path()).map_err(|source| refused(url.as_str(), source.to_string()))?;
    Ok(Opened { backend, root, url: url.as_str().trim_end_matches('/').to_string() })
}

/// This crate retries by itself: see the retry module.
fn no_retries() -> RetryConfig {
    RetryConfig { max_retries: 0, ..RetryConfig::default() }
}

fn request_timeout(settings: &Settings) -> String {
    format!("{} ms", settings.patience.request.as_millis())
}

fn s3(url: &Url, settings: &Settings) -> Result<Backend> {
    let mut builder = AmazonS3Builder::from_env().with_url(url.as_str()).with_retry(no_retries());
    for (key, value) in &settings.options {
        let key: AmazonS3ConfigKey = key.to_lowercase().parse().map_err(|e| build_error(url, e))?;
        builder = builder.with_config(key, value);
    }
    builder = aws_profile::fill(builder).map_err(|why| refused(url.as_str(), why))?;
    let endpoint = builder.get_config_value(&AmazonS3ConfigKey::Endpoint);
    if endpoint.is_some_and(|endpoint| is_this_machine(&endpoint)) {
        builder = builder.with_allow_http(true);
    }
    let builder = builder
        .with_config(AmazonS3ConfigKey::Client(ClientConfigKey::ConnectTimeout), CONNECT_TIMEOUT)
        .with_config(AmazonS3ConfigKey::Client(ClientConfigKey::Timeout), request_timeout(settings));
    builder.build().map(Backend::remote).map_err(|source| build_error(url, source))
}

fn gcs(url: &Url, settings: &Settings) -> Result<Backend> {
    let mut builder = GoogleCloudStorageBuilder::from_env().with_url(url.as_str()).with_retry(no_retries());
    for (key, value) in &settings.options {
        let key: GoogleConfigKey = key.to_lowercase().parse().map_err(|e| build_error(url, e))?;
        builder = builder.with_config(key, value);
    }
    let builder = builder
        .with_config(GoogleConfigKey::Client(ClientConfigKey::ConnectTimeout), CONNECT_TIMEOUT)
        .with_config(GoogleConfigKey::Client(ClientConfigKey::Timeout), request_timeout(settings));
    builder.build().map(Backend::remote).map_err(|source| build_error(url, source))
}

fn azure(url: &Url, settings: &Settings) -> Result<Backend> {
    let mut builder = MicrosoftAzureBuilder::from_env().with_url(url.as_str()).with_retry(no_retries());
    for (key, value) in &settings.options {
        let key: AzureConfigKey = key.to_lowercase().parse().map_err(|e| build_error(url, e))?;
        builder = builder.with_config(key, value);
    }
    let builder = builder
        .with_config(AzureConfigKey::Client(ClientConfigKey::ConnectTimeout), CONNECT_TIMEOUT)
        .with_config(AzureConfigKey::Client(ClientConfigKey::Timeout), request_timeout(settings));
    builder.build().map(Backend::remote).map_err(|source| build_error(url, source))
}

fn build_error(url: &Url, source: object_store::Error) -> Error {
    refused(url.as_str(), source.to_string())
}

/// Whether an endpoint is a plain-HTTP server on this machine: no secret crosses a network to reach it.
fn is_this_machine(endpoint: &str) -> bool {
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
    fn a_password_in_a_url_is_refused_and_not_repeated() {
        for url in ["s3://key:hunter2@bucket/x", "az://c/x?sig=hunter2", "gs://b/x#hunter2"] {
            let Err(error) = open(url, &Settings::default()) else { panic!("{url} was opened") };
            assert!(!error.to_string().contains("hunter2"), "{error}");
        }
    }

    #[test]
    fn unknown_kinds_name_the_known_ones() {
        let Err(error) = open("ftp://host/x", &Settings::default()) else { panic!("opened") };
        assert!(error.to_string().contains("s3"), "{error}");
    }

    #[test]
    fn only_endpoints_on_this_machine_may_be_plain_http() {
        assert!(is_this_machine("http://127.0.0.1:9000"));
        assert!(is_this_machine("http://localhost:9000/"));
        assert!(is_this_machine("http://[::1]:9000/"));
        assert!(!is_this_machine("http://storage.example.org"));
        assert!(!is_this_machine("http://localhost.example.org"));
    }

    #[test]
    fn a_folder_that_is_not_there_yet_can_be_opened() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new/run #1 100% ü");
        let opened = open(path.to_str().unwrap(), &Settings::default()).unwrap();
        assert_eq!(opened.url, path.canonicalize().unwrap_or(path).to_str().unwrap());
    }
}
