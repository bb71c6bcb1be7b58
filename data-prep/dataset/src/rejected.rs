//! `rejected.json`: examples of what a preparation job rejected or repaired. The file is optional.

use serde::{Deserialize, Serialize};

/// File name.
pub const REJECTED: &str = "rejected.json";
/// Maximum size, bytes.
pub const MAX_REJECTED_BYTES: u64 = 16 << 20;

/// Rejected or repaired item of the corpus.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RejectedExample {
    /// Reason, which is a key of `rejected` in the manifest.
    pub reason: String,
    /// Input file.
    pub file: String,
    /// Position in the file: byte offset in the decompressed text, or row.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offset: Option<u64>,
    /// Index of the document in its file. Present for documents that were removed as duplicates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub document: Option<u32>,
    /// Title of the page, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// Start of the text. Empty if it is not known.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub text: String,
}
