/// The reason why an input cannot be found or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SourceError {
    /// A source names no file.
    #[error("{key} = {path:?}: {why}")]
    NoFiles {
        /// The key of the configuration.
        key: String,
        /// Its value.
        path: String,
        /// What was found.
        why: String,
    },
    /// An input file is not what it was when a part of it was prepared.
    #[error("{file} has changed since this preparation began; remove the work folder to start anew")]
    Changed {
        /// The file.
        file: String,
    },
    /// A setting of a source that only shows itself wrong here.
    #[error("{key}: {message}")]
    Setting {
        /// The key of the configuration.
        key: String,
        /// What was found and expected.
        message: String,
    },
    /// An input file cannot be read.
    #[error("cannot {operation} {path}")]
    Input {
        /// The file.
        path: String,
        /// What was tried.
        operation: &'static str,
        /// Why.
        source: std::io::Error,
    },
    /// An input file is damaged or its disk fails.
    #[error("{file}: cannot read on behind byte {at} of its text")]
    Stream {
        /// The file.
        file: String,
        /// Decompressed bytes that were read.
        at: u64,
        /// Why.
        source: std::io::Error,
    },
    /// A text is not UTF-8.
    #[error("{file}: byte {at} is not UTF-8")]
    NotUtf8 {
        /// The file.
        file: String,
        /// In the decompressed file, from 0.
        at: u64,
    },
    /// A file holds no text.
    #[error("{file} is not read as text: it looks like {found}")]
    NotText {
        /// The file.
        file: String,
        /// What it looks like, and what can be done about it.
        found: String,
    },
    /// A file is not of the format that its source says.
    #[error("{file}, byte {at}: expected {expected}")]
    Format {
        /// The file.
        file: String,
        /// In the decompressed file, from 0.
        at: u64,
        /// What should stand there.
        expected: String,
    },
    /// The store of an input could not do what was asked.
    #[error("cannot reach {url}")]
    Store {
        /// The input.
        url: String,
        /// Why.
        source: lambert_store::Error,
    },
}

impl SourceError {
    /// Whether the configuration is wrong (exit code 2), not the corpus or the machine (1).
    #[must_use]
    pub const fn is_usage(&self) -> bool {
        matches!(self, Self::NoFiles { .. } | Self::Setting { .. })
    }
}
