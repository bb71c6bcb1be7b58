//! Reads and verifies the manifest and the objects of a checkpoint.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::block_hashes::{self, BlockHasher};
use super::tensors::{self, TensorValidator};
use super::{Manifest, ObjectEntry};
use crate::error::{Error, Result};
use crate::hash::Hasher;
use crate::run::{MANIFEST, WEIGHTS, checkpoint as path_of, in_checkpoint};
use crate::store::Store;

/// Maximum size of a manifest, bytes. A larger object cannot be a manifest.
pub(super) const MAX_MANIFEST_BYTES: u64 = 256 << 20;
/// Maximum number of objects that are read concurrently. A large run has many small objects, which wait for the store.
const PARALLEL: usize = 16;

/// A checkpoint whose objects were all read and verified. The value can be serialized and sent to other processes. Each
/// of them then either reads exactly the verified bytes or fails.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct VerifiedCheckpoint {
    /// The manifest.
    pub manifest: Manifest,
    /// Hashes of the blocks of each object, keyed by the name of the object within the checkpoint.
    hashes: BTreeMap<String, Vec<u64>>,
}

/// Reads the manifest of a checkpoint and verifies its checksum. Does not read the other objects.
///
/// # Errors
/// [`Error::NoCheckpoint`] if the checkpoint is not committed, [`Error::Damaged`] if the manifest is damaged or of an
/// unsupported format, or another store error.
pub fn read_manifest(run: &Store, checkpoint: &str) -> Result<Manifest> {
    let name = in_checkpoint(checkpoint, MANIFEST);
    let missing = || Error::NoCheckpoint { run: run.url().to_owned(), name: checkpoint.to_owned() };
    retry_if_damaged(run, || {
        let text = run.get_at_most(&name, MAX_MANIFEST_BYTES);
        let text = text.map_err(|error| if error.is_not_found() { missing() } else { error })?;
        Manifest::from_text(&text, &run.url_of(&name), checkpoint)
    })
}

/// Calls `look`. If an object in a remote store appears damaged, calls `look` once more and returns the second result.
/// (A network response can be wrong although the object is intact.)
fn retry_if_damaged<T>(run: &Store, mut look: impl FnMut() -> Result<T>) -> Result<T> {
    match look() {
        Err(error) if error.is_damaged() && !run.is_local() => {
            tracing::warn!("rereading after damage: {error}");
            look()
        }
        looked => looked,
    }
}

/// Reads all objects of a checkpoint and verifies sizes and checksums. Also checks that each safetensors object has a
/// valid header and only finite elements, because training can resume only from such objects.
///
/// # Errors
/// [`Error::NoCheckpoint`] or [`Error::Damaged`] if the checkpoint is not intact, or another store error.
pub fn verify(run: &Store, checkpoint: &str) -> Result<VerifiedCheckpoint> {
    verify_objects(run, checkpoint, read_manifest(run, checkpoint)?)
}

/// Like [`verify`], but reads only the weights. The result has no other objects.
///
/// # Errors
/// As for [`verify`].
pub fn verify_weights(run: &Store, checkpoint: &str) -> Result<VerifiedCheckpoint> {
    let mut manifest = read_manifest(run, checkpoint)?;
    manifest.objects.retain(|entry| entry.path == WEIGHTS);
    verify_objects(run, checkpoint, manifest)
}

fn verify_objects(run: &Store, checkpoint: &str, manifest: Manifest) -> Result<VerifiedCheckpoint> {
    run.report_expected(manifest.bytes());
    // Sizes are checked first, because one request lists them, and they find most damage.
    let sizes = sizes(run, checkpoint)?;
    for entry in &manifest.objects {
        let name = in_checkpoint(checkpoint, &entry.path);
        expect_size(run, &name, entry, sizes.get(&name).copied())?;
    }
    let hashes = Mutex::new(BTreeMap::new());
    let entries = Mutex::new(manifest.objects.iter());
    let next = || lock(&entries).next();
    let verify = || {
        while let Some(entry) = next() {
            let hash = retry_if_damaged(run, || check_content(run, checkpoint, entry))?;
            lock(&hashes).insert(entry.path.clone(), hash);
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..PARALLEL.min(manifest.objects.len())).map(|_| scope.spawn(verify)).collect();
        let mut ended = threads.into_iter().map(|thread| thread.join());
        ended.try_for_each(|read| read.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })?;
    let hashes = hashes.into_inner().unwrap_or_else(PoisonError::into_inner);
    Ok(VerifiedCheckpoint { manifest, hashes })
}

