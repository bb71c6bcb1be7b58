//! Copying a checkpoint from one run's store to another's.

use bytes::Bytes;

use super::select::LARGEST_MANIFEST;
use super::{Manifest, read_manifest, read_object};
use crate::error::{Error, Result};
use crate::run::{MANIFEST, in_checkpoint};
use crate::store::Store;

/// Copies the checkpoint `checkpoint` of the run `from` into the run `to`, under the same name: every object is
/// checked against the manifest on the way, and the manifest comes last. Memory for the largest object is taken.
///
/// # Errors
/// [`Error::NotFound`] or [`Error::Damaged`] if the source is not sound, [`Error::Exists`] if `to` has another
/// checkpoint of that name; else what the stores say. A copy that failed can be made again.
pub fn copy(from: &Store, checkpoint: &str, to: &Store) -> Result<()> {
    let manifest = read_manifest(from, checkpoint)?;
    let name = in_checkpoint(checkpoint, MANIFEST);
    if to.head(&name)?.is_some() {
        return same(&manifest, to, &name);
    }
    for entry in &manifest.objects {
        let bytes = read_object(from, &manifest, &entry.path)?;
        to.put(&in_checkpoint(checkpoint, &entry.path), bytes)?;
    }
    let text: Bytes = from.get_at_most(&name, LARGEST_MANIFEST)?;
    if to.put_new(&name, text)? { Ok(()) } else { same(&manifest, to, &name) }
}

/// Objects of a checkpoint that exists are never touched, so this comes before any is written.
fn same(manifest: &Manifest, to: &Store, name: &str) -> Result<()> {
    let there = read_manifest(to, &manifest.name())?;
    if there == *manifest { Ok(()) } else { Err(Error::Exists { url: to.url_of(name) }) }
}
