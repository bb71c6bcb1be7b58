//! Objects of a listing.

use object_store::ObjectMeta;

/// A listed object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Object {
    /// Name relative to the listed store.
    pub path: String,
    /// Size in bytes.
    pub bytes: u64,
    /// ETag of the object, or its modification time if the store has no ETags. It changes when the object is replaced.
    pub tag: String,
    /// Modification time, milliseconds since the Unix epoch.
    pub modified: i64,
}

impl Object {
    pub(crate) fn new(path: String, meta: ObjectMeta) -> Self {
        let tag = meta.e_tag.unwrap_or_else(|| meta.last_modified.to_rfc3339());
        Self { path, bytes: meta.size, tag, modified: meta.last_modified.timestamp_millis() }
    }
}
