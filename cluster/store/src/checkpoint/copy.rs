//! Copies a checkpoint between runs, and writes one that no run trained.

use bytes::Bytes;

use super::objects::{MAX_MANIFEST_BYTES, read_reported_object};
use super::{Manifest, ObjectEntry, read_manifest};
use crate::error::{Error, Result};
use crate::hash;
use crate::run::{MANIFEST, WEIGHTS, in_checkpoint};
use crate::store::Store;

/// Copies a checkpoint of run `from` to run `to` under the same name. Verifies every object against the manifest, and
/// writes the manifest last. Keeps only one object in memory at a time.
///
/// # Errors
/// [`Error::NoCheckpoint`] or [`Error::Damaged`] if the source is not intact, [`Error::Exists`] if `to` has a different
/// checkpoint with this name, or another store error. A failed copy can be repeated.
pub fn copy(from: &Store, checkpoint: &str, to: &Store) -> Result<()> {
    let manifest = read_manifest(from, checkpoint)?;
    let name = in_checkpoint(checkpoint, MANIFEST);
    if to.head(&name)?.is_some() {
        return check_identical(&manifest, to, &name);
    }
    from.report_expected(manifest.bytes());
    to.report_expected(manifest.bytes());
    for entry in &manifest.objects {
        let bytes = read_reported_object(from, &manifest, &entry.path)?;
        to.put(&in_checkpoint(checkpoint, &entry.path), bytes)?;
    }
    let text: Bytes = from.get_at_most(&name, MAX_MANIFEST_BYTES)?;
    if to.put_new(&name, text)? { Ok(()) } else { check_identical(&manifest, to, &name) }
}

/// Copies the weights of a checkpoint of run `from` to run `to` under the same name, without the moments of the optimizer.
///
/// # Errors
/// As those of [`copy`].
pub fn copy_weights(from: &Store, checkpoint: &str, to: &Store) -> Result<()> {
    let mut manifest = read_manifest(from, checkpoint)?;
    manifest.objects.retain(|entry| entry.path == WEIGHTS);
    from.report_expected(manifest.bytes());
    to.report_expected(manifest.bytes());
    let weights = read_reported_object(from, &manifest, WEIGHTS)?;
    to.put(&in_checkpoint(checkpoint, WEIGHTS), weights)?;
    put_manifest(&manifest, to)
}

/// Writes a checkpoint of a run that no process trains: its objects, then `manifest`, to which it adds the entries of the
/// objects.
///
/// # Errors
/// [`Error::Exists`] if `to` has a different checkpoint with this name, or another store error. A failed call can be repeated.
pub fn write_single(to: &Store, mut manifest: Manifest, objects: Vec<(String, Bytes)>) -> Result<()> {
    to.report_expected(objects.iter().map(|(_, bytes)| bytes.len() as u64).sum());
    for (path, bytes) in &objects {
        let (bytes, sha256) = (bytes.len() as u64, hash::sha256(bytes));
        manifest.objects.push(ObjectEntry { path: path.clone(), bytes, sha256, slices: Vec::new() });
    }
    let checkpoint = manifest.name();
    let name = in_checkpoint(&checkpoint, MANIFEST);
    if to.head(&name)?.is_some() {
        return check_identical(&manifest, to, &name);
    }
    for (path, bytes) in objects {
        to.put(&in_checkpoint(&checkpoint, &path), bytes)?;
    }
    put_manifest(&manifest, to)
}

/// Commits a checkpoint by creating its manifest.
pub(super) fn put_manifest(manifest: &Manifest, to: &Store) -> Result<()> {
    let name = in_checkpoint(&manifest.name(), MANIFEST);
    let text = manifest
        .to_text()
        .map_err(|error| Error::Refused { url: to.url_of(&name), why: format!("it cannot be serialized: {error}") })?;
    if to.put_new(&name, Bytes::from(text))? { Ok(()) } else { check_identical(manifest, to, &name) }
}

/// Fails unless the manifest `name` in `to` equals `manifest`. An existing checkpoint is checked before any object is
/// written, because the objects of a committed checkpoint are immutable.
pub(super) fn check_identical(manifest: &Manifest, to: &Store, name: &str) -> Result<()> {
    let existing = read_manifest(to, &manifest.name())?;
    if existing == *manifest { Ok(()) } else { Err(Error::Exists { url: to.url_of(name) }) }
}
