use std::path::PathBuf;

use crate::source::SourceError;
use lambert_dataset::DatasetError;
use lambert_dataset::tokenizer::TokenizerError;
use lambert_store::shown;

/// Failure of a preparation job. Existing datasets are unchanged.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PrepError {
    /// An input cannot be found or read.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// The vocabulary is unusable.
    #[error("cannot load vocabulary.file")]
    Vocabulary(#[from] TokenizerError),
    /// The vocabulary cannot be extended.
    #[error("cannot extend the vocabulary")]
    Extended(#[source] TokenizerError),
    /// The output URL already contains a dataset of another job.
    #[error("{url} holds a dataset of another corpus or configuration; remove it or choose another output.url")]
    DatasetExists {
        /// Dataset URL.
        url: String,
    },
    /// The work folder belongs to another job.
    #[error("work folder {} belongs to another {difference}; set output.work to another folder, or remove this one to start over", folder.display())]
    ForeignWorkFolder {
        /// Work folder.
        folder: PathBuf,
        /// Difference between the jobs.
        difference: &'static str,
    },
    /// Another process holds the lock of the work folder.
    #[error("another preparation is running in {} ({}); wait until it has finished", folder.display(), part)]
    FolderInUse {
        /// Work folder.
        folder: PathBuf,
        /// Part that the other process works on.
        part: String,
    },
    /// A setting is invalid for this corpus or machine.
    #[error("{key}: {message}")]
    InvalidSetting {
        /// Configuration key.
        key: String,
        /// Problem and expected value.
        message: String,
    },
    /// The corpus has no usable document.
    #[error("the corpus is empty: no sentence in {files} file{}{}", if *files == 1 { "" } else { "s" }, rejected.as_deref().unwrap_or(""))]
    EmptyCorpus {
        /// Number of files read.
        files: usize,
        /// Number of skipped items by reason, as text that continues the message.
        rejected: Option<String>,
    },
    /// The disk of the work folder has too little free space.
    #[error(
        "{}: not enough disk space: about {} MB needed, {} MB free; set output.work to a folder with more space, or \
         output.check_space = false to skip this check",
        folder.display(), needed.div_ceil(1_000_000), free / 1_000_000
    )]
    DiskSpace {
        /// Work folder.
        folder: PathBuf,
        /// Required space, bytes.
        needed: u64,
        /// Free space, bytes.
        free: u64,
    },
    /// A file of the work folder or the output cannot be read or written.
    #[error("cannot {operation} {}", path.display())]
    WorkIo {
        /// Operation that failed.
        operation: &'static str,
        /// File or folder.
        path: PathBuf,
        /// I/O error.
        source: std::io::Error,
    },
    /// A file of the work folder is corrupt.
    #[error("{} is corrupt; remove the folder {} to start over", path.display(), path.parent().unwrap_or(path).display())]
    DamagedWorkFile {
        /// Corrupt file.
        path: PathBuf,
    },
    /// The dataset cannot be written.
    #[error("cannot write the dataset")]
    Dataset(#[from] DatasetError),
    /// The output store failed.
    #[error("cannot access {}", shown(url))]
    Store {
        /// Output URL.
        url: String,
        /// Store error.
        source: lambert_store::Error,
    },
}

impl PrepError {
    /// True if the command or its configuration is invalid (exit code 2). False if the cause is the corpus or the
    /// machine (exit code 1).
    #[must_use]
    pub const fn is_usage(&self) -> bool {
        match self {
            Self::Source(error) => error.is_usage(),
            Self::Vocabulary(_)
            | Self::DatasetExists { .. }
            | Self::ForeignWorkFolder { .. }
            | Self::InvalidSetting { .. }
            | Self::Store { source: lambert_store::Error::Url { .. }, .. } => true,
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression test: `about 4 MB needed, 4 MB free`.
    #[test]
    fn needed_and_free_space_differ() {
        let error = PrepError::DiskSpace { folder: "w".into(), needed: 4_000_001, free: 4_000_000 };
        assert!(error.to_string().contains("about 5 MB needed, 4 MB free"), "{error}");
    }
}