/// Sizes of the objects of a checkpoint in the store, by name.
fn sizes(run: &Store, checkpoint: &str) -> Result<BTreeMap<String, u64>> {
    let found = run.list(&path_of(checkpoint))?;
    Ok(found.into_iter().map(|object| (object.path, object.bytes)).collect())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reads one object of a checkpoint and verifies it against the manifest.
///
/// # Errors
/// [`Error::NotFound`] if the manifest does not list the object, [`Error::Damaged`] if the object is missing or was
/// changed, or another store error.
pub fn read_object(run: &Store, manifest: &Manifest, object: &str) -> Result<Bytes> {
    run.report_expected(manifest.object(object).map_or(0, |entry| entry.bytes));
    read_reported_object(run, manifest, object)
}

/// Like [`read_object`], for an object whose size the caller has reported as expected.
pub(super) fn read_reported_object(run: &Store, manifest: &Manifest, object: &str) -> Result<Bytes> {
    // The store confirms the size here, before memory of that size is allocated.
    let (name, entry) = checked_entry(run, manifest, object)?;
    retry_if_damaged(run, || {
        let (bytes, found) = run.get_hashed(&name, entry.bytes)?;
        check_sha256(run, &name, entry, found).map(|()| bytes)
    })
}

/// Receives an object in pieces.
pub trait ObjectSink {
    /// Discards all pieces received so far. Called each time before the object is sent from the beginning.
    fn restart(&mut self);
    /// Receives the next bytes.
    fn update(&mut self, piece: &[u8]);
}

/// Streams one object of a verified checkpoint to `sink`. The data is valid only if this function succeeds, because the
/// hash is compared after the last piece.
///
/// # Errors
/// As for [`read_object`].
pub fn stream_object(
    run: &Store,
    verified: &VerifiedCheckpoint,
    object: &str,
    sink: &mut impl ObjectSink,
) -> Result<()> {
    // The content was verified, so its size needs no request of its own.
    let (name, entry) = entry(run, &verified.manifest, object)?;
    run.report_expected(entry.bytes);
    retry_if_damaged(run, || {
        sink.restart();
        let mut hasher = BlockHasher::new();
        run.read_pieces_inline(&name, entry.bytes, |piece| {
            hasher.update(piece);
            sink.update(piece);
        })?;
        match verified.hashes.get(object) == Some(&hasher.finish()) {
            true => Ok(()),
            false => Err(changed_content(run, &name)),
        }
    })
}

/// Reads the byte range `range` of one object of a verified checkpoint. The range must start at a multiple of
/// [`BLOCK_BYTES`](super::BLOCK_BYTES), and must end at such a multiple or at the end of the object.
///
/// # Errors
/// As for [`read_object`].
pub fn read_blocks(run: &Store, verified: &VerifiedCheckpoint, object: &str, range: Range<u64>) -> Result<Bytes> {
    let (name, _) = entry(run, &verified.manifest, object)?;
    retry_if_damaged(run, || {
        let bytes = run.get_range(&name, range.clone())?;
        check_blocks(run, verified, object, &range, &bytes).map(|()| bytes)
    })
}

/// Compares `bytes`, the content of the byte range `range` of an object, with the verified content. The range is as for
/// [`read_blocks`].
///
/// # Errors
/// [`Error::Damaged`] if the bytes differ.
pub fn check_blocks(
    run: &Store,
    verified: &VerifiedCheckpoint,
    object: &str,
    range: &Range<u64>,
    bytes: &[u8],
) -> Result<()> {
    let expected = verified.hashes.get(object).and_then(|hashes| block_hashes::of_range(hashes, range));
    let mut hasher = BlockHasher::new();
    hasher.update(bytes);
    if expected == Some(&hasher.finish()[..]) {
        return Ok(());
    }
    Err(changed_content(run, &in_checkpoint(&verified.manifest.name(), object)))
}

fn changed_content(run: &Store, name: &str) -> Error {
    let (what, expected) = ("content", "the verified bytes".to_string());
    Error::Damaged { url: run.url_of(name), what, expected, found: "different bytes".to_string() }
}

/// Checks the size of an object and returns its name and its entry.
fn checked_entry<'a>(run: &Store, manifest: &'a Manifest, object: &str) -> Result<(String, &'a ObjectEntry)> {
    let (name, entry) = entry(run, manifest, object)?;
    expect_size(run, &name, entry, run.head(&name)?)?;
    Ok((name, entry))
}

/// Returns the name and the entry of an object.
fn entry<'a>(run: &Store, manifest: &'a Manifest, object: &str) -> Result<(String, &'a ObjectEntry)> {
    let name = in_checkpoint(&manifest.name(), object);
    let missing = || Error::NotFound { operation: "read", url: run.url_of(&name) };
    let entry = manifest.object(object).ok_or_else(missing)?;
    Ok((name, entry))
}

/// Compares the size of the object `name` in the store with its entry. `found` is `None` if there is no object.
fn expect_size(run: &Store, name: &str, entry: &ObjectEntry, found: Option<u64>) -> Result<()> {
    let found = match found {
        Some(bytes) if bytes == entry.bytes => return Ok(()),
        Some(bytes) => format!("{bytes} bytes"),
        None => "no object".to_string(),
    };
    let expected = format!("{} bytes", entry.bytes);
    Err(Error::Damaged { url: run.url_of(name), what: "size", expected, found })
}

/// Verifies the content of an object and returns the hashes of its blocks.
fn check_content(run: &Store, checkpoint: &str, entry: &ObjectEntry) -> Result<Vec<u64>> {
    let name = in_checkpoint(checkpoint, &entry.path);
    let (mut hasher, mut blocks) = (Hasher::new(), BlockHasher::new());
    let mut inspector = entry.path.ends_with(tensors::SUFFIX).then(|| TensorValidator::new(entry.bytes));
    run.read_pieces(&name, entry.bytes, |piece| {
        hasher.update(piece);
        blocks.update(piece);
        inspector.iter_mut().for_each(|inspector| inspector.update(piece));
    })?;
    check_sha256(run, &name, entry, hasher.finish())?;
    // The checksum matches. Now check that the tensors are usable, too.
    let problem = inspector.and_then(TensorValidator::finish);
    let expected = "valid safetensors with finite elements".to_string();
    problem.map_or(Ok(blocks.finish()), |found| {
        Err(Error::Damaged { url: run.url_of(&name), what: "content", expected, found: found.to_string() })
    })
}

fn check_sha256(run: &Store, name: &str, entry: &ObjectEntry, found: String) -> Result<()> {
    if found == entry.sha256 {
        return Ok(());
    }
    Err(Error::Damaged { url: run.url_of(name), what: "sha256", expected: entry.sha256.clone(), found })
}
