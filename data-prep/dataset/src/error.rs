use std::path::PathBuf;

/// Why a dataset cannot be opened, read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DatasetError {
    /// The store could not do what was asked.
    #[error("cannot read dataset {url}")]
    Store {
        /// The dataset.
        url: String,
        /// Why.
        source: lambert_store::Error,
    },
    /// There is no manifest, so no dataset (a preparation writes it last).
    #[error("{url} is not a dataset: it has no manifest.json (a preparation writes it last)")]
    NoManifest {
        /// The folder or prefix.
        url: String,
    },
    /// The manifest is not what this program writes.
    #[error("{url}/manifest.json: {message}")]
    Manifest {
        /// The dataset.
        url: String,
        /// What was found and expected.
        message: String,
    },
    /// A file of the dataset is missing or has another size than the manifest says.
    #[error("{url}/{file}: expected {expected} bytes as the manifest says, found {}", found.map_or("no such file".to_owned(), |bytes| format!("{bytes} bytes")))]
    Size {
        /// The dataset.
        url: String,
        /// The file.
        file: String,
        /// Bytes in the manifest.
        expected: u64,
        /// Bytes found.
        found: Option<u64>,
    },
    /// A file of the dataset is not the one that was written.
    #[error("{url}/{file} is damaged: its sha256 is {found}, the manifest says {expected}")]
    Damaged {
        /// The dataset.
        url: String,
        /// The file.
        file: String,
        /// In the manifest.
        expected: String,
        /// Of the bytes found.
        found: String,
    },
    /// A shard does not hold what its manifest and this format say.
    #[error("{url}/{file}, row group {group}: {message}")]
    Content {
        /// The dataset.
        url: String,
        /// The shard.
        file: String,
        /// The row group in the shard, from 0.
        group: usize,
        /// What was found and expected.
        message: String,
    },
    /// The Parquet library failed.
    #[error("cannot {operation} {file}{}", group.map_or(String::new(), |group| format!(", row group {group}")))]
    Parquet {
        /// What was tried.
        operation: &'static str,
        /// The shard.
        file: String,
        /// The row group in it, from 0, if it is about one.
        group: Option<usize>,
        /// Why.
        source: parquet::errors::ParquetError,
    },
    /// A file could not be read or written.
    #[error("cannot {operation} {}", path.display())]
    Io {
        /// What was tried.
        operation: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The folder with copies of shards cannot be used.
    #[error("cannot {operation} {}, where copies of datasets are kept (cluster.dataset_cache)", folder.display())]
    Cache {
        /// What was tried.
        operation: &'static str,
        /// The folder.
        folder: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A sample cannot be a row.
    #[error("sample {row} of {file}: {message}")]
    Sample {
        /// The shard.
        file: String,
        /// The row, from 0.
        row: u64,
        /// What is wrong with it.
        message: String,
    },
}

impl DatasetError {
    /// Whether the disk with the copies of shards is full.
    pub(super) fn is_full_disk(&self) -> bool {
        matches!(self, Self::Cache { source, .. } if is_full(source))
    }
}

/// Whether a disk, or what this user may have of it, is full.
pub(super) fn is_full(error: &std::io::Error) -> bool {
    matches!(error.kind(), std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded)
}
