use std::path::PathBuf;

use crate::source::SourceError;
use lambert_dataset::DatasetError;
use lambert_dataset::tokenizer::TokenizerError;

/// Why a preparation stopped. Nothing that existed before was changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PrepError {
    /// An input cannot be found or read.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// The vocabulary cannot be used.
    #[error("cannot use vocabulary.file")]
    Vocabulary(#[from] TokenizerError),
    /// There is a dataset that this configuration did not make.
    #[error("{url} holds a dataset made from another corpus or configuration; remove it or choose another output.url")]
    Exists {
        /// The dataset.
        url: String,
    },
    /// The work folder belongs to something else.
    #[error("{} holds the work of another corpus or configuration; remove it to start anew", folder.display())]
    OtherWork {
        /// The work folder.
        folder: PathBuf,
    },
    /// Another process works in the work folder.
    #[error("another preparation is at work in {} ({}); wait for its end", folder.display(), what)]
    Busy {
        /// The work folder.
        folder: PathBuf,
        /// What it does there.
        what: String,
    },
    /// A setting that only shows itself wrong here.
    #[error("{key}: {message}")]
    Setting {
        /// The key of the configuration.
        key: String,
        /// What was found and expected.
        message: String,
    },
    /// Nothing came out of the corpus.
    #[error("the corpus is empty: no sentence in {files} file(s){}", rejected.as_deref().unwrap_or(""))]
    Empty {
        /// Files read.
        files: usize,
        /// What was left out, as text that goes on with the message.
        rejected: Option<String>,
    },
    /// The disk of the work folder is too small.
    #[error(
        "{}: about {} MB are needed here and {} MB are free; set output.work to a folder with more space, or \
         output.check_space = false to try all the same",
        folder.display(), needed / 1_000_000, free / 1_000_000
    )]
    Space {
        /// The work folder.
        folder: PathBuf,
        /// Bytes.
        needed: u64,
        /// Bytes.
        free: u64,
    },
    /// A file of the work folder or the output cannot be written or read.
    #[error("cannot {operation} {}", path.display())]
    Work {
        /// What was tried.
        operation: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A file of the work folder does not hold what was written.
    #[error("{} is damaged; remove the folder {} to start anew", path.display(), path.parent().unwrap_or(path).display())]
    Damaged {
        /// The file.
        path: PathBuf,
    },
    /// The dataset cannot be written.
    #[error("cannot write the dataset")]
    Dataset(#[from] DatasetError),
    /// The output store could not do what was asked.
    #[error("cannot reach {url}")]
    Store {
        /// The output.
        url: String,
        /// Why.
        source: lambert_store::Error,
    },
}

impl PrepError {
    /// Whether the command or its configuration is wrong (exit code 2), not the corpus or the machine (1).
    #[must_use]
    pub const fn is_usage(&self) -> bool {
        match self {
            Self::Source(error) => error.is_usage(),
            Self::Vocabulary(_) | Self::Exists { .. } | Self::OtherWork { .. } | Self::Setting { .. } => true,
            _ => false,
        }
    }
}
