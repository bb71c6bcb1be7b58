use lambert_store::shown;

/// Errors in finding and reading the inputs.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SourceError {
    /// A source has no files.
    #[error("{key} = {:?}: {reason}", shown(path))]
    NoFiles {
        /// Configuration key.
        key: String,
        /// Value of the key.
        path: String,
        /// Reason.
        reason: String,
    },
    /// An input file changed while the preparation job ran.
    #[error("{file} has changed since this preparation started; remove the work folder to start over")]
    Changed {
        /// File.
        file: String,
    },
    /// A source setting is invalid.
    #[error("{key}: {message}")]
    Setting {
        /// Configuration key.
        key: String,
        /// Problem and expected value.
        message: String,
    },
    /// An input file cannot be read.
    #[error("cannot {operation} {path}")]
    Input {
        /// File.
        path: String,
        /// Operation that failed.
        operation: &'static str,
        /// I/O error.
        source: std::io::Error,
    },
    /// An input file is damaged or its disk fails.
    #[error("{file}: cannot read past byte {offset} of its text")]
    Stream {
        /// File.
        file: String,
        /// Decompressed bytes read before the error.
        offset: u64,
        /// I/O error.
        source: std::io::Error,
    },
    /// A text is not UTF-8.
    #[error("{file}: invalid UTF-8 at byte {offset}; set the encoding of the source, or invalid = \"replace\"")]
    NotUtf8 {
        /// File.
        file: String,
        /// Byte offset in the decompressed file, or in the text of a Parquet row.
        offset: u64,
    },
    /// A file is not text.
    #[error("cannot read {file} as text: it looks like {found}")]
    NotText {
        /// File.
        file: String,
        /// Detected type, with advice.
        found: String,
    },
    /// A file does not match the format of its source.
    #[error("{file}, byte {offset}: expected {expected}")]
    Format {
        /// File.
        file: String,
        /// Byte offset in the decompressed file.
        offset: u64,
        /// Expected contents.
        expected: String,
    },
    /// The store of an input failed.
    #[error("cannot access {}", shown(url))]
    Store {
        /// Input URL.
        url: String,
        /// Store error.
        source: lambert_store::Error,
    },
}

impl SourceError {
    /// True if the configuration is invalid (exit code 2). False if the cause is the corpus or the machine (exit code
    /// 1).
    #[must_use]
    pub const fn is_usage(&self) -> bool {
        matches!(
            self,
            Self::NoFiles { .. } | Self::Setting { .. } | Self::Store { source: lambert_store::Error::Url { .. }, .. }
        )
    }
}
