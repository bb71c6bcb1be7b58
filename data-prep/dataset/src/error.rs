use std::path::PathBuf;

use lambert_store::shown;

use super::ranges::CHECKSUMS;

/// Error of opening, reading or writing a dataset.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DatasetError {
    /// A store operation failed.
    #[error("cannot read dataset {}", shown(url))]
    Store {
        /// Dataset.
        url: String,
        /// Cause.
        source: lambert_store::Error,
    },
    /// The vocabulary is not valid.
    #[error(transparent)]
    Vocabulary(#[from] crate::tokenizer::TokenizerError),
    /// The manifest is missing, so this is not a complete dataset. A preparation job writes the manifest last.
    #[error("{url} is not a dataset: manifest.json not found (a preparation writes it last)")]
    NoManifest {
        /// Directory or URL prefix.
        url: String,
    },
    /// The manifest is invalid.
    #[error("{url}/manifest.json: {message}")]
    Manifest {
        /// Dataset.
        url: String,
        /// Problem and expectation.
        message: String,
    },
    /// `rejected.json` is damaged.
    #[error("{file} is damaged: expected the examples that a preparation writes, found {source}")]
    Rejected {
        /// File.
        file: String,
        /// Cause.
        source: serde_json::Error,
    },
    /// `checksums.json` is damaged or belongs to another dataset.
    #[error(
        "{file} does not belong to the dataset beside it: {message}; delete this file, and whole shards are verified instead of row groups"
    )]
    Checksums {
        /// File.
        file: String,
        /// Problem.
        message: String,
    },
    /// `token-counts.json` is damaged or belongs to another dataset.
    #[error(
        "{file} does not belong to the dataset beside it: {message}; copy the file again, or delete the dataset and prepare it again"
    )]
    TokenCounts {
        /// File.
        file: String,
        /// Problem.
        message: String,
    },
    /// Masks by frequency need `token-counts.json`.
    #[error(
        "{file} is missing; masks by frequency need it; datasets of earlier versions do not have it: delete this one and prepare it again"
    )]
    NoTokenCounts {
        /// File.
        file: String,
    },
    /// A file is missing, or its size differs from the size in the manifest.
    #[error("{url}/{file}: expected {expected} bytes according to the manifest, found {}", found.map_or("no such file".to_owned(), |bytes| format!("{bytes} bytes")))]
    Size {
        /// Dataset.
        url: String,
        /// File.
        file: String,
        /// Size in the manifest, bytes.
        expected: u64,
        /// Actual size, bytes, or `None` if the file is missing.
        found: Option<u64>,
    },
    /// The checksum of a file, or of a byte range of it, differs from the checksum in the manifest.
    #[error(
        "{url}/{file} is damaged: sha256{} is {found}, expected {expected} according to {}",
        range.as_ref().map_or(String::new(), |range| format!(" of bytes {} to {}", range.start, range.end.saturating_sub(1))),
        if range.is_some() { CHECKSUMS } else { "the manifest" }
    )]
    Damaged {
        /// Dataset.
        url: String,
        /// File.
        file: String,
        /// Byte range of the file, or `None` for the whole file.
        range: Option<std::ops::Range<u64>>,
        /// Checksum in the manifest.
        expected: String,
        /// Checksum of the file.
        found: String,
    },
    /// The content of a shard violates the manifest or the format.
    #[error("{url}/{file}, row group {group}: {message}")]
    Content {
        /// Dataset.
        url: String,
        /// Shard.
        file: String,
        /// Row group in the shard, from 0.
        group: usize,
        /// Problem and expectation.
        message: String,
    },
    /// The Parquet library returned an error.
    #[error("cannot {operation} {file}{}", group.map_or(String::new(), |group| format!(", row group {group}")))]
    Parquet {
        /// Operation.
        operation: &'static str,
        /// Shard.
        file: String,
        /// Row group in the shard, from 0, if the error concerns a row group.
        group: Option<usize>,
        /// Cause.
        source: parquet::errors::ParquetError,
    },
    /// A file operation failed.
    #[error("cannot {operation} {}", path.display())]
    Io {
        /// Operation.
        operation: &'static str,
        /// File.
        path: PathBuf,
        /// Cause.
        source: std::io::Error,
    },
    /// The local cache cannot be used.
    #[error("cannot {operation} {}, where copies of datasets are kept (cluster.dataset_cache)", folder.display())]
    Cache {
        /// Operation.
        operation: &'static str,
        /// Directory.
        folder: PathBuf,
        /// Cause.
        source: std::io::Error,
    },
    /// A sample is invalid.
    #[error("sample {row} of {file}: {message}")]
    Sample {
        /// Shard.
        file: String,
        /// Row, from 0.
        row: u64,
        /// Problem of the sample.
        message: String,
    },
}

impl DatasetError {
    /// True if the disk of the local cache is full.
    pub(super) fn is_full_disk(&self) -> bool {
        matches!(self, Self::Cache { source, .. } if is_full(source))
    }
}

/// True if the disk is full or the quota of the user is exhausted.
pub(super) fn is_full(error: &std::io::Error) -> bool {
    matches!(error.kind(), std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded)
}

#[cfg(test)]
mod tests {
    use crate::Dataset;

    #[test]
    fn credentials_in_a_url_are_not_echoed() {
        for url in ["az://c/data?sv=1&sig=hunter2", "s3://key:hunter2@bucket/x", "s3://key:wJalrXU/hunter2@bucket/x"] {
            let Err(error) = Dataset::open(url) else { panic!("{url} was opened") };
            let message = lambert_store::error::chain(&error);
            assert!(message.starts_with("cannot read dataset ") && !message.contains("hunter2"), "{message}");
        }
    }
}
